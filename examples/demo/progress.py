"""How far something of many steps has come, on a terminal and in a log."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

console = Console()


@contextmanager
def progress(title: str, steps: int) -> Generator[Callable[[str], None]]:
    """Shows a bar for something of many steps; yields what is to be called with a remark at each."""
    done = 0

    def advance(remark: str) -> None:
        nonlocal done
        done += 1
        bars.update(bar, advance=1, remark=remark)
        if not console.is_terminal and done % 10 == 0:  # a log has no bar that moves
            console.print(f"{title}: step {done} of at most {steps}, {remark}")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[remark]}"), console=console) as bars:
        bar = bars.add_task(title, total=steps, remark="")
        yield advance
