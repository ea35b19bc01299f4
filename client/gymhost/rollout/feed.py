"""Batches for a trainer that trains while rollouts go on: no batch waits for the slowest, and none is too old.

What is in flight is never thrown away for being slow: it goes on under new weights, each token with the version that
sampled it. A rule that counts from the beginning of a rollout would throw slow tasks away again and again, and train on
quick ones alone. What ages is a result that has ended and waits, and even that seldom becomes too old:

- At most `(max_staleness + 1) * batch_size` results are begun and not trained on: the batch that was handed over counts
  until the weights are updated or the next one is asked for.
- Of those that wait, the ones begun first are handed over first.

So when a result is begun, at most `max_staleness` batches go before the one that it is in, and with one update a batch
nothing is ever thrown away; a `max_staleness` of 0 is training on-policy. If there are more updates than batches, what
waited too long is played again before all others, so that the mix stays what was asked for.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

from gymhost.rollout.flow import Flow, Unit
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.trajectory import Row

__all__ = ["Feed", "kind_of", "stale_tokens"]

T = TypeVar("T")


def kind_of(request: RolloutRequest) -> str:
    """What a rollout is counted under: its environment, and the label "kind" if it has one."""
    kind = request.labels.get("kind")
    return request.env_id if kind is None else f"{request.env_id} {kind}"


def stale_tokens(row: Row, version: int, max_staleness: int) -> list[int]:
    """Marks sampled tokens that are too old, such as those from the beginning of a long rollout.

    Args:
        row: A training row.
        version: The policy version that is trained.
        max_staleness: How many versions a token may be behind.

    Returns:
        For each token of the completion, 1 if it was sampled and is older than that.
    """
    oldest = version - max_staleness
    return [int(bool(m) and v < oldest) for m, v in zip(row.mask, row.policy_versions, strict=True)]


class Feed(Generic[T]):
    """An endless supply of batches, made by `RolloutEngine.feed`.

    It begins with the first batch that is asked for, and works on while nobody asks. It is an asynchronous iterator and
    context manager; a trainer without an event loop iterates as usual, and uses `with`.

    Attributes:
        handed: How many results were handed over, by kind: environment and label "kind".
        discarded: How many were too old and are played again, by kind.

    Args:
        start: Begins the flow of results, given `version`, which tells the policy version.
        again: Makes anew the unit whose result was too old.
        policy_version: Tells the version of the generator's weights.
        thread: The event loop of callers that have none.
        in_loop: Calls a function in the engine's event loop.
        batch_size: How many results make a batch.
        max_staleness: How many updates a result may wait.
    """

    def __init__(
        self,
        start: Callable[..., Flow[T]],
        again: Callable[[int, RolloutRequest], Unit[T]],
        policy_version: Callable[[], int],
        thread: Callable[[], LoopThread],
        in_loop: Callable[[Callable[[], None]], None],
        *,
        batch_size: int,
        max_staleness: int,
    ) -> None:
        self.handed: Counter[str] = Counter()
        self.discarded: Counter[str] = Counter()
        self._start = start
        self._unit = again
        self._generator_version = policy_version
        self._thread = thread
        self._in_loop = in_loop
        self._batch_size = batch_size
        self._max_staleness = max_staleness
        self._flow: Flow[T] | None = None
        self._version = 0
        self._closed = False

    @property
    def policy_version(self) -> int:
        """The version that is trained: the one that was set here, or the generator's where that is newer."""
        return max(self._version, self._generator_version())

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._version = version
        if (flow := self._flow) is not None:
            # What is too old now need not wait for the next batch to be played again.
            self._in_loop(lambda: self._begin(flow))

    @property
    def ahead(self) -> int:
        """How many results have been begun and not handed over."""
        return self._flow.ahead if self._flow else 0

    @property
    def ready(self) -> int:
        """How many results have ended and not been handed over."""
        return self._flow.ready if self._flow else 0

    async def batch(self) -> list[T]:
        """Returns the next batch, in the order in which its rollouts were begun.

        It is smaller only when the requests have come to their end, and empty after that.

        Raises:
            Exception: What the requests raised when they were drawn.
            RuntimeError: The feed was closed.
        """
        flow = self._flow
        if self._closed or (flow is not None and flow.closed):
            raise RuntimeError("the feed was closed")
        if flow is None:
            flow = self._flow = self._start(version=lambda: self.policy_version)
        self._begin(flow)
        while True:
            self._discard(flow)
            if flow.ready >= self._batch_size or not await flow.wait():
                break
        batch: list[T] = []
        while flow.ready and len(batch) < self._batch_size:
            unit, result = flow.take()
            self.handed[kind_of(unit.request)] += 1
            batch.append(result)
        flow.hold(len(batch))
        return batch

    def batch_sync(self) -> list[T]:
        """`batch` for callers without an event loop."""
        return self._thread().run(self.batch())

    async def aclose(self) -> None:
        """Cancels what is in flight, and returns when no session is left of it."""
        self._closed = True
        flow, self._flow = self._flow, None
        if flow is not None:
            await flow.aclose()

    def close_sync(self) -> None:
        """`aclose` for callers without an event loop."""
        if self._flow is None or self._flow.closed:  # there may be no thread any more
            self._closed = True
        else:
            self._thread().run(self.aclose())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[T]:
        if batch := await self.batch():
            return batch
        raise StopAsyncIteration

    def __iter__(self) -> Iterator[list[T]]:
        while batch := self.batch_sync():
            yield batch

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_sync()

    def _begin(self, flow: Flow[T]) -> None:
        """Lets others be begun in place of the batch that was trained on, and of what waited too long."""
        flow.hold(0)
        self._discard(flow)

    def _discard(self, flow: Flow[T]) -> None:
        """Has what waited too long played again."""
        oldest = self.policy_version - self._max_staleness

        def unfit(unit: Unit[T]) -> Unit[T] | None:
            if unit.version >= oldest:
                return None
            self.discarded[kind_of(unit.request)] += 1
            return self._unit(unit.number, unit.request)

        flow.begin_again(unfit)
