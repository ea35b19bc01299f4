"""Processes beside a server: each ends with the server's own process, and is started again when it dies."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymhost.server.addresses import ensure_free
from gymhost.server.process import Startable
from gymhost.wire.errors import ServerUnavailable

__all__ = ["Beside", "Together"]

log = logging.getLogger("gymhost.server")

# Seconds that a process gets beyond its own time when it is stopped.
STOP_LIMIT = 10.0
# Seconds before one that has died is started again: at first, and at most.
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
# Seconds after which one that ran counts as well.
WELL = 60.0


class Beside:
    """A process beside a server: `python -m MODULE PARENT_FD READY_FD`, as `gymhost.server` is run.

    Args:
        name: What people call it, such as "the rollout service".
        module: What is run.
        settings: What it reads from its parent; `address` is where it listens.
        start_limit: Seconds for it to begin.
        drain: Seconds that it goes on after SIGTERM with what it has; 0 where it has nothing that it could lose.
        early: Whether it can begin before the server has.
        needed: Whether the server can't begin without it.
        option: The option that says where it listens.

    Attributes:
        name: What people call it.
        early: Whether it can begin before the server has.
        problem: Why it could not begin, though it was not needed; empty where it did.
    """

    def __init__(
        self,
        name: str,
        module: str,
        settings: dict[str, Any],
        *,
        start_limit: float,
        drain: float = 0.0,
        early: bool = False,
        needed: bool = True,
        option: str,
    ) -> None:
        self.name = name
        self.early = early
        self.problem = ""
        self._module = module
        self._settings = dict(settings)
        self._start_limit = start_limit
        self._drain = drain
        self._needed = needed
        self._option = option
        self._child: _Child | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._settings["address"]

    async def start(self) -> None:
        """Starts it, and waits until it listens.

        Raises:
            ServerUnavailable: It could not start, and is needed.
        """
        try:
            # Which it would say too, but some seconds later, and above what is said here.
            ensure_free(self.address, self._option)
            self._child = await self._begin()
        except ServerUnavailable as error:
            if self._needed:
                raise
            self.problem = error.message
            return
        # On the same port when it is started again.
        self._settings["address"] = self._child.address
        self._watching = asyncio.get_running_loop().create_task(self._watch(self._child))

    async def drain(self) -> None:
        """Has it take nothing new and end what it has, if it has what it could lose."""
        if self._drain:
            await self._end(self._drain)

    async def stop(self) -> None:
        """Stops it. Twice is no error."""
        await self._end(0.0)

    def abort(self) -> None:
        """Ends it without any grace, for a process that ends now."""
        if self._child is not None:
            self._child.kill()

    async def _begin(self) -> "_Child":
        return await _Child.start(self.name, self._module, self._settings, self._start_limit)

    async def _end(self, grace: float) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._child is not None:
            await self._child.stop(grace)

    async def _watch(self, child: "_Child") -> None:
        """Has another one take the place of a process that has died; for ever."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while True:
            begun = loop.time()
            status = await child.ended()
            await child.stop(0.0)
            if loop.time() - begun >= WELL:
                pause = FIRST_PAUSE
            log.warning("%s ended (status %d), and is started again in %g s", self.name, status, pause)
            while True:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)
                try:
                    self._child = child = await self._begin()
                    break
                except ServerUnavailable as error:
                    log.error("%s; another try is made in %g s", error, pause)
            log.warning("%s listens on %s again", self.name, child.address)


class Together:
    """A server with processes beside it.

    Args:
        server: The server of this process.
        beside: The others.
        folder: A folder that is theirs, and gone with them; empty for none.
    """

    def __init__(self, server: Startable, beside: Sequence[Beside], folder: str = "") -> None:
        self.server = server
        self.beside = tuple(beside)
        self._folder = folder

    @property
    def address(self) -> str:
        """Where the server of this process listens."""
        return self.server.address

    async def start(self) -> None:
        """Starts all of them.

        Raises:
            Error: One could not start that is needed; nothing runs then.
        """
        starting = [asyncio.ensure_future(each.start()) for each in self.beside if each.early]
        started = False
        try:
            await self.server.start()
            started = True
            starting += [asyncio.ensure_future(each.start()) for each in self.beside if not each.early]
            await asyncio.gather(*starting)
        except BaseException:
            for each in starting:
                each.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            await self._stop_beside()
            if started:
                await self.server.stop()
            self._remove_folder()
            raise

    async def drain(self) -> None:
        """Takes nothing new. First what is beside, which may need the server for what it has."""
        await asyncio.gather(*(each.drain() for each in self.beside))
        await self.server.drain()

    async def stop(self) -> None:
        """Stops all of them."""
        await self._stop_beside()
        try:
            await self.server.stop()
        finally:
            self._remove_folder()

    def abort(self) -> None:
        """Ends all of them without any grace, for a process that ends now."""
        for each in self.beside:
            each.abort()
        self.server.abort()
        self._remove_folder()

    async def _stop_beside(self) -> None:
        await asyncio.gather(*(each.stop() for each in self.beside))

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(Path(self._folder), ignore_errors=True)


class _Child:
    """A process. It ends with its pipe, and so with this process, however that ends."""

    def __init__(self, running: asyncio.subprocess.Process, pipe: int) -> None:
        self._process = running
        self._pipe = pipe
        self.address = ""

    @classmethod
    async def start(cls, name: str, module: str, settings: dict[str, Any], limit: float) -> "_Child":
        """Starts it, and waits until it listens.

        Raises:
            ServerUnavailable: It ended, or did not listen in time.
        """
        ready, ready_writer = os.pipe()
        reader, pipe = os.pipe()
        try:
            running = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                str(reader),
                str(ready_writer),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(reader, ready_writer),
                # Signals of the terminal are for this process, which tells it.
                start_new_session=True,
            )
        except BaseException:
            os.close(pipe)
            os.close(ready)
            raise
        finally:
            os.close(reader)
            os.close(ready_writer)
        child = cls(running, pipe)
        # The thread ends with the child at the latest: nobody else has the other end of the pipe.
        telling = asyncio.ensure_future(asyncio.to_thread(_read_line, ready))
        try:
            await asyncio.to_thread(_write, pipe, json.dumps(settings).encode() + b"\n")
            async with asyncio.timeout(limit):
                child.address = await asyncio.shield(telling)
            if not child.address:
                status = await child.ended()
                raise ServerUnavailable(f"{name} could not start (status {status}): what it said stands above")
        except TimeoutError:
            raise ServerUnavailable(f"{name} did not start within {limit:g} s") from None
        finally:
            if not child.address:
                child.kill()
                await child.stop(0.0)
                await asyncio.wait([telling])
        return child

    async def ended(self) -> int:
        """Waits until it has ended, and returns its status."""
        return await self._process.wait()

    async def stop(self, grace: float) -> None:
        """Ends it: after SIGTERM it has a grace time, then it ends with its pipe, and in the end it is killed."""
        if grace and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace + STOP_LIMIT):
                    await self.ended()
            except TimeoutError:
                pass
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        try:
            async with asyncio.timeout(STOP_LIMIT):
                await self.ended()
        except TimeoutError:
            self.kill()
            await self.ended()

    def kill(self) -> None:
        """Kills it."""
        if self._process.returncode is None:
            self._process.kill()


def _write(pipe: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(pipe, "wb", closefd=False) as writer:
        writer.write(data)


def _read_line(pipe: int) -> str:
    with open(pipe) as reader:
        return reader.readline().strip()
