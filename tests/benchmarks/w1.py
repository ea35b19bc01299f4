"""Runs W1: all servers up throughout, all contenders in turn in each round, so that ratios hold on a noisy machine."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.contenders import Contender, Server, install, python
from tests.benchmarks.driver import WARM_UP
from tests.benchmarks.processes import Failed, Process, Usage, tree

# Seconds for a client beyond its window: it starts, opens its sessions and closes them.
_CLIENT_LIMIT = 90.0
# The same on a quiet machine, for the estimate.
_CLIENT_USUAL = 2.0
_SERVERS_USUAL = 20.0

Note = Callable[[dict[str, Any]], None]


def estimate(contenders: Sequence[Contender], sizes: Sequence[int], rounds: int, seconds: float) -> float:
    """How long a run takes, in seconds."""
    cells = sum(contender.plays(size) for contender in contenders for size in sizes)
    return _SERVERS_USUAL + rounds * cells * (WARM_UP + seconds + _CLIENT_USUAL)


def installed(contenders: Sequence[Contender], note: Note) -> list[Contender]:
    """Installs the peers that take part; who could not be installed is noted and left out."""
    problems: dict[str, str] = {}
    for peer in {c.peer for c in contenders if c.peer is not None}:
        try:
            install(peer)
        except Failed as error:
            problems[peer] = str(error)
    for contender in contenders:
        if contender.peer in problems:
            note({"kind": "missing", "contender": contender.name, "why": problems[contender.peer]})
    return [c for c in contenders if c.peer not in problems]


def run(contenders: Sequence[Contender], sizes: Sequence[int], rounds: int, seconds: float, note: Note) -> None:
    """Runs all cells.

    Args:
        contenders: Who takes part.
        sizes: The numbers of sessions; contenders leave out those that are too many for them.
        rounds: How often each cell is run.
        seconds: The window of a cell.
        note: Gets each result.
    """
    with contextlib.ExitStack() as stack:
        servers = {c.server: c.peer for c in contenders}
        started = {name: stack.enter_context(Server(name, peer)) for name, peer in servers.items()}
        contenders = [c for c in contenders if _plays(c, started[c.server], note)]
        for number in range(rounds):
            for size in sizes:
                for contender in contenders:
                    if contender.plays(size):
                        result = _cell(contender, started[contender.server], size, seconds)
                        note({"kind": "w1", "round": number, "contender": contender.name, "sessions": size} | result)
            print(f"round {number + 1} of {rounds} is done", file=sys.stderr)


def _plays(contender: Contender, server: Server, note: Note) -> bool:
    """Whether a contender works at all: what can't start, or only now and then, is told, not measured.

    Some servers listen before they answer, so it has a while to come up. This is also the first use, which is slow.
    """
    deadline = time.monotonic() + _CLIENT_LIMIT
    while True:
        try:
            server.wait_ready()
            result = _cell(contender, server, 1, 0.1)
        except Failed as error:
            result = {"error": str(error)}
        if not (problem := result.get("error")):
            return True
        if not server.running or time.monotonic() > deadline:
            note({"kind": "missing", "contender": contender.name, "why": problem})
            return False
        time.sleep(0.5)


def _cell(contender: Contender, server: Server, size: int, seconds: float) -> dict[str, Any]:
    """Runs a client once."""
    command = [python(contender.peer), "-m", *contender.client, server.address, str(size), str(seconds)]
    with Process(command, limit=_CLIENT_LIMIT + seconds) as client:
        try:
            client.expect("begin")
            pids = tree(client.pid), tree(server.pid)
            before = Usage(*pids)
            client.expect("end")
            after = Usage(*pids)
            result = client.json()
            client.wait()
        except (Failed, ValueError) as error:
            return {"error": str(error)}
    return result | after.since(before, result["steps_per_second"])
