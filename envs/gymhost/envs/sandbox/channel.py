r"""Calls to a process in a container: what is sent with a call, and where what comes back ends.

Whoever calls makes up a name for each call that nobody can guess, and the process says that name when it is done:

    \x1e<nonce> <status>[ <length>]\n[<payload of that length>]    on standard output
    \x1e<nonce>\n                                                 on standard error

What comes before is the output of the call. Output that looks like such a line ends nothing, since its nonce is wrong.
Where a line has a `+` at its end there is another one to come; its status is the one that counts, and what is between
the two is no output.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gymhost.envs.sandbox.backend import Stream, StreamEnded
from gymhost.wire.errors import SandboxUnavailable

__all__ = ["Channel", "Reply", "Stop"]

# Beyond this many times what is kept of the output a call is ended; not before there are so many bytes, and at the
# latest when there are so many more than are kept.
FLOOD = 64
FLOOD_LEAST = 2**20
FLOOD_MOST = 2**28
# No process of ours sends more along, or has a longer line. After the end of a call no more than this much of what
# others write is kept.
PAYLOAD_LIMIT = 65536
LINE_LIMIT = 64
REST_LIMIT = 65536

# Tries to stop a call, and seconds after each in which the process must say that it is done.
STOPS = 4
GRACE = 0.5


class Stop(Protocol):
    """Ends what a call began, so that the process comes to the end of the call."""

    async def __call__(self, attempt: int) -> None:
        """Tries it, for the first time (0), or harder than the time before.

        Raises:
            SandboxLost: The container is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reply:
    """How a call ended.

    Attributes:
        status: What the process said; None where it said nothing.
        payload: What it sent along.
        stdout: Standard output, without what was left out in the middle.
        stdout_left_out: How much that is.
        stderr: Standard error, in the same way.
        stderr_left_out: How much was left out of it.
        limit: The limit that the call was stopped for.
        ended: The process has ended, or was given up: the channel is of no more use.
        seconds: How long it took.
    """

    status: int | None
    payload: bytes
    stdout: bytes
    stdout_left_out: int
    stderr: bytes
    stderr_left_out: int
    limit: Literal["time", "output"] | None
    ended: bool
    seconds: float


class Channel:
    """A process that is called, one call at a time.

    Args:
        stream: Its standard streams.
        last: The nonce that is said when the process that is called has ended, by another one which watches it.
    """

    def __init__(self, stream: Stream, last: str = "") -> None:
        self._stream = stream
        self._last = last
        self._settling: asyncio.Task[None] | None = None
        # What came after the end of a call: the output of what it left running.
        self._rest = (b"", b"")
        self.ended = False

    async def call(
        self,
        compose: Callable[[str], bytes],
        *,
        timeout: float,
        output_limit: int,
        stop: Stop | None = None,
    ) -> Reply:
        """Sends a request and returns what came of it.

        A cancelled call is stopped like one whose time is over, and raises when that is done.

        Args:
            compose: Makes the request; it is given the nonce.
            timeout: Seconds after which the call is stopped.
            output_limit: How many bytes of standard output, and of standard error, are kept.
            stop: Stops it; None means to give up the process.
        """
        await self.settled()
        nonce = secrets.token_urlsafe(16)
        loop = asyncio.get_running_loop()
        started = time.monotonic()
        # Done when the call has ended, when its time is over, and when it has written too much.
        turn = loop.create_future()

        def wake(_: object = None) -> None:
            if not turn.done():
                turn.set_result(None)

        output = _Output(nonce, self._last, output_limit, wake)
        ending = loop.create_task(self._exchange(compose(nonce), output))
        ending.add_done_callback(wake)
        timer = loop.call_later(timeout, wake)
        limit = None
        try:
            await turn
            if not ending.done():
                limit = "output" if output.flooded else "time"
                await self._shielded(self._settle(ending, stop))
        except asyncio.CancelledError:
            if not ending.done() and self._settling is None:
                # That it is lost is told to the next one.
                with contextlib.suppress(SandboxUnavailable):
                    await self._shielded(self._settle(ending, stop))
            raise
        finally:
            timer.cancel()
        if not ending.cancelled():
            ending.result()
        stdout, stderr = output.stdout.parts(), output.stderr.parts()
        return Reply(output.status, output.payload, *stdout, *stderr, limit, self.ended, time.monotonic() - started)

    async def greet(self, compose: Callable[[str], bytes], *, timeout: float) -> bytes:
        """Makes the first call, and returns its payload.

        Raises:
            SandboxUnavailable: The process does not answer, or says that something is missing.
        """
        reply = await self.call(compose, timeout=timeout, output_limit=4096)
        if reply.status != 0 or reply.ended:
            self.close()
            said = (reply.stderr or reply.stdout).decode(errors="replace").strip() or "nothing"
            why = "did not answer in time" if reply.limit else "ended" if reply.ended else "can't work"
            raise SandboxUnavailable(f"a process of the sandbox {why} as it was started; it said: {said}")
        return reply.payload

    def close(self) -> None:
        """Closes the streams; a call in progress ends. May be called twice, from any thread."""
        self.ended = True
        self._stream.close()

    async def settled(self) -> None:
        """Waits for the stop of the call before, which goes on where the one who waited for it was cancelled again."""
        if self._settling is not None:
            await asyncio.wait((self._settling,))

    async def _exchange(self, request: bytes, output: "_Output") -> None:
        rest, self._rest = self._rest, (b"", b"")
        try:
            # A process that had ended before the call said so in what was left over.
            output.take(1, rest[0])
            if not output.take(2, rest[1]):
                await self._stream.exchange(request, output.take)
        except StreamEnded:
            pass
        finally:
            output.close()
            self._rest = output.rest
            self.ended = self.ended or output.ended

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        self._settling = asyncio.ensure_future(work)
        self._settling.add_done_callback(self._forget)
        await asyncio.shield(self._settling)

    def _forget(self, settling: "asyncio.Task[None]") -> None:
        self._settling = None
        if not settling.cancelled():
            settling.exception()

    async def _settle(self, ending: "asyncio.Task[None]", stop: Stop | None) -> None:
        """Stops a call, or gives up the process."""
        try:
            for attempt in range(STOPS if stop else 0):
                assert stop
                await stop(attempt)
                await asyncio.wait((ending,), timeout=GRACE)
                if ending.done():
                    return
        finally:
            if not ending.done():
                self.close()
                await asyncio.wait((ending,), timeout=GRACE)
                ending.cancel()


