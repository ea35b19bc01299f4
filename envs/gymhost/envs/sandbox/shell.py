"""A persistent shell: variables and the working folder last from one command to the next."""

import copy
import dataclasses
import re
import time
from typing import Any

from gymhost.envs.sandbox.channel import Reply, Stop
from gymhost.envs.sandbox.commands import KILLED, OUTPUT_LIMIT, TIMEOUT, Commands, Watched, check_limits, quote
from gymhost.envs.sandbox.results import CommandResult
from gymhost.envs.sandbox.turns import Turns
from gymhost.wire.errors import InvalidArgument

__all__ = ["Shell"]

# Interactive, so that SIGINT breaks a command off and keeps the shell; what a terminal is used for is off.
_BASH = b"bash --noprofile --norc --noediting -i"
# Seconds in which a shell that was interrupted must answer again.
ANSWER_TIMEOUT = 2.0

# What an interactive bash without a terminal says when a program was ended by a signal.
_NO_TERMINAL = re.compile(rb"^bash: \[\d+: \d+ \(\d+\)\] tcsetattr: .*\n", re.MULTILINE)


class Shell:
    """A bash that lives as long as the sandbox, made by `Sandbox.shell`. One command runs at a time; others wait.

    Commands get no standard input. What a command leaves running in the background goes on; what it writes then is part
    of the output of the command after it.

    Copied with what holds it, where a session is forked, it is a fresh one in the fork of its sandbox.
    """

    def __init__(self, commands: Commands, owner: object) -> None:
        self._commands = commands
        # A sandbox that nobody holds is ended; whoever holds its shell holds it too.
        self._owner = owner
        self._turn = Turns(1)
        self._watched: Watched | None = None
        # Whether the shell was interrupted: then what it said on that is still to be read away.
        self._disturbed = False
        # Whether it was ended by a command whose caller was cancelled, and so was never told.
        self._lost = False
        self._started = 0.0
        # What the command before returned, for `$?`.
        self._status = 0
        self._closed = False
        # Where commands can't close or redirect them: the ends of calls are said there. Programs don't inherit them.
        top = min(commands.container.spec.limits.open_files, 256)
        self._out, self._err = top - 7, top - 6

    async def run(self, command: str, *, timeout: float = TIMEOUT, output_limit: int = OUTPUT_LIMIT) -> CommandResult:
        """Runs a command, which may be any text that bash understands.

        Args:
            command: The command.
            timeout: Seconds after which it is stopped, with all that it started. The shell keeps its variables and its
                folder if it can be interrupted; otherwise it is started anew, which `CommandResult.restarted` says.
            output_limit: How many bytes of standard output, and of standard error, are kept. A command that writes far
                more is stopped.

        Returns:
            How it ended. A command that ends the shell, such as `exit 3`, has its exit status and is `restarted`.

        Raises:
            InvalidArgument: A limit is none, the command has a NUL character, or the shell was closed.
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: The shell had ended, and could not be started anew.
        """
        check_limits(timeout, output_limit)
        text = quote(command)
        async with self._turn:
            if self._closed:
                raise InvalidArgument("the shell was closed")
            self._commands.check()
            watched = await self._ready()
            started = self._started = time.monotonic()
            self._disturbed = True
            before = self._status
            reply = await watched.channel.call(
                lambda nonce: self._request(text, nonce, before),
                timeout=timeout,
                output_limit=output_limit,
                stop=self._stop(watched, started),
            )
            self._disturbed = reply.limit is not None
            self._status = 0 if reply.ended else reply.status or 0
            restarted, self._lost = self._lost or reply.ended, False
            if reply.ended:
                await self._end(watched, reply, started)
            # Where all of ours was killed nobody could say so.
            status = KILLED if reply.ended and reply.status is None else reply.status
            return self._commands.result(_without_noise(reply), status, restarted=restarted)

    async def close(self) -> None:
        """Ends the shell and what it runs in the background. May be called twice.

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
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: It could not be started.
        """
        async with self._turn:
            await self._ready()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Shell":
        owner: Any = copy.deepcopy(self._owner, memo)
        twin = Shell(owner._commands, owner)
        twin._closed = self._closed
        # It is started with its first command, which says so.
        twin._lost = True
        return twin

    async def _ready(self) -> Watched:
        """Returns the shell, started or brought to order if need be."""
        watched = self._watched
        if watched is not None and self._disturbed:
            await watched.channel.settled()
            if not watched.channel.ended:
                await watched.channel.call(
                    lambda nonce: self._request(b":", nonce), timeout=ANSWER_TIMEOUT, output_limit=0
                )
            if watched.channel.ended:
                await self._end(watched, None, self._started)
                watched = None
                self._status, self._lost = 0, True
            self._disturbed = False
        if watched is None:
            watched = await self._commands.watch(_BASH, self._hello, int)
            self._watched = watched
        return watched

    def _hello(self, nonce: str) -> bytes:
        return (
            f"PS1= PS2=; set +o history +H; unset MAILCHECK PROMPT_COMMAND; "
            f"unset HISTFILE; history -c; exec {self._out}>&1 {self._err}>&2\n"
            rf"(pid=$$; printf '\036{nonce} 0 %s\n%s' ${{#pid}} $pid; printf '\036{nonce}\n' >&2)" + "\n"
        ).encode()

    def _request(self, quoted: bytes, nonce: str, before: int = 0) -> bytes:
        # What breaks off a command breaks off its line: then the last line says that it ended. Where it came to its end
        # the first one has said so, which leaves prompts out that it may have set. An empty line keeps bash from taking
        # what follows a command that is not complete for a part of it. With `set -x` nothing of this is seen.
        name, out, err = nonce.encode(), self._out, self._err
        begin = b"(exit %d) && :\n" % before if before else b""
        say = (
            rb"{ \builtin printf '\036%s %%s%s\n' $? >&%d; \builtin printf '\036%s%s\n' >&%d; "
            rb"PS0= PS1= PS2=; \builtin unset PROMPT_COMMAND; } 2>/dev/null"
            b"\n"
        )
        return (
            begin
            + rb"\builtin eval -- %s </dev/null %d>&- %d>&-; " % (quoted, out, err)
            + say % (name, b"+", out, name, b"+", err)
            + b"\n"
            + say % (name, b"", out, name, b"", err)
        )

    def _stop(self, watched: Watched, started: float) -> Stop:
        async def stop(attempt: int) -> None:
            await self._commands.processes.stop(watched.place, started, interrupt=True)

        return stop

    async def _end(self, watched: Watched, reply: Reply | None, started: float) -> None:
        """Parts with a shell that has ended or was given up."""
        self._watched = None
        if reply is None or reply.limit is not None or reply.status is None:
            await self._commands.check_end()
            await self._commands.end(watched, started)
        else:
            self._commands.forget(watched)


def _without_noise(reply: Reply) -> Reply:
    """Returns a reply without what bash says for the one who sits at the terminal."""
    stderr = _NO_TERMINAL.sub(b"", reply.stderr)
    if reply.ended:
        stderr = stderr.removesuffix(b"exit\n")
    elif reply.limit:
        # It goes to a new line after ^C.
        stderr = stderr.removesuffix(b"\n")
    return reply if stderr == reply.stderr else dataclasses.replace(reply, stderr=stderr)
