"""`python -m chaos.storms`: 2,000 clients that connect and vanish; 20,000 sessions open and stepped on one server."""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import time

from gymhost.client import Session, connect
from gymhost.v1 import environments_pb2 as pb
from support.proxy import Proxy
from support.raw import RawStream, stub_to
from support.server import ServerProcess, connections_to, resident, until, until_sessions

# How many clients come at once, and what they have done by the time they are gone.
AT_ONCE = 100
CONNECTED, GREETED, CREATED, STEPPED = range(4)
# Vanished clients are not waited for any longer than this, in seconds.
LEASE, HEARTBEAT = 4.0, 1.0


@dataclasses.dataclass
class Vanished:
    """What became of a server whose clients vanished.

    Attributes:
        clients: How many there were.
        seconds: How long they took to come and go.
        until_clean: Seconds until all their sessions were gone.
        growth: What the front and its workers have grown by, from the first hundred clients to the last, in MiB.
        connections: How many of their connections the server still has.
    """

    clients: int
    seconds: float
    until_clean: float
    growth: float
    connections: int


@dataclasses.dataclass
class Held:
    """A server with many sessions.

    Attributes:
        sessions: How many.
        open_seconds: How long it took to open them.
        step_seconds: How long each round took, in which each was stepped once.
        steps: How many steps were right.
        front_kib: The memory of a session in the front, in KiB.
        workers_kib: That in its worker.
        close_seconds: How long it took to close them.
    """

    sessions: int
    open_seconds: float
    step_seconds: list[float]
    steps: int
    front_kib: float
    workers_kib: float
    close_seconds: float


async def vanish(clients: int) -> Vanished:
    """Has clients connect, do something, and vanish without a word."""
    with ServerProcess(workers=2, lease=LEASE, heartbeat=HEARTBEAT, capacity=clients + 10) as server:
        with Proxy(server.address) as proxy:
            began = time.monotonic()
            first = 0.0
            for start in range(0, clients, AT_ONCE):
                crowd = range(start, min(start + AT_ONCE, clients))
                await asyncio.gather(*(_come(proxy.address, number % 4) for number in crowd))
                proxy.cut()
                first = first or _memory(server)
            seconds = time.monotonic() - began
        async with connect(server.address) as remote:
            began = time.monotonic()
            await until_sessions(remote, 0, 60.0)
            until_clean = time.monotonic() - began
            async with remote.session("test/Counter-v0") as session:
                await session.reset()
                assert (await session.step(1))[0] == 1
        with contextlib.suppress(AssertionError):  # the figure says how many there are
            await until(lambda: not connections_to(server.address, server.pid), 20.0)
        left = connections_to(server.address, server.pid)
        return Vanished(clients, seconds, until_clean, _memory(server) - first, left)


async def _come(address: str, far: int) -> None:
    """One client, up to the moment in which it is cut off."""
    async with stub_to(address) as stub:
        if far == CONNECTED:
            call = stub.Interact()
            await call.wait_for_connection()
            return
        stream = await RawStream(stub).__aenter__()
        if far >= CREATED:
            lane = (await stream.create()).lanes[0]
            if far == STEPPED:
                await stream.ask(pb.COMMAND_KIND_RESET, lane=lane, number=1)


async def hold(sessions: int, rounds: int) -> Held:
    """Opens sessions, all at once, and steps them all."""
    with ServerProcess(workers=2, capacity=sessions, queue_timeout=300.0) as server:
        async with connect(server.address, direct=False) as remote:
            async with remote.session("test/Counter-v0") as session:
                await session.reset()
            front, workers = resident(server.pid), sum(resident(pid) for pid in server.workers)
            began = time.monotonic()
            held: list[Session] = await asyncio.gather(
                *(remote.session("test/Counter-v0").open() for _ in range(sessions))
            )
            open_seconds = time.monotonic() - began
            await asyncio.gather(*(session.reset() for session in held))
            times: list[float] = []
            right = 0
            for number in range(1, rounds + 1):
                began = time.monotonic()
                results = await asyncio.gather(*(session.step(1) for session in held))
                times.append(time.monotonic() - began)
                right += sum(result[0] == number for result in results)
            front_kib = (resident(server.pid) - front) * 1024 / sessions
            workers_kib = (sum(resident(pid) for pid in server.workers) - workers) * 1024 / sessions
            began = time.monotonic()
            await asyncio.gather(*(session.close() for session in held))
            await until_sessions(remote, 0, 120.0)
            close_seconds = time.monotonic() - began
    return Held(sessions, open_seconds, times, right, front_kib, workers_kib, close_seconds)


def _memory(server: ServerProcess) -> float:
    return resident(server.pid) + sum(resident(pid) for pid in server.workers)


def main() -> None:
    """Runs both, and prints their figures."""
    parser = argparse.ArgumentParser(prog="python -m chaos.storms", description=__doc__)
    parser.add_argument("--clients", type=int, default=2000, help="how many connect and vanish (default: 2000)")
    parser.add_argument("--sessions", type=int, default=20_000, help="how many are open at once (default: 20000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is stepped (default: 3)")
    options = parser.parse_args()
    for figures in (asyncio.run(vanish(options.clients)), asyncio.run(hold(options.sessions, options.rounds))):
        print(json.dumps({type(figures).__name__.lower(): dataclasses.asdict(figures)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
