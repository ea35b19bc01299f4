"""Turns what a run noted into tables."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks import contenders as who
from tests.benchmarks import observe_report, rollout_report, service_report, simulations_report, training_report
from tests.benchmarks.contenders import Cell
from tests.benchmarks.tables import failed, missing, spread, table

Record = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """What a figure should be.

    Attributes:
        wanted: In words.
        ours: The contender whose figure it is.
        size: Its sessions or copies.
        theirs: The contender whose figure of the same round it is divided by; None for the figure itself.
        key: The figure.
    """

    wanted: str
    ours: str
    size: int
    theirs: str | None = None
    key: str = "steps_per_second"


_FIGURES = {"steps_per_second": "steps/s", "p50_us": "latency, p50 us"}

_ASYNC_CLIENTS = (who.GYMHOST, who.GYMHOST_UVLOOP, who.GYMHOST_GRPC, who.GYMHOST_GRPC_UVLOOP)
_W1_GOALS = [
    Goal(wanted, ours, sessions, who.OPENENV_BEST)
    for sessions, wanted in ((64, "at least 12"), (512, "at least 18"))
    for ours in _ASYNC_CLIENTS
] + [Goal("at most 1.5", ours, 1, who.STREAM, "p50_us") for ours in _ASYNC_CLIENTS]
_W2_GOALS = [
    Goal("at least 1", who.VECTOR_GRPC, who.COPIES, who.SYNC),
    Goal("at least 1.2", who.VECTOR, who.COPIES, who.SYNC),
    Goal("at least 8", who.VECTOR, who.COPIES, who.ASYNC),
    Goal("at least 70,000", who.HOSTED_NATIVE_GRPC, who.COPIES),
    Goal("at least 200,000", who.HOSTED_NATIVE, who.COPIES),
    Goal("above 1", who.PONG_VECTOR_GRPC, who.PONGS, who.PONG_ASYNC),
    Goal("above 1", who.PONG_VECTOR, who.PONGS, who.PONG_ASYNC),
    Goal("at most 2", who.LONE_GRPC, 1, who.STREAM, "p50_us"),
    Goal("at most 200", who.LONE, 1, key="p50_us"),
]

# W2's parts, each with the contenders that all others of the part are divided by.
_W2_PARTS = {
    f"### CartPole-v1, {who.COPIES} copies": (who.COPIES, {"/ sync": who.SYNC, "/ async": who.ASYNC}),
    f"### {who.PONG}, {who.PONGS} copies": (who.PONGS, {"/ sync": who.PONG_SYNC, "/ async": who.PONG_ASYNC}),
    "### CartPole-v1 alone, and the echo environment of W1 on a bare stream": (1, {}),
}

_SANDBOX_GOALS = [
    Goal("at most 30,000", who.operation("bubblewrap", who.CREATE), 1, key="p50_us"),
    Goal("at most 300", who.operation("bubblewrap", who.SHELL), 1, key="p50_us"),
    Goal("at most 1,500", who.CLIENT_SHELL, 1, key="p50_us"),
    Goal("at most 1,500", who.CLIENT_SHELL_GRPC, 1, key="p50_us"),
    Goal("at most 3,000", who.operation("docker", who.SHELL), 1, key="p50_us"),
    Goal("what it costs", who.operation("bubblewrap", who.CREATE), 1, who.BWRAP, "p50_us"),
    Goal("what it costs", who.operation("bubblewrap", who.SHELL), 1, who.PIPE, "p50_us"),
    Goal("what it saves", who.operation("docker", who.RUN), 1, who.DOCKER_EXEC, "p50_us"),
]

# The idle sessions that are opened first, and as many again.
_SETS = ("first", "second")


def render(records: Sequence[Record]) -> str:
    """A report in Markdown."""
    by_kind: dict[str, list[Record]] = {}
    for record in records:
        kind = record["workload"] if record["kind"] == "missing" else record["kind"]
        by_kind.setdefault(kind, []).append(record)
    parts = ["# Benchmarks", *map(_machine, by_kind.get("machine", []))]
    if "w1" in by_kind:
        parts += _w1(by_kind["w1"])
    if "observe" in by_kind:
        parts += observe_report.render(by_kind["observe"])
    if "openenv" in by_kind:
        parts += _openenv(by_kind["openenv"])
    if "w2" in by_kind:
        parts += _w2(by_kind["w2"])
    if "sandboxes" in by_kind:
        parts += _sandboxes(by_kind["sandboxes"])
    parts += [part for record in by_kind.get("idle", []) for part in _idle(record)]
    if "idle sandboxes" in by_kind:
        parts += _idle_sandboxes(by_kind["idle sandboxes"])
    if "rollouts" in by_kind:
        parts += rollout_report.render(by_kind["rollouts"])
    parts += rollout_report.in_flight(by_kind.get("rollouts in flight", []))
    if "training" in by_kind:
        parts += training_report.render(by_kind["training"])
    if "routing" in by_kind:
        parts += simulations_report.routing(by_kind["routing"])
    if "stages" in by_kind:
        parts += simulations_report.stages(by_kind["stages"])
    if "service" in by_kind:
        parts += service_report.render(by_kind["service"])
    parts += service_report.held(by_kind.get("service held", []))
    return "\n\n".join(parts) + "\n"


def _machine(record: Record) -> str:
    said = [f"{record['cores']} cores ({record['cpu']}), Linux {record['kernel']}, Python {record['python']}"]
    said += [_versions(record["versions"])]
    said += [f"{_versions(versions)} for {peer}" for peer, versions in record["peers"].items() if versions]
    return "; ".join([*said, f"load average before the run {record['load']:.1f}."])


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _w1(records: list[Record]) -> list[str]:
    sizes = sorted({record["size"] for record in records if record["kind"] == "w1"})
    cells = [Cell(contender, size) for contender in who.W1 for size in sizes]
    return [
        "## W1: steps of an echo environment",
        f"{_how(records)} Latency is a step's, for one of the sessions.",
        _cells(cells, records, "sessions", {}),
        *missing(records),
        *_goals(_W1_GOALS, records, "sessions"),
    ]


def _openenv(records: list[Record]) -> list[str]:
    cells = [Cell(contender, size) for size in who.OPENENV_SIZES for contender in who.OPENENV]
    return [
        "## One environment of OpenEnv, hosted by OpenEnv and by gymhost",
        f"{_how(records)} Latency is a step's, for one of the sessions.",
        _cells(cells, records, "sessions", {}),
        *missing(records),
    ]


def _w2(records: list[Record]) -> list[str]:
    parts = [
        "## W2: vector environments with random actions",
        f"{_how(records)} A step is that of one copy; latency is that of all together. An environment's own processes "
        "count to the client.",
    ]
    for title, (size, against) in _W2_PARTS.items():
        cells = [cell for cell in who.W2 if cell.size == size]
        if any(record.get("size") == size for record in records):
            parts += [title, _cells(cells, records, "copies", against)]
    return [*parts, *missing(records), *_goals(_W2_GOALS, records, "copies")]


def _sandboxes(records: list[Record]) -> list[str]:
    return [
        "## Sandboxes",
        f"{_how(records)} A step is one operation, without what undoes it; steps/s have that in them. What runs in "
        "sandboxes, and makes them, counts to others, but for those of the server.",
        _cells(who.SANDBOXES, records, "in flight", {}),
        *missing(records),
        *_goals(_SANDBOX_GOALS, records, "in flight"),
    ]


def _idle_sandboxes(records: list[Record]) -> list[str]:
    rows: list[list[str]] = []
    for record in records:
        first = [record["backend"], f"{record['count']:,}"]
        if "error" in record:
            rows.append([*first, f"failed: {record['error']}", *[""] * 7])
            continue
        free = record["free_bytes_each"]
        rows.append(
            [
                *first,
                f"{record['answered']:,}",
                f"{free / 2**20:.2f}",
                f"{record['pss_bytes_each'] / 2**20:.2f}" if record["processes_each"] >= 1 else "",
                f"{8 * 2**30 / free:,.0f}" if free > 0 else "",
                f"{record['count'] / record['created_seconds']:.0f}",
                f"{record['answered_seconds']:.1f}",
                f"{record['destroyed_seconds']:.1f}",
                f"{record['left_bytes_each'] / 2**20:.2f}",
            ]
        )
    head = (
        "backend",
        "sandboxes",
        "answered",
        "MiB of free memory each",
        "MiB of its processes each",
        "would fit in 8 GiB",
        "made a second",
        "all asked, s",
        "all destroyed, s",
        "MiB each that is not free again",
    )
    return [
        "## Idle sandboxes, all alive at once",
        "Wanted for bubblewrap: at most 3 MiB each, 1,000 alive.",
        table(head, rows),
    ]


def _how(records: Iterable[Record]) -> str:
    """What all cells of a workload have in common."""
    fine = [record for record in records if "others" in record]
    others = [record["others"] for record in fine]
    noise = f"median {statistics.median(others):.0%}, at most {max(others):.0%}" if others else "not known"
    return (
        f"Rounds: {len({record['round'] for record in fine})}; median [least-most]. CPU time is microseconds a step, "
        f"for gymhost's server as front + workers. CPU that others used meanwhile: {noise}."
    )


def _cells(cells: Iterable[Cell], records: Sequence[Record], sizes: str, against: dict[str, str]) -> str:
    """The table of what was run.

    Args:
        cells: Its rows; those that were not run are left out.
        records: What was noted.
        sizes: What sizes are called.
        against: Contenders that steps/s are divided by, those of the same round, by the titles of their columns.
    """
    times = ("p50 us", "p99 us", "client CPU us", "server CPU us", "others' CPU")
    rows = [row for cell in cells if (row := _row(cell, records, list(against.values())))]
    return table(("contender", sizes, "steps/s", *against, *times), rows)


def _row(cell: Cell, records: Sequence[Record], against: Sequence[str]) -> list[str] | None:
    """A row of the table; None for what was not run."""
    name, size = cell.contender.name, cell.size
    mine = [record for record in records if record["contender"] == name and record.get("size") == size]
    fine = [record for record in mine if "error" not in record]
    first = [name, str(size)]
    if not mine:
        return None
    if not fine:
        return [*first, f"failed: {mine[-1]['error']}", *[""] * (len(against) + 5)]

    def said(key: str, form: Callable[[float], str] = "{:,.0f}".format) -> str:
        return spread([record[key] for record in fine if record[key] is not None], form)

    def median(key: str) -> float:
        return statistics.median([record[key] or 0.0 for record in fine])

    front, workers = median("front_us"), median("workers_us")
    parts = f"{front:,.1f} + {workers:,.1f}"
    server = {None: "", "gymhost": parts, "sandboxes": parts}
    return [
        *first,
        said("steps_per_second") + failed(mine),
        *(spread(_ratios(name, theirs, size, records), "{:.2f}".format) for theirs in against),
        said("p50_us"),
        said("p99_us"),
        said("client_us", "{:,.1f}".format),
        server.get(cell.contender.server, f"{front + workers:,.1f}"),
        f"{median('others'):.0%}",
    ]


def _goals(goals: Iterable[Goal], records: Sequence[Record], sizes: str) -> list[str]:
    """What was wanted, of what was run."""
    rows: list[list[str]] = []
    for goal in goals:
        values, form = _ratios(goal.ours, goal.theirs, goal.size, records, goal.key), "{:.2f}"
        what = f"{_FIGURES[goal.key]}: {goal.ours} / {goal.theirs}"
        if goal.theirs is None:
            what, form = f"{_FIGURES[goal.key]}: {goal.ours}", "{:,.0f}"
        if values:
            rows.append([what, str(goal.size), spread(values, form.format), goal.wanted])
    if not rows:
        return []
    head = ("what", sizes, "median [least-most]", "wanted")
    return ["Ratios, each of the two in the same round, and figures that were wanted:", table(head, rows)]


def _ratios(
    ours: str, theirs: str | None, size: int, records: Iterable[Record], key: str = "steps_per_second"
) -> list[float]:
    """A contender's figure in each round, divided by another's of the same round if there is another."""
    fine = [record for record in records if record.get("size") == size and "error" not in record]
    by_round = {(record["contender"], record["round"]): record[key] for record in fine}
    found: list[float] = []
    for (contender, number), value in by_round.items():
        other = 1.0 if theirs is None else by_round.get((theirs, number))
        if contender == ours and value and other:
            found.append(value / other)
    return found


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
        table(
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
