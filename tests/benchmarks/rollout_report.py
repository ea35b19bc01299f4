"""Turns what a run noted of rollouts into tables."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks import contenders as who
from tests.benchmarks.tables import failed, missing, spread, table

Record = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """What a figure should be.

    Attributes:
        part: The part that it is of.
        wanted: In words.
        key: The figure.
        ours: The contender whose figure it is.
        theirs: The contender whose figure of the same round it is divided by, or that is divided by it.
        inverse: Whether theirs is divided by ours.
    """

    part: str
    wanted: str
    key: str
    ours: str
    theirs: str | None = None
    inverse: bool = False


_FIGURES = {"busy": "slots busy", "seconds": "seconds", "client_us": "client CPU us"}

_TITLES = {
    "slots": "### How busy 64 slots are kept",
    "turn": "### A turn in which each tool holds its thread for 0.5 s",
    "overhead": "### Turns that wait for nothing",
}

_GOALS = [
    Goal("slots", "at least 90%", "busy", who.ENGINE),
    Goal("slots", "as near to 1 as can be", "busy", who.ENGINE, who.UNDELAYED),
    Goal("slots", "above 1", "seconds", who.ENGINE, who.LOCK_STEP, inverse=True),
    Goal("slots", "above 1", "seconds", who.ENGINE, who.TRL_ASYNC, inverse=True),
    Goal("turn", "under 1", "seconds", who.ENGINE),
    Goal("turn", "above 30", "seconds", who.ENGINE, who.TRL, inverse=True),
    Goal("turn", "above 30", "seconds", who.ENGINE, who.TRL_ASYNC, inverse=True),
    Goal("overhead", "what it costs", "client_us", who.ENGINE_LOCAL),
    Goal("overhead", "under 1", "client_us", who.ENGINE_LOCAL, who.TRL),
    Goal("overhead", "under 1", "client_us", who.ENGINE, who.TRL),
]


def render(records: Sequence[Record]) -> list[str]:
    """The parts of a report that tell of rollouts.

    Args:
        records: Those of the workload, with those of who is missing.
    """
    played = [record for record in records if record["kind"] == "rollouts"]
    parts = [
        "## Rollouts",
        "A simulated generator samples 200 tokens a turn. A contender plays all rollouts of a plan to their end. "
        "Seconds are from the first session to the last turn; CPU time is microseconds a turn, for gymhost's server as "
        "front + workers. TRL's loop runs in one process with its environments, and its rollouts are not scored; "
        "lock-step batches are not even rendered or parsed.",
    ]
    for part, title in _TITLES.items():
        mine = [record for record in played if record["part"] == part]
        if mine:
            parts += [title, _how(part, mine), _cells(mine)]
    return [*parts, *missing(records), *_goals(played)]


def in_flight(records: Sequence[Record]) -> list[str]:
    """The part of a report that tells of rollouts in flight."""
    head = ("private memory, KiB each", *(f"all in their {turn} turn" for turn in ("first", "fourth")))
    parts: list[str] = []
    for record in records:
        parts.append(f"### {record['count']:,} rollouts in flight in one process")
        if "error" in record:
            parts.append(f"It failed: {record['error']}")
            continue
        rows = [
            [name, *(f"{record[f'{name}_{turn}_kib_each']:.1f}" for turn in ("first", "fourth"))]
            for name in ("client", "front", "workers")
        ]
        parts += [
            f"All waited for a completion at once, in their first turn after "
            f"{record['all_in_first_turn_after_seconds']:.1f} s and in their fourth, with 600 sampled tokens each; "
            f"{record['finished']:,} of {record['count']:,} finished well, after {record['seconds']:.1f} s. Client "
            "and server have default settings, but for the number of rollouts that may take turns.",
            table(head, rows),
        ]
    return parts


def _how(part: str, records: Sequence[Record]) -> str:
    """What is played in a part."""
    first = records[0]
    if part == "slots":
        scale = first["scale"]
        waits = (
            ""
            if scale == 1
            else (f" All waits are {scale:g} times as long, so what is computed weighs {1 / scale:g} times as much.")
        )
        return (
            f"{first['size']} rollouts of 4 to 12 turns at once, on 64 slots of 50 tokens/s; tools take 0.5 s in the "
            f"median, log-normal with sigma 1, the same draws for all.{waits} Slots count from when all are busy until "
            "the last completion is asked for."
        )
    if part == "turn":
        return f"{first['size']} rollouts at once: a call of the tool, and a last word. Sampling takes no time."
    return f"{first['size']} rollouts of 8 turns at once. Sampling and tools take no time."


def _cells(records: Sequence[Record]) -> str:
    head = ("contender", "rollouts", "seconds", "slots busy", "client CPU us", "of it, rendering and parsing")
    names = dict.fromkeys(record["contender"] for record in records)
    rows = [_row([record for record in records if record["contender"] == name]) for name in names]
    return table((*head, "server CPU us", "others' CPU"), rows)


def _row(mine: Sequence[Record]) -> list[str]:
    fine = [record for record in mine if "error" not in record]
    first = [mine[0]["contender"], str(mine[0]["size"])]
    if not fine:
        return [*first, f"failed: {mine[-1]['error']}", *[""] * 5]

    def values(key: str) -> list[float]:
        return [record[key] for record in fine if record.get(key) is not None]

    def said(key: str, form: Callable[[float], str]) -> str:
        return spread(values(key), form) if values(key) else ""

    server = ""
    if any(values("front_us")):
        server = " + ".join(f"{statistics.median(values(key)):,.0f}" for key in ("front_us", "workers_us"))
    return [
        *first,
        said("seconds", "{:,.2f}".format) + failed(mine),
        said("busy", "{:.1%}".format),
        said("client_us", "{:,.0f}".format),
        said("chat_us", "{:,.0f}".format),
        server,
        f"{statistics.median(values('others')):.0%}" if values("others") else "",
    ]


def _goals(records: Sequence[Record]) -> list[str]:
    rows: list[list[str]] = []
    for goal in _GOALS:
        values, form = _values(goal, records), "{:.2f}"
        pair = (goal.theirs, goal.ours) if goal.inverse else (goal.ours, goal.theirs)
        what = f"{_FIGURES[goal.key]}: {' / '.join(name for name in pair if name is not None)}"
        if goal.theirs is None:
            form = {"busy": "{:.1%}", "seconds": "{:.2f}", "client_us": "{:,.0f}"}[goal.key]
        if values:
            rows.append([what, spread(values, form.format), goal.wanted])
    if not rows:
        return []
    return [
        "Ratios, each of the two in the same round, and figures that were wanted:",
        table(("what", "median [least-most]", "wanted"), rows),
    ]


def _values(goal: Goal, records: Sequence[Record]) -> list[float]:
    """Our figure in each round, divided by that of the other of the same round if there is another."""
    by_round = {
        (record["contender"], record["round"]): record[goal.key]
        for record in records
        if record["part"] == goal.part and record.get(goal.key)
    }
    found: list[float] = []
    for (contender, number), ours in by_round.items():
        other = 1.0 if goal.theirs is None else by_round.get((goal.theirs, number))
        if contender == goal.ours and other:
            found.append(other / ours if goal.inverse else ours / other)
    return found
