"""A worker process: starting it, the front's end of its link, noticing its death."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from google.protobuf.message import DecodeError as ProtobufDecodeError

from gymhost.server import link
from gymhost.server.board import Board
from gymhost.server.config import ServerConfig
from gymhost.server.front import congestion
from gymhost.server.front.crews import Crew
from gymhost.server.front.leftovers import FOLDER_VARIABLE
from gymhost.server.front.output import Output
from gymhost.server.meter import Meter
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2 as operations
from gymhost.wire import errors
from gymhost.wire.frames import FrameReader, pack
from gymhost.wire.limits import ENVELOPE

log = logging.getLogger("gymhost.server")

# Seconds that a worker gets to import its modules.
START_LIMIT = 120.0
# Seconds for it to end when it was killed: the kernel may be busy with it, as with a disk that does not answer.
KILL_LIMIT = 10.0


class Channel(Protocol):
    """A stream, as the link knows it."""

    def put_frame(self, frame: bytes) -> None:
        """Takes a frame of replies, unopened."""
        ...


class Call(Protocol):
    """A unary call, as the link knows it."""

    def put(self, reply: pb.Reply) -> None:
        """Takes a reply on the call's lane."""
        ...


class Sink(Protocol):
    """Who drives a session: a stream, or a unary call."""

    def notice(self, lane: int, error: errors.Error) -> None:
        """Takes what is told about the lane without a command."""
        ...


