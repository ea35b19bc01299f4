"""Runs an environment's coroutines to completion for callers that are not asynchronous."""

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits for anything, without an event loop.

    Raises:
        RuntimeError: It did wait.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise RuntimeError(
        "a tool, rubric or hook that is not `async def` returned an awaitable that waits: mark it `async def`"
    )


class LocalLoop:
    """An event loop of an environment's own, so that what its coroutines open lives on from call to call."""

    def __init__(self, owner: object) -> None:
        """Makes a loop that is closed with `close`, or when its owner is collected."""
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._thread: ThreadPoolExecutor | None = None
        self._finalizer = weakref.finalize(owner, self._dispose)
        self._finalizer.atexit = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to completion; inside a running event loop, as in a notebook, on a helper thread."""
        return self._outside_loops(self._runner.run, coroutine)

    def __deepcopy__(self, memo: object) -> None:
        """Leaves a copy of its owner without one: it makes its own when it needs it."""

    def close(self) -> None:
        """Ends the loop and its thread."""
        self._finalizer()

    def _dispose(self) -> None:
        self._outside_loops(self._runner.close)
        if self._thread is not None:
            self._thread.shutdown()

    def _outside_loops(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if not _inside_a_loop():
            return function(*arguments)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="gymhost-env")
        return self._thread.submit(function, *arguments).result()


def _inside_a_loop() -> bool:
    # A function of its own: what is called where there is no loop must not raise "during handling" of that.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
