"""Plays an endless stream of rollouts: begins them as places come free, and hands out what has ended."""

import asyncio
import functools
import heapq
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from gymhost.rollout.flight import Flight
from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.stages import Stages
from gymhost.rollout.trajectory import Trajectory

__all__ = ["Flow", "Requests", "Single", "Unit"]

T = TypeVar("T")

_END: Any = object()

Requests = Iterable[RolloutRequest] | AsyncIterable[RolloutRequest]


class Unit(ABC, Generic[T]):
    """What is handed out as one: a rollout, or a group of them.

    Args:
        number: Its place among the units of a flow.
        request: The request that it was made from.
    """

    def __init__(self, number: int, request: RolloutRequest) -> None:
        self.number = number
        self.request = request
        self.version = 0
        """The policy version when it was complete."""
        self.deliver: Callable[[T], None]
        """Called once, with the result."""

    @abstractmethod
    def requests(self) -> Iterator[RolloutRequest]:
        """Yields the rollouts to be begun, one as soon as there is a place for it."""

    @abstractmethod
    def settled(self, flight: Flight) -> None:
        """Takes a rollout of this unit that is settled."""

    def begun(self, flight: Flight) -> None:
        """Takes a rollout of this unit that has begun."""


class Single(Unit[Trajectory]):
    """One rollout."""

    def requests(self) -> Iterator[RolloutRequest]:
        """Yields the one request."""
        yield self.request

    def settled(self, flight: Flight) -> None:
        """Delivers its trajectory."""
        self.deliver(flight.trajectory)


