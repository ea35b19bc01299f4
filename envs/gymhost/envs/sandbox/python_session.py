"""A persistent Python: what a piece of code defines is there for the next one."""

import base64
import copy
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymhost.envs.sandbox.channel import Reply, Stop
from gymhost.envs.sandbox.commands import (
    OUTPUT_LIMIT,
    TIMEOUT,
    Commands,
    Watched,
    check_limits,
    quote,
)
from gymhost.envs.sandbox.results import Image, Limit, PythonResult, as_text
from gymhost.envs.sandbox.spec import Mount
from gymhost.envs.sandbox.turns import Turns
from gymhost.wire.errors import InvalidArgument, SandboxLost, SandboxUnavailable

__all__ = ["PythonSession", "interpreter_mounts"]

# It is not imported here: it is for the sandbox's Python.
_DRIVER = Path(__file__).with_name("python_driver.py").read_bytes()
# What the driver imports must not come from the working folder, nor what the code does to builtins reach the driver.
_BOOTSTRAP = """\
import builtins, os, sys
sys.path[:] = [folder for folder in sys.path if folder]
source = b""
while len(source) < int(sys.argv[1]):
    source += os.read(0, int(sys.argv[1]) - len(source)) or sys.exit(1)
exec(compile(source, "<gymhost>", "exec"), {"__builtins__": dict(vars(builtins)), "__name__": "gymhost_driver"})
"""

# How many times Python is interrupted before it is ended.
_INTERRUPTS = 2
# An answer comes in pieces, each of which takes no time, and so all of them little.
_PIECE_TIMEOUT = 10.0
_PIECES_TIMEOUT = 60.0
_PIECE_OUTPUT = 65536
_ANSWER_LIMIT = 64 * 2**20
# What the driver keeps to, but not what the code may make of it: the longest name of an exception and the longest note
# of what was left out of a text, and how many images there are, and bytes in them.
_NAME_LIMIT = 200
_NOTE_LIMIT = 100
_MOST_IMAGES = 16
_IMAGES_LIMIT = 8 * 2**20


def interpreter_mounts() -> tuple[Mount, ...]:
    """Returns mounts that give a sandbox this process's own Python with all that is installed in it, read-only.

    It is where it is here, so that `sys.executable` names it; its system must be the same one, as it is by default with
    bubblewrap. What is installed in place (`pip install -e`) lies elsewhere, and takes a mount of its own.

        sandbox = await create(SandboxSpec(mounts=interpreter_mounts()))
        python = await sandbox.python(executable=sys.executable)
    """
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    folders = {Path(path) for path in prefixes | {os.path.realpath(prefix) for prefix in prefixes}}
    return tuple(
        Mount(str(folder))
        for folder in sorted(folders)
        if str(folder) not in ("/", "/usr") and not folders.intersection(folder.parents)
    )


