"""The tables of `gymhost top`: their columns, and what a look has for their rows."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import click

from gymhost.cli.top_watch import Look
from gymhost.cli.words import clean, clock, in_short, print_table
from gymhost.v1 import operations_pb2 as pb

__all__ = ["VIEWS", "Cell", "Column", "Row", "View", "arranged", "print_look"]

RED, YELLOW, GREEN, DIM = "red", "yellow", "green", "dim"
STATES = {"making": YELLOW, "closing": YELLOW, "starting": YELLOW, "running": GREEN, "ready": GREEN, "waiting": ""}


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        title: Its head.
        width: Characters; of the one that takes what is left, the fewest.
        right: Whether it is set to the right, as numbers are.
        rank: Where there is no room for all, those with the highest go first.
        grows: Whether it takes what the others leave.
    """

    title: str
    width: int
    right: bool = True
    rank: int = 0
    grows: bool = False


@dataclass(frozen=True)
class Cell:
    """What a row has in a column.

    Args:
        text: What is shown.
        order: What it is sorted by; None comes last.
        style: How it is shown.
    """

    text: str
    order: float | str | None = None
    style: str = ""


@dataclass(frozen=True)
class Row:
    """A row.

    Args:
        key: What tells it from the others of its table, whatever changes.
        cells: One a column.
        details: More of it, in lines.
    """

    key: str
    cells: tuple[Cell, ...]
    details: str = ""

    def has(self, text: str) -> bool:
        """Whether a text is in one of its cells."""
        return any(text in cell.text.casefold() for cell in self.cells)


@dataclass(frozen=True)
class View:
    """A table.

    Args:
        name: Its name.
        columns: Its columns.
        rows: What a look has for it.
        sort: The column that it is sorted by at first, and whether what is large comes first.
        nothing: What is said where there are no rows.
        of_rollouts: Whether it is of a rollout service.
    """

    name: str
    columns: tuple[Column, ...]
    rows: Callable[[Look], list[Row]]
    sort: tuple[int, bool]
    nothing: str
    of_rollouts: bool = False

    def shown(self, width: int, padding: int) -> list[int]:
        """The columns that there is room for, by their places."""
        places = list(range(len(self.columns)))
        while sum(self.columns[place].width + padding for place in places) > width:
            last = max(places, key=lambda place: self.columns[place].rank)
            if self.columns[last].rank == 0:
                break
            places.remove(last)
        return places


def arranged(rows: Iterable[Row], sort: tuple[int, bool], filter: str) -> list[Row]:
    """The rows that have a text in them, sorted; those alike stay as they came."""
    place, descending = sort
    found = [row for row in rows if row.has(filter.casefold())]
    known = [row for row in found if row.cells[place].order is not None]
    known.sort(key=lambda row: _sortable(row.cells[place].order), reverse=descending)
    return known + [row for row in found if row.cells[place].order is None]


def _sortable(order: float | str | None) -> tuple[float, str]:
    return (0.0, order.casefold()) if isinstance(order, str) else (order or 0.0, "")


# -- cells -------------------------------------------------------------------------------------------------------------


def text(said: str, style: str = "") -> Cell:
    """A text, which may be an environment's."""
    short = in_short(said)
    return Cell(short or "-", short or None, style if short else DIM)


def count(number: int, style: str = "") -> Cell:
    """How many; 0 is not worth a look."""
    return Cell(f"{number:,}", number, style if number else DIM)


def rate_text(number: float | None) -> str:
    """So many a second."""
    if number is None or not math.isfinite(number):
        return "-"
    return (
        f"{number:,.0f}" if number >= 99.95 else f"{number:.1f}" if number >= 9.995 or not number else f"{number:.2f}"
    )


def rate(number: float | None, style: str = "") -> Cell:
    """So many a second."""
    return Cell(rate_text(number), number, style if number else DIM)


