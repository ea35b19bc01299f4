"""Plays a game on a server, `python ten_lines.py HOST:PORT`, or on one of its own, without an address."""

import asyncio
import re
import sys

from gymhost.client import connect


async def main(address: str | None = None) -> None:
    async with connect(address) as server, server.session("gymhost/GuessNumber-v0") as session:
        messages, info = await session.reset(seed=0)
        reward, terminated, truncated = 0.0, False, False
        while not (terminated or truncated):
            print(messages[-1]["content"])
            low, high = re.findall(r"from (\d+) to (\d+)", messages[-1]["content"])[-1]
            guess = {"number": (int(low) + int(high)) // 2}
            messages, reward, terminated, truncated, info = await session.call_tool("guess", guess)
        print(messages[-1]["content"], "Reward:", reward, info["rewards"])


asyncio.run(main(*sys.argv[1:]))
