"""Who gets a place: the server's capacity, the queue for it, and what each identity may have."""

import asyncio
import collections
import copy
import dataclasses

from gymhost.server.config import ServerConfig
from gymhost.wire import errors
from gymhost.wire.words import counted

# How far back the rate is looked at at which places come free, in seconds; and the least and the most that a caller is
# told to stay away.
WINDOW = 60.0
SHORTEST, LONGEST = 1.0, 60.0


@dataclasses.dataclass(slots=True, eq=False)
class _Waiter:
    """A create that waits for places."""

    identity: str
    count: int
    priority: int
    turn: asyncio.Future[None]


# Those of one identity who wait, in the order in which they came; and those of one priority, the next in turn first.
_Line = collections.OrderedDict[_Waiter, None]
_Level = collections.OrderedDict[str, _Line]


class Admission:
    """The places of a server, and who waits for some.

    Those of higher priority come first. Within a priority the identities take turns, so that one that floods the queue
    keeps itself waiting and nobody else; of one identity the first to come is the first to get a place. One that has
    its quota is passed over.

    Args:
        config: The server's settings.

    Attributes:
        taken: How many places are taken.
        waiting: How many creates wait.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self.taken = 0
        self.waiting = 0
        # How many places those who wait want.
        self._wanted = 0
        self._levels: dict[int, _Level] = {}
        self._taken_by: collections.Counter[str] = collections.Counter()
        self._queued_by: collections.Counter[str] = collections.Counter()
        # When places came free, and how many.
        self._freed: collections.deque[tuple[float, int]] = collections.deque(maxlen=256)

    async def take(self, identity: str, count: int, limit: float, priority: int = 0) -> None:
        """Takes places for a session, or for its copies.

        Args:
            identity: Who asks.
            count: How many.
            limit: Seconds to wait for them.
            priority: Higher ones come first.

        Raises:
            CapacityExhausted: There were none in time, there never can be so many, or too many wait already.
        """
        self._check_possible(identity, count)
        waiter = _Waiter(identity, count, priority, asyncio.get_running_loop().create_future())
        self._queue(waiter)
        self._hand_on()
        if waiter.turn.done():
            return
        try:
            self._check_queue(identity, count)
            await asyncio.wait_for(waiter.turn, limit)
        except TimeoutError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                return  # it came in the very moment in which the time was up
            raise self._refusal(identity, count, limit) from None
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self.free(identity, count)
            raise
        finally:
            if self._is_queued(waiter):
                self._leave(waiter)
                self._hand_on()  # whoever comes next may want fewer

    def free(self, identity: str, count: int) -> None:
        """Gives places back."""
        self.taken -= count
        self._taken_by[identity] -= count
        if not self._taken_by[identity]:
            del self._taken_by[identity]
        self._freed.append((asyncio.get_running_loop().time(), count))
        self._hand_on()

    def retry_after(self, count: int = 1) -> float:
        """Seconds after which as many places may be there, if they come free as fast as they did lately."""
        now = asyncio.get_running_loop().time()
        while self._freed and now - self._freed[0][0] > WINDOW:
            self._freed.popleft()
        if not self._freed:
            return LONGEST
        freed = sum(count for _, count in self._freed)
        seconds = (self._wanted + count) * (now - self._freed[0][0]) / freed
        return min(max(seconds, SHORTEST), LONGEST)

    def turn_away(self, why: errors.Error) -> None:
        """Has all who wait for places fail."""
        for level in self._levels.values():
            for line in level.values():
                for waiter in line:
                    if not waiter.turn.done():
                        waiter.turn.set_exception(copy.copy(why))

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _queue(self, waiter: _Waiter) -> None:
        level = self._levels.setdefault(waiter.priority, collections.OrderedDict())
        level.setdefault(waiter.identity, collections.OrderedDict())[waiter] = None
        self.waiting += 1
        self._wanted += waiter.count
        self._queued_by[waiter.identity] += 1

    def _is_queued(self, waiter: _Waiter) -> bool:
        level = self._levels.get(waiter.priority)
        return level is not None and waiter in level.get(waiter.identity, ())

    def _leave(self, waiter: _Waiter) -> None:
        level = self._levels[waiter.priority]
        line = level[waiter.identity]
        del line[waiter]
        if not line:
            del level[waiter.identity]
        if not level:
            del self._levels[waiter.priority]
        self.waiting -= 1
        self._wanted -= waiter.count
        self._queued_by[waiter.identity] -= 1
        if not self._queued_by[waiter.identity]:
            del self._queued_by[waiter.identity]

    def _hand_on(self) -> None:
        """Gives free places to those whose turn it is."""
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            passed_over = 0
            while passed_over < len(level):
                identity, line = next(iter(level.items()))
                level.move_to_end(identity)
                waiter = next(iter(line))
                if not waiter.turn.done():
                    if self._above_quota(identity, waiter.count):
                        passed_over += 1
                        continue
                    if self.taken + waiter.count > self._config.capacity:
                        # It is the first when there is room: else many small ones would keep a large one out for ever.
                        level.move_to_end(identity, last=False)
                        return
                    self.taken += waiter.count
                    self._taken_by[identity] += waiter.count
                    waiter.turn.set_result(None)
                self._leave(waiter)
                passed_over = 0

    # -- refusals ------------------------------------------------------------------------------------------------------

    def _above_quota(self, identity: str, count: int) -> bool:
        quota = self._config.quota("sessions", identity)
        return 0 < quota < self._taken_by[identity] + count

    def _check_possible(self, identity: str, count: int) -> None:
        capacity = self._config.capacity
        if count > capacity:
            raise errors.CapacityExhausted(
                f"a vector session of {count} copies is above the server's capacity of {capacity} (--capacity)"
            )
        quota = self._config.quota("sessions", identity)
        if 0 < quota < count:
            raise errors.CapacityExhausted(
                f"{count} sessions are above the quota of {identity!r}, which is {quota} (--quota-sessions)"
            )

    def _check_queue(self, identity: str, count: int) -> None:
        """Refuses what has just joined a queue that is too long."""
        quota = self._config.quota("queued", identity)
        if 0 < quota < self._queued_by[identity]:
            raise self._full(
                f"{counted(quota, 'create')} of {identity!r} in the queue already, which is its quota (--quota-queued)",
                count,
            )
        if self.waiting > self._config.queue_length:
            raise self._full(
                f"the server is full: {self._fill}, and {counted(self.waiting - 1, 'create')} in the queue already, "
                "which is the most (--capacity, --queue-length)",
                count,
            )

    def _refusal(self, identity: str, count: int, limit: float) -> errors.CapacityExhausted:
        """What to say to who has waited in vain."""
        if self._above_quota(identity, count):
            return errors.CapacityExhausted(
                f"{identity!r} has {counted(self._taken_by[identity], 'session')} of its quota of "
                f"{self._config.quota('sessions', identity)}, and not enough ended within {limit:g} s "
                "(--quota-sessions)"
            )
        return self._full(
            f"the server is full: {self._fill}, {counted(self.waiting, 'create')} waiting, no place within {limit:g} s "
            "(--capacity, --queue-timeout)",
            count,
        )

    @property
    def _fill(self) -> str:
        return f"{self.taken} of {counted(self._config.capacity, 'session')}"

    def _full(self, message: str, count: int) -> errors.CapacityExhausted:
        seconds = self.retry_after(count)
        return errors.CapacityExhausted(f"{message}; retry after about {seconds:.0f} s", retry_after=seconds)
