"""The weights of a TRL trainer on their way to the generators of a rollout service."""

import functools
import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from gymhost.rollout.generators.weights import write_folder

__all__ = ["Desk", "Policy", "on_main", "refuse_colocated"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KEPT = "GymhostService"
"""Where the trainer's state, which goes into its checkpoints, tells of the run."""


class Desk(Protocol):
    """What is asked of a service, without an event loop."""

    def policy_version(self) -> int:
        """The version of the weights that the generators have."""
        ...

    def generators(self) -> list[str]:
        """Where the generators are."""
        ...

    def announce(self, version: int, weights: Path | None) -> None:
        """Has the generators load a folder, or takes in that they have new weights already."""
        ...

    def give_up(self, run: str) -> None:
        """Cancels what goes on for a run."""
        ...


class Policy:
    """Sees to it that the generators of a service have the weights of a trainer's present step.

    Versions of a service never go down, and trainers do: to step 0 with each run, to that of a checkpoint when they are
    started again. So the version of a step is the step and a number, which is chosen when a run begins and kept in its
    checkpoints. A trainer that goes on from where it was finds its weights announced, and its jobs by the same keys.
    One that goes on from further back chooses another number: what it left behind was of weights that are no more, and
    is cancelled.

    Args:
        desk: Asks the service.
        folder: Where weights are written; without one it is `weights` in the trainer's `output_dir`.
    """

    def __init__(self, desk: Desk, folder: Path | None) -> None:
        self._desk = desk
        self._folder = folder
        self._runs: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
        self._tidied: set[str] = set()

    def hand_over(self, trainer: Any) -> str:
        """Has the generators take the trainer's weights if they have others, and returns what these are called.

        With several ranks each of them has to come here.

        Args:
            trainer: A `GRPOTrainer`.

        Raises:
            ValueError: The trainer is set up in a way that goes with no service.
            Error: The service, or a generator, did not take the weights.
            OSError: They could not be written.
        """
        own_server = _prepare(trainer)
        run, step = self._run_of(trainer), trainer.state.global_step
        version, changed = on_main(trainer.accelerator, lambda: self._choose(run, step))
        run["base"] = version - step
        if changed:
            folder = None if own_server else self._write(trainer, version)
            on_main(trainer.accelerator, lambda: self._announce(trainer, version, folder))
        return f"{run['run']}/{version}"

    def _run_of(self, trainer: Any) -> dict[str, Any]:
        """The run, as the trainer's state has it: it is another one in each training, unless that is resumed."""
        kept = trainer.state.stateful_callbacks
        if _KEPT not in kept:
            run = self._runs.get(trainer)
            if run is None:
                run = {"run": on_main(trainer.accelerator, lambda: uuid.uuid4().hex), "base": None}
            # In the shape in which callbacks leave what they want to keep.
            kept[_KEPT] = {"args": {}, "attributes": run}
        self._runs[trainer] = kept[_KEPT]["attributes"]
        return self._runs[trainer]

    def _choose(self, run: dict[str, Any], step: int) -> tuple[int, bool]:
        """The version of a step, and whether the generators have another one."""
        present, base = self._desk.policy_version(), run["base"]
        version = present + 1 if base is None else base + step
        if version == present:
            return version, False
        if version < present:
            logger.warning(
                "the service has weights of version %d, and step %d of this training was %d: from here on it is %d",
                present,
                step,
                version,
                present + 1,
            )
            version = present + 1
        if run["run"] not in self._tidied:  # what is still being played was left behind by an earlier life
            self._desk.give_up(run["run"])
            self._tidied.add(run["run"])
        return version, True

    def _write(self, trainer: Any, version: int) -> Path | None:
        """Writes the weights on the main rank; where they are sharded all ranks give their part."""
        main = trainer.accelerator.is_main_process
        weights: dict[str, Any] = {}
        for name, parameter in _parameters(trainer):
            if main:
                weights[name] = parameter.detach().to("cpu", copy=True)
        if not main:
            return None
        folder = (self._folder or Path(trainer.args.output_dir) / "weights").absolute() / f"version-{version}"
        write_folder(weights, folder)
        return folder

    def _announce(self, trainer: Any, version: int, folder: Path | None) -> None:
        if folder is None and len(urls := self._desk.generators()) > 1:
            raise ValueError(
                f"TRL sends weights to one vLLM server, and the service samples with {', '.join(urls)}: leave use_vllm"
                " out of the GRPOConfig, so that weights reach them all through a folder (weights=)"
            )
        self._desk.announce(version, folder)
        if folder is not None:
            for other in folder.parent.glob("version-*"):
                if other != folder:
                    shutil.rmtree(other, ignore_errors=True)


def on_main(accelerator: Any, act: Callable[[], T]) -> T:
    """Returns on each rank what an act of the main rank returns, or raises what it raises.

    Args:
        accelerator: The trainer's.
        act: What is done, and returns what can be sent to other ranks.

    Raises:
        RuntimeError: On the other ranks, if it fails on the main rank.
    """
    if accelerator.num_processes == 1:
        return act()
    from accelerate import utils

    said: list[Any] = [None, None]
    failed: Exception | None = None
    if accelerator.is_main_process:
        try:
            said[0] = act()
        except Exception as error:  # noqa: BLE001 - it is raised below, once the others know
            failed, said[1] = error, f"{type(error).__name__}: {error}"
    cast("Any", utils).broadcast_object_list(said)
    if failed is not None:
        raise failed
    if said[1] is not None:
        raise RuntimeError(f"the main rank failed: {said[1]}")
    return said[0]


def refuse_colocated() -> NoReturn:
    """Refuses a trainer with a vLLM of its own.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        "with service= the service's generators sample, and a vLLM in the trainer has nothing to do: leave use_vllm out"
        " of the GRPOConfig"
    )


def _prepare(trainer: Any) -> bool:
    """Sets a trainer up for what others sample; returns whether it sends its weights to a vLLM server itself."""
    ours: Any = getattr(trainer, "vllm_generation", None)
    if trainer.use_vllm and not isinstance(ours, _walk_class()):
        if trainer.vllm_mode != "server":
            refuse_colocated()
        if trainer.state.global_step != trainer._last_loaded_step:
            ours.sync_weights()
            trainer._last_loaded_step = trainer.state.global_step
        return True
    if ours is None:
        trainer.vllm_generation = _walk_class()(
            trainer.model, trainer.accelerator, trainer.processing_class, mode="server"
        )
        # It is vLLM that samples, if elsewhere. So TRL is to correct for what that computes in another way.
        trainer.use_vllm, trainer._last_loaded_step = True, -1
    return False


def _parameters(trainer: Any) -> Iterator[tuple[str, Any]]:
    """The parameters, one after the other, as vLLM names them; each rank has to take them all."""
    return trainer.vllm_generation._iter_named_params()


@functools.cache
def _walk_class() -> type[Any]:
    """The class of TRL that knows how to gather the weights of any trainer, without a vLLM of its own."""
    from trl.generation.vllm_generation import VLLMGeneration

    class Walk(VLLMGeneration):
        def _init_vllm(self) -> None:
            """Starts and connects nothing."""

        def sync_weights(self) -> None:
            """Does nothing: TRL calls it before it asks for rollouts, and these see to it themselves."""

    return Walk
