"""Measures rollouts: how busy they keep a generator, beside other loops; what a turn costs; how many there may be.

Unlike in other workloads nothing has a window: a contender plays a plan to its end.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.contenders import ROLLOUTS, UNDELAYED, Contender
from tests.benchmarks.peers import python
from tests.benchmarks.processes import Failed, Process, Usage, private_kib, tree
from tests.benchmarks.rollout_plan import Plan, undelayed
from tests.benchmarks.rounds import Note
from tests.benchmarks.servers import Server
from tests.support.simulated_generator import Slots

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
        scale: How long waits are in it, to what they would be.
        contenders: Who plays it, in this order.
    """

    name: str
    plan: Plan
    scale: float
    contenders: Sequence[Contender]

    def rounds(self, contender: Contender, rounds: int) -> int:
        """How often a contender plays it, if others do so many times: what takes minutes of waiting is done once."""
        return 1 if contender.slow and self.plan.delay else rounds


def parts(sizes: Sequence[int], scale: float, wanted: Callable[[Contender], bool]) -> list[Part]:
    """All parts in which somebody takes part.

    Args:
        sizes: The rollouts of each; 0 for a part that is not run.
        scale: How long the waits of the first are, to what they would be.
        wanted: Whether a contender takes part.
    """
    plans = {
        "slots": Plan(sizes[0], 4, 12, tokens_per_second=50.0, delay=0.5, sigma=1.0).scaled(scale),
        "turn": Plan(sizes[1], 2, 2, delay=0.5, blocking=True),
        "overhead": Plan(sizes[2], 8, 8),
    }
    scales = {"slots": scale}
    found = [
        Part(name, plan, scales.get(name, 1.0), list(filter(wanted, ROLLOUTS[name]))) for name, plan in plans.items()
    ]
    return [part for part in found if part.plan.rollouts and part.contenders]


def waits(plan: Plan, contender: Contender) -> float:
    """How long a contender waits for completions and tools at least, in seconds."""
    one_by_one = sum(sum(plan.delays(rollout)) for rollout in range(plan.rollouts)) if contender.slow else 0.0
    return plan.least_seconds + one_by_one


def estimate(parts: Sequence[Part], rounds: int, in_flight: int) -> float:
    """How long a run takes, in seconds."""
    clients = sum(
        part.rounds(contender, rounds) * (waits(part.plan, contender) + _CLIENT_USUAL)
        for part in parts
        for contender in part.contenders
    )
    return _SERVERS_USUAL + clients + (_IN_FLIGHT_USUAL if in_flight else 0.0)


def run(parts: Sequence[Part], rounds: int, in_flight: int, note: Note) -> None:
    """Runs all parts, and then holds rollouts in flight.

    Args:
        parts: What is run, in this order.
        rounds: How often each contender plays a part, but see `Part.rounds`.
        in_flight: How many rollouts are held; 0 for none.
        note: Gets each result.
    """
    with contextlib.ExitStack() as stack:
        server = None
        if any(contender.server for part in parts for contender in part.contenders):
            server = stack.enter_context(Server("rollouts"))
            server.wait_ready()
        for number in range(rounds):
            for part in parts:
                of = {"kind": "rollouts", "part": part.name, "round": number, "size": part.plan.rollouts}
                of |= {"scale": part.scale}
                for contender in part.contenders:
                    if number < part.rounds(contender, rounds):
                        on = None if contender.server is None else server
                        note(of | {"contender": contender.name} | play(part.plan, contender, on))
                if part.plan.least_seconds:
                    note(of | {"contender": UNDELAYED} | _undelayed(part.plan))
            print(f"rollouts: round {number + 1} of {rounds} is done", file=sys.stderr)
    if in_flight:
        print(f"rollouts: {in_flight} in flight", file=sys.stderr)
        note(_hold(in_flight))


def play(plan: Plan, contender: Contender, server: Server | None) -> dict[str, Any]:
    """Has a contender play a plan, and returns what came of it, or why nothing did."""
    address, pids = ("-", []) if server is None else (server.address, tree(server.pid))
    command = [python(None), "-m", *contender.client, address, plan.write()]
    with Process(command, limit=_CLIENT_LIMIT + 3 * waits(plan, contender)) as client:
        try:
            client.expect("begin")
            before = Usage([client.pid], pids)
            client.expect("end")
            after = Usage([client.pid], pids)
            result = client.json()
            client.wait()
        except (Failed, ValueError) as error:
            return {"error": str(error)}
    return result | after.since(before, result["turns_per_second"])


def _undelayed(plan: Plan) -> dict[str, Any]:
    slots = Slots(plan.slots, plan.tokens_per_second)
    undelayed(plan, slots.take)
    return {"seconds": slots.ended, "busy": slots.share_busy}


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
