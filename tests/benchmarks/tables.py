"""What reports are made of."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """The median of a figure, with the least and the most of it."""
    if not values:
        return "none"
    if len(values) == 1:
        return form(values[0])
    return f"{form(statistics.median(values))} [{form(min(values))}-{form(max(values))}]"


def failed(records: Sequence[dict[str, Any]]) -> str:
    """How many runs of a contender failed, to follow a figure of the others."""
    count = sum("error" in record for record in records)
    return f", {count} of {len(records)} failed" if count else ""


def missing(records: Sequence[dict[str, Any]]) -> list[str]:
    """Who is missing, and why."""
    missing = [record for record in records if record["kind"] == "missing"]
    return ["\n".join(f"- {record['contender']} is missing: {record['why']}" for record in missing)] if missing else []


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