class PythonSession:
    """A Python that lives as long as the sandbox, made by `Sandbox.python`. It runs one piece of code at a time.

    Code sees empty standard input. What it leaves running in the background goes on; what that writes then is part of
    the output of the next piece.

    Copied with what holds it, where a session is forked, it is a fresh one in the fork of its sandbox.
    """

    def __init__(self, commands: Commands, owner: object, executable: str) -> None:
        self._commands = commands
        # A sandbox that nobody holds is ended; whoever holds its Python holds it too.
        self._owner = owner
        # The name that Python has for itself may lead through folders that are not in the sandbox.
        self._executable = os.path.normpath(executable) if executable == sys.executable else executable
        self._turn = Turns(1)
        self._watched: Watched | None = None
        self._started = 0.0
        self._closed = False
        # Whether it stands for one in another sandbox, whose variables it does not have; its first result says so.
        self._is_copy = False

    async def run(self, code: str, *, timeout: float = TIMEOUT, output_limit: int = OUTPUT_LIMIT) -> PythonResult:
        """Runs a piece of code, in which `await` may stand outside of functions, as in a notebook.

        Figures of matplotlib that it shows or leaves open are returned, and closed: 16 at most, and 8 MiB of them.

        Args:
            code: The code.
            timeout: Seconds after which KeyboardInterrupt is raised in it, and programs that it started are ended.
                Where that does not end it, Python is started anew, which `PythonResult.restarted` says.
            output_limit: How many bytes of standard output, and of standard error, are kept, and how many characters of
                the value and of the traceback. Code that writes far more is stopped.

        Returns:
            What came of it. Code that raises, calls `sys.exit` or ends Python itself has a result like any other.

        Raises:
            InvalidArgument: A limit is none, or the session was closed.
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: Python had ended, and could not be started anew.
        """
        check_limits(timeout, output_limit)
        source = code.encode(errors="surrogatepass")
        async with self._turn:
            if self._closed:
                raise InvalidArgument("the Python session was closed")
            self._commands.check()
            watched = self._watched
            if watched is not None:
                await watched.channel.settled()
            # Whoever asked for the code that ended it was cancelled, and not told.
            restarted = watched is not None and watched.channel.ended
            if watched is None or restarted:
                watched = await self._start()
            restarted, self._is_copy = restarted or self._is_copy, False
            self._started = time.monotonic()
            reply = await watched.channel.call(
                lambda nonce: f"{nonce} run {len(source)} {output_limit}\n".encode() + source,
                timeout=timeout,
                output_limit=output_limit,
                stop=self._stop(watched, self._started),
            )
            answer = await self._answer(watched, reply, output_limit)
            if answer is None:
                answer = await self._end(watched, reply)
        limit: Limit | None = reply.limit
        if self._commands.used_up_memory() and limit is None:
            limit = "memory"
        return PythonResult(
            value=answer.value,
            error=answer.error,
            exception=answer.exception,
            stdout=as_text(reply.stdout + answer.stdout, reply.stdout_left_out),
            stderr=as_text(reply.stderr + answer.stderr, reply.stderr_left_out),
            images=answer.images,
            limit=limit,
            truncated=answer.truncated or reply.stdout_left_out > 0 or reply.stderr_left_out > 0,
            seconds=reply.seconds,
            restarted=restarted or answer.ended,
        )

    async def close(self) -> None:
        """Ends Python and what it runs in the background. May be called twice.

        Raises:
            SandboxLost: The sandbox is gone.
        """
        self._closed = True
        watched, self._watched = self._watched, None
        if watched is not None:
            await self._commands.end(watched)

    async def begin(self) -> None:
        """Starts it.

        Raises:
            InvalidArgument: The name of the program can't be handed on.
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: There is no such program, or it could not be started.
        """
        async with self._turn:
            await self._start()

    def __deepcopy__(self, memo: dict[int, Any]) -> "PythonSession":
        owner: Any = copy.deepcopy(self._owner, memo)
        twin = PythonSession(owner._commands, owner, self._executable)
        twin._closed, twin._is_copy = self._closed, True
        return twin

    async def _start(self) -> Watched:
        if self._watched is not None:
            watched, self._watched = self._watched, None
            await self._commands.end(watched, self._started)
        try:
            self._watched = await self._commands.watch(
                b"%s -c %s %d" % (quote(self._executable, "executable"), quote(_BOOTSTRAP), len(_DRIVER)),
                lambda nonce: _DRIVER + f"{nonce} hello\n".encode(),
                lambda said: int(said[1:]),
            )
        except SandboxLost:
            raise
        except SandboxUnavailable as error:
            raise SandboxUnavailable(
                f"{self._executable} (executable=) could not be started in the sandbox, where Python 3.8 or later is "
                f"needed: take an image that has it, or mount one (interpreter_mounts); {error.message}"
            ) from None
        return self._watched

    def _stop(self, watched: Watched, started: float) -> Stop:
        async def stop(attempt: int) -> None:
            condemned = () if attempt < _INTERRUPTS else (watched.place,)
            await self._commands.processes.stop(watched.place, started, interrupt=not condemned, condemned=condemned)

        return stop

    async def _answer(self, watched: Watched, reply: Reply, output_limit: int) -> "_Answer | None":
        """Gets what is left of an answer, and reads it; None where it makes no sense, or Python ended."""
        pieces: list[bytes] = []
        size, noise, last = 0, 0, reply
        until = time.monotonic() + _PIECES_TIMEOUT
        written: list[Reply] = []
        while not watched.channel.ended and (kind := last.payload[:1]) in (b"+", b"."):
            pieces.append(last.payload[1:])
            size += len(last.payload)
            if kind == b".":
                return _Answer.read(b"".join(pieces), written, output_limit)
            if size > _ANSWER_LIMIT or time.monotonic() > until:
                break
            last = await watched.channel.call(
                lambda nonce: f"{nonce} more\n".encode(), timeout=_PIECE_TIMEOUT, output_limit=_PIECE_OUTPUT
            )
            if noise < output_limit:
                written.append(last)
                noise += len(last.stdout) + len(last.stderr)
        return None

    async def _end(self, watched: Watched, reply: Reply) -> "_Answer":
        """Parts with a Python that has ended, was given up or makes no sense."""
        self._watched = None
        if reply.ended and reply.limit is None and reply.status is not None:
            self._commands.forget(watched)
        else:
            await self._commands.check_end()
            await self._commands.end(watched, self._started)
        if reply.limit is not None:
            how = "did not stop when it was interrupted"
        elif reply.ended:
            how = f"was ended by the code: {_cause(reply.status)}"
        else:
            how = "did not answer as it should after the code"
        return _Answer(error=f"Python {how}. It is started anew, and its variables are lost.", ended=True)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the driver told, or that it does not any more."""

    value: str | None = None
    error: str | None = None
    exception: str | None = None
    truncated: bool = False
    images: tuple[Image, ...] = ()
    ended: bool = False
    # What others wrote while the answer was fetched.
    stdout: bytes = b""
    stderr: bytes = b""

    @classmethod
    def read(cls, said: bytes, written: Sequence[Reply], output_limit: int) -> "_Answer | None":
        """Reads an answer; None where it is none, since the code can make the driver say anything."""
        try:
            told = json.loads(said)
            images = [base64.b64decode(image, validate=True) for image in told["images"]]
            if len(images) > _MOST_IMAGES or sum(map(len, images)) > _IMAGES_LIMIT:
                return None
            return cls(
                value=_text(told["value"], output_limit + _NOTE_LIMIT),
                error=_text(told["error"], output_limit + _NOTE_LIMIT),
                exception=_text(told["exception"], _NAME_LIMIT),
                truncated=told["truncated"] is True,
                images=tuple(map(Image, images)),
                stdout=b"".join(reply.stdout for reply in written),
                stderr=b"".join(reply.stderr for reply in written),
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def _text(told: object, limit: int) -> str | None:
    """Returns text without what can't be written as UTF-8, and nothing beyond a number of characters."""
    if told is None or isinstance(told, str):
        return told and told[:limit].encode(errors="replace").decode()
    raise TypeError


def _cause(status: int | None) -> str:
    if status is None or status <= 128:
        return "exit status unknown" if status is None else f"exit status {status}"
    try:
        return f"signal {status - 128} ({signal.Signals(status - 128).name})"
    except ValueError:
        return f"exit status {status}"
