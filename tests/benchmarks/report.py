"""Turns what a run noted into tables."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.benchmarks.contenders import (
    CONTENDERS,
    GYMHOST,
    GYMHOST_GRPC,
    GYMHOST_GRPC_UVLOOP,
    GYMHOST_UVLOOP,
    OPENENV_BEST,
    STREAM,
)

Record = dict[str, Any]

# What is divided, the contenders' names over each other, the sessions, and what the ratio should be.
_OURS = (GYMHOST, GYMHOST_UVLOOP, GYMHOST_GRPC, GYMHOST_GRPC_UVLOOP)
_RATIOS = [
    ("steps_per_second", "steps/s", ours, OPENENV_BEST, sessions, wanted)
    for sessions, wanted in ((64, "at least 12"), (512, "at least 18"))
    for ours in _OURS
] + [("p50_us", "latency, p50", ours, STREAM, 1, "at most 1.5") for ours in _OURS]

# The idle sessions that are opened first, and as many again.
_SETS = ("first", "second")


def render(records: Sequence[Record]) -> str:
    """A report in Markdown."""
    by_kind: dict[str, list[Record]] = {}
    for record in records:
        by_kind.setdefault(record["kind"], []).append(record)
    parts = ["# Benchmarks", *map(_machine, by_kind.get("machine", []))]
    if "w1" in by_kind or "missing" in by_kind:
        parts += _w1(by_kind.get("w1", []), by_kind.get("missing", []))
    parts += [part for record in by_kind.get("idle", []) for part in _idle(record)]
    return "\n\n".join(parts) + "\n"


def _machine(record: Record) -> str:
    said = [f"{record['cores']} cores ({record['cpu']}), Linux {record['kernel']}, Python {record['python']}"]
    said += [_versions(record["versions"])]
    said += [f"{_versions(versions)} for {peer}" for peer, versions in record["peers"].items() if versions]
    return "; ".join([*said, f"load average before the run {record['load']:.1f}."])


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _w1(cells: list[Record], missing: list[Record]) -> list[str]:
    fine = [cell for cell in cells if "error" not in cell]
    rounds = len({cell["round"] for cell in cells})
    sizes = sorted({cell["sessions"] for cell in cells})
    others = [cell["others"] for cell in fine]
    noise = f"median {statistics.median(others):.0%}, at most {max(others):.0%}" if others else "not known"
    parts = [
        "## W1: steps of an echo environment",
        f"Rounds: {rounds}; median [least-most]. Latency is a step's, for one of the sessions. CPU time is "
        f"microseconds a step, for gymhost's server as front + workers. CPU that others used meanwhile: {noise}.",
        _table(
            ("contender", "sessions", "steps/s", "p50 us", "p99 us", "client CPU us", "server CPU us", "others' CPU"),
            [
                row
                for contender in CONTENDERS
                for size in sizes
                if (row := _row(contender.name, size, contender.server, cells))
            ],
        ),
    ]
    if missing:
        parts.append("\n".join(f"- {record['contender']} is missing: {record['why']}" for record in missing))
    rows = [row for ratio in _RATIOS if (row := _ratio(*ratio, fine))]
    if rows:
        parts += [
            "Ratios, each of the two in the same round:",
            _table(("what", "sessions", "median [least-most]", "wanted"), rows),
        ]
    return parts


def _row(name: str, size: int, server: str, cells: Iterable[Record]) -> list[str] | None:
    """A row of the table; None for what was not run."""
    mine = [cell for cell in cells if cell["contender"] == name and cell["sessions"] == size]
    fine = [cell for cell in mine if "error" not in cell]
    if not mine:
        return None
    if not fine:
        return [name, str(size), f"failed: {mine[-1]['error']}", *[""] * 5]

    def spread(key: str, form: Callable[[float], str] = "{:,.0f}".format) -> str:
        return _spread([cell[key] for cell in fine if cell[key] is not None], form)

    def median(key: str) -> float:
        return statistics.median([cell[key] or 0.0 for cell in fine])

    front, workers = median("front_us"), median("workers_us")
    return [
        name,
        str(size),
        spread("steps_per_second") + (f", {len(mine) - len(fine)} of {len(mine)} failed" if mine != fine else ""),
        spread("p50_us"),
        spread("p99_us"),
        spread("client_us", "{:,.1f}".format),
        f"{front:,.1f} + {workers:,.1f}" if server == "gymhost" else f"{front + workers:,.1f}",
        f"{median('others'):.0%}",
    ]


def _ratio(
    key: str, what: str, ours: str, theirs: str, size: int, wanted: str, cells: list[Record]
) -> list[str] | None:
    """A row of ratios; None where either was not run."""
    by_round = {(cell["contender"], cell["round"]): cell[key] for cell in cells if cell["sessions"] == size}
    rounds = sorted({number for _, number in by_round})
    pairs = [(by_round.get((ours, number)), by_round.get((theirs, number))) for number in rounds]
    ratios = [mine / other for mine, other in pairs if mine and other]
    if not ratios:
        return None
    return [f"{what}: {ours} / {theirs}", str(size), _spread(ratios, "{:.2f}".format), wanted]


def _idle(record: Record) -> list[str]:
    title = f"## {record['sessions']:,} idle sessions of gymhost/Echo-v0 on one default server"
    if "error" in record:
        return [title, f"It failed: {record['error']}"]
    memory = ("before", "once", "twice", "closed")
    rows = [
        [
            name,
            *(f"{record[f'{name}_{when}_kib'] / 1024:.1f}" for when in memory),
            *(f"{_each(record, which, name):.2f}" for which in _SETS),
        ]
        for name in ("front", "workers", "client")
    ]
    server = max(_each(record, which, "front") + _each(record, which, "workers") for which in _SETS)
    return [
        title,
        f"Each was reset and stepped once. The server holds {record['held']:,}; of {record['sample']} that were "
        f"stepped again {record['alive']} answered. Opened, reset and stepped in {record['opened_seconds']:.1f} s. "
        f"Then as many again were opened, since the first fill what is free in a fresh process's heap; all were closed "
        f"in {record['closed_seconds']:.1f} s.",
        _table(
            (
                "private memory",
                "before, MiB",
                "with these",
                "with as many again",
                "closed",
                "KiB a session, first ones",
                "second ones",
            ),
            rows,
        ),
        f"The server takes {server:.2f} KiB a session, by the larger of the two; wanted: at most 8.",
    ]


def _each(record: Record, which: str, name: str) -> float:
    """What each of the first or of the second sessions added to the memory of a part, in KiB."""
    return record[f"{name}_{which}_kib_a_session"]


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    if not values:
        return "none"
    if len(values) == 1:
        return form(values[0])
    return f"{form(statistics.median(values))} [{form(min(values))}-{form(max(values))}]"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
