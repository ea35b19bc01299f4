"""The standard streams of a process, as three pipes."""

import asyncio
import contextlib
import os
import threading

from gymhost.envs.sandbox.backend import Stream, StreamEnded, Take

__all__ = ["PipeStream"]

CHUNK = 65536
# After so many reads in an exchange, seconds that are waited after each that brings less than so much.
READS_AT_ONCE = 64
SMALL = 4096
GATHER = 0.002
# Reads that empty a pipe, however it is set up.
LAST = 32


class PipeStream(Stream):
    """The standard streams of a process, as pipes whose ends are owned by this object from now on.

    Args:
        stdin: Writes to the process.
        stdout: Reads its standard output.
        stderr: Reads its standard error.
    """

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        self._pipes = (stdin, stdout, stderr)
        for pipe in self._pipes:
            os.set_blocking(pipe, False)
        self._lock = threading.Lock()
        self._exchange: _Exchange | None = None
        self._closed = False
        # A process may close its standard error and go on.
        self._reads_stderr = True

    async def exchange(self, data: bytes, take: Take) -> None:
        """Sends and takes: see `Stream.exchange`."""
        exchange = _Exchange(self._pipes, data, take, reads_stderr=self._reads_stderr)
        with self._lock:
            if self._closed:
                raise StreamEnded
            self._exchange = exchange
        try:
            await exchange.run()
        finally:
            with self._lock:
                self._reads_stderr = exchange.reads_stderr
                self._exchange = None
                if self._closed:
                    self._close_pipes()

    def close(self) -> None:
        """Closes the pipes, once no event loop waits for them any more: see `Stream.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._exchange is None:
                self._close_pipes()
            else:
                # It closes them at its end: no descriptor may be closed while an event loop waits for it.
                self._exchange.end_soon()

    def __deepcopy__(self, memo: object) -> "PipeStream":
        raise TypeError("the streams of a process can't be copied")

    def _close_pipes(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                os.close(pipe)

    def __del__(self) -> None:
        self.close()


class _Exchange:
    """One exchange, on one event loop."""

    def __init__(self, pipes: tuple[int, int, int], data: bytes, take: Take, *, reads_stderr: bool) -> None:
        self._stdin, self._stdout, self._stderr = pipes
        self._unsent = memoryview(data)
        self._take = take
        self.reads_stderr = reads_stderr
        self._reads = 0
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        loop = self._loop
        self._write()
        if self._unsent:
            loop.add_writer(self._stdin, self._write)
        loop.add_reader(self._stdout, self._read, 1)
        if self.reads_stderr:
            loop.add_reader(self._stderr, self._read, 2)
        try:
            await self._done
        finally:
            loop.remove_reader(self._stdout)
            loop.remove_reader(self._stderr)
            if self._unsent:
                loop.remove_writer(self._stdin)

    def end_soon(self) -> None:
        """Ends it. From any thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._end, StreamEnded())

    def _end(self, error: BaseException | None = None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def _write(self) -> None:
        if self._done.done():
            return
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads any more, so that the process is gone or as good as gone. It may have said something before.
            self._unsent = self._unsent[:0]
            self._loop.call_soon(self._read_last)
        self._loop.remove_writer(self._stdin)

    def _read(self, number: int) -> None:
        size = self._read_some(number)
        self._reads += 1
        if 0 < size < SMALL and self._reads > READS_AT_ONCE:
            # Many small pieces are let gather, or they would be all that the event loop is busy with.
            pipe = self._stdout if number == 1 else self._stderr
            self._loop.remove_reader(pipe)
            self._loop.call_later(GATHER, self._read_on, number, pipe)

    def _read_on(self, number: int, pipe: int) -> None:
        if not self._done.done():
            self._loop.add_reader(pipe, self._read, number)

    def _read_some(self, number: int) -> int:
        """Takes what was written, and returns how much that was: 0 where there is no more for now, or for good."""
        if self._done.done():
            return 0
        try:
            data = os.read(self._stdout if number == 1 else self._stderr, CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._ended(number)
            return 0
        try:
            enough = self._take(number, data)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the exchange is told
            self._end(error)
        else:
            if enough:
                self._end()
        return len(data)

    def _ended(self, number: int) -> None:
        if number == 1:
            self._read_last(2)
        elif self.reads_stderr:
            self.reads_stderr = False
            self._loop.remove_reader(self._stderr)

    def _read_last(self, *numbers: int) -> None:
        """Takes what lies in the pipes, and ends. No more than that, since others may go on writing."""
        for number in numbers or (1, 2):
            for _ in range(LAST):
                if (number == 2 and not self.reads_stderr) or not self._read_some(number):
                    break
        self._end(StreamEnded())
