"""What `gymhost rollout` says on stderr while it plays."""

import logging
import os
import time
from collections import Counter, deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gymhost.cli.words import clock, in_short
from gymhost.rollout.status import Status
from gymhost.rollout.summary import Tally

__all__ = ["Lines", "Panel", "Progress", "Standing", "progress"]

_LINE_SECONDS = 5.0
_WINDOW_SECONDS = 10.0
_ALIKE = 3


@dataclass(frozen=True)
class Standing:
    """How a run stands.

    Attributes:
        total: How many rollouts were asked for.
        tally: Those that have ended, those of an earlier run included.
        status: What the engine says.
    """

    total: int
    tally: Tally
    status: Status

    @property
    def done(self) -> int:
        """How many have ended."""
        return len(self.tally)


class Progress:
    """Says nothing but what must be said; the others say more. A context manager."""

    def __init__(self, console: Console, level: int = logging.ERROR) -> None:
        self.console = console
        self._handler = _Warnings(self, level)
        self._begun = time.monotonic()
        self._done_before = 0
        self._samples: deque[tuple[float, int]] = deque()

    def __enter__(self) -> Self:
        logging.getLogger("gymhost").addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        logging.getLogger("gymhost").removeHandler(self._handler)

    def say(self, text: str) -> None:
        """Says something that stays on the screen."""
        self.console.print(f"gymhost: {text}", markup=False, highlight=False, soft_wrap=True)

    def doing(self, what: str) -> None:
        """Says what is being done before the first rollout."""

    def show(self, standing: Standing) -> None:
        """Shows how the run stands; called some times a second."""

    def begin(self, standing: Standing) -> None:
        """Begins to show a run."""
        self._begun = time.monotonic()
        self._done_before = standing.done
        self._samples.append((self._begun, standing.status.tokens))

    def end(self, standing: Standing) -> None:
        """Ends it."""

    def leave(self) -> None:
        """Leaves the terminal usable, in a signal handler, before the process ends at once."""

    def speed(self, standing: Standing) -> float:
        """Tokens a second, of late."""
        now = time.monotonic()
        self._samples.append((now, standing.status.tokens))
        while now - self._samples[0][0] > _WINDOW_SECONDS and len(self._samples) > 2:
            self._samples.popleft()
        since, tokens = self._samples[0]
        return (standing.status.tokens - tokens) / (now - since) if now > since else 0.0

    def times(self, standing: Standing) -> tuple[float, float | None]:
        """Seconds since the beginning, and those that it may take yet."""
        gone = time.monotonic() - self._begun
        ended = standing.done - self._done_before
        return gone, gone / ended * (standing.total - standing.done) if ended else None


class Lines(Progress):
    """A line every few seconds, for files and for terminals that are none."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, logging.WARNING)
        self._started = self._begun
        self._last = 0.0

    def doing(self, what: str) -> None:
        """Says it in a line."""
        self._line(what)

    def begin(self, standing: Standing) -> None:
        """Begins to show a run."""
        super().begin(standing)
        self._last = time.monotonic()

    def show(self, standing: Standing) -> None:
        """Says a line, if the last one is some seconds old."""
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._say(standing)

    def end(self, standing: Standing) -> None:
        """Ends it with a last line."""
        self._say(standing)

    def _say(self, standing: Standing) -> None:
        self._last = time.monotonic()
        parts = [f"{standing.done}/{standing.total} done"]
        if flying := _flying(standing):
            parts.append(flying)
        parts.append(f"{self.speed(standing):,.0f} tokens/s")
        if standing.tally.reward is not None:
            parts.append(f"reward {standing.tally.reward:.3f}")
        if failed := _failed(standing):
            parts.append(f"failed: {failed}")
        self._line("; ".join(parts))

    def _line(self, text: str) -> None:
        gone = time.monotonic() - self._started
        self.console.print(f"{gone:6.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)


class Panel(Progress):
    """A few lines that stay where they are, for terminals."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, logging.WARNING)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._status = console.status("")

    def doing(self, what: str) -> None:
        """Says it beside something that turns."""
        self._status.update(what)
        self._status.start()

    def say(self, text: str) -> None:
        """Says something that stays on the screen, above what changes."""
        self._status.stop()
        super().say(text)

    def begin(self, standing: Standing) -> None:
        """Begins to show a run."""
        self._status.stop()
        super().begin(standing)
        self._live.start()
        self.show(standing)

    def show(self, standing: Standing) -> None:
        """Draws it anew."""
        self._live.update(self._draw(standing), refresh=True)

    def end(self, standing: Standing) -> None:
        """Ends it; the summary takes its place."""
        self._live.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._status.stop()
        self._live.stop()
        super().__exit__(kind, error, traceback)

    def leave(self) -> None:
        """Shows the cursor again, past whatever lock is held."""
        os.write(2, b"\x1b[?25h\n")

    def _draw(self, standing: Standing) -> RenderableType:
        gone, left = self.times(standing)
        bar = ProgressBar(total=max(standing.total, 1), completed=standing.done)
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True)
        left_text = "" if left is None else f", {clock(left)} left"
        head.add_row(bar, f"{standing.done:,} of {standing.total:,}  {clock(gone)}{left_text}")
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim")
        facts.add_column()
        facts.add_row("in flight", _flying(standing) or "none")
        facts.add_row("tokens", f"{standing.status.tokens:,} sampled, {self.speed(standing):,.0f}/s")
        tally = standing.tally
        reward = "none yet" if tally.reward is None else f"{tally.reward:.3f} so far, of {tally.valid:,} valid"
        facts.add_row("reward", reward)
        if failed := _failed(standing):
            facts.add_row("failed", Text(failed, style="red"))
        # The last line is short: behind it stands the ^C that terminals write, which must not begin another line.
        return Group(head, facts, Text("Ctrl-C ends it and sums up", style="dim"))


class _Warnings(logging.Handler):
    """Says warnings of the package, a few of each kind: a thousand rollouts that fail alike fill no screen."""

    def __init__(self, progress: Progress, level: int) -> None:
        super().__init__(level)
        self._progress = progress
        self._seen: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Says one."""
        kind = str(record.msg)
        self._seen[kind] += 1
        if self._seen[kind] <= _ALIKE:
            more = "; more of the kind are not shown" if self._seen[kind] == _ALIKE else ""
            self._progress.say(f"{in_short(record.getMessage())}{more}")


def progress(console: Console, *, quiet: bool) -> Progress:
    """What suits where it is shown."""
    if quiet:
        return Progress(console)
    return Panel(console) if console.is_terminal else Lines(console)


def _flying(standing: Standing) -> str:
    """Those in flight by stage."""
    status = standing.status
    stages = {
        "waiting": status.waiting,
        "beginning": status.init,
        "ready": status.ready,
        "generating": status.generating,
        "stepping": status.run - status.generating,
        "ending": status.eval + status.closing,
    }
    return ", ".join(f"{count:,} {stage}" for stage, count in stages.items() if count > 0)


def _failed(standing: Standing) -> str:
    parts = [f"{failed.count:,} {failed.fault}: {failed.cause}" for failed in standing.tally.failures]
    if standing.status.retries:
        parts.append(f"{standing.status.retries:,} tried again")
    return ", ".join(parts)
