"""The connection to a rollout service: what is asked is asked again while the service is away.

gRPC lives on the one event loop that all of the process's connections share; what is public here may be called from any
loop.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from gymhost.client.connection import warn_of_plain_token
from gymhost.client.grpc_core import grpc
from gymhost.client.loop import LoopThread, loop_thread, on_fork
from gymhost.client.rpc_errors import FINAL, from_rpc
from gymhost.client.tls import Tls, open_channel
from gymhost.client.tls_probe import find_problem
from gymhost.v1 import environments_pb2_grpc as environments_rpc
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.v1 import rollouts_pb2_grpc as rpc
from gymhost.wire import errors, limits

__all__ = ["ASK_LIMIT", "CLOSE_LIMIT", "Link", "ResultStream"]

log = logging.getLogger("gymhost.rollout.service")

T = TypeVar("T")

# Seconds for one try of a call that only asks, and for what is still to be done when a client is closed.
ASK_LIMIT = 60.0
CLOSE_LIMIT = 10.0
# Seconds between tries: the first pause, which doubles up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 5.0
# How often a stream may end without a result though the service answers other calls.
_FRUITLESS = 20


class Link:
    """A channel to a rollout service.

    Args:
        address: `HOST:PORT` or `unix:PATH`.
        token: The bearer token, if the service wants one.
        tls: How TLS is spoken with it; None for no TLS.
        connect_timeout: Seconds for the first answer.
        reconnect_timeout: Seconds that a service which has answered before may be away.
    """

    def __init__(
        self, address: str, token: str | None, tls: Tls | None, connect_timeout: float, reconnect_timeout: float
    ) -> None:
        self.address = address
        self._tls = tls
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self._thread: LoopThread | None = None
        self._channel: grpc.aio.Channel | None = None
        self._stubs: tuple[Any, ...] = ()
        self._met = False
        # Whether it was said that the service is away, which it may be before its first answer.
        self.away_said = True
        self._dead: errors.Error | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- from any event loop -------------------------------------------------------------------------------------------

    @property
    def thread(self) -> LoopThread:
        """The thread of the process's gRPC.

        Raises:
            ConnectionLost: The client was closed, or its process was forked.
        """
        if self._dead is not None:
            raise errors.ConnectionLost(self._dead.message)
        if self._thread is None:
            self._thread = loop_thread()
            on_fork(self)
            if self._metadata and self._tls is None:
                warn_of_plain_token(self.address, "RolloutClient")
        return self._thread

    async def call(self, method: str, request: Any, limit: float = ASK_LIMIT) -> Any:
        """Makes a unary call, again and again while the service is away.

        Args:
            method: Its name, of either service.
            request: Its message.
            limit: Seconds for one try.

        Raises:
            ServerUnavailable: The service was away for too long.
            Error: The service refused it.
        """
        return await self.thread.acall(self.answer(method, request, limit))

    async def aclose(self) -> None:
        """Closes the channel, and ends what is under way. Twice is no error."""
        if self._dead is None:
            thread = self._thread
            self._dead = errors.ConnectionLost(f"the client of the rollout service at {self.address} was closed")
            if thread is not None:
                await thread.acall(self._close())

    def forked(self) -> None:
        """Called in a forked child, where gRPC no longer works."""
        self._dead = errors.ConnectionLost("this client was made before a fork: make one after it, or spawn")

    # -- on the loop of gRPC -------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs something beside, until it ends or the link is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def answer(self, method: str, request: Any, limit: float = ASK_LIMIT) -> Any:
        """As `call`."""
        outage: _Outage | None = None
        while True:
            try:
                response = await getattr(self._stub(method), method)(request, metadata=self._metadata, timeout=limit)
            except grpc.aio.AioRpcError as raised:
                error = self.failure(raised)
            except asyncio.CancelledError:
                error = self.cut_off()
            else:
                self._met, self.away_said = True, False
                return response
            outage = outage or _Outage(self)
            await outage.wait(error)

    def failure(self, raised: grpc.aio.AioRpcError) -> errors.ServerUnavailable:
        """Why the service is away.

        Raises:
            Error: It is not: it answered, and asking again would change nothing.
        """
        error = from_rpc(raised, self.address)
        told = any(key == errors.CODE_KEY for key, _ in raised.trailing_metadata() or ())
        self._met = self._met or told
        if raised.code() is grpc.StatusCode.UNIMPLEMENTED and not told:
            raise errors.Unimplemented(
                f"no rollout service listens at {self.address}, but another server: gymhost serve --rollouts is how "
                f"one is started ({raised.details()})"
            )
        if not told and raised.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.ConnectionLost(f"{self.address} does not answer")
        if raised.code() in FINAL or not isinstance(error, errors.ServerUnavailable):
            raise error
        return error

    def cut_off(self) -> errors.ServerUnavailable:
        """Why a call was cancelled by gRPC.

        Raises:
            asyncio.CancelledError: It was not: who waits for it was cancelled.
            ConnectionLost: The client was closed.
        """
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise asyncio.CancelledError
        if self._dead is not None:
            raise errors.ConnectionLost(self._dead.message)
        return errors.ConnectionLost(f"{self.address} ended the call")

    def stream(self, job_ids: list[str], after: int) -> Any:
        """Opens a stream of results."""
        request = pb.StreamResultsRequest(job_ids=job_ids, after=after)
        return self._stub("StreamResults").StreamResults(request, metadata=self._metadata)

    async def away(self, error: errors.ServerUnavailable, since: float) -> float:
        """Sees how much longer a service may be away.

        Args:
            error: Why it is.
            since: Since when, on the loop's clock.

        Returns:
            Seconds that are left.

        Raises:
            ServerUnavailable: None are.
        """
        limit = self._reconnect_timeout if self._met else self._connect_timeout
        left = since + limit - asyncio.get_running_loop().time()
        if left > 0:
            return left
        if problem := await asyncio.to_thread(find_problem, self.address, self._tls):
            raise problem
        if self._met:
            raise errors.ServerUnavailable(
                f"the rollout service at {self.address} was away for {limit:g} s (reconnect_timeout): {error.message}"
            )
        raise errors.ServerUnavailable(
            f"can't reach a rollout service at {self.address} within {limit:g} s (connect_timeout): is `gymhost serve "
            f"--rollouts` running there? ({error.message})"
        )

    def _stub(self, method: str) -> Any:
        if self._dead is not None:
            raise errors.ConnectionLost(self._dead.message)
        if self._channel is None:
            self._channel = open_channel(self.address, self._tls, limits.MAX_PAYLOAD)
            self._stubs = (
                rpc.RolloutServiceStub(self._channel),
                environments_rpc.EnvironmentServiceStub(self._channel),
            )
        return next(stub for stub in self._stubs if hasattr(stub, method))

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
            self._channel, self._stubs = None, ()


class _Outage:
    """The time that a service is away, and the pauses between tries."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._since = asyncio.get_running_loop().time()
        self._pause = _FIRST_PAUSE

    async def wait(self, error: errors.ServerUnavailable) -> None:
        """Waits before the next try.

        Raises:
            ServerUnavailable: There is to be none.
        """
        left = await self._link.away(error, self._since)
        if not self._link.away_said:
            self._link.away_said = True
            log.warning("the rollout service at %s is away, and is asked again: %s", self._link.address, error.message)
        pause = max(self._pause, error.retry_after or 0.0) * random.uniform(0.5, 1.0)  # many clients may be waiting
        await asyncio.sleep(min(pause, left))
        self._pause = min(2 * self._pause, _LAST_PAUSE)


