"""The rollout engine: many rollouts in flight, each finishing when it finishes."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Self, TypeVar, overload

from gymhost.rollout.agents import checked
from gymhost.rollout.chat import Chat
from gymhost.rollout.endpoint import Endpoints
from gymhost.rollout.feed import Feed
from gymhost.rollout.flight import Flight
from gymhost.rollout.flow import Flow, Requests, Single, Unit
from gymhost.rollout.generators.base import ChatGenerator, Generator, Sampling
from gymhost.rollout.groups import Group, Grouping, GroupUnit
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.requests import Concurrency, Limits, RolloutRequest
from gymhost.rollout.sessions import Sessions, Source
from gymhost.rollout.stages import Stages
from gymhost.rollout.status import Stage, Status
from gymhost.rollout.trajectory import Trajectory

__all__ = ["RolloutEngine"]

T = TypeVar("T")


class RolloutEngine:
    """Plays rollouts: sessions from a source, tokens from a generator, trajectories out.

    Each rollout goes through three stages with places of their own: INIT (session and reset), RUN (turns), EVAL (the
    environment scores it, and the session is given back or closed). INIT works ahead of RUN, and EVAL holds no place in
    it, so that the generator always has work. Whatever happens to a rollout, a trajectory comes out that says so in its
    outcome; only cancellation and what is no `Exception` pass through, and then no session is left behind.

    Requests are drawn as places come free, so they may be endless, and may come from an asynchronous iterator. Rollouts
    go on while nobody takes what has ended, until as many wait as there may be in flight.

    An engine works in one event loop: that of its async methods, or a thread of its own for those that end in `_sync`;
    not both. `pause`, `resume`, `hold`, `release`, `cancel` and `status` may be called from any thread if it is the
    latter.

    Args:
        source: Opens sessions, such as the connection that `gymhost.client.connect` gives.
        chat: Turns messages into ids and back; None with a chat endpoint, whose rollouts have messages but no tokens.
        generator: Samples. The engine does not close it.
        sampling: How to sample, unless a request says otherwise. `max_tokens` above `limits.turn_tokens` has no effect.
        limits: What ends a rollout, unless a request says otherwise.
        concurrency: How many rollouts at once.
        reuse_sessions: Whether a session plays one episode after another.
        agents: Loops of one's own that requests may ask for by name, in place of the built-in one: each an agent, or a
            class of which every rollout makes one; see `gymhost.rollout.agents`.
        endpoints: Where agents get OpenAI-compatible endpoints for their harnesses. The engine stops serving them when
            it is closed. Without any they are on a free port of this machine, once an agent asks for one.
    """

    def __init__(
        self,
        source: Source,
        chat: Chat | None,
        generator: Generator | ChatGenerator,
        *,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        concurrency: Concurrency | None = None,
        reuse_sessions: bool = True,
        agents: Mapping[str, Any] | None = None,
        endpoints: Endpoints | None = None,
    ) -> None:
        if not (
            hasattr(generator, "policy_version") and (hasattr(generator, "generate") or hasattr(generator, "respond"))
        ):
            raise TypeError(
                f"this is no generator, of which a policy_version and a way to sample are asked: {generator!r}"
            )
        if hasattr(generator, "respond") != (chat is None):
            raise TypeError("a chat endpoint goes with chat=None, and every other generator with a Chat")
        self.generator = generator
        self.limits = limits or Limits()
        self.concurrency = concurrency or Concurrency()
        self.sampling = sampling or Sampling()
        self._sessions = Sessions(
            source,
            reuse=reuse_sessions,
            close_seconds=self.limits.eval_seconds,
            closing=self.concurrency.eval,
        )
        self.agents = {name: checked(agent, name) for name, agent in (agents or {}).items()}
        self._endpoints = endpoints or Endpoints()
        self._stages = Stages(
            self._sessions,
            chat,
            generator,
            self.sampling,
            self.limits,
            self.concurrency,
            self.agents,
            self._endpoints,
        )
        self._flows: set[Flow[Any]] = set()
        self._thread: LoopThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancels what is in flight, and closes all sessions. Nothing can be played any more."""
        self._closed = True
        for flow in list(self._flows):
            await flow.aclose()
        await self._endpoints.aclose()
        await self._sessions.aclose()

    # -- rollouts ------------------------------------------------------------------------------------------------------

    async def run(self, requests: Requests, *, ordered: bool = False) -> AsyncGenerator[Trajectory, None]:
        """Yields each trajectory as it finishes. Closing the iterator cancels what is still in flight.

        Args:
            requests: What to play; may be endless.
            ordered: Whether they come in the order of the requests. Then a slow one holds up those behind it: no more
                are begun once twice as many as may be in flight have been begun and not yielded.

        Raises:
            Exception: What the requests raised when they were drawn.
        """
        async with aclosing(self._flow(requests, Single, untaken=self._untaken, ordered=ordered)) as flow:
            async for trajectory in flow:
                yield trajectory

    async def collect(self, requests: Requests) -> list[Trajectory]:
        """Returns one trajectory for each request, in their order.

        Raises:
            Exception: What the requests raised when they were drawn.
        """
        async with aclosing(self._flow(requests, Single, untaken=None, ordered=True)) as flow:
            return [trajectory async for trajectory in flow]

    async def groups(
        self, requests: Requests, grouping: Grouping, *, target: int | None = None
    ) -> AsyncGenerator[Group, None]:
        """Plays each request several times, and yields each group when it has enough.

        Closing the iterator cancels what is still in flight.

        Args:
            requests: One for each group, as `grouped` takes them; may be endless.
            grouping: How large a group is, when it has enough, and whether it is kept.
            target: How many groups are wanted: for one that is not kept, the next request is played. Without it the
                requests are played to their end.

        Raises:
            Exception: What the requests raised when they were drawn, or a function of `grouping` when it was called.
        """
        untaken = -(-self._untaken // (grouping.size + grouping.extra)) + 1
        async with aclosing(self._group_flow(requests, grouping, untaken=untaken, target=target)) as flow:
            async for group in flow:
                yield group

    @overload
    def feed(self, requests: Requests, *, batch_size: int, max_staleness: int = 2) -> Feed[Trajectory]: ...

    @overload
    def feed(
        self, requests: Requests, *, batch_size: int, max_staleness: int = 2, grouping: Grouping
    ) -> Feed[Group]: ...

    def feed(
        self, requests: Requests, *, batch_size: int, max_staleness: int = 2, grouping: Grouping | None = None
    ) -> Feed[Trajectory] | Feed[Group]:
        """Supplies batches to a trainer that trains while rollouts go on; see `gymhost.rollout.feed` for how.

        Args:
            requests: What to play; may be endless.
            batch_size: How many trajectories, or groups, make a batch.
            max_staleness: How many updates of the weights a result may wait. It also bounds the work ahead: at most
                `(max_staleness + 1) * batch_size` results are begun and not trained on.
            grouping: Groups instead of single trajectories.

        Raises:
            ValueError: A number makes no sense.
        """
        if batch_size < 1 or max_staleness < 0:
            raise ValueError("batch_size must be 1 or more, and max_staleness 0 or more")
        ahead = (max_staleness + 1) * batch_size
        settings: Any = {"batch_size": batch_size, "max_staleness": max_staleness}
        if grouping is None:
            flow = functools.partial(self._flow, requests, Single, untaken=ahead, ordered=True)
            return Feed(flow, Single, self._version, self._loop_thread, self._in_loop, **settings)
        group_flow = functools.partial(self._group_flow, requests, grouping, untaken=ahead, ordered=True)
        unit = functools.partial(GroupUnit, grouping=grouping)
        return Feed(group_flow, unit, self._version, self._loop_thread, self._in_loop, **settings)

    # -- what is in flight ---------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Lets no turn begin. Generations in flight end; sessions stay, and INIT works ahead as far as it may.

        Time spent paused counts neither for `Limits.episode_seconds` nor as waiting for the generator.
        """
        self._in_loop(self._stages.turnstile.close)

    def resume(self) -> None:
        """Goes on after `pause`."""
        self._in_loop(self._stages.turnstile.open)

    def hold(self, where: Callable[[Trajectory], bool]) -> int:
        """Lets rollouts in flight begin no turn until they are released, as `pause` does for all.

        What is begun later is not held, and what is held stays so when it is started again after a fault.

        Args:
            where: Which ones, judged by the trajectory as it is so far.

        Returns:
            How many were in flight and are held from now on; those that were held already are not counted.
        """
        return self._in_loop(lambda: self._each(lambda flight: flight.hold(), where))

    def release(self, where: Callable[[Trajectory], bool] | None = None) -> int:
        """Lets rollouts go on that were held.

        Args:
            where: Which ones, judged by the trajectory as it is so far; without it all.

        Returns:
            How many were held and are no longer.
        """
        return self._in_loop(lambda: self._each(lambda flight: flight.release(), where))

    def cancel(self, where: Callable[[Trajectory], bool] | None = None) -> int:
        """Ends rollouts in flight: their generations are aborted, and their sessions closed.

        They come out with the outcome "cancelled", with what they had sampled and without a reward. Requests that are
        still to be drawn are played as usual.

        Args:
            where: Which ones, judged by the trajectory as it is so far; without it all.

        Returns:
            How many were in flight and are ended.
        """
        return self._in_loop(lambda: self._each(lambda flight: flight.cancel(), where))

    def in_flight(self) -> list[tuple[Stage, Trajectory]]:
        """The rollouts in flight: where each is, and its trajectory as it is so far."""

        def look() -> list[tuple[Stage, Trajectory]]:
            flights = (flight for flow in self._flows for flight in flow.flights)
            return [(flight.stage, flight.trajectory) for flight in flights if flight.stage and not flight.settled]

        return self._in_loop(look)

    def status(self) -> Status:
        """A snapshot of what the engine is doing and has done."""
        return self._stages.counts.status(self._stages.turnstile)

    # -- without an event loop -----------------------------------------------------------------------------------------

    def run_sync(self, requests: Requests, *, ordered: bool = False) -> Iterator[Trajectory]:
        """`run` for callers without an event loop. Requests are drawn on the engine's thread."""
        return self._loop_thread().iterate(self.run(requests, ordered=ordered))

    def collect_sync(self, requests: Requests) -> list[Trajectory]:
        """`collect` for callers without an event loop.

        Ctrl-C cancels the rollouts and is raised once they have ended.
        """
        return self._loop_thread().run(self.collect(requests))

    def groups_sync(self, requests: Requests, grouping: Grouping, *, target: int | None = None) -> Iterator[Group]:
        """`groups` for callers without an event loop."""
        return self._loop_thread().iterate(self.groups(requests, grouping, target=target))

    def call_sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs any coroutine in the event loop of the `_sync` methods, such as one that closes the generator."""
        return self._loop_thread().run(coroutine)

    def close_sync(self) -> None:
        """`aclose` for callers without an event loop; ends the engine's thread too."""
        thread, self._thread = self._thread, None
        self._closed = True
        if thread is not None:
            thread.run(self.aclose())
            thread.close()

    # ------------------------------------------------------------------------------------------------------------------

    def _loop_thread(self) -> LoopThread:
        if self._thread is None:
            self._check_open()
            self._thread = LoopThread("gymhost-rollout")
        return self._thread

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the engine was closed")

    def _in_loop(self, function: Callable[[], T]) -> T:
        return function() if self._thread is None or self._thread.current else self._thread.call(function)

    def _each(self, act: Callable[[Flight], bool], where: Callable[[Trajectory], bool] | None) -> int:
        """Acts on rollouts in flight; returns for how many that made a difference."""
        flights = [flight for flow in self._flows for flight in flow.flights]
        return sum(act(flight) for flight in flights if where is None or where(flight.trajectory))

    def _version(self) -> int:
        return self.generator.policy_version

    @property
    def _untaken(self) -> int:
        """How many rollouts may be begun and not taken: as many again as may be in flight."""
        return 2 * self.concurrency.in_flight

    def _flow(self, requests: Requests, unit: Callable[[int, RolloutRequest], Unit[T]], **settings: Any) -> Flow[T]:
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("an engine works in one event loop, and this is another: make an engine for each")
        self._loop = loop
        return Flow(self._stages, self._flows, requests, unit, room=self.concurrency.in_flight, **settings)

    def _group_flow(self, requests: Requests, grouping: Grouping, **settings: Any) -> Flow[Group]:
        unit = functools.partial(GroupUnit, grouping=grouping)
        return self._flow(requests, unit, keep=grouping.keep, **settings)
