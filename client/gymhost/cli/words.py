"""What people are shown: texts, spans of time, tables."""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

import click

__all__ = ["clean", "clock", "in_short", "print_table"]

_LONGEST = 240
_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """A text, such as an environment's, without what a terminal would take for orders."""
    return _ORDERS.sub("\ufffd", text.replace("\r\n", "\n"))


def in_short(text: str) -> str:
    """A text in one line, without what a terminal would take for orders."""
    return textwrap.shorten(clean(" ".join(text.split())), _LONGEST, placeholder=" ...")


def clock(seconds: float) -> str:
    """Seconds as a clock has them: 1:05, or 2:00:00."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows, the first of which are headings; on a terminal none is wider than it."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10**6
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        click.echo(line if len(line) <= limit else line[: limit - 1] + "…")
