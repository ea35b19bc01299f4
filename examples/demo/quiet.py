"""Keeps what the libraries say about themselves out of the story."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def stderr_to(path: Path) -> Generator[None]:
    """Sends standard error to a file, that of native code too."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
