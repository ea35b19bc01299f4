"""Runs commands: each in a process of its own, by shells of ours that stand ready in the container."""

import math
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gymhost.envs.sandbox.backend import RUNNER, Container
from gymhost.envs.sandbox.channel import Channel, Reply, Stop
from gymhost.envs.sandbox.results import CommandResult, Limit
from gymhost.envs.sandbox.spec import utf8
from gymhost.envs.sandbox.stop import Place, Processes
from gymhost.envs.sandbox.turns import Turns
from gymhost.wire.errors import InvalidArgument, SandboxLost, SandboxUnavailable

__all__ = ["KILLED", "OUTPUT_LIMIT", "TIMEOUT", "Commands", "Watched", "check_limits", "encode", "quote"]

TIMEOUT = 60.0
OUTPUT_LIMIT = 256 * 1024

# How many commands run at once; more wait.
AT_ONCE = 8
# Seconds in which a process of ours must answer when it was started.
GREETING_TIMEOUT = 20.0
# Above this many bytes bash is not left to read a request as a line, which takes it a system call for each byte.
LINE = 1024
# Above this many bytes standard input is not taken along in a request.
INLINE = 32 * 1024
# Above this many bytes a text can't be an argument of a program: Linux allows 128 KiB.
ARGUMENT = 100 * 1024
KILLED = 137

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# What bash returns when it can start no process.
NO_PROCESS = 254

# How a shell of ours begins. What it runs, it runs in subshells: those have neither its traps nor its messages (of what
# was killed), for which its standard error is closed.
_FIRST = "exec 3>&2 2>/dev/null\n"
# `e` ends the call of the name `n`. A shell that can start no process ends, even if it is the first one; so it goes on
# as a new one, which is to be given this again.
_BEGIN = r"""begun=1
trap : HUP INT QUIT USR1 USR2 PIPE ALRM TERM
trap 'echo "bash: fork: Resource temporarily unavailable" >&3; e 254; exec bash --noprofile --norc' EXIT
e() { printf '\036%s %s\n' "$n" "$1"; printf '\036%s\n' "$n" >&3; }
greet() {
    for program in cat head; do
        type -P "$program" || { echo "its image has no $program, of coreutils" >&3; e 1; return; }
    done >/dev/null
    IFS= read -r -d '' stat </proc/$$/stat
    read -r up _ </proc/uptime
    place="$$ $up ${stat##*) }"
    printf '\036%s 0 %s\n%s' "$n" "${#place}" "$place"
    printf '\036%s\n' "$n" >&3
}
"""


@dataclass(eq=False, slots=True)
class _Runner:
    """A shell of ours that runs commands. The first process of a container is the one that nothing inside can end."""

    channel: Channel
    place: Place
    main: bool
    # Whether it may have gone on as a new one, or lacks a part of how it began.
    is_new: bool = False


@dataclass(eq=False, slots=True)
class Watched:
    """A process of ours that runs what it is given in itself, and a shell of ours that tells when it has ended.

    Attributes:
        channel: Calls the process. Where it has ended, the reply has its exit status as `status`.
        place: Where it stands.
        watcher: Where the shell stands that watches it.
    """

    channel: Channel
    place: Place
    watcher: Place


