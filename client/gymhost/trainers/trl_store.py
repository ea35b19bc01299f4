"""Where a trainer keeps its rollouts."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from gymhost.rollout import Store, Trajectory
from gymhost.trainers.trl_generation import tokenizer_of

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)


class Keeper:
    """Appends every batch to a folder; with several ranks each of them has one of its own in it.

    Args:
        path: The folder. One that is there already is gone on with.
        environments: What the environments are called.
    """

    def __init__(self, path: Path, environments: Sequence[str]) -> None:
        self._path = path
        self._environments = list(environments)
        self._store: Store | None = None

    def keep(self, trajectories: Sequence[Trajectory], trainer: Any) -> None:
        """Keeps a batch; if that fails, the log says so, and the training goes on."""
        if self._store is None:
            accelerator, path = trainer.accelerator, self._path
            if accelerator.num_processes > 1:
                path = path / f"rank-{accelerator.process_index}"
            self._store = _store(path, {"environments": self._environments, "output_dir": trainer.args.output_dir})
        try:
            for trajectory in trajectories:
                self._store.append(trajectory, tokenizer_of(trainer))
        except OSError as error:
            logger.warning("rollouts of step %d could not be kept: %s", trainer.state.global_step, error)


_stores: WeakValueDictionary[Path, Store] = WeakValueDictionary()
"""Those that are open: nobody closes them, and a second training in this process may go on where the first ended."""


def _store(path: Path, settings: dict[str, Any]) -> Store:
    path = path.resolve()
    store = _stores.get(path)
    if store is None:
        if path.is_dir() and any(path.iterdir()):
            store = Store.open(path, writing=True)
        else:
            store = Store.create(path, settings)
        _stores[path] = store
    return store