def seconds_text(number: float | None) -> str:
    """How long something took."""
    if number is None or not math.isfinite(number):
        return "-"
    if number < 0.9995:
        return f"{number * 1e6:.0f} us" if number < 0.0009995 else f"{number * 1e3:.3g} ms"
    return f"{number:.1f} s" if number < 99.95 else clock(number)


def took(durations: pb.Durations, quantile: str) -> Cell:
    """How long a stage took."""
    number: float | None = getattr(durations, quantile) if durations.count else None
    return Cell(seconds_text(number), number, "" if number is not None else DIM)


def lasts(number: float) -> Cell:
    """How long something has lasted."""
    return Cell(seconds_text(number) if number < 10 else clock(number), number)


def size_text(number: float) -> str:
    """So many bytes."""
    for unit in ("B", "KiB", "MiB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def mean(total: float, of: int) -> Cell:
    """A mean, if it is one of something."""
    return Cell(f"{total / of:.4g}", total / of) if of else Cell("-", None, DIM)


# -- rows --------------------------------------------------------------------------------------------------------------


def _environments(look: Look) -> list[Row]:
    rows: list[Row] = []
    before = look.environments_before
    for each in look.overview.environments if look.overview else ():
        past = before.get(each.environment_id) or pb.EnvironmentOverview()
        failures = sum(each.failures.values())
        step, reset = each.stages["step"], each.stages["reset"]
        cells = (
            text(each.environment_id),
            rate(look.rate(each.steps, past.steps)),
            count(each.running, GREEN),
            count(each.waiting),
            count(each.making + each.closing, YELLOW),
            took(step, "p50"),
            took(step, "p99"),
            rate(look.rate(failures, sum(past.failures.values())), RED),
            mean(each.rewards, each.rewarded),
            count(failures, RED),
            count(each.terminated + each.truncated),
            took(reset, "p50"),
            took(reset, "p99"),
            count(each.steps),
            count(each.created),
            count(each.lost + each.expired, YELLOW),
        )
        rows.append(Row(each.environment_id, cells))
    return rows


def _sessions(look: Look) -> list[Row]:
    return [
        Row(
            each.name,
            (
                text(each.name),
                text(each.environment_id),
                text(each.state, STATES.get(each.state, "")),
                lasts(each.state_seconds),
                text(each.command),
                count(each.commands),
                lasts(each.age_seconds),
                text(each.label),
                text(each.identity),
                count(each.num_envs),
            ),
        )
        for each in look.live.sessions
    ]


def _workers(look: Look) -> list[Row]:
    rows: list[Row] = []
    overview = look.overview
    past = look.before.overview if look.before else None
    spent = {each.process_id: each.cpu_seconds for each in past.workers} if past else {}
    for each in overview.workers if overview else ():
        live, spare = sum(s.live for s in each.sandboxes), sum(s.spare + s.making for s in each.sandboxes)
        cpu = look.rate(each.cpu_seconds, spent.get(each.process_id, each.cpu_seconds))
        reason = f": {each.reason}" if each.reason else ""
        cells = (
            Cell(str(each.number), each.number),
            text(each.state + reason, STATES.get(each.state, "")),
            text(each.environment_id or "any"),
            count(each.sessions),
            rate(cpu),
            Cell(size_text(each.memory_bytes), each.memory_bytes),
            Cell(f"{live:,}+{spare:,}" if each.sandboxes else "-", live, "" if each.sandboxes else DIM),
            count(sum(s.failed for s in each.sandboxes), RED),
            lasts(each.age_seconds),
            Cell(str(each.process_id), each.process_id),
        )
        lines = [
            f"worker {each.number}, process {each.process_id}, {each.state}{reason}",
            f"for {each.environment_id or 'any environment'}",
            *(
                f"sandboxes of {s.backend}: {s.live:,} live, {s.spare:,} spare, {s.making:,} being made; "
                f"{s.made:,} made, {s.failed:,} failed, p99 of making {seconds_text(s.making_time.p99)}"
                for s in each.sandboxes
            ),
        ]
        rows.append(Row(str(each.process_id), cells, "\n".join(lines)))
    return rows


def _failures(look: Look) -> list[Row]:
    rows: list[Row] = []
    for each in look.failures:
        when = time.strftime("%H:%M:%S", time.localtime(each.time))
        named = each.message.startswith(each.exception)
        what = each.message if named else f"{each.exception}: {each.message}"
        cells = (
            Cell(when, each.time),
            text(each.environment_id),
            text(each.command),
            count(each.repeated + 1),
            text(what, RED),
            text(each.code),
            text(each.session),
            text(each.label),
        )
        facts = {
            "environment": each.environment_id,
            "session": each.session,
            "label": each.label,
            "command": each.command,
            "code": each.code,
            "times": f"{each.repeated + 1:,}, the last at {when}",
        }
        said = [f"{name:<12}{in_short(value)}" for name, value in facts.items() if value]
        rows.append(Row(_key(each), cells, "\n".join([*said, "", what, "", each.traceback])))
    return rows


def _key(failure: pb.Failure) -> str:
    """What tells a kind of failure from others."""
    last = failure.traceback.rstrip().rpartition("\n")[2]
    return " ".join((failure.environment_id, failure.command, failure.code, failure.exception, last))


def _jobs(look: Look) -> list[Row]:
    if look.rollouts is None:
        return []
    from gymhost.cli.jobs_views import describe, name_of

    rows: list[Row] = []
    for job in look.rollouts.jobs:
        style = GREEN if job.state == "running" else DIM if job.over else YELLOW if job.waits_for else ""
        cells = (
            text(name_of(job)),
            text(job.state, style),
            Cell(f"{job.done + job.dropped:,}/{job.total:,}", job.done + job.dropped),
            count(job.in_flight, GREEN),
            count(job.queued),
            mean(job.mean_reward or 0.0, 1) if job.mean_reward is not None else mean(0.0, 0),
            count(job.failed, RED),
            count(job.unacknowledged),
            lasts(max(0.0, time.time() - job.created)),
            text(job.env_id),
            text(job.identity),
            Cell(job.id[:12], job.id),
        )
        rows.append(Row(job.id, cells, "\n".join(describe(job))))
    return rows


def _generators(look: Look) -> list[Row]:
    rows: list[Row] = []
    for each in look.rollouts.generators if look.rollouts else ():
        used = each.healthy and each.current and not each.draining
        state = "in use" if used else "draining" if each.draining else "not used"
        hits = each.cached_prompt_tokens / each.prompt_tokens if each.prompt_tokens else None
        cells = (
            text(each.name),
            text(state, GREEN if used else YELLOW if each.draining else RED),
            count(each.requests),
            count(each.load),
            rate(each.tokens_per_second),
            Cell("-" if hits is None else f"{hits:.0%}", hits, DIM if hits is None else ""),
            count(each.policy_version),
            count(each.sampled_tokens),
            text(each.url),
            text(each.why, YELLOW),
        )
        lines = [f"{each.name}, {state}", each.url, each.why]
        rows.append(Row(each.name, cells, "\n".join(line for line in lines if line)))
    return rows


def _column(title: str, width: int, rank: int = 0) -> Column:
    # Its head has room for the arrow that says how it is sorted.
    return Column(title, max(width, len(title) + 1), right=True, rank=rank)


def _words(title: str, width: int, rank: int = 0, *, grows: bool = False) -> Column:
    return Column(title, max(width, len(title) + 1), right=False, rank=rank, grows=grows)


VIEWS = (
    View(
        "environments",
        (
            _words("environment", 16, grows=True),
            _column("steps/s", 8),
            _column("run", 4),
            _column("wait", 4),
            _column("make", 4, 2),
            _column("p50", 7),
            _column("p99", 7),
            _column("fail/s", 6),
            _column("reward", 7, 1),
            _column("failed", 7, 5),
            _column("episodes", 9, 6),
            _column("reset 50", 8, 3),
            _column("reset 99", 8, 4),
            _column("steps", 11, 7),
            _column("created", 9, 8),
            _column("lost", 6, 9),
        ),
        _environments,
        (1, True),
        "The server has no environments.",
    ),
    View(
        "sessions",
        (
            _words("session", 8),
            _words("environment", 14, grows=True),
            _words("state", 8),
            _column("for", 8),
            _words("runs", 8),
            _column("commands", 10),
            _column("age", 8, 3),
            _words("label", 12, 2),
            _words("whose", 10, 4),
            _column("copies", 6, 5),
        ),
        _sessions,
        (3, True),
        "No sessions.",
    ),
    View(
        "workers",
        (
            _column("worker", 6),
            _words("state", 10, grows=True),
            _words("for", 10, 1),
            _column("sessions", 8),
            _column("cores", 6),
            _column("memory", 9),
            _column("boxes", 7, 2),
            _column("failed", 6, 4),
            _column("age", 8, 3),
            _column("process", 8, 5),
        ),
        _workers,
        (0, False),
        "No workers.",
    ),
    View(
        "failures",
        (
            _column("when", 8),
            _words("environment", 18),
            _words("command", 8),
            _column("times", 6),
            _words("what", 18, grows=True),
            _words("code", 17, 1),
            _words("session", 8, 2),
            _words("label", 12, 3),
        ),
        _failures,
        (0, True),
        "Nothing has failed.",
    ),
    View(
        "jobs",
        (
            _words("job", 14, grows=True),
            _words("state", 9),
            _column("done", 13),
            _column("in flight", 9),
            _column("to begin", 8, 4),
            _column("reward", 7),
            _column("failed", 6, 1),
            _column("to fetch", 8, 5),
            _column("age", 8, 6),
            _words("environment", 18, 3),
            _words("whose", 10, 7),
            _words("id", 12, 8),
        ),
        _jobs,
        (8, False),
        "No jobs.",
        of_rollouts=True,
    ),
    View(
        "generators",
        (
            _words("generator", 12, grows=True),
            _words("state", 8),
            _column("requests", 8),
            _column("load", 9),
            _column("tokens/s", 9),
            _column("hits", 5),
            _column("version", 7, 1),
            _column("sampled", 12, 2),
            _words("url", 24, 3),
            _words("why", 24, 4),
        ),
        _generators,
        (0, False),
        "No generators.",
        of_rollouts=True,
    ),
)


# -- as lines ----------------------------------------------------------------------------------------------------------


def print_look(look: Look) -> None:
    """Prints all tables, one after the other."""
    from gymhost.cli.top_head import facts

    for said in facts(look):
        click.echo("  ".join(f"{name} {value}".strip() for name, value, _ in said))
    for view in VIEWS:
        if (look.rollouts if view.of_rollouts else look.overview) is None:
            continue
        rows = arranged(view.rows(look), view.sort, "")
        click.echo(f"\n{view.name.upper()}")
        if rows:
            print_table(_lines(view, rows))
        else:
            click.echo(clean(look.missing.get(view.name, view.nothing)))
    for what in look.missing.keys() - {view.name for view in VIEWS}:
        click.echo(f"\n{what}: {clean(look.missing[what])}")


def _lines(view: View, rows: Sequence[Row]) -> list[list[str]]:
    """The cells of rows, those of numbers set to the right."""
    columns = [[column.title, *(row.cells[place].text for row in rows)] for place, column in enumerate(view.columns)]
    for place, column in enumerate(view.columns):
        if column.right:
            width = max(map(len, columns[place]))
            columns[place] = [cell.rjust(width) for cell in columns[place]]
    return [list(line) for line in zip(*columns, strict=True)]