class _Output:
    """What a process writes during a call: finds where it ends."""

    def __init__(self, nonce: str, last: str, limit: int, wake: Callable[[], None]) -> None:
        self.stdout, self.stderr = _Kept(limit), _Kept(limit)
        # Of both streams.
        self._limit = max(min(FLOOD * limit, 2 * limit + FLOOD_MOST), FLOOD_LEAST)
        self._wake = wake
        self.flooded = False
        marks = [b"\x1e" + name.encode() for name in (nonce, last) if name]
        self._out, self._err = _Scan(marks, self.stdout), _Scan(marks, self.stderr)
        self.status: int | None = None
        self.payload = b""
        self.rest = (b"", b"")
        # Until both ends are found, this may be for ever.
        self.ended = True

    def take(self, number: int, data: bytes) -> bool:
        """Takes what was written; whether that is all."""
        (self._out if number == 1 else self._err).take(data)
        if self._out.line is not None and self._err.line is not None:
            return self._finish(self._out.line)
        if self.stdout.total + self.stderr.total > self._limit and not self.flooded:
            self.flooded = True
            self._wake()
        return False

    def close(self) -> None:
        """Takes the beginnings of marks for output where there was no more to come."""
        self._out.close()
        self._err.close()

    def _finish(self, line: bytes) -> bool:
        status, _, length = line.strip().partition(b" ")
        if self._out.first and not self._out.which:
            status = self._out.first.strip()
        size = int(length) if length.isdigit() else 0
        if len(self._out.after) < size <= PAYLOAD_LIMIT:
            return False
        # A program of the sandbox's user that found out the nonce may say anything: what makes no sense is no answer.
        if status.isdigit() and len(status) < 4 and size <= PAYLOAD_LIMIT:
            self.status = int(status)
            self.payload = bytes(self._out.after[:size])
            self.ended = self._out.which == 1
        self.rest = (bytes(self._out.after[size:][:REST_LIMIT]), bytes(self._err.after[:REST_LIMIT]))
        return True


class _Scan:
    """Looks for marks in one stream, and for the end of the line that a mark begins; what comes before is output."""

    def __init__(self, marks: list[bytes], kept: "_Kept") -> None:
        self._marks = marks
        self._kept = kept
        self._carry: bytes = b""
        self._length = max(map(len, marks))
        self._found = False
        self.which = 0
        self.line: bytes | None = None
        # The line before it, which had a `+`.
        self.first: bytes | None = None
        self.after: bytearray = bytearray()

    def take(self, data: bytes) -> None:
        if self.line is not None:
            if len(self.after) <= PAYLOAD_LIMIT + REST_LIMIT:
                self.after += data
            return
        data = self._carry + data if self._carry else data
        self._carry = b""
        while data:
            if not self._found:
                data = self._find(data)
                continue
            line, newline, after = data.partition(b"\n")
            if len(line) > LINE_LIMIT:
                self._found = False  # somebody else found out the nonce
            elif not newline:
                self._carry = data
                return
            elif line.endswith(b"+") and not self.which and self.first is None:
                self.first, self._found, self._kept = line[:-1], False, _Kept(0)
                data = after
            else:
                self.line = line
                self.after += after
                return

    def close(self) -> None:
        if not self._found:
            self._kept.add(self._carry)

    def _find(self, data: bytes) -> bytes:
        """Keeps what is output, and returns what comes after a mark."""
        for which, mark in enumerate(self._marks):
            at = data.find(mark)
            if at >= 0:
                self._kept.add(data[:at])
                self.which, self._found = which, True
                return data[at + len(mark) :]
        # A mark may begin at the end of the data.
        at = data.find(b"\x1e", max(0, len(data) - self._length + 1))
        at = len(data) if at < 0 else at
        self._kept.add(data[:at])
        self._carry = data[at:]
        return b""


class _Kept:
    """The beginning and the end of what was written."""

    def __init__(self, limit: int) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._head_limit, self._tail_limit = limit // 2, limit - limit // 2
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cut now and then alone, since each time all that is kept is moved.
        if len(self._tail) > 2 * self._tail_limit + 65536:
            del self._tail[: len(self._tail) - self._tail_limit]

    def parts(self) -> tuple[bytes, int]:
        """What is kept, and how much was left out in the middle."""
        kept = bytes(self._head) + bytes(self._tail[max(0, len(self._tail) - self._tail_limit) :])
        return kept, self.total - len(kept)
