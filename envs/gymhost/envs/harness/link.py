"""The line to a harness in a sandbox: its requests come over the standard streams of a program of ours there."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymhost.envs.sandbox import Sandbox, Stream, StreamEnded
from gymhost.wire.errors import SandboxUnavailable

__all__ = ["Answer", "Asked", "Ended", "Link"]

# It is not imported here: it is for the sandbox's Python.
_RELAY = Path(__file__).with_name("relay.py").read_text(encoding="utf-8")
# What it imports must not come from the working folder.
_OPTIONS = ("-I", "-S", "-c", _RELAY)

# Bytes of a line, of a request's body, and of the end of what the harness wrote.
_LINE, BODY, OUTPUT = 4096, 16 * 2**20, 8192
# Bytes that are kept of what our program itself says of its failure.
_WORDS = 4096
# Seconds that the harness has to end when it is told to.
_STOP = 5.0
# Bytes of requests that wait here, and numbers of those whose askers have gone.
_HELD, _GONE = 4 * BODY, 10_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of the harness's.

    Attributes:
        number: What its answer names.
        path: The path of its URL.
        body: Its body.
    """

    number: int
    path: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered.

    Attributes:
        status: The status of HTTP.
        type: Its media type.
        body: Its body.
    """

    status: int
    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """The harness has ended.

    Attributes:
        status: Its exit status, below 0 the signal that ended it; None where that is not known, since the program of
            ours was ended too, or says what makes no sense.
        output: The end of what it wrote.
    """

    status: int | None
    output: str


class Link:
    """A harness that runs in a sandbox.

    What comes from there may be made up by whoever runs code in it: all of it is bounded, and nothing is believed.
    """

    def __init__(self, sandbox: Sandbox, stream: Stream) -> None:
        self._sandbox = sandbox
        self._stream = stream
        self._unsent = b""
        # Frames that were sent and not confirmed, and those that have come.
        self._unconfirmed = 0
        self._come: deque[Asked | Ended] = deque()
        self._read = bytearray()
        self._held = 0
        self._words = bytearray()
        self._gone: set[int] = set()

    @classmethod
    async def start(
        cls,
        sandbox: Sandbox,
        python: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        values: Mapping[str, str],
        models: str,
    ) -> "Link":
        """Starts a harness.

        Args:
            sandbox: Where.
            python: The Python there that runs our program.
            command: The harness's command.
            variables: Its variables besides those of the sandbox.
            values: What names in braces stand for in these; `{url}` stands for the URL of the API.
            models: The body that lists the models.

        Raises:
            SandboxLost: The sandbox is gone.
            SandboxUnavailable: Our program could not be started.
        """
        link = cls(sandbox, await sandbox.open([python, *_OPTIONS]))
        settings = {"command": list(command), "env": dict(variables), "values": dict(values)}
        link._send({"limit": BODY, "output": OUTPUT}, json.dumps({**settings, "models": models}).encode())
        return link

    def answer(self, number: int, answer: Answer) -> None:
        """Answers a request. It is sent while something is waited for."""
        self._send({"id": number, "status": answer.status, "type": answer.type}, answer.body)

    def has_gone(self, number: int) -> bool:
        """Whether the one who made a request has not waited for its answer, as far as is known."""
        return number in self._gone

    async def next(self) -> Asked | Ended:
        """Waits for the next request, or for the end.

        Raises:
            SandboxLost: The sandbox is gone.
        """
        if self._unconfirmed or not self._come:
            unsent, self._unsent = self._unsent, b""
            try:
                await self._stream.exchange(unsent, self._take)
            except StreamEnded:
                # Whoever is inside can end our program, or write in its name. The sandbox itself is another matter.
                self.close()
                await self._sandbox.usage()
                if not self._come:
                    return Ended(None, self._words.decode(errors="replace"))
        come = self._come.popleft()
        if isinstance(come, Asked):
            self._held -= len(come.body)
        return come

    async def stop(self) -> None:
        """Ends the harness, and waits until it has ended, bounded. What it has left elsewhere goes on."""
        self._send({"stop": True})
        with contextlib.suppress(TimeoutError, SandboxUnavailable):
            async with asyncio.timeout(_STOP):
                while isinstance(await self.next(), Asked):
                    pass
        self.close()

    def close(self) -> None:
        """Closes the line, which ends the harness too. May be called twice, from any thread."""
        self._stream.close()

    def __deepcopy__(self, memo: object) -> "Link":
        raise TypeError("a harness that runs can't be copied")

    def _send(self, head: dict[str, Any], body: bytes = b"") -> None:
        self._unsent += json.dumps({**head, "length": len(body)}).encode() + b"\n" + body
        self._unconfirmed += 1

    def _take(self, number: int, data: bytes) -> bool:
        """Takes what our program wrote; whether nothing is to be waited for any more."""
        if number == 2:
            self._words += data
            del self._words[:-_WORDS]
            return False
        self._read += data
        try:
            while self._frame():
                pass
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self._come.append(Ended(None, "what came from the sandbox makes no sense"))
            self._unconfirmed = 0
        return bool(self._come) and self._unconfirmed <= 0

    def _frame(self) -> bool:
        """Reads a frame, if there is a whole one.

        Raises:
            KeyError, OverflowError, RecursionError, TypeError, ValueError: It makes no sense.
        """
        # What has come of a body is left where it is until it is whole: it may come in very many pieces.
        newline = self._read.find(b"\n", 0, _LINE + 1)
        if newline < 0:
            if len(self._read) > _LINE:
                raise ValueError("a line without end")
            return False
        head: Any = json.loads(self._read[:newline])
        length = head["length"]
        if not (isinstance(length, int) and 0 <= length <= BODY):
            raise ValueError("a frame has a length")
        begin, end = newline + 1, newline + 1 + length
        if len(self._read) < end:
            return False
        body = bytes(self._read[begin:end])
        del self._read[:end]
        if "got" in head:
            self._unconfirmed -= 1
            if self._unconfirmed < 0:
                raise ValueError("more is confirmed than was sent")
        elif "gone" in head:
            self._gone.add(int(head["gone"]))
        elif "exit" in head:
            self._come.append(Ended(int(head["exit"]), body[-OUTPUT:].decode(errors="replace")))
        else:
            self._come.append(Asked(int(head["id"]), str(head["path"]), body))
            self._held += length
        if self._held > _HELD or len(self._gone) > _GONE:
            raise ValueError("more is asked than could wait")
        return True
