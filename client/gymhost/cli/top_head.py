"""The lines above the tables of `gymhost top`: how a server does as a whole."""

import math
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gymhost.cli.top_views import GREEN, RED, YELLOW, rate_text, seconds_text, size_text
from gymhost.cli.top_watch import Look
from gymhost.cli.words import clock, in_short
from gymhost.v1 import operations_pb2 as pb

__all__ = ["facts", "head"]

Fact = tuple[str, str, str]

BARS = "▁▂▃▄▅▆▇█"
# What is drawn of the history, what it is called, and how its last figure is told.
SPARKS = (
    ("steps_per_second", "steps/s", rate_text),
    ("step_p99_seconds", "p99", seconds_text),
    ("sessions", "sessions", rate_text),
    ("cpu", "cores", rate_text),
)


def facts(look: Look) -> list[list[Fact]]:
    """How it does, by lines: a name, what it is, and how that is shown."""
    lines: list[list[Fact]] = []
    if look.overview is not None:
        lines += _of_server(look, look.overview)
    if look.rollouts is not None:
        status = look.rollouts.status
        before = look.before.rollouts if look.before else None
        past = before.status if before and before.status.instance == status.instance else None
        seconds = look.rollouts.at - before.at if before else 0.0
        tokens = (status.sampled_tokens - past.sampled_tokens) / seconds if past and seconds > 0 else None
        begun = status.init + status.ready + status.run + status.eval
        lines.append(
            [
                ("rollouts", f"{begun:,} of {begun + status.queued:,}", GREEN if begun else ""),
                ("tokens/s", rate_text(tokens), ""),
                ("ended", f"{status.ended:,}", ""),
                ("version", str(status.policy_version), ""),
            ]
        )
    return lines


def _of_server(look: Look, overview: pb.GetOverviewResponse) -> list[list[Fact]]:
    past = look.before.overview if look.before else None
    steps, failures = (sum(kind(each) for each in overview.environments) for kind in (_steps, _failures))
    before = [sum(kind(each) for each in past.environments) if past else 0 for kind in (_steps, _failures)]
    failing = look.rate(failures, before[1])
    cpu = look.rate(_cpu(overview), _cpu(past) if past else 0.0)
    memory = overview.memory_bytes + sum(each.memory_bytes for each in overview.workers)
    latest = {name: values[-1] for name, values in look.history.items() if values}
    p50, p99 = (latest.get(f"step_{quantile}_seconds") for quantile in ("p50", "p99"))
    died = overview.worker_deaths
    full = overview.capacity and overview.taken >= overview.capacity
    boxes = sum(s.live + s.spare for each in overview.workers for s in each.sandboxes)
    return [
        [
            ("sessions", f"{overview.taken:,}/{overview.capacity:,}", YELLOW if full else ""),
            ("steps/s", rate_text(look.rate(steps, before[0])), GREEN),
            ("cores", rate_text(cpu), ""),
            ("workers", f"{len(overview.workers):,}{f', {died:,} died' if died else ''}", RED if died else ""),
        ],
        [
            ("queued", f"{overview.queued:,}", YELLOW if overview.queued else ""),
            ("p50", f"{seconds_text(p50)}", ""),
            ("p99", f"{seconds_text(p99)}", ""),
            ("fail/s", rate_text(failing), RED if failing else ""),
        ],
        [
            ("streams", f"{overview.streams:,}", ""),
            ("memory", size_text(memory), ""),
            ("boxes", f"{boxes:,}", ""),
            ("steps", f"{steps:,}", ""),
        ],
    ]


def head(look: Look, gone: str, width: int) -> RenderableType:
    """The lines: as many, and each figure where it was, whatever there is to say.

    Args:
        look: The last look that there was.
        gone: What keeps the server from being looked at; empty where nothing does.
        width: Characters a line.
    """
    grid = Table.grid(padding=(0, 1), expand=True)
    for _ in range(4):
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for line in facts(look):
        grid.add_row(*(Text.assemble((f"{name:<9}", "dim"), (value, style or "bold")) for name, value, style in line))
    if look.overview is not None:
        room = max(4, width // 4 - 11)
        grid.add_row(*(_spark(look, name, title, room) for name, title, _ in SPARKS))
    whole = Table.grid(expand=True)
    whole.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    whole.add_row(_title(look, gone))
    whole.add_row(grid)
    return whole


def _title(look: Look, gone: str) -> Text:
    title = Text.assemble(("gymhost ", "bold"), (in_short(look.address), "bold"), "  ")
    if gone:
        return title.append(in_short(gone), style=f"bold {RED}")
    if look.overview is not None:
        overview = look.overview
        draining = overview.draining
        title.append("draining: no new sessions" if draining else "taking sessions", YELLOW if draining else GREEN)
        title.append(f"  up {clock(overview.uptime_seconds)}  {overview.version}", "dim")
        problems = [*overview.problems, *(f"{what}: {why}" for what, why in look.missing.items())]
        if problems:
            title.append(f"  {in_short(problems[0])}", YELLOW)
    elif look.rollouts is not None:
        status = look.rollouts.status
        title.append(in_short(status.waits_for) or "playing", YELLOW if status.waits_for else GREEN)
        title.append(f"  up {clock(status.uptime)}", "dim")
    return title


def _spark(look: Look, name: str, title: str, room: int) -> Text:
    return Text.assemble((f"{title:<9}", "dim"), (bars(look.history.get(name, ()), room), "cyan"))


def bars(values: Sequence[float], room: int) -> str:
    """The last values as bars, the highest as high as can be; what is no number is a gap."""
    shown = values[-room:]
    most = max((value for value in shown if math.isfinite(value)), default=0.0)
    drawn = (
        " " if not math.isfinite(value) else BARS[round(value / most * (len(BARS) - 1))] if most > 0 else BARS[0]
        for value in shown
    )
    return "".join(drawn).rjust(room)


def _steps(environment: pb.EnvironmentOverview) -> int:
    return environment.steps


def _failures(environment: pb.EnvironmentOverview) -> int:
    return sum(environment.failures.values())


def _cpu(overview: pb.GetOverviewResponse) -> float:
    return overview.cpu_seconds + sum(each.cpu_seconds for each in overview.workers)
