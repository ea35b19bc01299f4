"""Clients that play until they are told to stop: `python -m chaos.players ADDRESS FOLDER NAME PLAY`, PLAY as JSON.

Each session writes what it saw to FOLDER. The end of standard input ends the play: sessions finish their episodes and
close.
"""

import asyncio
import contextlib
import dataclasses
import json
import random
import sys
import time
import uuid
from pathlib import Path
from typing import IO, Any

from chaos.history import Event
from gymhost.client import RemoteServer, Session, connect
from gymhost.wire import errors

# Seconds after which a command that nothing came of is a fault of its own: more than any of the faults lasts.
PATIENCE = 120.0
# The errors that a session may meet when something is done to its server; any other is a problem.
HARM = (
    errors.SessionError,
    errors.ServerUnavailable,
    errors.CapacityExhausted,
    errors.SandboxUnavailable,
    errors.EnvironmentFault,
)


@dataclasses.dataclass(frozen=True)
class Play:
    """What a process plays.

    Attributes:
        seed: Makes the play.
        direct: Whether it may go past gRPC.
        sessions: How many sessions of each environment, by its id.
        log: Where counters write what they ran.
        pause: The most seconds between two steps.
    """

    seed: str
    direct: bool
    sessions: dict[str, int]
    log: str
    pause: float = 0.02


class Player:
    """One session after the other of one environment, for as long as the play lasts.

    Args:
        server: Where.
        play: How.
        environment: What.
        number: Which of the players of it this is.
        output: Where to write what it sees.
    """

    def __init__(self, server: RemoteServer, play: Play, environment: str, number: int, output: IO[str]) -> None:
        self._server = server
        self._play = play
        self._environment = environment
        self._random = random.Random(f"{play.seed} {environment} {number}")
        self._output = output
        self.recoveries = 0

    async def play(self, stop: asyncio.Event) -> None:
        """Plays until the event is set, then finishes what is begun."""
        while not stop.is_set():
            kwargs: dict[str, Any] = {"log": self._play.log} if "Files" not in self._environment else {}
            session = self._server.session(self._environment, **kwargs)
            with contextlib.suppress(*HARM):
                async with session:
                    try:
                        while not stop.is_set() and not session.lost:
                            await (self._write_files(session) if not kwargs else self._count(session, stop))
                    finally:
                        self.recoveries += session.recoveries
            # A server that is down refuses at once.
            if session.lost:
                await asyncio.sleep(self._random.uniform(0.0, 0.2))

    async def _count(self, session: Session, stop: asyncio.Event) -> None:
        """Plays an episode of a counter."""
        episode = uuid.UUID(int=self._random.getrandbits(128)).hex
        seed = self._random.getrandbits(31)
        await self._do(session.reset(seed=seed, options={"episode": episode}), episode, "reset", 0, seed)
        for number in range(1, self._random.randint(5, 200)):
            action = self._random.getrandbits(31)
            await self._do(session.step(action), episode, "step", number, action)
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.uniform(0.0, self._play.pause))
            if stop.is_set():
                return

    async def _write_files(self, session: Session) -> None:
        """Plays an episode in a sandbox: a problem is one that a counter has too, and is written down as such."""
        await session.reset(seed=0)
        for number in range(1, self._random.randint(2, 8)):
            messages, *_ = await asyncio.wait_for(session.call_tool("write", {"text": "x"}), PATIENCE)
            text = messages[0]["content"]
            if text != str(number) and not text.startswith("failed"):
                self._write(Event(self._environment, "", "step", number, 0, error=f"WrongReply: {text}"))
            elif text != str(number):
                return  # such as a full disk: the file is as it was, and the episode is given up

    async def _do(self, command: Any, episode: str, kind: str, number: int, asked: int) -> None:
        began = time.monotonic()

        def event(seen: list[int] | None, error: str = "") -> Event:
            seconds = round(time.monotonic() - began, 3)
            return Event(self._environment, episode, kind, number, asked, seen, error, seconds)

        try:
            observation, *_ = await asyncio.wait_for(command, PATIENCE)
        except (Exception, asyncio.CancelledError) as error:
            self._write(event(None, f"{type(error).__name__}: {error}"))
            raise
        self._write(event([int(part) for part in observation]))

    def _write(self, event: Event) -> None:
        self._output.write(event.line() + "\n")
        self._output.flush()


async def play(address: str, folder: Path, name: str, how: Play) -> None:
    """Plays until a line, or the end, comes on standard input."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, stop.set)
    with contextlib.ExitStack() as files:

        def output(index: int, number: int) -> IO[str]:
            return files.enter_context((folder / f"{name}-{index}-{number}.jsonl").open("w"))

        async with connect(address, direct=how.direct, connect_timeout=60.0) as server:
            players = [
                Player(server, how, environment, number, output(index, number))
                for index, (environment, count) in enumerate(how.sessions.items())
                for number in range(count)
            ]
            print("playing", flush=True)
            outcomes = await asyncio.gather(*(player.play(stop) for player in players), return_exceptions=True)
    loop.remove_reader(sys.stdin)
    faults = [f"{type(outcome).__name__}: {outcome}" for outcome in outcomes if outcome is not None]
    print(json.dumps({"recoveries": sum(player.recoveries for player in players), "faults": faults}), flush=True)


def main() -> None:
    """Plays."""
    address, folder, name, how = sys.argv[1:]
    asyncio.run(play(address, Path(folder), name, Play(**json.loads(how))))


if __name__ == "__main__":
    main()
