"""What `gymhost bench` runs: an environment is made in one of several ways, and stepped for a while."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from gymhost.cli.app import Failure
from gymhost.cli.usage import children, cpu_seconds, private_bytes
from gymhost.client import RemoteServer, Session, Tls, connect, make, make_vec

__all__ = ["MODES", "Figures", "Plan", "hosted", "local"]

# What each mode is called in the table: hosted, and what it is compared with in this process.
MODES = {
    "env": ("`make`", "`gymnasium.make`"),
    "sessions": ("async sessions", None),
    "vector": ("`make_vec`, copies", "`SyncVectorEnv`"),
    "native": ("`make_vec`, vector form of its own", "`gymnasium.make_vec`, vector form of its own"),
}
_VECTORIZATION: dict[str, Any] = {"vector": "sync", "native": "vector_entry_point"}

# Actions that are drawn beforehand.
_ACTIONS = 256
# Sessions are opened in groups of this size.
_AT_ONCE = 64

_clock = time.perf_counter


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        id: The environment.
        kwargs: Its keyword arguments.
        server: Where the server is; None starts an embedded one for each run.
        token: The bearer token for it.
        tls: How TLS is spoken with it.
        modules: For an embedded server: modules that register environments.
        direct: Whether steps may go past gRPC.
        num_envs: The copies of a vector environment.
        sessions: The sessions at once.
        seconds: How long steps are counted.
    """

    id: str
    kwargs: dict[str, Any]
    server: str | None
    token: str | None = field(repr=False)
    tls: Tls | None
    modules: Sequence[str]
    direct: bool
    num_envs: int
    sessions: int
    seconds: float

    def connect(self) -> RemoteServer:
        """The server."""
        return connect(self.server, **self.connection)

    @property
    def connection(self) -> dict[str, Any]:
        """How the server is connected to; all that names the same shares one connection."""
        modules = () if self.server else self.modules
        return {"token": self.token, "tls": self.tls, "modules": modules, "direct": self.direct}

    @property
    def warm_up(self) -> float:
        """How long it is run before steps are counted."""
        return min(0.5, self.seconds / 2)

    def copies(self, mode: str) -> int:
        """How many copies a mode steps."""
        return {"env": 1, "sessions": self.sessions}.get(mode, self.num_envs)


@dataclass
class Figures:
    """What a run measured; times in seconds, None for what could not be.

    Attributes:
        steps_per_second: Steps of single copies.
        p50: How long half of the calls took at most: of one copy, or of all copies of a vector environment.
        p99: How long all but one in a hundred took at most.
        client_cpu: CPU time of this process a step.
        server_cpu: CPU time of the embedded server and its workers a step.
        memory: Bytes that a copy takes on the embedded server.
        ready: From making the environment, or all sessions, to the first observation of all.
        start: Until the embedded server took the connection.
    """

    steps_per_second: float
    p50: float
    p99: float
    client_cpu: float
    server_cpu: float | None
    memory: float | None
    ready: float
    start: float | None


