"""Measures a step of TRL's trainer: with its own `environment_factory`, and with gymhost in its place."""

import contextlib
import sys
from collections.abc import Callable, Sequence

from tests.benchmarks.contenders import TRAINING, Contender
from tests.benchmarks.rollout_plan import Plan
from tests.benchmarks.rollouts import Part, play, waits
from tests.benchmarks.rounds import Note
from tests.benchmarks.servers import Server

# What a client takes beyond its waits: it imports TRL, takes a short step first, and then computes what it has to.
_CLIENT_USUAL = 20.0
_TURNS = 4


def parts(sizes: Sequence[int], wanted: Callable[[Contender], bool]) -> list[Part]:
    """All parts in which somebody takes part.

    Args:
        sizes: The rollouts of each; 0 for a part that is not run.
        wanted: Whether a contender takes part.
    """
    plans = {
        "tools": Plan(sizes[0], _TURNS, _TURNS, tokens=100, delay=0.5, blocking=True),
        "sampling": Plan(sizes[1], _TURNS, _TURNS, tokens=100, tokens_per_second=50.0, delay=0.5, blocking=True),
    }
    contenders = list(filter(wanted, TRAINING))
    return [Part(name, plan, 1.0, contenders) for name, plan in plans.items() if plan.rollouts and contenders]


def estimate(parts: Sequence[Part], rounds: int) -> float:
    """How long a run takes, in seconds."""
    steps = sum(waits(part.plan, contender) + _CLIENT_USUAL for part in parts for contender in part.contenders)
    return rounds * steps


def run(parts: Sequence[Part], rounds: int, note: Note) -> None:
    """Has each contender take a step of each part in every round, also those whose steps are long.

    Args:
        parts: What is run, in this order.
        rounds: How often.
        note: Gets each result.
    """
    with contextlib.ExitStack() as stack:
        server = None
        if any(contender.server for part in parts for contender in part.contenders):
            server = stack.enter_context(Server("rollouts"))
            server.wait_ready()
        for number in range(rounds):
            for part in parts:
                of = {"kind": "training", "part": part.name, "round": number, "size": part.plan.rollouts}
                for contender in part.contenders:
                    on = None if contender.server is None else server
                    note(of | {"contender": contender.name} | play(part.plan, contender, on))
            print(f"training: round {number + 1} of {rounds} is done", file=sys.stderr)
