"""Measures the rollout service: how it fares when it is full, and what it costs a rollout beside the engine in process.

The generator is a stand-in for vLLM, of which all have the same one; so have they the environment server.
"""

import contextlib
import http.client
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.contenders import Contender
from tests.benchmarks.peers import python
from tests.benchmarks.processes import Failed, Process, busy_seconds, private_kib, tree
from tests.benchmarks.rollout_plan import Plan
from tests.benchmarks.rounds import Note
from tests.benchmarks.servers import Server

from gymhost.cli.usage import cpu_seconds

__all__ = ["estimate", "run"]

_TURNS, _HELD_TURNS = 8, 4
# Seconds of a turn where the service is held full.
_HELD_TURN = 1.0
_LIMIT = 1800.0
_SERVERS_USUAL, _CLIENT_USUAL, _ROLLOUT_USUAL = 15.0, 6.0, 0.03


def estimate(contenders: Sequence[Contender], rounds: int, sizes: Sequence[int]) -> float:
    """How long a run takes, in seconds."""
    rollouts, queued, running = sizes
    held = (queued / running + 1) * _HELD_TURNS * _HELD_TURN * (queued > 0)
    played = rounds * len(contenders) * (_CLIENT_USUAL + rollouts * _ROLLOUT_USUAL) * (rollouts > 0)
    return _SERVERS_USUAL + held + played


def run(contenders: Sequence[Contender], rounds: int, sizes: Sequence[int], note: Note) -> None:
    """Fills the service, and has all contenders play in turn.

    Args:
        contenders: Who plays.
        rounds: How often.
        sizes: The rollouts that a contender plays; those that are queued in the service, and those that it runs at once
            when it is full. 0 for a part that is not run.
        note: Gets each result.
    """
    rollouts, queued, running = sizes
    with _servers(running) as servers:
        if queued:  # first, since it is weighed
            print(f"service: {queued} queued", file=sys.stderr)
            plan = Plan(queued + running, _HELD_TURNS, _HELD_TURNS, slots=running)
            plan = replace(plan, tokens_per_second=plan.tokens / _HELD_TURN)
            said = {"kind": "service held", "queued": queued, "running": running, "least_seconds": plan.least_seconds}
            note(said | _hold(plan, running, servers))
        plan = Plan(rollouts, _TURNS, _TURNS)
        for number in range(rounds if rollouts else 0):
            for contender in contenders:
                of = {"kind": "service", "round": number, "contender": contender.name, "size": rollouts}
                note(of | _play(plan, contender, servers))
            print(f"service: round {number + 1} of {rounds} is done", file=sys.stderr)


@contextlib.contextmanager
def _servers(running: int) -> Generator[Mapping[str, Server]]:
    """A server of environments, one that samples, and the service."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokenizer = str(folder / "tokenizer")
        environments = stack.enter_context(Server("rollouts"))
        generator = stack.enter_context(Server("completions", FOLDER=tokenizer))
        environments.wait_ready()
        generator.wait_ready()
        words = {"ENVIRONMENTS": environments.address, "GENERATOR": f"http://{generator.address}", "RUN": str(running)}
        service = stack.enter_context(Server("service", FOLDER=tokenizer, FILE=str(folder / "jobs.sqlite"), **words))
        service.wait_ready()
        yield {"service": service, "environments": environments, "generator": generator}


def _follow(plan: Plan, generator: Server) -> None:
    """Tells a generator what it is to sample."""
    connection = http.client.HTTPConnection(generator.address, timeout=_LIMIT)
    connection.request("POST", "/plan", plan.write())
    connection.getresponse().read()
    connection.close()


def _play(plan: Plan, contender: Contender, servers: Mapping[str, Server]) -> dict[str, Any]:
    """Has a contender play a plan, and returns what came of it, or why nothing did."""
    _follow(plan, servers["generator"])
    addresses = [server.address for server in servers.values()]
    with Process([python(None), "-m", *contender.client, plan.write(), *addresses], limit=_LIMIT) as client:
        pids = {"client": [client.pid]} | {name: tree(server.pid) for name, server in servers.items()}

        def used() -> dict[str, float]:
            spent = {name: cpu_seconds(each) for name, each in pids.items()}
            return spent | {"time": time.perf_counter(), "busy": busy_seconds()}

        try:
            client.expect("begin")
            before = used()
            client.expect("end")
            after = used()
            result = client.json()
            client.wait()
        except (Failed, ValueError) as error:
            return {"error": str(error)}
    spent = {name: after[name] - before[name] for name in after}
    others = max(0.0, spent["busy"] - sum(spent[name] for name in pids))
    return result | {f"{name}_us": spent[name] / plan.rollouts * 1e6 for name in pids} | {"others_seconds": others}


def _hold(plan: Plan, running: int, servers: Mapping[str, Server]) -> dict[str, Any]:
    """Fills the service, weighs it, and has it play all; returns what came of it, or why nothing did."""
    _follow(plan, servers["generator"])
    service = servers["service"]
    command = [python(None), "-m", "tests.benchmarks.service_held", plan.write(), service.address, str(running)]
    result: dict[str, Any] = {}
    try:
        with Process(command, limit=_LIMIT) as client:
            pids = tree(service.pid)
            client.json()
            result["before_kib"] = private_kib(pids)
            client.go_on()
            result |= client.json()
            result["full_kib"] = private_kib(pids)
            spent, begun = cpu_seconds(pids), time.perf_counter()
            client.go_on()
            result |= client.json()
            result["service_cores"] = (cpu_seconds(pids) - spent) / (time.perf_counter() - begun)
            result["after_kib"] = private_kib(pids)
            client.go_on()
            client.wait()
    except (Failed, ValueError) as error:
        result["error"] = str(error)
    return result
