"""Randomness of an environment's own for code that draws from the generators that all of a process share."""

import contextlib
import random
import threading
from collections.abc import Generator

import numpy as np

__all__ = ["OwnRandom"]

# Seconds that the code of other environments may take the generators for.
_PATIENCE = 30.0

_taken = threading.Lock()


class OwnRandom:
    """A state of the generators of `random` and of `numpy.random`, which goes on from use to use.

    Code that draws from them, or seeds them, then neither disturbs others that do the same in this way nor is disturbed
    by them, whatever threads they are on. A copy of it goes on from the same state.

    Args:
        seed: What both are seeded with; None for something new each time.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed).get_state(legacy=False)

    @contextlib.contextmanager
    def active(self) -> Generator[None]:
        """Puts the state into the shared generators, for the time of a `with` block, which is to be short.

        Raises:
            TimeoutError: Others had them for 30 s.
        """
        if not _taken.acquire(timeout=_PATIENCE):
            raise TimeoutError(
                f"another environment of this process has taken more than {_PATIENCE:g} s for a step in which it draws "
                "from the random generators that all share: environments as slow as that are to be registered with "
                "isolation='process' (kind:name?isolation=process)"
            )
        python, numpy = random.getstate(), np.random.get_state(legacy=False)
        try:
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)
            random.setstate(python)
            np.random.set_state(numpy)
            _taken.release()
