"""gymhost as a contender of W1: the benchmark's own echo environment, the public async session API.

    gymhost serve w1_gymhost          # registers bench/Echo-v0 from the benchmark's module
    python w1_gymhost.py client {async|async-uvloop|threads|thread-mode} ADDRESS N SECONDS
"""

import asyncio
import os
import sys
from typing import Any

import gymnasium
from common import ACTION, EchoEnv, drive, drive_threads

from gymhost.wire.chat_spaces import FreeText


class Echo(gymnasium.Env[str, str]):
    """The benchmark's environment behind Gymnasium's API."""

    observation_space = FreeText()
    action_space = FreeText()

    def __init__(self) -> None:
        self._env = EchoEnv()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return self._env.reset(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated = self._env.step(action)
        return observation, reward, terminated, False, {}


class AsyncDriver:
    """What the benchmark's driver calls."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def reset(self) -> None:
        await self._session.reset()

    async def step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, terminated, _, _ = await self._session.step(action)
        return observation, reward, terminated


class ThreadDriver:
    """The same for `RemoteEnv`."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self) -> None:
        self._env.reset()

    def step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, terminated, _, _ = self._env.step(action)
        return observation, reward, terminated


def client(variant: str, address: str, n: int, seconds: float) -> None:
    from gymhost.client import connect, make

    id = "bench/EchoThread-v0" if variant == "thread-mode" else "bench/Echo-v0"
    if variant == "threads":
        drive_threads(lambda i: ThreadDriver(make(id, server=address)), n, seconds)
        os._exit(0)
    if variant == "async-uvloop":
        import uvloop

        uvloop.install()

    async def go() -> None:
        async with connect(address) as server:

            async def open_session(i: int) -> AsyncDriver:
                return AsyncDriver(await server.session(id).open())

            await drive(open_session, n, seconds)
            os._exit(0)

    asyncio.run(go())


if __name__ == "__main__":
    client(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
else:
    from gymhost.envs import register

    register("bench/Echo-v0", Echo, mode="inline")
    register("bench/EchoThread-v0", Echo)
