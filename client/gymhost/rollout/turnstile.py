"""Where rollouts pass before each generation: it can be shut, for all or for one, and it counts."""

import asyncio

__all__ = ["Gate", "Turnstile", "passed"]


class Gate:
    """Shut, it holds back whoever comes to it; who has passed goes on.

    Attributes:
        shut: Whether it is shut.
    """

    def __init__(self) -> None:
        self.shut = False
        self._opened = asyncio.Event()

    def close(self) -> None:
        """Shuts it."""
        self.shut = True
        self._opened.clear()

    def open(self) -> None:
        """Opens it, and lets everyone through who waits."""
        self.shut = False
        self._opened.set()

    async def opened(self) -> None:
        """Waits until it is opened."""
        await self._opened.wait()


class Turnstile(Gate):
    """The gate of all rollouts of an engine.

    Attributes:
        generating: How many generations are in flight; kept by who passes.
        tokens: How many tokens were sampled since the beginning; kept by who passes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generating = 0
        self.tokens = 0


async def passed(scope: asyncio.Timeout, *gates: Gate) -> None:
    """Waits until all gates are open at once, and moves the end of `scope` by as long as that took."""
    while shut := next((gate for gate in gates if gate.shut), None):
        loop = asyncio.get_running_loop()
        asked, until = loop.time(), scope.when()
        scope.reschedule(None)
        await shut.opened()
        if until is not None:
            scope.reschedule(until + loop.time() - asked)