class _Window:
    """The time in which steps count, and the calls that ended in it.

    Args:
        server: The server's processes.
    """

    def __init__(self, server: Sequence[int]) -> None:
        self._server = server
        self._latencies: list[float] = []
        self._client_cpu = self._server_cpu = self._seconds = 0.0
        self.open = False

    def turn(self) -> None:
        """Opens it, or closes it."""
        self._seconds = _clock() - self._seconds
        self._client_cpu = time.process_time() - self._client_cpu
        self._server_cpu = cpu_seconds(self._server) - self._server_cpu
        self.open = not self.open

    def note(self, started: float) -> None:
        """Notes a call that has ended now."""
        if self.open:
            self._latencies.append(_clock() - started)

    def figures(self, copies: int, ready: float) -> Figures:
        """What was measured.

        Args:
            copies: How many steps a call is.
            ready: How long it took until all copies could be stepped.

        Raises:
            Failure: No step ended in time.
        """
        latencies = sorted(self._latencies)
        if not latencies:
            raise Failure(f"no step ended within {self._seconds:.1f} s: --seconds makes the time longer")
        steps = len(latencies) * copies
        return Figures(
            steps_per_second=steps / self._seconds,
            p50=latencies[len(latencies) // 2],
            p99=latencies[len(latencies) * 99 // 100],
            client_cpu=self._client_cpu / steps,
            server_cpu=self._server_cpu / steps if self._server else None,
            memory=None,
            ready=ready,
            start=None,
        )


def local(plan: Plan, mode: str) -> Figures:
    """Runs an environment in this process, as Gymnasium makes it."""
    begun = _clock()
    if mode == "env":
        return _env(gymnasium.make(plan.id, **plan.kwargs), plan, begun, ())[0]
    envs = gymnasium.make_vec(plan.id, plan.num_envs, vectorization_mode=_VECTORIZATION[mode], **plan.kwargs)
    return _vector(envs, plan, begun, ())[0]


def hosted(plan: Plan, mode: str) -> Figures:
    """Runs an environment on a server; an embedded one is started for it."""
    begun = _clock()
    with plan.connect():
        start = _clock() - begun
        # All that runs under this process is the embedded server.
        processes = [] if plan.server else children()
        before = private_bytes(processes)
        begun = _clock()
        if mode == "sessions":
            figures, after = asyncio.run(_sessions(plan, begun, processes))
        elif mode == "env":
            env = make(plan.id, server=plan.server, **plan.connection, **plan.kwargs)
            figures, after = _env(env, plan, begun, processes)
        else:
            envs = make_vec(
                plan.id,
                plan.num_envs,
                server=plan.server,
                vectorization_mode=_VECTORIZATION[mode],
                **plan.connection,
                **plan.kwargs,
            )
            figures, after = _vector(envs, plan, begun, processes)
    if processes:
        figures.start = start
        figures.memory = max(0, after - before) / plan.copies(mode)
    return figures


def _env(env: Any, plan: Plan, begun: float, server: Sequence[int]) -> tuple[Figures, int]:
    """Steps one environment, episode after episode."""
    with env:
        actions = _draw(env.action_space)

        def step() -> None:
            _, _, terminated, truncated, _ = env.step(next(actions))
            nonlocal over
            over = terminated or truncated

        def reset() -> None:
            nonlocal over
            if over:
                env.reset()
                over = False

        over = True
        reset()
        return _step(step, reset, 1, plan, _clock() - begun, server)


def _vector(envs: Any, plan: Plan, begun: float, server: Sequence[int]) -> tuple[Figures, int]:
    """Steps all copies of a vector environment, which resets them itself."""
    try:
        envs.reset()
        ready = _clock() - begun
        actions = _draw(envs.action_space)
        return _step(lambda: envs.step(next(actions)), lambda: None, plan.num_envs, plan, ready, server)
    finally:
        envs.close()


def _step(
    step: Callable[[], object],
    between: Callable[[], None],
    copies: int,
    plan: Plan,
    ready: float,
    server: Sequence[int],
) -> tuple[Figures, int]:
    """Steps until the time is up.

    Args:
        step: Steps once.
        between: Called between steps; it does not count to their latency.
        copies: How many steps a call is.
        plan: What is run.
        ready: How long it took until here.
        server: The processes of the server.

    Returns:
        What was measured, and the memory of the server.
    """
    window = _Window(server)
    end = _clock() + plan.warm_up
    while _clock() < end:
        step()
        between()
    window.turn()
    started = _clock()
    end = started + plan.seconds
    while started < end:
        step()
        window.note(started)
        between()
        started = _clock()
    window.turn()
    return window.figures(copies, ready), private_bytes(server)


async def _sessions(plan: Plan, begun: float, server: Sequence[int]) -> tuple[Figures, int]:
    """Steps sessions, each waiting for its own reply alone."""
    async with plan.connect() as remote:
        sessions = [remote.session(plan.id, **plan.kwargs) for _ in range(plan.sessions)]
        try:
            for first in range(0, len(sessions), _AT_ONCE):
                await asyncio.gather(*(_open(session) for session in sessions[first : first + _AT_ONCE]))
            ready = _clock() - begun
            actions = _draw(sessions[0].action_space)
            window, over = _Window(server), asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for session in sessions:
                    tasks.create_task(_play(session, actions, window, over))
                await asyncio.sleep(plan.warm_up)
                window.turn()
                await asyncio.sleep(plan.seconds)
                window.turn()
                over.set()
            return window.figures(1, ready), private_bytes(server)
        finally:
            await asyncio.gather(*(session.close() for session in sessions))


async def _open(session: Session) -> None:
    await session.open()
    await session.reset()


async def _play(session: Session, actions: Iterator[Any], window: _Window, over: asyncio.Event) -> None:
    while not over.is_set():
        started = _clock()
        _, _, terminated, truncated, _ = await session.step(next(actions))
        window.note(started)
        if terminated or truncated:
            await session.reset()


def _draw(space: gymnasium.Space[Any]) -> Iterator[Any]:
    """Random actions, over and over."""
    space.seed(0)
    return itertools.cycle([space.sample() for _ in range(_ACTIONS)])
