"""What operations on a sandbox return."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["CommandResult", "FileInfo", "Image", "PythonResult", "Usage"]

Limit = Literal["time", "output", "memory"]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. A command that fails is a result like any other.

    Attributes:
        exit_status: What it returned, exactly; 128 and the signal's number where a signal ended it. None where a limit
            ended it before it could return anything.
        stdout_bytes: What it wrote to standard output, without what was left out.
        stderr_bytes: What it wrote to standard error.
        limit: Which limit ended it: `time`, `output` (it wrote far more than is kept) or `memory`; None for none. It is
            `memory` too where the command came to its end, but something in the sandbox was ended meanwhile for want of
            memory, such as the first program of a pipeline.
        stdout_left_out: Bytes of standard output that were not kept: those in the middle.
        stderr_left_out: Bytes of standard error.
        seconds: How long it ran.
        restarted: Whether the shell had to be started anew, so that its variables and its folder are lost.
    """

    exit_status: int | None
    stdout_bytes: bytes
    stderr_bytes: bytes
    limit: Limit | None = None
    stdout_left_out: int = 0
    stderr_left_out: int = 0
    seconds: float = 0.0
    restarted: bool = False

    @property
    def stdout(self) -> str:
        """Standard output as text: what is no UTF-8 is replaced by marks, what was left out is said where it was."""
        return as_text(self.stdout_bytes, self.stdout_left_out)

    @property
    def stderr(self) -> str:
        """Standard error as text, in the same way."""
        return as_text(self.stderr_bytes, self.stderr_left_out)

    @property
    def truncated(self) -> bool:
        """Whether some of the output was left out."""
        return self.stdout_left_out > 0 or self.stderr_left_out > 0

    @property
    def ok(self) -> bool:
        """Whether it returned 0."""
        return self.exit_status == 0


@dataclass(frozen=True, slots=True)
class Image:
    """A picture that a program made.

    Attributes:
        data: The picture, as a file of its kind.
        media_type: Its kind, such as `image/png`.
    """

    data: bytes
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class PythonResult:
    """How a piece of Python ended.

    Attributes:
        value: The `repr` of its last expression; None where there is none, or it is None.
        error: The traceback of what it raised; None where it raised nothing.
        exception: The name of what it raised, such as `ZeroDivisionError`.
        stdout: What it printed, with marks for what is no UTF-8 and for what was left out.
        stderr: What it wrote to standard error.
        images: The figures of matplotlib that it showed or left open.
        limit: Which limit ended it, as with `CommandResult`.
        truncated: Whether some of the output, the value or the images were left out.
        seconds: How long it ran.
        restarted: Whether Python had to be started anew, so that its variables are lost.
    """

    value: str | None
    error: str | None
    exception: str | None
    stdout: str
    stderr: str
    images: tuple[Image, ...] = ()
    limit: Limit | None = None
    truncated: bool = False
    seconds: float = 0.0
    restarted: bool = False

    @property
    def ok(self) -> bool:
        """Whether it came to its end and raised nothing."""
        return self.error is None and self.limit is None and not self.restarted


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or folder in a sandbox.

    Attributes:
        path: Its path, from the folder that was listed on.
        kind: `file`, `directory`, `symlink` or `other`.
        size: Bytes.
        mode: Permission bits.
        modified: When it was last changed, in seconds since 1970.
    """

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int
    modified: float


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox uses now. A figure that the backend can't tell is None.

    Attributes:
        memory: Bytes of memory.
        processes: How many processes.
        cpu_seconds: Processor time so far.
        disk: Bytes of files written that are still there.
    """

    memory: int | None = None
    processes: int | None = None
    cpu_seconds: float | None = None
    disk: int | None = None


def as_text(data: bytes, left_out: int) -> str:
    """Returns output as text: what was left out lay in the middle."""
    if not left_out:
        return data.decode(errors="replace")
    half = len(data) // 2
    start, end = data[:half].decode(errors="replace"), data[half:].decode(errors="replace")
    return f"{start}\n[... {left_out} bytes left out ...]\n{end}"
