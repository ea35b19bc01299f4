"""`gymhost serve` with a dashboard, and clients that give it something to show."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

from gymhost.client import RemoteServer, connect
from gymhost.server.tokens import hash_of
from gymhost.wire import errors
from support.command import Serving, serving
from support.server import TESTS

__all__ = ["TOKENS", "Watched", "called_tool", "play", "watched"]

TOKENS = {"boss": "ann admin", "work": "bob", "look": "dan read-only"}


class Watched(NamedTuple):
    """A server with a dashboard.

    Attributes:
        serving: The process.
        url: The dashboard, without a slash at its end.
        rollouts: Where the rollout service listens; empty without one.
        said: The lines that were said at the start, after the first.
    """

    serving: Serving
    url: str
    rollouts: str
    said: list[str]

    @property
    def address(self) -> str:
        """Where the environment server listens."""
        return self.serving.address


@contextlib.contextmanager
def watched(
    folder: Path, *options: str, tokens: dict[str, str] | None = None, generator: str = "", **variables: str
) -> Generator[Watched, None, None]:
    """Runs a server with a dashboard, and with a rollout service if there is a generator.

    Args:
        folder: Where its files are.
        *options: More options of its command.
        tokens: Whom it lets in: a name and a role for each token; None for everybody.
        generator: The URL of what rollouts sample with.
        **variables: More variables of its process.
    """
    if "--dashboard" not in options:
        options = ("--dashboard", "127.0.0.1:0", *options)
    if tokens:
        file = folder / "tokens"
        file.write_text("".join(f"{owner} {hash_of(token)}\n" for token, owner in tokens.items()))
        file.chmod(0o600)
        options += ("--token-file", str(file))
    if generator:
        from support.rollouts_process import tokenizer_folder  # which needs what the heavy tests need

        options += ("--rollouts", "--tokenizer", tokenizer_folder(), "--renderer", "qwen3", "--generator", generator)
        options += ("--rollout-limit", "turns=4", "--rollout-limit", "completion_tokens=4000")
    options += ("--app-dir", str(TESTS), "support.environments")
    with serving(*options, cwd=folder, **variables) as process:
        assert process.process.stdout is not None
        said = [process.process.stdout.readline() for _ in range(2 if generator else 1)]
        service = re.search(r"takes rollout jobs on (\S+);", said[0])
        shown = re.search(r"shows all of it on (\S+)/\n", said[-1])
        assert shown, said
        yield Watched(process, shown[1], service[1] if service else "", said)


def called_tool(name: str, **arguments: Any) -> dict[str, Any]:
    """The message of an assistant that calls a tool."""
    call = {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def play(address: str, token: str | None, environments: dict[str, int], steps: int) -> Counter[str]:
    """Plays sessions side by side, each as many steps, and counts them.

    Args:
        address: The server.
        token: The token.
        environments: How many sessions of each environment.
        steps: The steps of each session; of the environment `test/Raises-v0` the last one raises.

    Returns:
        By environment the steps that were taken; with "failed " before it those that failed, with "reset " its resets.
    """
    counted: Counter[str] = Counter()

    async def one(remote: RemoteServer, environment_id: str) -> None:
        async with remote.session(environment_id) as session:
            done = True
            for number in range(steps):
                if done:
                    await session.reset(seed=number, label=f"episode-{number}")
                    counted[f"reset {environment_id}"] += 1
                raises = environment_id == "test/Raises-v0" and number == steps - 1
                try:
                    _, _, terminated, truncated, _ = await session.step("raise" if raises else number % 2)
                except errors.EnvironmentFault:
                    counted[f"failed {environment_id}"] += 1
                    return
                counted[environment_id] += 1
                done = terminated or truncated

    async with connect(address, token=token) as remote:
        await asyncio.gather(*(one(remote, each) for each, count in environments.items() for _ in range(count)))
    return counted
