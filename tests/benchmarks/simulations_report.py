"""Turns what a run noted of simulations into tables."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks import contenders as who
from tests.benchmarks.inference import PrefixCache, Speed
from tests.benchmarks.simulations import Course
from tests.benchmarks.tables import failed, spread, table

__all__ = ["routing", "stages"]

Record = dict[str, Any]
Form = Callable[[float], str]

_WHOLE, _TENTHS, _HUNDREDTHS, _SHARE = "{:,.0f}".format, "{:.1f}".format, "{:.2f}".format, "{:.1%}".format


def routing(records: Sequence[Record]) -> list[str]:
    """The parts of a report that tell of routing among generators."""
    course = Course.read(records[0]["course"])
    columns = [
        ("tokens/s before", ("before", "tokens_per_second"), _WHOLE),
        ("prefix hits before", ("before", "hits"), _SHARE),
        ("tokens/s after", ("after", "tokens_per_second"), _WHOLE),
        ("rollouts/s after", ("after", "rollouts_per_second"), _HUNDREDTHS),
        ("prefix hits after", ("after", "hits"), _SHARE),
        ("newcomer's share of what decodes", ("after", "share"), _SHARE),
    ]
    for record in records:
        if "error" not in record:
            sequences = record["after"]["sequences"]
            record["after"]["share"] = sum(sequences[course.servers :]) / sum(sequences)
    return [
        "## Routing: a generator comes late",
        f"Simulated, so that the machine has no part in it: the engine plays {course.places.run} rollouts at once with "
        f"{course.servers} servers, and from {course.join:g} s on with {course.servers + course.late}. Before is from "
        f"{course.warm:g} s to then, after from then to {course.end:g} s. The assignment counter is what ProRL Agent "
        "does: a rollout goes where the fewest have begun since that server was registered, no count is ever lowered, "
        "and a newcomer begins at 0; in the last row each server had been given 1,000 before.",
        _assumed(course),
        _cells(records, columns),
        _ratios(records, ("after", "tokens_per_second"), who.ROUTED, "tokens/s after"),
    ]


def stages(records: Sequence[Record]) -> list[str]:
    """The parts of a report that tell of stages with places of their own."""
    course = Course.read(records[0]["course"])
    places = course.places
    columns = [
        ("tokens/s", ("tokens_per_second",), _WHOLE),
        ("rollouts/s", ("rollouts_per_second",), _HUNDREDTHS),
        ("generator's places busy", ("busy",), _SHARE),
        ("prefix hits", ("hits",), _SHARE),
        ("rollouts in RUN", ("run",), _TENTHS),
        ("sessions open", ("sessions",), _TENTHS),
    ]
    parts = [
        "## Stages with places of their own, and one pool",
        f"Simulated, with one server, from {course.warm:g} s to {course.end:g} s. The engine has {places.init} places "
        f"in INIT, {places.run} in RUN and {places.eval} in EVAL, and begins at most {places.ahead} rollouts ahead of "
        "RUN. In one pool a rollout holds its place from the beginning of its INIT to the end of its EVAL.",
    ]
    for part in dict.fromkeys(record["part"] for record in records):
        mine = [record for record in records if record["part"] == part]
        parts += [
            f"### {part}",
            _assumed(Course.read(mine[0]["course"])),
            _cells(mine, columns),
            _ratios(mine, ("tokens_per_second",), who.STAGED, "tokens/s"),
        ]
    return parts


def _assumed(course: Course) -> str:
    """What is played, and on what."""
    speed = Speed(sequences=course.sequences)
    return (
        f"Assumed: {course.plan.words()}. A server works on {speed.sequences} sequences at most. A step takes "
        f"{speed.step * 1e3:g} ms, {speed.sequence * 1e6:g} us more for each sequence that decodes, "
        f"{speed.context * 1e9:g} ns for each token of its context, and {speed.prefill * 1e6:g} us for each token of a "
        f"prompt that is computed, at most {speed.chunk:,} in a step. A prefix cache of {speed.cache:,} tokens, in "
        f"blocks of {PrefixCache.size}, drops what was used longest ago. So much one expects of a model of 7 to 8 "
        "billion parameters on a GPU of 80 GB; it was not measured."
    )


def _value(record: Record, key: Sequence[str]) -> float:
    found: Any = record
    for name in key:
        found = found[name]
    return found


def _cells(records: Sequence[Record], columns: Sequence[tuple[str, Sequence[str], Form]]) -> str:
    rows: list[list[str]] = []
    for name in dict.fromkeys(record["contender"] for record in records):
        mine = [record for record in records if record["contender"] == name]
        fine = [record for record in mine if "error" not in record]
        if not fine:
            rows.append([name, f"failed: {mine[-1]['error']}", *[""] * (len(columns) - 1)])
            continue
        cells = [spread([_value(record, key) for record in fine], form) for _, key, form in columns]
        rows.append([name + failed(mine), *cells])
    rounds = len({record["round"] for record in records})
    return f"Rounds, each with other draws: {rounds}; median [least-most].\n\n" + table(
        ("contender", *(title for title, _, _ in columns)), rows
    )


def _ratios(records: Sequence[Record], key: Sequence[str], ours: str, what: str) -> str:
    """Our figure divided by each other contender's of the same round."""
    by_round = {
        (record["contender"], record["round"]): _value(record, key) for record in records if "error" not in record
    }
    rows: list[list[str]] = []
    for theirs in dict.fromkeys(record["contender"] for record in records if record["contender"] != ours):
        ratios = [
            value / by_round[theirs, number]
            for (name, number), value in by_round.items()
            if name == ours and by_round.get((theirs, number))
        ]
        rows.append([f"{what}: {ours} / {theirs}", spread(ratios, _HUNDREDTHS), "above 1"])
    return "Ratios, each of the two in the same round:\n\n" + table(("what", "median [least-most]", "wanted"), rows)
