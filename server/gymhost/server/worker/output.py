"""Tags what environments print with the session that printed it; the front captures and logs it."""

import contextvars
import io
import sys
from typing import TextIO

from gymhost.server.link import TAG

# Whose code runs here, an object whose str() is what `tag` makes; unset in the worker's own code.
current_session: contextvars.ContextVar[object] = contextvars.ContextVar("gymhost_session", default="")

# The same for what runs on the event loop itself, where a context variable would cost every step more than this.
inline: object = ""


def tag(environment_id: str, lane: int, label: str = "") -> str:
    """What lines begin with, for the front to read off: whose they are."""
    return f"{TAG}{environment_id}{TAG}{lane}{TAG}{label if label.isprintable() else ascii(label)}{TAG}"


def running() -> object:
    """Returns whose code runs here; an empty text for the worker's own."""
    return current_session.get() or inline


class _Tagged(io.TextIOBase):
    """A line-buffered text stream that puts before each line whose code printed it."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner
        self._partial: dict[str, str] = {}

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._inner.fileno()

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._inner.encoding

    def write(self, text: str, /) -> int:
        label = str(running())
        whole, newline, rest = (self._partial.pop(label, "") + text).rpartition("\n")
        if newline:
            self._inner.write("".join(f"{label}{line}\n" for line in whole.split("\n")))
            self._inner.flush()
        if rest:
            self._partial[label] = rest
        return len(text)

    def flush(self) -> None:
        for label in list(self._partial):
            rest = self._partial.pop(label, "")
            if rest:
                self._inner.write(f"{label}{rest}\n")
        self._inner.flush()


def tag_output() -> None:
    """Replaces stdout and stderr by streams that tag their lines."""
    sys.stdout = _Tagged(sys.stdout)
    sys.stderr = _Tagged(sys.stderr)
