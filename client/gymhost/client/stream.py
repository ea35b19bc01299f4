"""The stream of a connection, which is kept up: when it breaks another one is opened and goes on where that one was."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

from gymhost.client.grpc_core import grpc
from gymhost.client.in_flight import InFlight
from gymhost.client.pending import Pending, failure
from gymhost.client.rpc_errors import FINAL, from_rpc
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import environments_pb2_grpc as rpc
from gymhost.wire import errors, limits

if TYPE_CHECKING:
    from gymhost.client.connection import Connection

log = logging.getLogger("gymhost.client")

# Seconds for a heartbeat's reply.
HEARTBEAT_REPLY = 20.0


class Stream:
    """The main stream, and beside it the bulk stream once that is needed. On the connection's loop only.

    Args:
        connection: The connection whose stream it is.
        in_flight: What it sends, and whose replies it takes.
        stub: The stub that opens the main stream.
        call_metadata: What every call carries.
        connect_timeout: Seconds for the first connection.
        reconnect_timeout: Seconds for restoring it.
    """

    def __init__(
        self,
        connection: "Connection",
        in_flight: InFlight,
        stub: Any,
        call_metadata: tuple[tuple[str, str], ...],
        *,
        connect_timeout: float,
        reconnect_timeout: float,
    ) -> None:
        self._connection = connection
        self._in_flight = in_flight
        self._stub = stub
        self._metadata = call_metadata
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        loop = asyncio.get_running_loop()
        # Done when the server has first greeted, or can't be had.
        self.opened: asyncio.Future[None] = loop.create_future()
        # Whether the stream that was opened last was ever up.
        self._up = False
        self._supervisor = loop.create_task(self._supervise())

    @property
    def ended(self) -> bool:
        """Whether no stream is opened any more."""
        return self._supervisor.done()

    async def end(self) -> None:
        """Ends the stream and opens no other."""
        self._supervisor.cancel()
        await asyncio.wait([self._supervisor])

    # -- keeping it up -------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        """Opens streams one after the other, until the connection is closed or can't be had."""
        loop = asyncio.get_running_loop()
        address = self._connection.address
        down_since = loop.time()
        pause = 0.05
        while True:
            try:
                await self._serve_once()
                error: errors.Error = errors.ConnectionLost("the server ended the stream")
            except grpc.aio.AioRpcError as raised:
                error = from_rpc(raised, address)
                if raised.code() in FINAL:
                    self._give_up(error)
                    return
                unreached = raised.code() is grpc.StatusCode.UNAVAILABLE and not self.opened.done()
                if unreached and (problem := await self._connection.tls_problem()):
                    self._give_up(problem)
                    return
            except errors.ConnectionLost as raised:
                error = raised
            except asyncio.InvalidStateError:
                # What gRPC raises for a write on a stream that has just broken.
                error = errors.ConnectionLost("the stream broke")
            except TimeoutError:
                error = errors.ConnectionLost("the server did not answer in time")
            except Exception as raised:  # noqa: BLE001 - whoever waits must be told, whatever it was
                self._give_up(errors.ConnectionLost(f"{type(raised).__name__}: {raised}"))
                return
            if self._connection.is_gone():
                self._give_up(errors.ConnectionLost("the embedded server has ended"))
                return
            if self._up:
                log.info("the connection to %s broke, and will be restored: %s", address, error.message)
                down_since, pause = loop.time(), 0.05
            limit = self._reconnect_timeout if self.opened.done() else self._connect_timeout
            if loop.time() - down_since > limit:
                if not self.opened.done():
                    if isinstance(error, errors.CapacityExhausted):
                        self._give_up(error)
                        return
                    where = f"can't reach a gymhost server at {address} within {limit:g} s (connect_timeout)"
                    self._give_up(
                        errors.ServerUnavailable(f"{where}: is `gymhost serve` running there? ({error.message})")
                    )
                    return
                where = f"the connection to {address} could not be restored within {limit:g} s (reconnect_timeout)"
                why = await self._connection.tls_problem() or error
                self._in_flight.fail_all(errors.ConnectionLost(f"{where}: {why.message}"))
                down_since = loop.time()
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _give_up(self, error: errors.Error) -> None:
        self._connection.dead = error
        if not self.opened.done():
            self.opened.set_exception(error)
        self._in_flight.fail_all(error)

    async def _serve_once(self) -> None:
        """Opens a stream and serves it until it ends."""
        self._up = False
        call = self._stub.Interact(metadata=self._metadata)
        try:
            hello = pb.Hello(protocol_minor=limits.PROTOCOL_MINOR, client=f"gymhost-python/{_version()}")
            welcome, early = await self._greet(call, hello)
            self._connection.adopt(welcome)
            self._up = True
            if not self.opened.done():
                self.opened.set_result(None)
            again = self._in_flight.resume()
            await _until_first(self._write(call, again), self._read(call, early), self._beat(), self._serve_bulk())
        finally:
            call.cancel()

    async def _greet(self, call: Any, hello: pb.Hello) -> tuple[pb.Welcome, pb.InteractResponse]:
        """Sends HELLO on a new stream; gives the Welcome, and what came with it."""
        command = pb.Command(
            sequence=next(self._in_flight.numbers), kind=pb.COMMAND_KIND_HELLO, payload=hello.SerializeToString()
        )
        async with asyncio.timeout(self._connect_timeout):
            try:
                await call.write(pb.InteractRequest(commands=[command]))
                response: Any = await call.read()
            except asyncio.InvalidStateError:
                response = grpc.aio.EOF
        if response is grpc.aio.EOF:
            # The stream ended instead of greeting: its status says why.
            raise grpc.aio.AioRpcError(
                await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details()
            )
        first = response.replies[0]
        if first.code:
            raise failure(first.code, first.payload)
        del response.replies[0]
        return pb.Welcome.FromString(first.payload), response

    async def _beat(self) -> None:
        """Renews the leases, and notices a server that no longer answers."""
        in_flight = self._in_flight
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._connection.welcome.heartbeat_ms / 1000 or limits.HEARTBEAT_SECONDS)
            beat = _Beat(loop, next(in_flight.numbers))
            in_flight.outbox.append(beat)
            in_flight.to_send.set()
            async with asyncio.timeout(HEARTBEAT_REPLY):
                await beat.future

    # -- the way of a step ---------------------------------------------------------------------------------------------

    async def _write(self, call: Any, commands: list[pb.Command]) -> None:
        """Sends what is to be sent first, then what is submitted, as much as there is in a frame."""
        outbox, wake, next_frame = self._in_flight.outbox, self._in_flight.to_send, self._in_flight.next_frame
        for frame in _frames(commands):
            await call.write(frame)
        wake.set()
        while True:
            await wake.wait()
            wake.clear()
            while outbox:
                frame = next_frame()
                if frame.commands:
                    await call.write(frame)

    async def _read(self, call: Any, early: pb.InteractResponse) -> None:
        take = self._in_flight.take
        take(early.replies)
        read = call.read
        while (response := await read()) is not grpc.aio.EOF:
            take(response.replies)

    # -- the bulk stream -----------------------------------------------------------------------------------------------

    async def _serve_bulk(self) -> None:
        """Opens the bulk stream when it is first needed, and serves it."""
        await self._in_flight.bulk_wanted.wait()
        address, welcome = self._connection.address, self._connection.welcome
        channel = self._connection.new_channel()
        try:
            stub: Any = rpc.EnvironmentServiceStub(channel)
            call = stub.Interact(metadata=self._metadata)
            try:
                hello = pb.Hello(protocol_minor=limits.PROTOCOL_MINOR, bulk_of=welcome.stream_id)
                _, early = await self._greet(call, hello)
                await _until_first(self._write_bulk(call), self._read(call, early))
            finally:
                call.cancel()
        except grpc.aio.AioRpcError as error:
            # Whatever it was, the main stream decides whether it is final.
            raise errors.ConnectionLost(f"the bulk stream broke: {from_rpc(error, address).message}") from None
        finally:
            await channel.close()

    async def _write_bulk(self, call: Any) -> None:
        outbox, wanted = self._in_flight.bulk_outbox, self._in_flight.bulk_wanted
        while True:
            wanted.clear()
            while outbox:
                await call.write(pb.InteractRequest(commands=[outbox.popleft()]))
            await wanted.wait()


class _Beat(Pending):
    """A heartbeat; its reply is awaited on the connection's own loop."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop, sequence: int) -> None:
        super().__init__(None, 0, pb.COMMAND_KIND_HEARTBEAT, b"")
        self.sequence = sequence
        self.future: asyncio.Future[None] = loop.create_future()

    def wake(self) -> None:
        """Ends the wait."""
        if not self.future.done():
            self.future.set_result(None)


def _frames(commands: list[pb.Command]) -> Iterator[pb.InteractRequest]:
    """Cuts commands into frames, by their number and by their size."""
    start = size = 0
    for position, command in enumerate(commands):
        size += len(command.payload)
        if position > start and (position - start == limits.FRAME_ITEMS or size > limits.FRAME_BYTES):
            yield pb.InteractRequest(commands=commands[start:position])
            start, size = position, len(command.payload)
    if commands:
        yield pb.InteractRequest(commands=commands[start:])


async def _until_first(*work: Coroutine[Any, Any, None]) -> None:
    """Runs coroutines until the first of them ends, then cancels the others; raises what it raised."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _version() -> str:
    try:
        return metadata.version("gymhost")
    except metadata.PackageNotFoundError:
        return "0"
