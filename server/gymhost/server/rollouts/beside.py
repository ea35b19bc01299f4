"""An environment server with the rollout service beside it, in a process of its own that ends with this one."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable

from gymhost.server import process
from gymhost.server.config import ServerConfig
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.server import Server
from gymhost.wire.errors import ServerUnavailable

__all__ = ["ServerWithRollouts", "run"]

log = logging.getLogger("gymhost.server")

# Seconds for the service to begin: it loads a tokenizer, and what it has on disk.
START_LIMIT = 120.0
# Seconds that it gets beyond its own time when it is stopped.
STOP_LIMIT = 10.0
# Seconds before a service that has died is started again: at first, and at most.
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0
# Seconds after which one that ran counts as well.
WELL = 60.0


class ServerWithRollouts:
    """An environment server, and the rollout service that plays on it.

    Args:
        config: The settings of the environment server.
        rollouts: Those of the service, but for the environment server.
    """

    def __init__(self, config: ServerConfig, rollouts: RolloutsConfig) -> None:
        token = secrets.token_hex(32)
        self.server = Server(config, side_token=token)
        self._rollouts = dataclasses.replace(
            rollouts,
            environments=(self.server.side_address,),
            environments_token=token,
            environments_ca="",
            environments_cert="",
            environments_key="",
        )
        self._child: _Child | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where the environment server listens."""
        return self.server.address

    @property
    def rollouts_address(self) -> str:
        """Where the rollout service listens."""
        return self._rollouts.address

    async def start(self) -> None:
        """Starts both.

        Raises:
            ServerUnavailable: One could not start.
        """
        await self.server.start()
        try:
            self._child = await _Child.start(self._rollouts)
        except BaseException:
            await self.server.stop()
            raise
        # On the same port when it is started again.
        self._rollouts = dataclasses.replace(self._rollouts, address=self._child.address)
        self._watching = asyncio.get_running_loop().create_task(self._watch(self._child))

    async def drain(self) -> None:
        """Takes nothing new. The service's rollouts first, since they need their sessions."""
        await self._end(self._rollouts.drain)
        await self.server.drain()

    async def stop(self) -> None:
        """Stops both."""
        await self._end(0.0)
        await self.server.stop()

    def abort(self) -> None:
        """Ends both without any grace, for a process that ends now."""
        if self._child is not None:
            self._child.kill()
        self.server.abort()

    async def _end(self, grace: float) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._child is not None:
            await self._child.stop(grace)

    async def _watch(self, child: "_Child") -> None:
        """Has another one take the place of a service that has died; for ever."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while True:
            begun = loop.time()
            status = await child.ended()
            await child.stop(0.0)
            if loop.time() - begun >= WELL:
                pause = FIRST_PAUSE
            log.warning("the rollout service ended (status %d), and is started again in %g s", status, pause)
            while True:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)
                try:
                    self._child = child = await _Child.start(self._rollouts)
                    break
                except ServerUnavailable as error:
                    log.error("%s; another try is made in %g s", error, pause)
            log.warning("the rollout service listens on %s again", child.address)


class _Child:
    """The process of the service. It ends with its pipe, and so with this process, however that ends."""

    def __init__(self, running: asyncio.subprocess.Process, pipe: int) -> None:
        self._process = running
        self._pipe = pipe
        self.address = ""

    @classmethod
    async def start(cls, config: RolloutsConfig) -> "_Child":
        """Starts the service, and waits until it listens.

        Raises:
            ServerUnavailable: It ended, or did not listen in time.
        """
        ready, ready_writer = os.pipe()
        reader, pipe = os.pipe()
        try:
            running = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gymhost.server.rollouts",
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
            await asyncio.to_thread(_write, pipe, json.dumps(config.to_dict()).encode() + b"\n")
            async with asyncio.timeout(START_LIMIT):
                child.address = await asyncio.shield(telling)
            if not child.address:
                status = await child.ended()
                raise ServerUnavailable(
                    f"the rollout service could not start (status {status}): what it said stands above"
                )
        except TimeoutError:
            raise ServerUnavailable(f"the rollout service did not start within {START_LIMIT:g} s") from None
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


def run(config: ServerConfig, rollouts: RolloutsConfig, *, on_ready: Callable[[ServerWithRollouts], None]) -> None:
    """Runs an environment server with a rollout service until SIGTERM or Ctrl-C.

    Args:
        config: The settings of the environment server.
        rollouts: Those of the service, but for the environment server.
        on_ready: Called once both listen.

    Raises:
        ServerUnavailable: One could not start.
    """
    process.run(lambda: ServerWithRollouts(config, rollouts), config.log_level, on_ready=on_ready)
