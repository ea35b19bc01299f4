"""Measures rollouts: how busy they keep a generator, beside other loops; what a turn costs; how many there may be.

Unlike in other workloads nothing has a window: a contender plays a plan to its end.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.contenders import Contender
from tests.benchmarks.peers import python
from tests.benchmarks.processes import Failed, Process, Usage, private_kib, tree
from tests.benchmarks.rollout_plan import Plan
from tests.benchmarks.rounds import Note, missing
from tests.benchmarks.servers import Server

# Seconds for a client beyond its waits: it starts, plays a few rollouts, and then computes what it has to.
_CLIENT_LIMIT = 120.0
_CLIENT_USUAL = 8.0
_IN_FLIGHT_LIMIT = 600.0
_IN_FLIGHT_USUAL = 60.0
_SERVERS_USUAL = 3.0


@dataclass(frozen=True)
class Part:
    """What is played, and who plays it.

    Attributes:
        name: Its name in the records.
        plan: What is played.
        contenders: Who plays it, in this order.
    """

    name: str
    plan: Plan
    contenders: Sequence[Contender]


def waits(plan: Plan, contender: Contender) -> float:
    """How long a contender waits for completions and tools at least, in seconds."""
    one_by_one = sum(sum(plan.delays(rollout)) for rollout in range(plan.rollouts)) if contender.slow else 0.0
    return plan.least_seconds + one_by_one


def estimate(parts: Sequence[Part], rounds: int, in_flight: int) -> float:
    """How long a run takes, in seconds."""
    clients = sum(
        (1 if contender.slow and part.plan.delay else rounds) * (waits(part.plan, contender) + _CLIENT_USUAL)
        for part in parts
        for contender in part.contenders
    )
    return _SERVERS_USUAL + clients + (_IN_FLIGHT_USUAL if in_flight else 0.0)


def run(parts: Sequence[Part], rounds: int, in_flight: int, note: Note) -> None:
    """Runs all parts, and then holds rollouts in flight.

    Args:
        parts: What is run, in this order.
        rounds: How often each contender plays a part; one that runs tools one by one plays it once where they take time.
        in_flight: How many rollouts are held; 0 for none.
        note: Gets each result.
    """
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server("rollouts"))
        try:
            server.wait_ready()
        except Failed as error:
            for contender in dict.fromkeys(contender for part in parts for contender in part.contenders):
                note(missing("rollouts", contender, str(error)))
            return
        for number in range(rounds):
            for part in parts:
                for contender in part.contenders:
                    if number == 0 or not (contender.slow and part.plan.delay):
                        of = {"kind": "rollouts", "part": part.name, "round": number, "contender": contender.name}
                        note(of | {"size": part.plan.rollouts} | _play(part.plan, contender, server))
            print(f"rollouts: round {number + 1} of {rounds} is done", file=sys.stderr)
    if in_flight:
        print(f"rollouts: {in_flight} in flight", file=sys.stderr)
        note(_hold(in_flight))


def _play(plan: Plan, contender: Contender, server: Server) -> dict[str, Any]:
    command = [python(None), "-m", *contender.client, server.address, plan.write()]
    with Process(command, limit=_CLIENT_LIMIT + 3 * waits(plan, contender)) as client:
        try:
            client.expect("begin")
            pids = [client.pid], tree(server.pid)
            before = Usage(*pids)
            client.expect("end")
            after = Usage(*pids)
            result = client.json()
            client.wait()
        except (Failed, ValueError) as error:
            return {"error": str(error)}
    return result | after.since(before, result["turns_per_second"]) | {"least_seconds": plan.least_seconds}


def _hold(count: int) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": "rollouts in flight", "count": count}
    command = [python(None), "-m", "tests.benchmarks.rollout_in_flight"]
    try:
        with Server("rollouts") as server:
            server.wait_ready()
            with Process([*command, server.address, str(count)], limit=_IN_FLIGHT_LIMIT) as client:
                return said | _weigh(server, client, count)
    except (Failed, ValueError) as error:
        return said | {"error": str(error)}


def _weigh(server: Server, client: Process, count: int) -> dict[str, Any]:
    front, *workers = tree(server.pid)
    parts = {"front": [front], "workers": workers, "client": [client.pid]}

    def kib() -> Mapping[str, int]:
        return {name: private_kib(pids) for name, pids in parts.items()}

    result: dict[str, Any] = {}
    client.json()
    before = kib()
    for turn in ("first", "fourth"):
        client.go_on()
        result[f"all_in_{turn}_turn_after_seconds"] = client.json()["all_after_seconds"]
        for name, now in kib().items():
            result[f"{name}_{turn}_kib_each"] = (now - before[name]) / count
    client.go_on()
    result |= client.json()
    client.go_on()
    client.wait()
    return result
