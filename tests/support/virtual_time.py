"""Event loops whose clock jumps to whatever is waited for: minutes of waiting pass in no time, and always alike."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("nothing is left that could ever happen")
        self.now += max(timeout, 0.0)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def simulated(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on a clock that starts at 0; nothing in it may wait for the real world."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)


def now() -> float:
    """The time on the clock, in seconds."""
    return asyncio.get_running_loop().time()
