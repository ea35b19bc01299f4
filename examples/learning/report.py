"""What the runs leave behind: a table to be pasted into a page of Markdown, and a figure with a panel for each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from examples.demo.report import Score
from examples.learning.runs import RUNS

WINDOW = 10
"""Steps at the start and at the end whose mean is told, and over which curves are smoothed."""


def worst_ratio(result: dict[str, Any]) -> float:
    """Returns the importance sampling ratio that was furthest from 1 in a run."""
    return max((ratio for step in result["ratios"] for ratio in step), key=lambda ratio: abs(ratio - 1))


def table(results: Sequence[dict[str, Any]]) -> str:
    """Makes the table, in Markdown: a row for each run, environment and seed."""
    lines = [
        f"| run | seed | won in training, first and last {WINDOW} steps | held-out games won, before | after"
        " | ratio furthest from 1 | time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        title = RUNS[result["run"]].title
        for label, figures in result["environments"].items():
            name = title if len(result["environments"]) == 1 else f"{title}: {label}"
            won = figures["won"]
            training = f"{fmean(won[:WINDOW]):.2f} to **{fmean(won[-WINDOW:]):.2f}**, {len(won)} steps"
            before, after = (_cell(Score(*figures[when])) for when in ("before", "after"))
            ratio, seconds = f"{worst_ratio(result):.4f}", f"{result['seconds']:.0f} s"
            lines.append(f"| {name} | {result['seed']} | {training} | {before} | **{after}** | {ratio} | {seconds} |")
    return "\n".join(lines) + "\n"


def _cell(score: Score) -> str:
    low, high = score.interval
    return f"{score.rate:.3f} ({low:.2f} to {high:.2f})"


def plot_curves(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws a panel for each run: every seed, smoothed, and the mean of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    runs: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        runs.setdefault(result["run"], []).append(result)
    columns = min(2, len(runs))
    rows = -(-len(runs) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(5 * columns, 3.2 * rows), layout="constrained", squeeze=False, sharey=True
    )
    panels = list(grid.flat)
    for axes, (name, seeds) in zip(panels, runs.items(), strict=False):
        for colour, label in zip(("tab:blue", "tab:orange"), seeds[0]["environments"], strict=False):
            curves = [smooth(result["environments"][label]["won"]) for result in seeds]
            for curve in curves:
                axes.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.3)
            mean = [fmean(values) for values in zip(*curves, strict=False)]
            axes.plot(range(1, len(mean) + 1), mean, color=colour, label=f"{label}, mean of {len(curves)} seeds")
        axes.set(xlabel="GRPO step", ylabel="games won", ylim=(0, 1.02), title=RUNS[name].title)
        axes.legend(loc="lower right")
    for axes in panels[len(runs) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def smooth(values: Sequence[float]) -> list[float]:
    """Returns the running mean of a curve."""
    return [fmean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)]
