"""Takes the pictures of the dashboard that the README shows: `python tests/dashboard/screenshots.py [FOLDER]`.

A server of its own runs for some minutes under the load of clients and of a rollout service, so that there is something
to see. Without a folder the pictures go to docs/images.
"""

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gymhost.client import Session, connect
from gymhost.rollout import RolloutRequest
from gymhost.rollout.service import RolloutClient
from gymhost.wire import errors
from support.browser import Browser, chromium
from support.completions_server import choice
from support.sampler import Sampler
from support.tokenizers import call, encode
from support.watched import Watched, called_tool, watched

__all__ = ["main"]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
# How long there is load before the pictures are taken.
SECONDS = 240.0
LARGEST = 200_000
# An environment that has a fault, as those have that are being written.
REPAIR = '''
import json
import random

import gymnasium

class Dates(gymnasium.Env):
    """Has its tests run, and reads what they say."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        output = "" if random.random() < 0.02 else \'{"passed": 7}\'
        return self._read(output), 0.0, False, False, {}

    def _read(self, output):
        return int(json.loads(output)["passed"] > 0)

gymnasium.register("repair/Dates-v0", Dates)
'''


class Slowly(Sampler):
    """Answers as models do, after a while, and in some words."""

    def __init__(self) -> None:
        super().__init__()
        self.server.answer = self._say
        self._random = random.Random(7)

    def _say(self, body: dict[str, Any]) -> dict[str, Any]:
        number = self._random.choice((1, 2, 3, 4, 4, 4, 5, 6, 7))
        words = "Half of what is left lies on either side." if number == 4 else f"It may be {number}."
        return choice(encode(f"{words}\n" + call("guess", f'{{"number": {number}}}')))


async def gym(session: Session, actions: int, pause: float) -> None:
    """Plays a simulator for ever."""
    drawn = random.Random(id(session))
    done = True
    while True:
        if done:
            await session.reset(label=f"rollout-{drawn.randrange(2**24):06x}")
        _, _, terminated, truncated, _ = await session.step(drawn.randrange(actions))
        done = terminated or truncated
        await asyncio.sleep(pause * drawn.random())


async def guess(session: Session) -> None:
    """Plays a conversation for ever, by halving."""
    game = 0
    while True:
        game += 1
        await session.reset(options={"task": game}, label=f"game-{game}")
        low, high = 1, 7
        while True:
            middle = (low + high) // 2
            messages, _, terminated, truncated, _ = await session.step(called_tool("guess", number=middle))
            if terminated or truncated:
                break
            low, high = (middle + 1, high) if "low" in str(messages) else (low, middle - 1)
            await asyncio.sleep(0.8)


async def repair(address: str) -> None:
    """Plays what raises now and then."""
    async with connect(address) as remote:
        while True:
            async with remote.session("repair/Dates-v0") as session:
                try:
                    await session.reset(label="rollout-1f03")
                    while True:
                        await session.step(0)
                        await asyncio.sleep(0.05)
                except errors.EnvironmentFault:
                    pass


async def pulse(sampler: Sampler) -> None:
    """Has the sampler take as long as a model does, for ever."""
    while True:
        sampler.hold(True)
        await asyncio.sleep(0.4)
        sampler.hold(False)
        await asyncio.sleep(0.1)


async def jobs(address: str) -> None:
    """Submits jobs as a trainer does, step by step."""
    async with RolloutClient(address) as client:
        for step in range(1, 1000):
            requests = [RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(24)]
            job = await client.submit(requests, samples=8, key=f"step-{step}", label=f"run 3, step {step}")
            async for _ in job.results(acknowledge=step % 3 > 0):
                pass


async def load(board: Watched, sampler: Sampler) -> None:
    """Plays all of it for ever."""
    played = (
        ("CartPole-v1", 2, 10, 0.02),
        ("MountainCar-v0", 3, 6, 0.02),
        ("LunarLander-v3", 4, 6, 0.04),
        ("ALE/Breakout-v5", 4, 3, 0.08),
    )
    async with connect(board.address) as remote, asyncio.TaskGroup() as group:
        for environment_id, actions, count, pause in played:
            for _ in range(count):
                session = await remote.session(environment_id).open()
                group.create_task(gym(session, actions, pause))
        for _ in range(6):
            group.create_task(guess(await remote.session("gymhost/GuessNumber-v0").open()))
        group.create_task(repair(board.address))
        group.create_task(jobs(board.rollouts))
        group.create_task(pulse(sampler))


def written(folder: Path) -> Path:
    """Writes the environment that has a fault."""
    (folder / "repair.py").write_text(REPAIR)
    return folder


def picture(browser: Browser, path: Path) -> None:
    """Writes a picture, and says so."""
    time.sleep(2.5)
    browser.picture(path)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} kB{' (too large)' if size > LARGEST else ''}")


def take(board: Watched, browser: Browser, folder: Path) -> None:
    """Takes the pictures."""
    for theme in ("light", "dark"):
        browser.show(dark=theme == "dark")
        browser.visit(f"{board.url}/#/")
        browser.wait("document.querySelector('.chart path.line') && document.querySelector('.failure')")
        picture(browser, folder / f"dashboard-{theme}.png")
    browser.show()
    browser.visit(f"{board.url}/#/sessions?environment=gymhost%2FGuessNumber-v0")
    browser.wait("document.querySelector('tr[data-key]')")
    browser.write("#filter", "game-")
    browser.wait("document.querySelectorAll('tr[data-key]').length === 6")
    browser.click("tr[data-key]")
    browser.wait("document.querySelectorAll('.turn').length > 4")
    picture(browser, folder / "session.png")


async def main(folder: Path) -> None:
    """Runs a server under load, and takes the pictures.

    Args:
        folder: Where they go; it is there.
    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        Slowly() as sampler,
        watched(written(Path(scratch)), "repair", "ale_py", "--app-dir", scratch, generator=sampler.url) as board,
        chromium(Path(scratch)) as browser,
    ):
        playing = asyncio.create_task(load(board, sampler))
        done, _ = await asyncio.wait([playing], timeout=SECONDS)
        if not done:
            await asyncio.to_thread(take, board, browser, folder)
            playing.cancel()
        await asyncio.gather(playing, return_exceptions=not done)


if __name__ == "__main__":
    into = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    into.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(into))
