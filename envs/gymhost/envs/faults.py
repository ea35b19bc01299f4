"""What an exception of an environment comes down to, wherever it was raised, so that each is told once."""

import importlib
import re
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

import gymnasium

from gymhost.wire.errors import EnvironmentFault

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fault:
    """What was raised, and where.

    Attributes:
        message: The exception's type and message.
        place: The file and the line of the author's code that it came from.
    """

    message: str
    place: str


def fault_of(error: Exception) -> tuple[Fault, str]:
    """Returns the fault that an exception tells of, and its traceback: the remote one where it was raised remotely."""
    if isinstance(error, EnvironmentFault) and error.traceback:
        message, trace = error.message, error.traceback
    else:
        message = f"{type(error).__qualname__}: {error}"
        trace = "".join(traceback.format_exception(error))
    return Fault(message, _place(trace)), trace.rstrip()


def _place(trace: str) -> str:
    frames = [(Path(frame["file"]), frame["line"]) for frame in _FRAME.finditer(trace)]
    authors = [(file, line) for file, line in frames if not _is_machinery(file)]
    # What the author's code calls of other packages is not where to mend.
    near = [frame for frame in authors if frame[0].parent == authors[0][0].parent] or frames
    return f"{near[-1][0]}, line {near[-1][1]}" if near else "an unknown place"


def _is_machinery(file: Path) -> bool:
    """Whether a file is of Python's own library, of Gymnasium or of gymhost."""
    folders = [*importlib.import_module("gymhost").__path__, Path(gymnasium.__file__).parent]
    if str(file).startswith("<") or any(file.is_relative_to(folder) for folder in folders):
        return True
    return file.is_relative_to(sysconfig.get_path("stdlib")) and "site-packages" not in file.parts
