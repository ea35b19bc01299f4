"""Writes the picture of `gymhost top` that the documents show: `python -m cli.top_screenshot`, in the tests' folder."""

import asyncio
import random
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gymhost.cli.top_app import Top
from gymhost.cli.top_watch import Watch
from gymhost.client import RemoteServer, Session, connect
from gymhost.wire.errors import Error
from support.server import ServerProcess

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "top.svg"
SIZE = (120, 26)
# Seconds of load before the picture is taken: as many points of the history as its bars have room for.
SECONDS = 100.0

# What runs: the environment, in how many sessions, and for how long their policy thinks.
LOAD = (
    ("CartPole-v1", 12, 0.010),
    ("FrozenLake-v1", 8, 0.020),
    ("Taxi-v4", 6, 0.030),
    ("Blackjack-v1", 6, 0.050),
    ("MountainCar-v0", 4, 0.020),
    ("Acrobot-v1", 3, 0.040),
    ("CliffWalking-v1", 2, 0.100),
)
# One in so many actions is none of the environment's.
WRONG = {"Taxi-v4": 40, "CliffWalking-v1": 25}


async def play(remote: RemoteServer, environment_id: str, thinks: float) -> None:
    """Plays episodes at random until it is cancelled."""
    async with remote.session(environment_id) as session:
        await session.reset()
        await go_on(session, session.action_space, thinks, WRONG.get(environment_id))


async def go_on(session: Session, actions: Any, thinks: float, wrong: int | None) -> None:
    """Steps, and resets where an episode has ended."""
    while True:
        await asyncio.sleep(random.expovariate(1 / thinks))
        action = 99 if wrong and random.randrange(wrong) == 0 else actions.sample()
        try:
            _, _, terminated, truncated, _ = await session.step(action)
        except Error:
            continue
        if terminated or truncated:
            await session.reset()


async def main() -> None:
    """Writes it."""
    with ServerProcess(modules=[], capacity=64) as server:
        async with AsyncExitStack() as stack:
            remote = await stack.enter_async_context(connect(server.address))
            tasks = [
                asyncio.create_task(play(remote, name, thinks)) for name, number, thinks in LOAD for _ in range(number)
            ]
            watch = await stack.enter_async_context(Watch(server.address, None, None, None))
            watch.address = "cpu7:50051"  # what is shown of it
            await asyncio.sleep(SECONDS)
            if ended := [task for task in tasks if task.done()]:
                ended[0].result()
            app = Top(watch, await watch.look(), 1.0)
            async with app.run_test(size=SIZE) as pilot:
                await pilot.pause(3.5)
                picture = app.export_screenshot(title="gymhost top")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    # Its font is whatever there is: nothing is loaded from elsewhere.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture)


if __name__ == "__main__":
    asyncio.run(main())
