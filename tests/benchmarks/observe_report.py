"""Turns what a run noted of watching into a table."""

import statistics
from collections.abc import Sequence
from typing import Any

from tests.benchmarks import contenders as who
from tests.benchmarks.tables import failed, missing, spread, table

__all__ = ["render"]

Record = dict[str, Any]

_TENTHS, _PERCENT = "{:.1f}".format, "{:.1%}".format
_PARTS = ("client", "front", "workers")


def render(records: Sequence[Record]) -> list[str]:
    """The parts of a report that tell what watching costs."""
    pairs = [(unwatched, watched) for _, unwatched, watched in who.OBSERVE_PAIRS]
    rows = [
        (
            contender.name,
            *(spread(_figures(records, contender.name, [part]), _TENTHS) for part in _PARTS),
            spread(_figures(records, contender.name, _PARTS), _TENTHS) + failed(_of(records, contender.name)),
        )
        for pair in pairs
        for contender in pair
        if _of(records, contender.name)
    ]
    ratios = [
        f"- {watched.name}: {_PERCENT(statistics.median(after) / statistics.median(before))} of what it takes "
        f"unwatched, by medians; by rounds {spread([a / b for a, b in zip(after, before, strict=False)], _PERCENT)}."
        for unwatched, watched in pairs
        if (before := _figures(records, unwatched.name, _PARTS)) and (after := _figures(records, watched.name, _PARTS))
    ]
    return [
        "## What watching costs: CPU time of a step of W1",
        "Unwatched: --no-metrics, --no-dashboard, --log-format text. Watched: all is counted, the dashboard's process "
        "runs beside, logs are JSON, and somebody asks for everything every 5 s. The dashboard counts to the workers, "
        "and who asks to nobody.",
        table(("contender", "client, us", "front, us", "workers, us", "together, us"), rows),
        "\n".join(ratios),
        *missing(records),
    ]


def _of(records: Sequence[Record], name: str) -> list[Record]:
    return [record for record in records if record["kind"] == "observe" and record["contender"] == name]


def _figures(records: Sequence[Record], name: str, parts: Sequence[str]) -> list[float]:
    """CPU microseconds a step, by round."""
    return [sum(r[f"{part}_us"] for part in parts) for r in _of(records, name) if "error" not in r]
