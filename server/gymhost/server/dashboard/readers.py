"""The servers as a reader's token lets them be seen."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Any, TypeVar

from gymhost.client.operations import Operations
from gymhost.server.dashboard.config import DashboardConfig
from gymhost.wire import errors

__all__ = ["Asked", "Reader", "Readers"]

T = TypeVar("T")

# Seconds for a call, and for finding out that the rollout service is away.
ANSWER_LIMIT = 5.0
AWAY_LIMIT = 1.0
# Readers whose connections are kept.
READERS = 32


class Asked:
    """A server that is asked for its readers, and when it last answered one.

    Args:
        name: What pages call it.
        address: Its own Unix socket.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self._answered = time.time()

    async def answer(self, call: Awaitable[T]) -> T:
        """Waits for the answer to a call.

        Raises:
            Error: The server refused it, or is not there.
        """
        try:
            answer = await call
        except errors.ServerUnavailable:
            raise
        except errors.Error:
            self._answered = time.time()
            raise
        self._answered = time.time()
        return answer

    def gone(self, error: errors.Error) -> dict[str, Any]:
        """What is told of a server that does not answer."""
        return {"gone": f"{self.name} does not answer", "why": error.message, "since": self._answered}


class Reader:
    """What one reader sees.

    Args:
        config: Where the servers are.
        token: The reader's token; empty where none is wanted.
        environments: The environment server; None where there is none here.
        rollouts: The rollout service.
    """

    def __init__(self, config: DashboardConfig, token: str, environments: Asked | None, rollouts: Asked | None) -> None:
        self.token = token
        self._environments_asked, self._rollouts_asked = environments, rollouts
        self._environments: Operations | None = None
        self._service: Operations | None = None
        self._rollouts: Any = None
        if environments is not None:
            self._environments = Operations(config.environments, token, timeout=ANSWER_LIMIT)
        if rollouts is not None:
            self._service = Operations(config.rollouts, token, timeout=ANSWER_LIMIT)
            self._rollouts = rollout_client(config.rollouts, token)

    @property
    def environments(self) -> Operations:
        """The environment server.

        Raises:
            Unimplemented: There is none here.
        """
        if self._environments is None:
            raise errors.Unimplemented("there is no environment server here, but a rollout service alone")
        return self._environments

    @property
    def service(self) -> Operations:
        """The rollout service's figures.

        Raises:
            Unimplemented: There is none.
        """
        self._need_rollouts()
        assert self._service is not None
        return self._service

    @property
    def rollouts(self) -> Any:
        """The rollout service, a `RolloutClient`.

        Raises:
            Unimplemented: There is none.
        """
        self._need_rollouts()
        return self._rollouts

    def _need_rollouts(self) -> None:
        if self._service is None:
            raise errors.Unimplemented("there is no rollout service here (gymhost serve --rollouts)")

    async def admit(self) -> None:
        """Sees to it that the reader is let in.

        Raises:
            Unauthenticated: The token is none.
            ServerUnavailable: No server can say.
        """
        if self._environments_asked is not None:
            await self._environments_asked.answer(self.environments.overview())
        else:
            assert self._rollouts_asked is not None
            await self._rollouts_asked.answer(self.rollouts.status())

    async def aclose(self) -> None:
        """Lets go of the servers."""
        for each in (self._environments, self._service, self._rollouts):
            if each is not None:
                await each.aclose()


class Readers:
    """Readers by their tokens: those who came last keep their connections.

    Args:
        config: Where the servers are.
    """

    def __init__(self, config: DashboardConfig) -> None:
        self._config = config
        self.environments = Asked("the environment server", config.environments) if config.environments else None
        self.rollouts = Asked("the rollout service", config.rollouts) if config.rollouts else None
        self._kept: OrderedDict[str, Reader] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def reader(self, token: str) -> Reader:
        """The reader with a token, whether a server takes it or not.

        Raises:
            Unauthenticated: It can't be one.
        """
        key = hashlib.sha256(token.encode()).hexdigest()
        reader = self._kept.pop(key, None)
        if reader is None:
            try:
                reader = Reader(self._config, token, self.environments, self.rollouts)
            except errors.InvalidArgument as error:
                raise errors.Unauthenticated(f"this is no token: {error.message}") from None
        self._kept[key] = reader
        while len(self._kept) > READERS:
            self._let_go(self._kept.popitem(last=False)[1])
        return reader

    def forget(self, reader: Reader) -> None:
        """Lets go of a reader whom no server lets in."""
        key = hashlib.sha256(reader.token.encode()).hexdigest()
        if self._kept.pop(key, None) is not None:
            self._let_go(reader)

    async def aclose(self) -> None:
        """Lets go of all."""
        await asyncio.gather(*(reader.aclose() for reader in self._kept.values()), *self._closing)
        self._kept.clear()

    def _let_go(self, reader: Reader) -> None:
        task = asyncio.get_running_loop().create_task(reader.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def rollout_client(address: str, token: str) -> Any:
    """A client of the rollout service, which is imported where there is one alone."""
    from gymhost.rollout.service import RolloutClient

    return RolloutClient(address, token or None, connect_timeout=AWAY_LIMIT, reconnect_timeout=AWAY_LIMIT)
