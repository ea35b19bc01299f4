"""The process of a server: what starts it, what stops it, and how."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import uvloop

from gymhost.server import logs

__all__ = ["Startable", "read_settings", "run", "tell_address"]

log = logging.getLogger("gymhost.server")


class Startable(Protocol):
    """A server that a process can be for."""

    @property
    def address(self) -> str:
        """Where it listens."""
        ...

    async def start(self) -> None:
        """Starts, and listens.

        Raises:
            Error: It can't.
        """
        ...

    async def drain(self) -> None:
        """Takes nothing new, and waits for what there is to end, for as long as is set."""
        ...

    async def stop(self) -> None:
        """Stops, with what grace is set."""
        ...

    def abort(self) -> None:
        """Ends what it has started without any grace: the process ends now."""
        ...


S = TypeVar("S", bound=Startable)


def run(
    make: Callable[[], S],
    log_level: str,
    log_format: str,
    *,
    on_ready: Callable[[S], None] | None = None,
    on_stopped: Callable[[], None] | None = None,
    parent_fd: int | None = None,
) -> None:
    """Runs a server until SIGTERM, Ctrl-C, or the end of the process that started it.

    After SIGTERM what it has goes on for a while, as is set; Ctrl-C, and the end of the process, don't wait for it.

    Args:
        make: Makes the server; called in its event loop.
        log_level: How much to log, to stderr.
        log_format: How: `text` or `json`.
        on_ready: Called once the server listens.
        on_stopped: Called once it has stopped, while its event loop still runs.
        parent_fd: A pipe whose end of file means that the server's parent is gone.

    Raises:
        Error: The server could not start.
    """
    logs.configure(log_level, log_format)

    async def serve() -> None:
        await _run(make, on_ready, parent_fd)
        if on_stopped is not None:
            on_stopped()

    uvloop.run(serve())


async def _run(make: Callable[[], S], on_ready: Callable[[S], None] | None, parent_fd: int | None) -> None:
    loop = asyncio.get_running_loop()
    # Set by what stops the server in whatever way, and by what does not wait for what it has.
    stop, at_once = asyncio.Event(), asyncio.Event()
    server = make()
    came: set[int] = set()

    def on_signal(number: int) -> None:
        """The first signal stops with grace; the same one again at once."""
        if number in came:
            server.abort()
            os._exit(128 + number)
        came.add(number)
        stop.set()
        if number != signal.SIGTERM:
            at_once.set()

    def on_parents_end() -> None:
        loop.remove_reader(cast(int, parent_fd))
        stop.set()
        at_once.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    if parent_fd is not None:
        loop.add_reader(parent_fd, on_parents_end)
    starting = loop.create_task(server.start())
    stopping = loop.create_task(stop.wait())
    await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return
    starting.result()
    log.debug("listening on %s", server.address)
    if on_ready is not None:
        on_ready(server)
    await stopping
    if not at_once.is_set():
        draining, hurry = loop.create_task(server.drain()), loop.create_task(at_once.wait())
        await asyncio.wait([draining, hurry], return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, hurry):
            task.cancel()
    log.info("stopping")
    await server.stop()


def read_settings(parent: int) -> dict[str, Any] | None:
    """Reads the line of JSON that a server's parent writes into a pipe; None if it went away before.

    The pipe is left open: its end of file tells that the parent is gone.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(parent, 1)
        if not byte:
            return None
        line += byte
    return json.loads(line)


def tell_address(ready: int, server: Startable) -> None:
    """Writes a server's address into the pipe in which its parent waits for it."""
    with open(ready, "w") as writer:
        writer.write(server.address + "\n")
