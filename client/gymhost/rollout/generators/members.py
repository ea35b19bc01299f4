"""The members of a pool: how each does, and what is at work there."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gymhost.rollout.generators.base import Generator, Updatable

__all__ = ["Left", "Member", "Seat"]


class Left(Exception):
    """The member was left while it was at work."""


@dataclass(frozen=True, slots=True)
class Member:
    """How a member of a pool does at present."""

    name: str
    load: int
    """Tokens in flight: prompts, and what may still be sampled."""
    requests: int
    """How many are in flight."""
    healthy: bool
    """Whether it answers."""
    current: bool
    """Whether its weights are of the pool's version; if not, it is not used."""
    draining: bool
    policy_version: int
    why: str = ""
    """Why it is not used; empty where it is."""
    sampled_tokens: int = 0
    """What it has sampled since it was added."""
    generations: int = 0
    """How many generations of it have ended since then."""


@dataclass(eq=False, slots=True)
class Seat:
    """A place in a pool, and who has it."""

    generator: Generator
    well: bool = True
    current: bool = True
    draining: bool = False
    why: str = ""
    load: int = 0
    requests: int = 0
    sampled: int = 0
    generations: int = 0
    heard: int = 0
    """What it had sampled when it was last looked after."""
    missed: int = 0
    scopes: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    """Of what is to be given up if the member is left."""
    minder: "asyncio.Task[None] | None" = None
    catching_up: bool = False
    held: bool = False
    """Whether it is paused, or about to be."""

    @property
    def usable(self) -> bool:
        """Whether it may be given something."""
        return self.well and self.current and not self.draining

    @property
    def name(self) -> str:
        """What the member is called."""
        return self.generator.name

    @property
    def member(self) -> Member:
        """How it does at present."""
        return Member(
            self.name,
            self.load,
            self.requests,
            self.well,
            self.current,
            self.draining,
            self.generator.policy_version,
            self.why,
            self.sampled,
            self.generations,
        )

    @property
    def sync(self) -> Any:
        """How weights get there, where that is a thing of its own."""
        return getattr(self.generator, "sync", None)

    @property
    def updatable(self) -> Updatable:
        """The generator as one whose weights can be changed, which it must be."""
        assert isinstance(self.generator, Updatable)
        return self.generator

    @asynccontextmanager
    async def given_up_with(self) -> AsyncGenerator[None]:
        """Cancels its body if the member is left, and raises `Left`."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self.scopes.add(scope)
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise Left from None
        finally:
            self.scopes.discard(scope)

    def give_up(self) -> None:
        """Ends what is at work there."""
        scopes, self.scopes = self.scopes, set()
        for scope in scopes:
            scope.reschedule(0.0)

    async def answers(self, seconds: float) -> bool:
        """Whether the member is well, as far as it can be asked."""
        healthy = getattr(self.generator, "healthy", None)
        if healthy is None:
            return self.well
        try:
            async with asyncio.timeout(seconds):
                return await healthy()
        except Exception:  # noqa: BLE001 - whatever it is, it is no sign of health
            return False
