"""gymhost's client: `python -m tests.benchmarks.gymhost_client {asyncio|uvloop|threads}[-grpc] ID ADDRESS N SECS`."""

import asyncio
import sys

import uvloop
from tests.benchmarks.driver import drive, drive_threads

from gymhost.client import RemoteEnv, Session, connect, make


class Async:
    """A session of the public async API."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.close = session.close

    async def reset(self) -> None:
        await self._session.reset()

    async def step(self, text: str, /) -> tuple[str, float, bool]:
        observation, reward, terminated, _, _ = await self._session.step(text)
        return observation, reward, terminated


class Blocking:
    """A `RemoteEnv`."""

    def __init__(self, env: RemoteEnv) -> None:
        self._env = env
        self.close = env.close

    def reset(self) -> None:
        self._env.reset()

    def step(self, text: str, /) -> tuple[str, float, bool]:
        observation, reward, terminated, _, _ = self._env.step(text)
        return observation, reward, terminated


async def play(id: str, address: str, n: int, seconds: float, *, direct: bool) -> None:
    async with connect(address, direct=direct) as server:

        async def open_session(_: int) -> Async:
            return Async(await server.session(id).open())

        await drive(open_session, n, seconds)


def main(variant: str, id: str, address: str, n: int, seconds: float) -> None:
    how, _, way = variant.partition("-")
    direct = way != "grpc"
    if how == "threads":
        drive_threads(lambda _: Blocking(make(id, server=address, direct=direct)), n, seconds)
        return
    if how == "uvloop":
        uvloop.install()
    asyncio.run(play(id, address, n, seconds, direct=direct))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
