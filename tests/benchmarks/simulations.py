"""Measures what is simulated in a time that jumps: routing among generators, and stages with places of their own.

What comes of it depends on the draws alone, and on no machine. So rounds differ by their draws, and some are run beside
each other.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from tests.benchmarks.contenders import ROUTING, STAGES, Contender
from tests.benchmarks.heavy_tails import Draw, Plan
from tests.benchmarks.peers import python
from tests.benchmarks.processes import Failed, Process
from tests.benchmarks.rounds import Note

__all__ = ["Course", "Part", "Places", "estimate", "parts", "run"]

_LIMIT = 3600.0
# What a process takes on a quiet machine: to begin, and for a simulated second of one contender.
_BEGIN_USUAL = 2.0
_SECOND_USUAL = 0.015


@dataclass(frozen=True)
class Places:
    """How many rollouts there may be in each stage."""

    init: int = 32
    run: int = 64
    eval: int = 96
    ahead: int = 16

    @property
    def total(self) -> int:
        """How many there may be in all of them together."""
        return self.run + self.ahead + self.eval


@dataclass(frozen=True)
class Course:
    """What happens when.

    Attributes:
        plan: What is played.
        places: How many rollouts there may be.
        sequences: How many sequences a server works on at once.
        servers: How many servers there are from the beginning.
        late: How many come later.
        warm: When it is looked at for the first time, in seconds.
        join: When the others come, and it is looked at again.
        end: When it is over.
    """

    plan: Plan
    places: Places
    sequences: int = 256
    servers: int = 1
    late: int = 0
    warm: float = 100.0
    join: float = 200.0
    end: float = 400.0

    @classmethod
    def read(cls, text: str) -> Self:
        """Reads what `write` wrote."""
        of = json.loads(text)
        return cls(**of | {"plan": Plan.read(of["plan"]), "places": Places(**of["places"])})

    def write(self) -> str:
        """Writes it as JSON."""
        return json.dumps(asdict(self))

    def drawn(self, seed: int) -> "Course":
        """The same with other draws."""
        return replace(self, plan=replace(self.plan, seed=seed))


@dataclass(frozen=True)
class Part:
    """What is played, and who plays it.

    Attributes:
        kind: The kind of its records.
        name: Its name in them.
        course: What is played.
        contenders: Who plays it, all of one module.
    """

    kind: str
    name: str
    course: Course
    contenders: Sequence[Contender]


def parts(what: str | None, seconds: float, wanted: Callable[[Contender], bool]) -> list[Part]:
    """All parts in which somebody takes part.

    Args:
        what: The workload alone that is run; None for both.
        seconds: How long each lasts, in simulated time.
        wanted: Whether a contender takes part.
    """
    routing = Course(
        Plan(), Places(run=128, ahead=0), servers=2, late=1, warm=seconds / 4, join=seconds / 2, end=seconds
    )
    slow = Plan(init=Draw(10.0, 1.0), eval=Draw(10.0, most=290.0, alpha=1.5))
    staged = Course(slow, Places(), sequences=48, warm=seconds / 2, join=seconds / 2, end=seconds)
    slower = replace(staged, plan=replace(slow, eval=Draw(25.0, most=290.0, alpha=1.5)))
    found = [
        Part("routing", "a server comes late", routing, list(filter(wanted, ROUTING))),
        Part("stages", "EVAL from 10 s on", staged, list(filter(wanted, STAGES))),
        Part("stages", "EVAL from 25 s on", slower, list(filter(wanted, STAGES))),
    ]
    return [part for part in found if part.contenders and what in (None, part.kind)]


def estimate(parts: Sequence[Part], rounds: int) -> float:
    """How long a run takes, in seconds."""
    each = sum(_BEGIN_USUAL + _SECOND_USUAL * part.course.end * len(part.contenders) for part in parts)
    return rounds * each / (os.cpu_count() or 1)


def run(parts: Sequence[Part], rounds: int, note: Note) -> None:
    """Has all contenders play all parts, each round with other draws.

    Args:
        parts: What is run.
        rounds: How often.
        note: Gets each result.
    """
    runs = [(part, number) for number in range(rounds) for part in parts]
    cores = os.cpu_count() or 1
    for first in range(0, len(runs), cores):
        with contextlib.ExitStack() as stack:
            started = [(part, number, _start(part, number, stack)) for part, number in runs[first : first + cores]]
            for part, number, client in started:
                of = {"kind": part.kind, "part": part.name, "round": number, "course": part.course.write()}
                for contender, result in zip(part.contenders, _results(client, len(part.contenders)), strict=True):
                    note(of | {"contender": contender.name} | result)
                print(f"{part.kind}, {part.name}: round {number + 1} of {rounds} is done", file=sys.stderr)


def _start(part: Part, number: int, stack: contextlib.ExitStack) -> Process:
    """Begins to have a part played by all its contenders."""
    module, variants = part.contenders[0].client[0], [contender.client[1] for contender in part.contenders]
    command = [python(None), "-m", module, part.course.drawn(number).write(), *variants]
    return stack.enter_context(Process(command, limit=_LIMIT))


def _results(client: Process, count: int) -> list[dict[str, Any]]:
    """What came of each contender, or why nothing did."""
    results: list[dict[str, Any]] = []
    try:
        for _ in range(count):
            results.append(client.json())  # noqa: PERF401 - what there is stays if another one fails
        client.wait()
    except (Failed, ValueError) as error:
        results += [{"error": str(error)}] * (count - len(results))
    return results
