"""What `gymhost jobs watch` shows of a job, on terminals and elsewhere."""

import logging
import time
from collections import deque
from collections.abc import Iterator

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gymhost.cli.jobs_views import name_of
from gymhost.cli.rollout_progress import Progress
from gymhost.cli.words import in_short
from gymhost.rollout.service import Job, JobStatus, RolloutClient

__all__ = ["Rate", "line_of", "panel_of", "watch"]

# Seconds between looks, between lines, and over which a speed is told.
_LOOK_SECONDS = 1.0
_LINE_SECONDS = 5.0
_WINDOW_SECONDS = 30.0


def watch(rollouts: RolloutClient, job: Job, console: Console | None = None) -> int:
    """Shows a job until it has ended; returns the exit code of the command."""
    console = console or Console(stderr=True)
    try:
        with Progress(console, logging.WARNING):
            last = _on_terminal(rollouts, job, console) if console.is_terminal else _elsewhere(rollouts, job, console)
    except KeyboardInterrupt:
        click.echo("gymhost: the job goes on", err=True)
        return 130
    click.echo(f"{last.state}: {line_of(last, 0.0)}")
    return 0 if last.state == "finished" else 1


class Rate:
    """How many ended a second, of late."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, done: int) -> float:
        """Takes how many have ended by now."""
        now = time.monotonic()
        self._samples.append((now, done))
        while now - self._samples[0][0] > _WINDOW_SECONDS and len(self._samples) > 2:
            self._samples.popleft()
        since, before = self._samples[0]
        return (done - before) / (now - since) if now > since else 0.0


def line_of(job: JobStatus, rate: float) -> str:
    """A job in a line."""
    parts = [f"{job.done + job.dropped:,}/{job.total:,} done"]
    if not job.over:
        parts += [f"{job.in_flight:,} in flight", f"{rate:.2f}/s"]
    if job.mean_reward is not None:
        parts.append(f"reward {job.mean_reward:.3f}")
    parts += [f"{count:,} {what}" for what, count in _troubles(job).items() if count]
    if job.unacknowledged:
        parts.append(f"{job.unacknowledged:,} to fetch")
    if job.waits_for:
        parts.append(f"waits for {in_short(job.waits_for)}")
    return "; ".join(parts)


def panel_of(job: JobStatus, rate: float) -> RenderableType:
    """A job in a few lines that stay where they are."""
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True)
    done = job.done + job.dropped
    head.add_row(ProgressBar(total=max(job.total, 1), completed=done), f"{done:,} of {job.total:,}, {rate:.2f}/s")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("job", Text(f"{name_of(job)}, {job.state}"))
    facts.add_row("in flight", f"{job.in_flight:,}, {job.queued:,} to begin")
    facts.add_row("reward", "none yet" if job.mean_reward is None else f"{job.mean_reward:.3f}, of {job.rewarded:,}")
    facts.add_row("tokens", f"{job.sampled_tokens:,} sampled")
    facts.add_row("to fetch", f"{job.unacknowledged:,}")
    if troubles := ", ".join(f"{count:,} {what}" for what, count in _troubles(job).items() if count):
        facts.add_row("trouble", Text(troubles, style="red"))
    if job.last_fault:
        facts.add_row("last fault", Text(in_short(job.last_fault), style="red"))
    if job.waits_for:
        facts.add_row("waits for", Text(in_short(job.waits_for), style="yellow"))
    return Group(head, facts, Text("Ctrl-C ends the watching; the job goes on", style="dim"))


def _troubles(job: JobStatus) -> dict[str, int]:
    return {"failed": job.failed, "cancelled": job.cancelled, "tried again": job.retries}


def _on_terminal(rollouts: RolloutClient, job: Job, console: Console) -> JobStatus:
    rate, last = Rate(), None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for status in _looks(rollouts, job):
            live.update(panel_of(status, rate.add(status.done)), refresh=True)
            last = status
    assert last is not None
    return last


def _elsewhere(rollouts: RolloutClient, job: Job, console: Console) -> JobStatus:
    rate, last = Rate(), None
    said = begun = time.monotonic()
    for status in _looks(rollouts, job):
        speed = rate.add(status.done)
        now = time.monotonic()
        if now - said >= _LINE_SECONDS or said == begun:
            said = now
            line = f"{now - begun:6.1f} s  {line_of(status, speed)}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        last = status
    assert last is not None
    return last


def _looks(rollouts: RolloutClient, job: Job) -> Iterator[JobStatus]:
    """Looks at a job every second, until it has ended."""
    while True:
        status = rollouts.call_sync(job.status())
        yield status
        if status.over:
            return
        time.sleep(_LOOK_SECONDS)
