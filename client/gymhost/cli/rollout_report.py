"""What `gymhost rollout` says at the end: a table for people, JSON for programs."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gymhost.cli.rollout_run import Ending
from gymhost.cli.words import in_short
from gymhost.rollout.summary import Estimate, Failures, Spread, Summary

__all__ = ["Report", "cause"]

_FAILURES_SHOWN = 5


@dataclass(frozen=True)
class Report:
    """A run, and what it came to.

    Attributes:
        title: What was played by whom.
        settings: What the run was made with.
        summary: What all rollouts came to, those of an earlier run included.
        ending: How this run ended.
        resumed: How many rollouts are of an earlier run.
        wanted: How many were asked for in all.
        store: Where the rollouts are kept, if anywhere.
        trainable: Whether they have token ids.
    """

    title: str
    settings: dict[str, Any]
    summary: Summary
    ending: Ending
    resumed: int
    wanted: int
    store: Path | None
    trainable: bool

    @property
    def speed(self) -> float | None:
        """Tokens a second in this run; None if it played nothing."""
        return self.ending.tokens / self.ending.seconds if self.ending.tokens else None

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "settings": self.settings,
            "wanted": self.wanted,
            "resumed": self.resumed,
            "played": self.ending.played,
            "interrupted": self.ending.signal is not None,
            "seconds": self.ending.seconds,
            "tokens_per_second": self.speed,
            "trainable": self.trainable,
            "store": None if self.store is None else str(self.store),
            "summary": self.summary.model_dump(mode="json"),
        }

    def show(self, console: Console) -> None:
        """Prints it for people."""
        summary = self.summary
        console.print(Text(self.title, style="bold"))
        if not summary.rollouts:
            console.print("No rollout has ended.")
            return
        console.print()
        console.print(self._rewards())
        console.print()
        console.print(self._quantities())
        console.print()
        console.print(self._facts())

    def _rewards(self) -> Table:
        summary = self.summary
        table = _table("", "mean", "95 % interval", "of tasks")
        if summary.reward is None:
            table.add_row("reward", "not known", "", "")
        else:
            table.add_row("reward", *_estimate(summary.reward))
        for name, estimate in summary.rubrics.items():
            table.add_row(Text(f"  {in_short(name)}"), *_estimate(estimate))
        for k, estimate in summary.pass_at.items():
            table.add_row(f"pass@{k}", *_estimate(estimate))
        return table

    def _quantities(self) -> Table:
        summary = self.summary
        table = _table("a rollout", "mean", "median", "most")
        for name, spread, digits in (("turns", summary.turns, 1), ("tokens sampled", summary.tokens, 0)):
            if spread is not None:
                table.add_row(name, *_spread(spread, digits))
        names = {
            "queue": "seconds waiting for a place",
            "init": "seconds to begin",
            "run": "seconds of turns",
            "generation": "  generating",
            "environment": "  in the environment",
            "eval": "seconds to evaluate and end",
        }
        for stage, spread in summary.seconds.items():
            table.add_row(names[stage], *_spread(spread, 2))
        return table

    def _facts(self) -> Table:
        summary = self.summary
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        valid = f"{summary.rollouts:,} of {summary.tasks:,} tasks"
        if summary.left_out:
            valid += f"; {summary.left_out:,} without a known reward, which are in no mean above"
        if self.resumed:
            valid += f"; {self.resumed:,} are of an earlier run"
        table.add_row("rollouts", valid)
        ended = [f"{count:,} {kind}" for kind, count in summary.outcomes.items()]
        limits = [f"{count:,} by {in_short(limit)}" for limit, count in summary.limits.items()]
        table.add_row("outcomes", Text(", ".join(ended) + (f" ({', '.join(limits)})" if limits else "")))
        if summary.pass_at:
            table.add_row("passed", f"a rollout whose reward is {summary.threshold:g} or more")
        if self.speed is not None:
            speed = f"{self.ending.tokens:,} tokens sampled in {self.ending.seconds:,.1f} s: {self.speed:,.0f} a second"
            table.add_row("speed", speed)
        if self.store is not None:
            table.add_row("kept in", str(self.store))
        if not self.trainable:
            table.add_row("training", "a chat endpoint tells no token ids: this is an evaluation, nothing to train on")
        for name, text in _failures(self.summary):
            table.add_row(name, Text(text, style="red"))
        return table


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    return table


def _estimate(estimate: Estimate) -> tuple[str, str, str]:
    interval = "" if estimate.low is None else f"{estimate.low:.3f} to {estimate.high:.3f}"
    return f"{estimate.mean:.3f}", interval, f"{estimate.tasks:,}"


def _spread(spread: Spread, digits: int) -> tuple[str, str, str]:
    return f"{spread.mean:,.{digits}f}", f"{spread.median:,.{digits}f}", f"{spread.most:,.{digits}f}"


def cause(failed: Failures) -> str:
    """Why rollouts failed, in a few words."""
    return in_short(f"{failed.cause}: {failed.message}")


def _failures(summary: Summary) -> Iterable[tuple[str, str]]:
    for place, failed in enumerate(summary.failures[:_FAILURES_SHOWN]):
        yield "" if place else "failed", f"{failed.count:,} {failed.fault}: {cause(failed)}"
    if others := summary.failures[_FAILURES_SHOWN:]:
        yield "", f"{sum(failed.count for failed in others):,} for other causes"
