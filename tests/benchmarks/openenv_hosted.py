"""The environment of OpenEnv that gymhost hosts: `python -m tests.benchmarks.openenv_hosted {direct|grpc} ADDR N S`."""

import asyncio
import sys

import uvloop
from tests.benchmarks.driver import drive

from gymhost.client import Session, connect

ID = "openenv/tests.benchmarks.openenv_echo-EchoEnvironment"


class Async:
    """A session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.close = session.close

    async def reset(self) -> None:
        await self._session.reset()

    async def step(self, text: str, /) -> tuple[str, float, bool]:
        observation, reward, terminated, _, _ = await self._session.step({"message": text})
        return observation["text"], reward, terminated


async def play(way: str, address: str, n: int, seconds: float) -> None:
    """Plays with some sessions."""
    async with connect(address, direct=way == "direct") as server:

        async def open_session(_: int) -> Async:
            return Async(await server.session(ID).open())

        await drive(open_session, n, seconds)


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(play(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
