"""Runs cells: all servers up throughout, all cells in turn in each round, so that ratios hold on a noisy machine."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.benchmarks.contenders import Cell, Contender
from tests.benchmarks.driver import WARM_UP
from tests.benchmarks.peers import install, python
from tests.benchmarks.processes import Failed, Process, Usage, tree
from tests.benchmarks.servers import Server

# Seconds for a client beyond its window: it starts, opens its sessions and closes them.
_CLIENT_LIMIT = 90.0
# Seconds that a server has to come up in.
_UP_LIMIT = 60.0
# What a client takes beyond its window on a quiet machine, and what starting the servers does: for the estimate.
_CLIENT_USUAL = 2.0
_SERVERS_USUAL = 20.0

Note = Callable[[dict[str, Any]], None]


def estimate(cells: Sequence[Cell], rounds: int, seconds: float) -> float:
    """How long a run takes, in seconds."""
    return _SERVERS_USUAL + rounds * len(cells) * (WARM_UP + seconds + _CLIENT_USUAL)


def installed(workload: str, cells: Sequence[Cell], note: Note) -> list[Cell]:
    """Installs the peers that take part; who could not be installed is noted and left out."""
    problems: dict[str, str] = {}
    for peer in {cell.contender.peer for cell in cells if cell.contender.peer is not None}:
        try:
            install(peer)
        except Failed as error:
            problems[peer] = str(error)
    for contender in dict.fromkeys(cell.contender for cell in cells):
        if contender.peer in problems:
            note(missing(workload, contender, problems[contender.peer]))
    return [cell for cell in cells if cell.contender.peer not in problems]


def run(
    workload: str,
    cells: Sequence[Cell],
    rounds: int,
    seconds: float,
    note: Note,
    *,
    with_children: bool = True,
    beside: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Runs all cells.

    Args:
        workload: The kind of its results.
        cells: What is run, in this order.
        rounds: How often each cell is run.
        seconds: The window of a cell.
        note: Gets each result.
        with_children: Whether what a client starts counts to it. What comes and goes can't.
        beside: What runs beside a server, by its name: what follows `python -m`; the server's address is added.
    """
    with contextlib.ExitStack() as stack:
        wanted = {c.contender.server: c.contender.peer for c in cells if c.contender.server is not None}
        started = {name: stack.enter_context(Server(name, peer)) for name, peer in wanted.items()}
        servers: dict[str | None, Server | None] = {None: None, **started}
        problems: dict[Contender, str | None] = {}
        for contender in dict.fromkeys(cell.contender for cell in cells):
            problems[contender] = problem = _try(contender, servers[contender.server])
            if problem is not None:
                note(missing(workload, contender, problem))
        cells = [cell for cell in cells if problems[cell.contender] is None]
        for name, module in (beside or {}).items():
            if name in started:
                beside_it = stack.enter_context(Process([python(None), "-m", *module, started[name].address]))
                beside_it.line()  # it has begun
        for number in range(rounds):
            for cell in cells:
                result = _run(cell, servers[cell.contender.server], seconds, with_children)
                of = {"kind": workload, "round": number, "contender": cell.contender.name, "size": cell.size}
                note(of | result)
            print(f"{workload}: round {number + 1} of {rounds} is done", file=sys.stderr)


def missing(workload: str, contender: Contender, why: str) -> dict[str, Any]:
    """What is noted of a contender that does not take part."""
    return {"kind": "missing", "workload": workload, "contender": contender.name, "why": why}


def _try(contender: Contender, server: Server | None) -> str | None:
    """Why a contender does not work: what can't start, or only now and then, is told, not measured.

    Some servers listen before they answer, so they have a while to come up. This is also the first use, which is slow.
    """
    while True:
        try:
            if server is not None:
                server.wait_ready()
            result = _run(Cell(contender, 1), server, 0.1, True)
        except Failed as error:
            result = {"error": str(error)}
        problem: str | None = result.get("error")
        if problem is None or server is None or not server.running or server.age > _UP_LIMIT:
            return problem
        time.sleep(0.5)


def _run(cell: Cell, server: Server | None, seconds: float, with_children: bool) -> dict[str, Any]:
    """Runs a client once."""
    contender, address = cell.contender, "-" if server is None else server.address
    command = [python(contender.peer), "-m", *contender.client, address, str(cell.size), str(seconds)]
    with Process(command, limit=_CLIENT_LIMIT + seconds) as client:
        try:
            client.expect("begin")
            pids = tree(client.pid) if with_children else [client.pid], [] if server is None else tree(server.pid)
            before = Usage(*pids)
            client.expect("end")
            after = Usage(*pids)
            result = client.json()
            client.wait()
        except (Failed, ValueError) as error:
            return {"error": str(error)}
    return result | after.since(before, result["steps_per_second"])
