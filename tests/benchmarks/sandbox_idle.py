"""Holds many sandboxes: `python -m tests.benchmarks.sandbox_idle BACKEND N`.

It prints a line of JSON after each phase, and begins the next when it gets a line.
"""

import asyncio
import sys
import time

import uvloop
from tests.benchmarks.gymhost_idle import phase
from tests.benchmarks.sandbox_client import check, new

from gymhost.envs.sandbox import Sandbox
from gymhost.envs.sandboxing import Settings, configure

# As many are made, asked or destroyed at once.
_AT_ONCE = 8


async def make(n: int) -> list[Sandbox]:
    made: list[Sandbox] = []
    for first in range(0, n, _AT_ONCE):
        made += await asyncio.gather(*(new() for _ in range(first, min(n, first + _AT_ONCE))))
    return made


async def ask(sandbox: Sandbox) -> None:
    check((await sandbox.run(["echo", "on"])).stdout)


async def main(backend: str, n: int) -> None:
    configure(Settings(backend=backend))
    # What the backend needs once for all is there.
    [first] = await make(1)
    await phase(ready=True)

    start = time.perf_counter()
    sandboxes = await make(n)
    await phase(created_seconds=time.perf_counter() - start)

    start = time.perf_counter()
    for at in range(0, n, _AT_ONCE):
        await asyncio.gather(*(ask(sandbox) for sandbox in sandboxes[at : at + _AT_ONCE]))
    await phase(answered=len(sandboxes), answered_seconds=time.perf_counter() - start)

    start = time.perf_counter()
    for at in range(0, n, _AT_ONCE):
        await asyncio.gather(*(sandbox.destroy() for sandbox in sandboxes[at : at + _AT_ONCE]))
    await phase(destroyed_seconds=time.perf_counter() - start)
    await first.destroy()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