class Flow(Generic[T]):
    """Draws requests from a stream, plays them and keeps what has ended until it is taken.

    It works on by itself, so that the next rollouts are under way while the last ones are being looked at; two bounds
    keep it from running away. It is an asynchronous iterator, to be closed by `aclose`.

    Args:
        stages: What plays a rollout.
        flows: Where it is found until it is closed.
        requests: What is drawn from, one by one, only when there is room.
        unit: Makes a unit from a place and a request.
        room: How many rollouts may be in flight.
        untaken: How many units may be begun and not taken; None for any number.
        ordered: Whether units are handed out in the order in which they were drawn.
        keep: Whether a unit's result is handed out; one that is not makes room for another.
        target: How many results are wanted; None for as many as there are requests.
        version: Tells the policy version.
    """

    def __init__(
        self,
        stages: Stages,
        flows: "set[Flow[Any]]",
        requests: Requests,
        unit: Callable[[int, RolloutRequest], Unit[T]],
        *,
        room: int,
        untaken: int | None,
        ordered: bool = False,
        keep: Callable[[T], bool] | None = None,
        target: int | None = None,
        version: Callable[[], int] = lambda: 0,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.flights: set[Flight] = set()
        self.ahead = 0
        """How many units have been begun and neither taken nor dropped."""
        self.closed = False
        self._held = 0
        self._stages = stages
        self._flows = flows
        self._source = aiter(requests) if isinstance(requests, AsyncIterable) else iter(requests)
        self._unit = unit
        self._room = asyncio.Semaphore(room)
        self._untaken = untaken
        self._ordered = ordered
        self._keep = keep
        self._target = target
        self._version = version
        self._taken = 0
        self._numbers = itertools.count()
        self._arrivals = itertools.count()
        self._again: deque[Unit[T]] = deque()
        self._ready: list[tuple[int, int, Unit[T], T]] = []
        self._exhausted = False
        self._error: BaseException | None = None
        self._arrived = asyncio.Event()
        self._wanting = asyncio.Event()
        self._drawing = self.loop.create_task(self._draw())
        flows.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._ready or (self._ordered and self._ready[0][0] != self._taken):
            if not await self.wait():
                raise StopAsyncIteration
        return self.take()[1]

    # -- taking --------------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """How many results wait to be taken."""
        return len(self._ready)

    async def wait(self) -> bool:
        """Waits until something changes; returns False at once if nothing more will come than what is ready.

        Raises:
            Exception: What the requests raised when they were drawn, or a function of the caller's.
        """
        if self._error is not None:
            raise self._error
        to_come = self.ahead - len(self._ready) + len(self._again)
        if not to_come and (self._exhausted or self._taken + len(self._ready) == self._target):
            return False
        self._arrived.clear()
        await self._arrived.wait()
        return True

    def take(self) -> tuple[Unit[T], T]:
        """Takes the first result that is ready."""
        _, _, unit, result = heapq.heappop(self._ready)
        self._taken += 1
        self._left()
        return unit, result

    def hold(self, count: int) -> None:
        """Lets so many of those that were taken still count as untaken; 0 lets go of them."""
        self._held = count
        self._wanting.set()

    def begin_again(self, unfit: Callable[[Unit[T]], Unit[T] | None]) -> None:
        """Looks through the results that wait, and throws some away to play them again before all others.

        Args:
            unfit: Returns what is to be played instead of a unit; None if its result is to stay.
        """
        waiting, self._ready = sorted(self._ready), []  # sorted, it is a heap
        for entry in waiting:
            other = unfit(entry[2])
            if other is None:
                self._ready.append(entry)
            else:
                self._again.append(other)
                self._left()

    def _left(self) -> None:
        self.ahead -= 1
        self._wanting.set()
        self._arrived.set()

    async def aclose(self) -> None:
        """Cancels what is in flight, and returns when no session is left of it."""
        self._error = self._error or RuntimeError("the rollouts were closed before they had ended")
        self._drawing.cancel()
        self._arrived.set()
        for flight in list(self.flights):
            flight.cancel()
        # Cancelling this wait does not cancel them once more, in the middle of closing their sessions.
        await asyncio.wait([self._drawing, *(flight.task for flight in self.flights)])
        self._flows.discard(self)
        self.closed = True

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def _draw(self) -> None:
        try:
            while True:
                await self._wanted()
                await self._room.acquire()
                unit = await self._next()
                if unit is None:
                    self._room.release()
                    self._exhausted = True
                    self._arrived.set()
                    continue
                self.ahead += 1
                unit.deliver = functools.partial(self._deliver, unit)
                requests = unit.requests()
                # The next is asked for when there is a place: by then the unit may have enough.
                while (request := next(requests, None)) is not None:
                    self._begin(unit, request)
                    await self._room.acquire()
                self._room.release()
        except asyncio.CancelledError:
            self._fail(RuntimeError("what the requests waited for was cancelled"))
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised where results are taken, SystemExit too
            self._fail(error)

    async def _wanted(self) -> None:
        """Waits until another unit may be begun, and there may be one."""
        while not (
            (self._again or not self._exhausted)
            and (self._untaken is None or self.ahead + self._held < self._untaken)
            and (self._target is None or self._taken + self.ahead < self._target)
        ):
            self._wanting.clear()
            await self._wanting.wait()

    async def _next(self) -> Unit[T] | None:
        if self._again:
            return self._again.popleft()
        source = self._source
        request = await anext(source, _END) if isinstance(source, AsyncIterator) else next(source, _END)
        if request is _END:
            return None
        if not isinstance(request, RolloutRequest):
            raise TypeError(f"what is played is a RolloutRequest, not {request!r:.100}")
        return self._unit(next(self._numbers), request)

    def _begin(self, unit: Unit[T], request: RolloutRequest) -> None:
        flight = Flight(request, self._stages.counts, functools.partial(self._settled, unit))
        flight.task = self.loop.create_task(self._stages.fly(flight))
        self.flights.add(flight)
        unit.begun(flight)
        flight.task.add_done_callback(functools.partial(self._ended, flight))

    # -- ending --------------------------------------------------------------------------------------------------------

    def _settled(self, unit: Unit[T], flight: Flight) -> None:
        if self._error is None:
            try:
                unit.settled(flight)
            except Exception as error:  # noqa: BLE001 - it is raised where results are taken
                self._fail(error)

    def _deliver(self, unit: Unit[T], result: T) -> None:
        if self._error is not None:
            return
        try:
            kept = self._keep is None or self._keep(result)
        except Exception as error:  # noqa: BLE001 - it is raised where results are taken
            self._fail(error)
            return
        if not kept:
            self._left()
            return
        unit.version = self._version()
        arrival = next(self._arrivals)
        heapq.heappush(self._ready, (unit.number if self._ordered else arrival, arrival, unit, result))
        self._arrived.set()

    def _ended(self, flight: Flight, task: asyncio.Task[None]) -> None:
        self.flights.discard(flight)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        flight.over()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._arrived.set()
