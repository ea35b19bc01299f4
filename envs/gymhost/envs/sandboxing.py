"""What the process that runs environments says of their sandboxes: what makes them, and whom they belong to.

It is apart from `gymhost.envs.sandbox`, so that a worker whose environments have no sandboxes need not import that.
"""

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gymhost.wire.errors import SandboxLost

if TYPE_CHECKING:
    from gymhost.envs.sandbox.sandbox import Sandbox

__all__ = ["CREATIONS", "Scope", "Settings", "Share", "configure", "memory", "owner", "settings", "tell_owner_by"]

# The most creations in flight where nobody says otherwise.
CREATIONS = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """How `gymhost.envs.sandbox.create` makes sandboxes in this process.

    Attributes:
        backend: The backend's name, or `module:Class` for one of one's own.
        options: Keyword arguments for the backend.
        creations: The most creations in flight, of all processes that share a folder together.
        spares: How many sandboxes of each kind that was asked for are kept ready.
        folder: Where the processes of a server share the limit of creations; None for a limit of this process's own.
    """

    backend: str = "bubblewrap"
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    creations: int = CREATIONS
    spares: int = 0
    folder: str | None = None


_current = Settings()


def configure(how: Settings) -> None:
    """Sets how this process's sandboxes are made, before the first one is."""
    global _current
    _current = how


def settings() -> Settings:
    """Returns how this process's sandboxes are made."""
    return _current


class Member(Protocol):
    """Something that ends with its scope: a sandbox, or the making of one."""

    @property
    def alive(self) -> bool:
        """Whether there is something to end."""
        ...

    def kill(self) -> None:
        """Begins to end it, from any thread and without waiting."""
        ...


class Share(Protocol):
    """What an owner may have of the memory of sandboxes."""

    async def take(self, size: int, told: Callable[[str], object]) -> Callable[[], None]:
        """Waits for memory for a sandbox, until there is some or the wait is cancelled.

        Args:
            size: How many bytes.
            told: Is told why it has to wait, where it has to.

        Returns:
            What gives it back, from any thread; it may be called twice.

        Raises:
            CapacityExhausted: It is more than the owner may ever have.
            SandboxLost: The owner is gone.
        """
        ...


class Scope:
    """The sandboxes that were made for one owner. It does not keep them alive. It can be used from several threads.

    Args:
        share: What the owner may have of the memory of sandboxes; None for any amount.
    """

    __slots__ = ("__weakref__", "_closed", "_lock", "_members", "share")

    def __init__(self, share: Share | None = None) -> None:
        self.share = share
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()
        self._closed = False

    def add(self, member: Member) -> None:
        """Takes a member.

        Raises:
            SandboxLost: The scope has ended; the member is killed.
        """
        with self._lock:
            if not self._closed:
                self._members.add(member)
                return
        member.kill()
        raise SandboxLost("the session that the sandbox was made for has ended")

    def kill(self) -> bool:
        """Kills all members; new ones may come.

        Returns:
            Whether there was something to end.
        """
        with self._lock:
            members = list(self._members)
            self._members.clear()
        living = [member for member in members if member.alive]
        for member in members:
            member.kill()
        return bool(living)

    def sandboxes(self) -> "list[Sandbox]":
        """Returns the sandboxes among the members."""
        module = sys.modules.get("gymhost.envs.sandbox.sandbox")
        if module is None:
            return []
        kind: type[Sandbox] = module.Sandbox
        with self._lock:
            members: list[Any] = list(self._members)
        return [member for member in members if isinstance(member, kind)]

    def close(self) -> None:
        """Kills all members and takes no more. May be called twice."""
        with self._lock:
            self._closed = True
        self.kill()


async def memory(scopes: Mapping[int, Scope], limit: float) -> dict[int, int]:
    """Returns how much memory the sandboxes of owners use, in bytes.

    Args:
        scopes: The owners.
        limit: Seconds that it may take; what is not known then is left out.

    Returns:
        Bytes by the keys of `scopes`, where there is something to tell.
    """
    asking = {asyncio.create_task(each.usage()): key for key, scope in scopes.items() for each in scope.sandboxes()}
    used: dict[int, int] = {}
    if asking:
        done, late = await asyncio.wait(asking, timeout=limit)
        for task in late:
            task.cancel()
        for task in done:
            if task.exception() is None and (size := task.result().memory) is not None:
                used[asking[task]] = used.get(asking[task], 0) + size
    return used


def _nobody() -> Scope | None:
    return None


_find: Callable[[], Scope | None] = _nobody


def tell_owner_by(find: Callable[[], Scope | None]) -> None:
    """Sets what tells, on the thread and in the task that asks, whose code runs there. A server's worker does that."""
    global _find
    _find = find


def owner() -> Scope | None:
    """Returns the scope that a new sandbox belongs to; None where it is the caller's own affair."""
    return _find()
