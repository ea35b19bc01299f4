"""A client that holds many sessions open: `python -m tests.benchmarks.gymhost_idle ADDRESS N`.

It prints a line of JSON after each phase, and begins the next when it gets a line.
"""

import asyncio
import json
import sys
import time
from typing import Any

from tests.benchmarks.driver import TEXT

from gymhost.client import RemoteServer, Session, connect

# As many are opened, or closed, at once.
_AT_ONCE = 256


async def phase(**said: Any) -> None:
    print(json.dumps(said), flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def open_used(server: RemoteServer) -> Session:
    """Opens a session that has been used: it has an episode, and stored its last reply."""
    session = await server.session("gymhost/Echo-v0").open()
    await session.reset()
    await session.step(TEXT)
    return session


async def open_many(server: RemoteServer, n: int) -> list[Session]:
    sessions: list[Session] = []
    for first in range(0, n, _AT_ONCE):
        sessions += await asyncio.gather(*(open_used(server) for _ in range(first, min(n, first + _AT_ONCE))))
    return sessions


async def main(address: str, n: int) -> None:
    async with connect(address) as server:
        await phase(connected=True)
        start = time.perf_counter()
        sessions = await open_many(server, n)
        await phase(opened_seconds=time.perf_counter() - start)

        sample = sessions[:: max(1, n // 500)]
        results = await asyncio.gather(*(session.step(TEXT) for session in sample))
        held = sum(session["environment_id"] == "gymhost/Echo-v0" for session in await server.sessions())
        await phase(sample=len(sample), alive=sum(observation == TEXT for observation, *_ in results), held=held)

        sessions += await open_many(server, n)
        await phase(opened_again=True)

        start = time.perf_counter()
        for first in range(0, 2 * n, _AT_ONCE):
            await asyncio.gather(*(session.close() for session in sessions[first : first + _AT_ONCE]))
        await phase(closed_seconds=time.perf_counter() - start)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
