"""Where rollouts pass before each generation: it can be shut, and it counts."""

import asyncio

__all__ = ["Turnstile"]


class Turnstile:
    """Shut, it holds back whoever comes to it; generations that have begun go on.

    Attributes:
        shut: Whether it is shut.
        generating: How many generations are in flight; kept by who passes.
        tokens: How many tokens were sampled since the beginning; kept by who passes.
    """

    def __init__(self) -> None:
        self.shut = False
        self.generating = 0
        self.tokens = 0
        self._opened = asyncio.Event()

    def close(self) -> None:
        """Shuts it."""
        self.shut = True
        self._opened.clear()

    def open(self) -> None:
        """Opens it, and lets everyone through who waits."""
        self.shut = False
        self._opened.set()

    async def passed(self, scope: asyncio.Timeout) -> None:
        """Waits until it is open, and moves the end of `scope` by as long as that took."""
        while self.shut:
            loop = asyncio.get_running_loop()
            asked, until = loop.time(), scope.when()
            scope.reschedule(None)
            await self._opened.wait()
            if until is not None:
                scope.reschedule(until + loop.time() - asked)