class Worker(asyncio.Protocol):
    """One worker process and the front's end of its link.

    Attributes:
        number: Unique among the workers of this server; the upper half of the worker's lanes.
        crew: Which interpreter it runs in, and what it imports.
        channels: The streams that have sent commands here, by number: frames of replies name it. Replies for one that
            is gone are dropped: the worker keeps the last of each lane.
        calls: The unary calls, by the lane that each has a command on.
        dedicated: It is for one session, or for those of one environment.
        environment_id: The environment that a dedicated one is for.
        isolates: That environment is to have a worker for each session, in quarantine or not.
        memory_limit: How much memory that environment may take, in bytes; 0 for no limit.
        sessions: How many sessions it has, those in the making included.
        placed: How many it has been given since it started.
        pending: The environments that are made, described or closed on lanes that no session has.
        started: When it was ready, by the loop's clock.
        ready: It has said what it hosts.
        closing: It gets no new sessions.
        tainted: A step in it is stuck: what that does to it is known already.
        retired: Why another has taken its place; it ends when its last session has left.
        hoards: It is killed for its memory.
        dead: Its process has ended.
        reason: Why it ended, or takes no new sessions.
        congested: Set while it does not take what it is sent.
        ended_as_asked: It was asked to end, and did.
        meter: What it counts; None where it counts nothing.
    """

    def __init__(
        self, number: int, config: ServerConfig, owner: "WorkerEvents", folder: Path, crew: Crew, *, dedicated: bool
    ) -> None:
        self.number = number
        self.crew = crew
        self.dedicated = dedicated
        self.environment_id = ""
        self.isolates = False
        self.memory_limit = 0
        self.channels: dict[int, Channel] = {}
        self.calls: dict[int, Call] = {}
        self.sessions = 0
        self.placed = 0
        self.pending: dict[int, str] = {}
        self.started = 0.0
        self.ready = False
        self.closing = False
        self.tainted = False
        self.retired = ""
        self.hoards = False
        self.reason = ""
        self.congested: congestion.Congestion | None = None
        self.ended_as_asked = False
        self.meter: Meter | None = None
        self._asked_to_end = False
        self.pid = 0
        self._config = config
        self._owner = owner
        self._folder = folder
        self._lanes = 0
        self._numbers = 0
        self._requests: dict[int, asyncio.Future[bytes]] = {}
        self._reader = FrameReader(config.max_payload + 2 * ENVELOPE)
        self._transport: asyncio.Transport
        self._process: asyncio.subprocess.Process
        self._board: Board
        self._heard = 0.0
        self._output = Output(number, owner.owner_of)
        self._tasks: list[asyncio.Task[None]] = []
        self.dead = False

    # -- the process ---------------------------------------------------------------------------------------------------

    async def start(self, *, clears: bool = False) -> pb.ListEnvironmentsResponse:
        """Starts the process and waits until it has imported its modules.

        Args:
            clears: Whether it clears away what sandboxes of servers left that were killed.

        Returns:
            What it hosts.

        Raises:
            ServerUnavailable: It ended, or took too long; the message has its last output.
            OSError: The machine has not enough of something.
        """
        loop = asyncio.get_running_loop()
        ours, alive = await self._spawn(clears=clears)
        self.pid = self._process.pid
        self._heard = loop.time()
        os.set_blocking(alive, False)
        await loop.create_unix_connection(lambda: self, sock=ours)
        self._tasks = [
            loop.create_task(self._output.read(self._process.stdout)),
            loop.create_task(self._watch_life(alive)),
            loop.create_task(self._wait()),
        ]
        try:
            answer = await asyncio.wait_for(self.request(link.CATALOG, 0, b""), START_LIMIT)
        except TimeoutError:
            self.kill(f"it had not imported its modules after {START_LIMIT:g} s")
            raise errors.ServerUnavailable(f"worker {self.number}: {self.reason}") from None
        except errors.EnvironmentFault as error:
            self.kill(error.message)
            raise
        self.ready = True
        self.started = loop.time()
        return pb.ListEnvironmentsResponse.FromString(answer)

    async def _spawn(self, *, clears: bool) -> tuple[socket.socket, int]:
        """Starts the process; returns this end of its link, and of the pipe that shows that it lives."""
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as given:
            ours, theirs = socket.socketpair()
            kept.callback(ours.close)
            given.callback(theirs.close)
            alive_read, alive_write = os.pipe()
            kept.callback(os.close, alive_read)
            given.callback(os.close, alive_write)
            self._board = Board()
            given.callback(os.close, self._board.descriptor)
            counted: tuple[int, ...] = ()
            if self._config.metrics:
                self.meter = Meter.shared()
                given.callback(os.close, self.meter.descriptor)
                counted = (self.meter.descriptor,)
            told = link.write_config(self._told(theirs.fileno(), alive_write, clears=clears))
            given.callback(os.close, told)
            self._process = await asyncio.create_subprocess_exec(
                self.crew.executable, "-m", "gymhost.server.worker",
                stdin=told,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(), alive_write, self._board.descriptor, *counted),
                # Environments of many sessions share the cores; threads of BLAS in each would only fight for them.
                # All that it starts has the mark by which it is found again when this server was killed.
                env={
                    "OMP_NUM_THREADS": "1",
                    **_environment(),
                    "PYTHONUNBUFFERED": "1",
                    FOLDER_VARIABLE: str(self._folder),
                },
                start_new_session=True,
            )  # fmt: skip
            kept.pop_all()
            return ours, alive_read

    def _told(self, link_fd: int, alive_fd: int, *, clears: bool) -> link.WorkerConfig:
        """What the process is told at its start."""
        return link.WorkerConfig(
            number=self.number,
            link_fd=link_fd,
            alive_fd=alive_fd,
            board_fd=self._board.descriptor,
            meter_fd=-1 if self.meter is None else self.meter.descriptor,
            direct_path=str(self._folder / str(self.number)),
            memory_path=str(self._folder / link.MEMORY_SOCKET) if self._config.bounds_sandbox_memory else "",
            version=link.own_version(),
            modules=self.crew.modules,
            paths=self._config.paths,
            attributes=tuple(self._config.attributes.items()),
            wrappers=self._config.wrappers,
            replayable=self._config.replayable,
            max_payload=self._config.max_payload,
            grace=self._config.grace,
            sandboxes={
                "backend": self._config.sandbox,
                "options": self._config.sandbox_options,
                "creations": self._config.sandbox_creations,
                "spares": self._config.sandbox_spares,
                "folder": str(self._folder / "sandboxes"),
            },
            clears=clears,
        )

    async def stop(self, limit: float) -> None:
        """Closes the link, upon which the worker closes its environments and ends; kills it after a time."""
        self.closing = True
        if not self._tasks:
            # Its start was broken off before there was a link.
            if self.pid:
                self.kill("its start was broken off")
            return
        if self.ready:
            self._asked_to_end = True
            self._transport.close()
        else:
            self.kill("the server was stopped as it started")
        try:
            await asyncio.wait_for(self._process.wait(), limit)
        except TimeoutError:
            self.kill("it did not end when it was asked to")
            try:
                await asyncio.wait_for(self._process.wait(), KILL_LIMIT)
            except TimeoutError:
                log.error(
                    "worker %d, process %d, does not end though it was killed",
                    self.number,
                    self.pid,
                    extra={"worker": self.number},
                )

    def retire(self, reason: str) -> None:
        """Gives it no new sessions: it is to be stopped when its last one has left."""
        self.closing = True
        self.retired = reason

    def suspects(self, environments: Mapping[int, str]) -> tuple[set[str], bool]:
        """The environments that may have killed it.

        Args:
            environments: Those of its sessions, by their lanes.

        Returns:
            The environments, and whether it ended by a caller's own time limit.
        """
        of = {**self.pending, **environments}
        if self.hoards:
            return set(of.values()), False
        lanes, hurried = self._board.suspects(of)
        return {of[lane] for lane in lanes}, hurried

    def kill(self, reason: str) -> None:
        """Ends the process at once."""
        if self.dead:
            return  # its number may be another process's by now
        self.closing = True
        self.reason = self.reason or reason
        try:
            # The whole group: what its environments started goes with it.
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def _wait(self) -> None:
        status = await self._process.wait()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        # Its last words may still be in the pipe; what it left running may keep the pipe open.
        await asyncio.wait(self._tasks[:1], timeout=1.0)
        said = self._output.last()
        if status == link.EXIT_OVERRUN and said:
            self.reason = self.reason or said[-1]
        elif status < 0:
            self.reason = self.reason or f"it was killed by {_signal_name(-status)}"
        elif status == 0 and self._asked_to_end:
            self.reason = self.reason or self.retired or "it was asked to"
            self.ended_as_asked = True
        else:
            words = "; its last words: " + " | ".join(said[-3:]) if said else ""
            self.reason = self.reason or f"it ended with status {status}{words}"
        self._died()

    async def _watch_life(self, fd: int) -> None:
        loop = asyncio.get_running_loop()

        def heard() -> None:
            try:
                if os.read(fd, 4096):
                    self._heard = loop.time()
                else:
                    loop.remove_reader(fd)
            except BlockingIOError:
                pass

        loop.add_reader(fd, heard)
        limit = self._config.worker_liveness
        pause = min(1.0, limit / 4)
        try:
            while True:
                began = loop.time()
                await asyncio.sleep(pause)
                # Time in which this process has stood still itself does not count: perhaps the worker did with it, and
                # what it wrote was not read.
                late = max(0.0, loop.time() - began - pause)
                self._heard = min(self._heard + late, loop.time())
                if loop.time() - self._heard > limit:
                    self.kill(f"it was silent for {limit:g} s (--worker-liveness): stopped, or stuck in native code")
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    # -- the link ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio.Protocol."""
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue]
        self._transport.set_write_buffer_limits(congestion.HIGH, congestion.LOW)

    def pause_writing(self) -> None:
        """Part of asyncio.Protocol: the worker does not take what it is sent."""
        self.congested = congestion.Congestion()

    def resume_writing(self) -> None:
        """Part of asyncio.Protocol: it has taken it."""
        ended, self.congested = self.congested, None
        if ended is not None:
            ended.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio.Protocol: a worker without a link is of no use."""
        self.resume_writing()
        if not self.closing:
            self.closing = True
            # It may be on its way out with a reason of its own; `_wait` reports. If not, this ends it.
            asyncio.get_running_loop().call_later(1.0, self.kill, "it closed its link")

    def data_received(self, data: bytes) -> None:
        """Part of asyncio.Protocol: hands frames of replies to their streams, and opens those for the front itself."""
        channels = self.channels
        try:
            for channel, message in self._reader.feed(data):
                if channel:
                    if (stream := channels.get(channel)) is not None:
                        stream.put_frame(message)
                else:
                    for reply in pb.InteractResponse.FromString(message).replies:
                        self._take(reply)
        except errors.TooLarge as error:
            self.kill(error.message)
        except ProtobufDecodeError as error:
            self.kill(f"it sent what is no frame: {error}")

    def send(self, frame: pb.InteractRequest, channel: int = 0) -> None:
        """Sends a frame of commands, which came from a stream or are the front's own."""
        if self._transport.is_closing():
            return  # it has died, and its sessions are about to be told
        self._transport.write(pack(frame.SerializeToString(), channel))

    def forget_channel(self, channel: int) -> None:
        """Ends a channel whose stream has ended."""
        if self.channels.pop(channel, None) is not None and not self.dead:
            self.tell(link.FORGET_CHANNEL, number=channel)

    def tell(self, kind: int, lane: int = 0, number: int = 0, payload: bytes = b"") -> None:
        """Sends a command of the front's own that has no reply."""
        command = pb.Command(lane=lane, sequence=number, kind=kind, payload=payload)  # pyright: ignore[reportArgumentType]
        self.send(pb.InteractRequest(commands=[command]))

    def request(self, kind: int, lane: int, payload: bytes) -> asyncio.Future[bytes]:
        """Sends a command of the front's own; the future gets the reply's payload, or an `Error`."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.dead:
            future.set_exception(errors.SessionLost(f"worker {self.number} is gone: {self.reason}"))
            return future
        self._numbers += 1
        number = self._numbers
        self._requests[number] = future
        future.add_done_callback(lambda _: self._requests.pop(number, None))
        command = pb.Command(lane=lane, sequence=number, kind=kind, payload=payload)  # pyright: ignore[reportArgumentType]
        self.send(pb.InteractRequest(commands=[command]))
        return future

    def is_busy(self, lane: int) -> bool:
        """Whether code runs on a lane of it."""
        return self._board.is_busy(lane)

    def last_words(self, lane: int) -> list[str]:
        """The last lines of its output: its own, and those of one session."""
        return self._output.last(lane)

    def new_lane(self) -> int:
        """A lane that was never used before on this server."""
        self._lanes += 1
        return self.number << 32 | self._lanes

    def _take(self, reply: pb.Reply) -> None:
        """Takes a reply to a unary call or to the front's own command, or a notice."""
        if reply.sequence:
            if reply.lane:
                if (call := self.calls.get(reply.lane)) is not None:
                    call.put(reply)
                return
            future = self._requests.get(reply.sequence)
            if future is not None and not future.done():
                if reply.code:
                    future.set_exception(errors.from_wire(reply.code, pb.Error.FromString(reply.payload)))
                else:
                    future.set_result(reply.payload)
            return
        if reply.code == link.FAILED:
            if reply.lane >> 32 == self.number:
                self._owner.environment_failed(self, reply.lane, operations.Failure.FromString(reply.payload))
            return
        error = errors.from_wire(reply.code, pb.Error.FromString(reply.payload))
        if reply.lane == 0:
            self.closing = self.tainted = True
            self.reason = self.reason or error.message
            self._owner.worker_tainted(self)
        elif reply.lane >> 32 == self.number:
            self._owner.session_ended(self, reply.lane, error)

    def _died(self) -> None:
        if self.dead:
            return
        self.dead = True
        self.closing = True
        for task in self._tasks:
            task.cancel()
        gone = errors.SessionLost(f"worker {self.number} is gone: {self.reason}")
        for future in list(self._requests.values()):
            if not future.done():
                future.set_exception(gone)
        self._owner.worker_died(self)


class WorkerEvents(Protocol):
    """Who is told of what happens to workers."""

    def worker_died(self, worker: Worker) -> None:
        """The process has ended."""
        ...

    def worker_tainted(self, worker: Worker) -> None:
        """The worker asks for no more sessions: a step in it is stuck."""
        ...

    def session_ended(self, worker: Worker, lane: int, error: errors.Error) -> None:
        """The worker gave a session up."""
        ...

    def owner_of(self, lane: int) -> str | None:
        """Whose a lane is; None where nothing is on it."""
        ...

    def environment_failed(self, worker: Worker, lane: int, failure: operations.Failure) -> None:
        """Something failed on a lane."""
        ...


def _environment() -> dict[str, str]:
    """The server's environment without its own secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GYMHOST_")}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
