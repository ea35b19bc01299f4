"""What the demo leaves behind: a table, a learning curve and a few games as readable text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Score:
    """How many games were won out of how many."""

    won: int
    games: int

    @property
    def rate(self) -> float:
        """The share of games that were won."""
        return self.won / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the win rate (Wilson's, which holds near 0 and 1 too)."""
        z, n, p = 1.959964, self.games, self.rate
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return centre - half, centre + half

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.rate:.3f}  ({low:.2f} to {high:.2f})"


def best_possible(low: int, high: int, guesses: int) -> float:
    """The win rate of binary search, which no player can beat."""
    return min(1.0, (2**guesses - 1) / (high - low + 1))


def results_table(rows: Sequence[tuple[str, str]], games: int) -> Table:
    """Makes the table of results that ends the demo."""
    table = Table(title=f"Games won of {games} held-out ones", title_justify="left")
    table.add_column("player")
    table.add_column("win rate (95 % interval)")
    for row in rows:
        table.add_row(*row)
    return table


def plot_learning_curve(wins: Sequence[float], marks: Sequence[tuple[str, float]], path: Path) -> None:
    """Draws the win rate of every training step, its running mean, and horizontal lines to compare with."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = range(1, len(wins) + 1)
    window = 10
    smooth = [sum(wins[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(wins))]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(steps, wins, color="tab:blue", alpha=0.3, label="each step")
    axes.plot(steps, smooth, color="tab:blue", label=f"mean of {window} steps")
    for (label, value), style in zip(marks, ("--", "-.", ":"), strict=False):
        axes.axhline(value, color="gray", linestyle=style, linewidth=1, label=label)
    axes.set(xlabel="GRPO step", ylabel="games won", ylim=(0, 1.02), title="Learning gymhost/GuessNumber-v0")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def readable(messages: Sequence[dict[str, Any]], heading: str) -> str:
    """Writes one game as text, a line or two a message."""
    lines = [f"== {heading}"]
    for message in messages:
        said = [str(message.get("content") or "").strip()]
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = function["arguments"]
            if isinstance(arguments, dict):
                arguments = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            said.append(f"{function['name']}({arguments})")
        text = "\n".join(part for part in said if part).replace("\n", "\n" + " " * 12)
        lines.append(f"{message['role']:>10}: {text}")
    return "\n".join(lines) + "\n"
