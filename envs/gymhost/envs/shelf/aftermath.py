"""Looking at what an agent left in its sandbox: in sandboxes that its programs never ran in."""

from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from gymhost.envs.sandbox import Sandbox, SandboxSpec, Snapshot, create
from gymhost.wire.errors import CapacityExhausted, CommandTimeout, SandboxLost, SandboxUnavailable, TooLarge

__all__ = ["Aftermath"]

T = TypeVar("T")


class Aftermath:
    """The files that a sandbox ended with.

    Attributes:
        spec: What it was like.
    """

    def __init__(self, spec: SandboxSpec, snapshot: Snapshot | None) -> None:
        self.spec = spec
        self._snapshot = snapshot

    @classmethod
    async def of(cls, sandbox: Sandbox) -> Self:
        """Ends all that runs in a sandbox, keeps its files, and destroys it.

        Raises:
            CapacityExhausted: There is no room for its files now.
            SandboxLost: It is gone.
        """
        await sandbox.halt()
        # Whoever took the right to its working folder from itself is not to keep others from looking.
        await sandbox.run(["chmod", "u+rwx", "--", sandbox.spec.workdir])
        snapshot: Snapshot | None = None
        try:
            snapshot = await sandbox.snapshot()
        except (CapacityExhausted, SandboxLost):
            raise
        except (CommandTimeout, OSError, SandboxUnavailable, TooLarge):
            pass  # whoever makes files that can't be kept has done no work
        await sandbox.destroy()
        return cls(sandbox.spec, snapshot)

    async def look(
        self, look: Callable[[Sandbox], Awaitable[T]], otherwise: T, *, spec: SandboxSpec | None = None
    ) -> T:
        """Looks at the files, in a fresh sandbox.

        Args:
            look: What looks.
            otherwise: What is seen where there are none that could be kept, and where what lies there ends the sandbox,
                twice.
            spec: What the fresh one is like, if not like that which the files are of.

        Raises:
            SandboxUnavailable: There is no fresh one to be had.
        """
        if self._snapshot is None:
            return otherwise
        for _ in range(2):
            async with await create(spec or self.spec, snapshot=self._snapshot) as sandbox:
                try:
                    return await look(sandbox)
                except SandboxLost:
                    pass  # that it happens again is the work's own doing, which must not make its reward invalid
        return otherwise

    async def discard(self) -> None:
        """Frees the files. May be called twice."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            await snapshot.discard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.discard()