class Commands:
    """Runs commands in a container, some at once, and starts other processes of ours.

    Args:
        container: The container.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        self.processes = Processes(container)
        self._env = container.spec.variables()
        self._turns = Turns(AT_ONCE)
        self._idle: list[_Runner] = []
        self._channels: set[Channel] = set()
        self._closed = False
        self._out_of_memory = 0
        self._first: Place | None = None

    async def begin(self) -> None:
        """Takes over the first process of the container.

        Raises:
            SandboxUnavailable: It does not answer, or the image lacks what is needed.
        """
        channel, place = await self._greet(Channel(self.container.main))
        self._first = place
        self._idle.append(_Runner(channel, place, main=True))

    def close(self) -> None:
        """Closes all channels, so that whoever waits for one is told. May be called twice, from any thread."""
        self._closed = True
        for channel in tuple(self._channels):
            channel.close()

    def check(self) -> None:
        """Raises where there is no container any more.

        Raises:
            SandboxLost: It is gone.
        """
        if self._closed or not self.container.alive:
            raise self.lost()

    def lost(self) -> SandboxLost:
        """Returns the error that says that the container is gone."""
        return SandboxLost(f"the sandbox {self.container.id} is gone: it was destroyed, or its first process ended")

    def used_up_memory(self) -> bool:
        """Tells whether something was ended for want of memory since this was asked before."""
        before, self._out_of_memory = self._out_of_memory, self.container.out_of_memory()
        return self._out_of_memory > before

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float = TIMEOUT,
        output_limit: int = OUTPUT_LIMIT,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        """Runs a command: see `Sandbox.run`."""
        check_limits(timeout, output_limit)
        request = _request(command, stdin, env or {}, cwd)
        self.check()
        async with self._turns:
            runner = await self._take(apart=len(stdin) > INLINE)
            try:
                started = time.monotonic()
                runner.is_new = True
                reply = await runner.channel.call(
                    request, timeout=timeout, output_limit=output_limit, stop=self._stop(runner, started)
                )
                # What a stopped command still wrote beyond its end belongs to nobody.
                runner.is_new = len(stdin) > INLINE or bool(reply.limit) or reply.status in (None, NO_PROCESS)
                status = await self._status_at_end(runner, started) if reply.ended else reply.status
            finally:
                self._give_back(runner)
        return self.result(reply, status)

    def result(self, reply: Reply, status: int | None, *, restarted: bool = False) -> CommandResult:
        """Makes a result of a reply."""
        limit: Limit | None = reply.limit
        # Asked each time, so that what ended now is not told of a later command.
        if self.used_up_memory() and limit is None:
            limit = "memory"
        return CommandResult(
            exit_status=None if reply.limit else status,
            stdout_bytes=reply.stdout,
            stderr_bytes=reply.stderr,
            limit=limit,
            stdout_left_out=reply.stdout_left_out,
            stderr_left_out=reply.stderr_left_out,
            seconds=reply.seconds,
            restarted=restarted,
        )

    async def watch(self, command: bytes, hello: Callable[[str], bytes], pid_of: Callable[[bytes], int]) -> Watched:
        """Starts a process of ours that is called itself.

        Args:
            command: A simple command of bash that starts it.
            hello: Makes the first request to it.
            pid_of: Reads its process id from the payload that it answers with.

        Raises:
            SandboxLost: The container is gone.
            SandboxUnavailable: It could not be started; the message has what it said.
        """
        last = secrets.token_urlsafe(16)
        start = b"n=%s; ( exec %s ) 2>&3 3>&-; e $?; trap - EXIT; exit\n" % (last.encode(), command)
        async with self.processes.turn:
            channel, watcher = await self._open(last)
            try:
                said = await channel.greet(lambda nonce: start + hello(nonce), timeout=GREETING_TIMEOUT)
                place = Place(pid_of(said), watcher.session, watcher.clock)
            except BaseException as error:
                self.processes.discard(watcher)
                self._drop(channel)
                if isinstance(error, ValueError):
                    raise SandboxUnavailable("a process of the sandbox told no process id as it was started") from None
                raise
            self.processes.add(place)
        return Watched(channel, place, watcher)

    async def end(self, watched: Watched, since: float | None = None) -> None:
        """Ends a process of ours with all that it started, but for what lost its parents before a time.

        Args:
            watched: The process.
            since: When the command began that is to be ended, by `time.monotonic`; None spares what has lost its
                parents and takes all the rest.
        """
        try:
            await self.processes.stop(
                watched.place,
                since or 0.0,
                orphans=since is not None,
                condemned=(watched.place, watched.watcher),
            )
        finally:
            self.forget(watched)

    def forget(self, watched: Watched) -> None:
        """Drops a process of ours that has ended by itself."""
        self._drop(watched.channel)
        self.processes.discard(watched.place, watched.watcher)

    async def halt(self) -> None:
        """Ends all processes but the one that keeps the container: see `Sandbox.halt`."""
        self.check()
        assert self._first is not None
        for runner in [runner for runner in self._idle if not runner.main]:
            self._idle.remove(runner)
            self._drop(runner.channel)
        await self.processes.halt(self._first)

    async def check_end(self) -> None:
        """Asks the container for a sign of life.

        Raises:
            SandboxLost: It is gone.
        """
        self.check()
        await self.container.control(":")

    async def _open(self, last: str = "") -> tuple[Channel, Place]:
        self.check()
        try:
            stream = await self.container.open(RUNNER, self._env)
        except SandboxUnavailable:
            # It may have been destroyed meanwhile.
            self.check()
            raise
        return await self._greet(Channel(stream, last))

    async def _greet(self, channel: Channel) -> tuple[Channel, Place]:
        self._channels.add(channel)
        try:
            place = Place.read(await channel.greet(_greeting(_FIRST), timeout=GREETING_TIMEOUT))
        except BaseException as error:
            self._drop(channel)
            if isinstance(error, SandboxUnavailable):
                self.check()
            raise
        self.processes.add(place)
        return channel, place

    def _drop(self, channel: Channel) -> None:
        channel.close()
        self._channels.discard(channel)

    async def _take(self, *, apart: bool) -> _Runner:
        """Takes a runner that is free, or opens another one; `apart` means one that can be done without."""
        for runner in reversed(self._idle):
            if not (apart and runner.main):
                self._idle.remove(runner)
                break
        else:
            async with self.processes.turn:
                return _Runner(*await self._open(), main=False)
        await runner.channel.settled()
        if runner.is_new and not runner.channel.ended:
            await runner.channel.call(_greeting(), timeout=GREETING_TIMEOUT, output_limit=0)
        if not runner.channel.ended:
            return runner
        if runner.main:
            self.container.kill()
            raise self.lost()
        self._give_back(runner)
        return await self._take(apart=apart)

    def _give_back(self, runner: _Runner) -> None:
        if not runner.channel.ended or runner.main:
            self._idle.append(runner)
            return
        self._drop(runner.channel)
        self.processes.discard(runner.place)

    def _stop(self, runner: _Runner, started: float) -> Stop:
        async def stop(attempt: int) -> None:
            if attempt < 2:
                await self.processes.stop(runner.place, started, wake=True)
            else:
                await self.processes.stop_all()

        return stop

    async def _status_at_end(self, runner: _Runner, started: float) -> int:
        """Returns what a command is taken to have returned that ended the shell which ran it.

        Raises:
            SandboxLost: The whole container ended.
        """
        if runner.main:
            self.container.kill()
            raise self.lost()
        await self.check_end()
        await self.processes.stop(runner.place, started)
        return KILLED


def _greeting(first: str = "") -> Callable[[str], bytes]:
    return lambda nonce: f"{first}{_BEGIN}n={nonce}; greet\n".encode()


def _request(
    command: str | Sequence[str], stdin: bytes, env: Mapping[str, str], cwd: str | None
) -> Callable[[str], bytes]:
    """Returns what makes bash's text that runs a command.

    Raises:
        InvalidArgument: It is empty, or something in it can't be handed on.
    """
    steps: list[bytes] = []
    if cwd is not None:
        steps.append(b"cd -- %s || exit 126; " % quote(cwd, "cwd"))
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            raise InvalidArgument(f"{name!r} can't be the name of an environment variable")
        steps.append(b"export %s=%s; " % (name.encode(), quote(value, f"the environment variable {name}")))
    text = b""
    if isinstance(command, str):
        text = encode(command, "a command")
        if len(text) <= ARGUMENT:
            steps.append(b"exec bash -c " + quote(text))
        else:
            steps.append(b"""exec bash -c 'eval "$(cat <&9)" 9<&-'""")
    elif not command:
        raise InvalidArgument("a command must have a program: a list of words, or a text for the shell")
    else:
        steps.append(b"exec -- " + b" ".join(quote(word, "a command") for word in command))
    inside = b"( %s ) 2>&3 3>&-" % b"".join(steps)
    # What is written to descriptors, processes of ours write, none of which is a child of the command.
    load, before, after = b"", b"", b""
    if len(text) > ARGUMENT:
        before += b"exec 9< <(printf %%s %s); " % quote(text)
        after += b"; exec 9<&-"
    if not stdin:
        inside += b" </dev/null"
    elif len(stdin) <= INLINE:
        # In bash a text has no NUL; its own `printf` makes them again.
        coded = stdin.replace(b"\\", b"\\\\").replace(b"\0", b"\\0000")
        load = b"IFS= LC_ALL=C read -r -N %d input\n%s\n" % (len(coded), coded)
        before += b'exec 4< <(printf %b "$input"); '
        inside += b" <&4 4<&-"
        after += b"; exec 4<&-"

    def compose(nonce: str) -> bytes:
        # A shell that went on as a new one without our knowing was made to from inside: it ends, and runs nothing.
        name = b"n=%s; [[ $begun ]] || exit\n" % nonce.encode()
        if len(stdin) <= INLINE:
            # All that starts processes is one line: where none can start nothing of it is left for the new shell.
            return name + load + _line(before + inside + b"; e $?" + after + b"\n")
        # What the command does not read is read away. Where `head` was ended some of it is left, in the way of all that
        # would come after, and where it could not start all of it: then this shell is done.
        line = b"trap - EXIT; %shead -c %d | { %s; status=$?; cat >/dev/null; exit $status; }; " % (
            before,
            len(stdin),
            inside,
        )
        line += b'status=("${PIPESTATUS[@]}"); (( status[0] )) && exit; e "${status[1]}"' + after + b"\n"
        return name + _line(line) + stdin

    return compose


def _line(text: bytes) -> bytes:
    """Returns a line as bash reads it best."""
    if len(text) <= LINE:
        return text
    return b'IFS= LC_ALL=C read -r -N %d line\n%s\neval "$line"\n' % (len(text), text)


def quote(text: str | bytes, what: str = "a command") -> bytes:
    """Returns a word of bash's language that means the text and nothing else.

    Raises:
        InvalidArgument: It can't be handed on.
    """
    return b"'" + encode(text, what).replace(b"'", b"'\\''") + b"'"


def encode(text: str | bytes, what: str) -> bytes:
    """Returns a text as bytes without NUL.

    Raises:
        InvalidArgument: It is no text, or has a NUL character or a lone surrogate.
    """
    data = utf8(text, what)
    if b"\0" in data:
        raise InvalidArgument(f"{what} can't hold a NUL character")
    return data


def check_limits(timeout: float, output_limit: int) -> None:
    """Refuses limits that are none.

    Raises:
        InvalidArgument: One is not.
    """
    if not isinstance(cast(object, timeout), (int, float)) or not 0 < timeout < math.inf:
        raise InvalidArgument(f"timeout must be a number of seconds above 0, not {timeout}")
    if output_limit < 0:
        raise InvalidArgument(f"output_limit must be at least 0 bytes, not {output_limit}")