class ResultStream:
    """The results of jobs as they come, from one try of a stream to the next.

    Args:
        link: The connection.
        job_ids: The jobs; none for all of the caller's.
    """

    def __init__(self, link: Link, job_ids: list[str]) -> None:
        self._link = link
        self._job_ids = job_ids
        self._after = 0
        self._batches: asyncio.Queue[list[pb.Result] | errors.Error | None] = asyncio.Queue()
        # So many batches ahead, and no more: the service sends what is taken.
        self._places = asyncio.Semaphore(2)
        self._pumping: asyncio.Task[None] | None = None

    async def batch(self, limit: float | None = None) -> list[pb.Result] | None:
        """Waits for results, from any loop.

        Args:
            limit: Seconds to wait; None for as long as it takes.

        Returns:
            Results, none where there were none in time; None when there will be no more.

        Raises:
            Error: There is no getting at them.
        """
        return await self._link.thread.acall(self._batch(limit))

    def close(self) -> None:
        """Ends it, from any thread and any state."""
        with contextlib.suppress(errors.ConnectionLost, RuntimeError):  # then it has ended with the link
            self._link.thread.loop.call_soon_threadsafe(self._stop)

    async def _batch(self, limit: float | None) -> list[pb.Result] | None:
        if self._pumping is None:
            self._pumping = self._link.spawn(self._pump())
        try:
            async with asyncio.timeout(limit):
                batch = await self._batches.get()
        except TimeoutError:
            return []
        if batch is None or isinstance(batch, errors.Error):
            self._batches.put_nowait(batch)  # the end stays the end
            if batch is not None:
                raise batch
        else:
            self._places.release()
        return batch

    def _stop(self) -> None:
        if self._pumping is not None:
            self._pumping.cancel()

    async def _pump(self) -> None:
        end: errors.Error | None = errors.ConnectionLost("the stream of results was closed")
        try:
            await self._pump_all()
            end = None
        except errors.Error as error:
            end = error
        finally:
            self._batches.put_nowait(end)

    async def _pump_all(self) -> None:
        fruitless = 0
        while True:
            before = self._after
            try:
                await self._pump_one()
                return
            except grpc.aio.AioRpcError as raised:
                error = self._link.failure(raised)
            except asyncio.CancelledError:
                error = self._link.cut_off()
            fruitless = 0 if self._after > before else fruitless + 1
            # A stream that is quiet does not tell whether it is up. A call does, and waits until the service is back.
            await self._link.answer("ListJobs", pb.ListJobsRequest(limit=1))
            if fruitless == _FRUITLESS:
                raise error
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(_FIRST_PAUSE * 2**fruitless, _LAST_PAUSE))

    async def _pump_one(self) -> None:
        call = self._link.stream(self._job_ids, self._after)
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                fresh = [result for result in response.results if result.cursor > self._after]
                if fresh:
                    self._after = fresh[-1].cursor
                    await self._places.acquire()
                    self._batches.put_nowait(fresh)
        finally:
            call.cancel()
