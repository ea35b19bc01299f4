"""Turns what a run noted of training steps into tables."""

import statistics
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.contenders import TRAIN_LOCAL
from tests.benchmarks.tables import failed, spread, table

Record = dict[str, Any]

_TITLES = {
    "tools": "### Sampling takes no time",
    "sampling": "### 100 tokens a turn at 50 tokens/s, all rollouts at once",
}


def render(records: Sequence[Record]) -> list[str]:
    """The parts of a report that tell of training steps."""
    rounds = len({record["round"] for record in records})
    parts = [
        "## A step of TRL's trainer",
        "One optimizer step, from its begin to its end: rollouts of 4 turns, three of them with a call of a tool that "
        "holds its thread for 0.5 s; then the loss of a tiny model, and its update. All run the same script but for "
        f"its environments; sampling is simulated. Rounds: {rounds}; median [least-most].",
    ]
    for part, title in _TITLES.items():
        mine = [record for record in records if record["part"] == part]
        if mine:
            parts += [title, _steps(mine)]
    return parts


def _steps(records: Sequence[Record]) -> str:
    names = dict.fromkeys(record["contender"] for record in records)
    rows = [_row(records, [record for record in records if record["contender"] == name]) for name in names]
    head = ("contender", "rollouts", "step, s", "TRL's / this one", "of it, rollouts, s", "TRL's / these")
    return table((*head, "client CPU, s", "others' CPU"), rows)


def _row(records: Sequence[Record], mine: Sequence[Record]) -> list[str]:
    fine = [record for record in mine if "error" not in record]
    first = [mine[0]["contender"], str(mine[0]["size"])]
    if not fine:
        return [*first, f"failed: {mine[-1]['error']}", *[""] * 5]

    def times(key: str) -> tuple[str, str]:
        """A time, and how many times as long TRL's is in the same round."""
        of_trl = [record for record in records if record["contender"] == TRAIN_LOCAL and "error" not in record]
        local = {record["round"]: record[key] for record in of_trl}
        ratios = [local[record["round"]] / record[key] for record in fine if record["round"] in local]
        return spread([record[key] for record in fine], "{:,.2f}".format), spread(ratios, "{:.2f}".format)

    step, ratio = times("seconds")
    return [
        *first,
        step + failed(mine),
        ratio,
        *times("rollout_seconds"),
        spread([record["client_us"] * record["turns"] / 1e6 for record in fine], "{:.2f}".format),
        f"{statistics.median(record['others'] for record in fine):.0%}",
    ]
