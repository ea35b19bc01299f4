"""An event loop on a thread of its own, for callers that have none."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

__all__ = ["LoopThread"]

T = TypeVar("T")

_CLEANUP_SECONDS = 30.0


class LoopThread:
    """Runs coroutines for synchronous callers.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            while not self._closing:
                # They end the loop besides reaching whoever waits; everyone else still needs it.
                with contextlib.suppress(KeyboardInterrupt, SystemExit):
                    runner.get_loop().run_forever()

    @property
    def current(self) -> bool:
        """Whether the caller is on this thread."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end; if the wait is interrupted (Ctrl-C), cancels it and lets it clean up."""
        if self.current:
            coroutine.close()
            raise RuntimeError("a coroutine can await this; call the async method instead")
        done = threading.Event()
        tasks: list[asyncio.Task[Any]] = []

        async def body() -> T:
            tasks.extend(filter(None, [asyncio.current_task()]))
            try:
                return await coroutine
            finally:
                done.set()

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # the interrupt came before it began, or before it was even submitted
                coroutine.close()
                done.set()

        try:
            return asyncio.run_coroutine_threadsafe(body(), self._loop).result()
        except BaseException:
            if not done.is_set():
                # A turn of the loop later: what was submitted has begun by then.
                self._loop.call_soon_threadsafe(self._loop.call_soon, cancel)
                done.wait(_CLEANUP_SECONDS)
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yields what an asynchronous generator yields, one when one is asked for; leaving early closes it."""

        async def following() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        try:
            while (item := self.run(following())) is not None:
                yield item[0]
        finally:
            if self._thread.is_alive() and not self.current:
                self.run(items.aclose())

    def call(self, function: Callable[[], T]) -> T:
        """Calls a function in the loop."""

        async def body() -> T:
            return function()

        return self.run(body())

    def close(self) -> None:
        """Stops the loop and waits for the thread."""
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLEANUP_SECONDS)
