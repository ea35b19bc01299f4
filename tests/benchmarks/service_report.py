"""Turns what a run noted of the rollout service into tables."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.contenders import IN_PROCESS, SERVED
from tests.benchmarks.tables import failed, spread, table

__all__ = ["held", "render"]

Record = dict[str, Any]

_PARTS = ("client", "service", "environments", "generator")


def render(records: Sequence[Record]) -> list[str]:
    """The parts of a report that tell what the service costs."""
    rounds = len({record["round"] for record in records})
    for record in records:
        if "error" not in record:
            record["all_us"] = record["client_us"] + record["service_us"]
    head = ("contender", "rollouts", "seconds", "rollouts/s", *(f"CPU us a rollout: {part}" for part in _PARTS))
    names = dict.fromkeys(record["contender"] for record in records)
    rows = [_row([record for record in records if record["contender"] == name]) for name in names]
    ratios = [
        ["seconds", "what it costs", "seconds", "seconds"],
        ["CPU of client and service / of the engine's process", "what it costs", "all_us", "client_us"],
        ["CPU of the trainer's process", "what it saves", "client_us", "client_us"],
    ]
    wanted = [
        [f"{what}: {SERVED} / {IN_PROCESS}", spread(_ratios(records, ours, theirs), "{:.2f}".format), why]
        for what, why, ours, theirs in ratios
    ]
    return [
        "## The rollout service, beside the engine in process",
        "Rollouts of 8 turns, in which neither sampling nor tools take any time, at most 256 at once. Both sample with "
        "the same stand-in for a vLLM server, over HTTP, and play on the same environment server; the service keeps "
        f"jobs and results on disk. Rounds: {rounds}; median [least-most].",
        table((*head, "others' CPU, s"), rows),
        "Ratios, each of the two in the same round:",
        table(("what", "median [least-most]", "wanted"), wanted),
    ]


def held(records: Sequence[Record]) -> list[str]:
    """The parts of a report that tell how the service is when it is full."""
    parts: list[str] = []
    for record in records:
        parts.append(f"### {record['queued']:,} rollouts queued, and {record['running']} running")
        if "error" in record:
            parts.append(f"It failed: {record['error']}")
            continue
        total = record["results"]
        rows = [
            ["submission taken, s", f"{record['submit_seconds']:.2f}"],
            ["queued when all places were taken", f"{record['still_queued']:,}"],
            ["memory of the service before, MiB", f"{record['before_kib'] / 1024:.1f}"],
            ["more when all places were taken, MiB", f"{(record['full_kib'] - record['before_kib']) / 1024:.1f}"],
            ["more at the end, MiB", f"{(record['after_kib'] - record['before_kib']) / 1024:.1f}"],
            ["results, each once", f"{total:,}"],
            ["results/s", f"{total / record['seconds']:.1f}"],
            ["results/s if nothing but sampling took time", f"{total / record['least_seconds']:.1f}"],
            ["cores that the service used", f"{record['service_cores']:.2f}"],
            ["GetStatus meanwhile, p50 ms", f"{record['status_p50_seconds'] * 1e3:.1f}"],
            ["GetStatus meanwhile, most ms", f"{record['status_most_seconds'] * 1e3:.0f}"],
        ]
        parts += [
            "One job, each of whose rollouts has 4 turns of 1 s; service, environments, generator and trainer share "
            "this machine. Memory is private.",
            table(("what", "figure"), rows),
        ]
    return parts


def _row(mine: Sequence[Record]) -> list[str]:
    fine = [record for record in mine if "error" not in record]
    first = [mine[0]["contender"], str(mine[0]["size"])]
    if not fine:
        return [*first, f"failed: {mine[-1]['error']}", *[""] * (len(_PARTS) + 2)]

    def said(value: Callable[[Record], float], form: str) -> str:
        return spread([value(record) for record in fine], form.format)

    return [
        *first,
        said(lambda record: record["seconds"], "{:.2f}") + failed(mine),
        said(lambda record: record["size"] / record["seconds"], "{:.1f}"),
        *(said(lambda record, key=f"{part}_us": record[key], "{:,.0f}") for part in _PARTS),
        f"{statistics.median(record['others_seconds'] for record in fine):.1f}",
    ]


def _ratios(records: Sequence[Record], ours: str, theirs: str) -> list[float]:
    """A figure of the service divided by one of the engine, of the same round."""
    fine = [record for record in records if "error" not in record]
    engine = {record["round"]: record[theirs] for record in fine if record["contender"] == IN_PROCESS}
    served = {record["round"]: record[ours] for record in fine if record["contender"] == SERVED}
    return [value / engine[number] for number, value in served.items() if engine.get(number)]
