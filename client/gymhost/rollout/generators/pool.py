"""Several generators as one: each request goes where there is room, and on elsewhere if that dies."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gymhost.rollout.generators.base import (
    Generation,
    Generator,
    GeneratorError,
    GeneratorGone,
    InFlight,
    Sampling,
    Updatable,
)
from gymhost.rollout.generators.members import Left, Member, Seat
from gymhost.rollout.generators.updates import Updates, WeightsRefused

__all__ = ["GeneratorPool"]

logger = logging.getLogger(__name__)

_REMEMBERED_ROLLOUTS = 65536
_MOVES = 16
_PROBES_MISSED = 2


class GeneratorPool(Updates):
    """Samples with several generators.

    A rollout begins at the member with the fewest tokens in flight and stays there, where its prefix is cached, as long
    as that member is well and stays in the pool. One that refuses connections is left at once; one that misses two
    health checks, and samples nothing meanwhile, within seconds. Its requests are sent to others, from their token ids.
    While the pool is idle nobody's health is asked for: one that was left then comes back with the next request. A pool
    that is `watchful` asks always.

    An update changes all members as one act: all are paused before the first one loads, and resumed after the last, so
    that no rollout goes from new weights to old ones.

    A member that answers again is used again once its weights are of the pool's version: it may have come back with
    those that it was started with. Where it can, it loads them (`DiskWeights` keeps the latest); where it can't, it
    stays out until the next update.

    Args:
        generators: The members; each has a name of its own.
        patience: How long a request waits when no member can be used, in seconds: for one to come back, or to be added
            in the place of the last one that was drained or removed.
        probe_seconds: How often the health of members is asked for, and how long they may take to answer. Only members
            with requests in flight are asked, and those that were left.
        name: What tells the pool from other generators.
        policy_version: The version of the weights; without one that of the first generator. Members must prove that
            they have it before they are used: they may have been started anew since.
        watchful: Whether the health of members is asked for while the pool is idle too.

    Raises:
        ValueError: Two generators have the same name, or there is none and no version either.
    """

    def __init__(
        self,
        generators: Iterable[Generator] = (),
        *,
        patience: float = 10.0,
        probe_seconds: float = 2.0,
        name: str = "pool",
        policy_version: int | None = None,
        watchful: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self._patience = patience
        self._probe_seconds = probe_seconds
        self._seats: dict[str, Seat] = {}
        self._homes: OrderedDict[str, Seat] = OrderedDict()
        self._paused: list[Seat] = []
        self._news = asyncio.Event()
        self._busy = 0  # requests and updates; members are minded while there are any
        self._closed = False
        self._watchful = watchful
        members = list(generators)
        if policy_version is None and not members:
            raise ValueError("a pool needs a generator, or the policy_version of those that are to come")
        self._version = members[0].policy_version if policy_version is None else policy_version
        for generator in members:
            self.add(generator, known=policy_version is None)

    @property
    def policy_version(self) -> int:
        """The version of the weights; set it when somebody else has changed those of all members."""
        return self._version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._version = version
        for seat in self._seats.values():
            if seat.well:
                seat.generator.policy_version = version  # pyright: ignore[reportAttributeAccessIssue]
            seat.current = seat.well
        self._tell()

    def members(self) -> list[Member]:
        """How each member does at present."""
        return [replace(seat.member, why="" if seat.usable else self._why(seat)) for seat in self._seats.values()]

    def add(self, generator: Generator, *, known: bool = True) -> None:
        """Takes in a generator; it is used once its weights are of the pool's version.

        Args:
            generator: The generator.
            known: Whether it is well, and has the weights that it says. If not, it is asked before it is used.

        Raises:
            ValueError: There is one of the same name.
        """
        if generator.name in self._seats:
            raise ValueError(f"there is a generator named {generator.name} in the pool already")
        current = known and generator.policy_version == self._version
        seat = Seat(generator, well=known, current=current, why="" if known else "it has not answered yet")
        self._seats[generator.name] = seat
        if self._busy or self._watchful:
            self._mind(seat)
        self._tell()

    async def changed(self) -> None:
        """Waits until members come or go, fail or recover, or one has nothing in flight any more."""
        await self._news.wait()

    def start_draining(self, name: str) -> None:
        """Sends a member nothing more from now on; what is in flight there goes on.

        Raises:
            KeyError: There is no such member.
        """
        self._seats[name].draining = True
        self._tell()

    async def drain(self, name: str, *, patience: float = 300.0) -> None:
        """Sends a member nothing more, and waits until it has nothing in flight; then it can be removed.

        Args:
            name: The member.
            patience: After so many seconds what is still in flight there goes on elsewhere.

        Raises:
            KeyError: There is no such member.
        """
        seat = self._seats[name]
        self.start_draining(name)
        try:
            async with asyncio.timeout(patience):
                while seat.requests:
                    await self._news.wait()
        except TimeoutError:
            seat.give_up()

    def remove(self, name: str) -> Generator:
        """Takes a generator out and returns it, still open; what is in flight there goes on elsewhere.

        Raises:
            KeyError: There is no such member.
        """
        seat = self._seats.pop(name)
        seat.draining = True
        seat.give_up()
        self._tell()
        return seat.generator

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        """Samples one completion with one of the members.

        Raises:
            GeneratorError: No member can be used, or the one that did sample failed without being dead.
        """
        rollout = request_id.rpartition("/")[0] or request_id
        cost = len(prompt_ids) + sampling.max_tokens
        self._begin()
        try:
            for _ in range(_MOVES):
                await self._gate.passed()
                if self._closed:
                    raise GeneratorError(f"{self.name} is closed")
                seat = self._choose(rollout) or await self._await_member(rollout)
                seat.load += cost
                seat.requests += 1
                try:
                    async with seat.given_up_with():
                        generation = await seat.generator.generate(prompt_ids, sampling, request_id=request_id)
                    seat.sampled += len(generation.token_ids)
                    seat.generations += 1
                    return generation
                except GeneratorGone as error:
                    self._leave(seat, _reason(error))
                except Left:
                    pass
                finally:
                    seat.load -= cost
                    seat.requests -= 1
                    if not seat.requests:
                        self._tell()
        finally:
            self._busy -= 1
        raise GeneratorError(f"{self.name} gave a request to {_MOVES} members, and lost each of them under it")

    async def pause(self, in_flight: InFlight = "wait", *, patience: float = 300.0) -> None:
        """Pauses all members that are well; one that can't be paused is left out.

        Raises:
            GeneratorError: No member could be paused, or one can't be at all.
        """
        if fixed := [name for name, seat in self._seats.items() if not isinstance(seat.generator, Updatable)]:
            raise GeneratorError(f"these members of {self.name} can't be paused: {', '.join(fixed)}")

        async def pause(seat: Seat) -> None:
            await seat.updatable.pause(in_flight, patience=patience)
            self._paused.append(seat)

        self._begin()
        self._gate.close()
        if self._paused:
            return  # already, by somebody else
        seats = [seat for seat in self._seats.values() if seat.well and not seat.catching_up]
        try:
            for seat in seats:
                seat.held = True
            errors = await self._each(seats, pause)
            if not self._paused:
                raise errors[0] if errors else GeneratorError(f"no member of {self.name} is well: {self._state()}")
        except BaseException:
            await self.resume()
            raise

    async def load_weights(self, weights: Any, version: int) -> None:
        """Changes the weights of all members that are paused; one that fails is out of use until it has caught up.

        Raises:
            GeneratorError: No member has the new weights.
        """
        ready = weights if isinstance(weights, _Ready) else await self._prepare(weights, version)
        loaded: list[Seat] = []

        async def load(seat: Seat) -> None:
            try:
                await seat.updatable.load_weights(ready.of(seat), version)
            except WeightsRefused:
                raise
            except BaseException:
                seat.current = False
                raise
            loaded.append(seat)

        try:
            errors = await self._each(list(self._paused), load)
        finally:
            if loaded:
                self._version = version
                for seat in self._seats.values():
                    seat.current = seat in loaded and seat.well
        if not loaded:
            raise errors[0] if errors else GeneratorError(f"no member of {self.name} is paused")

    async def resume(self) -> None:
        """Resumes the members that are paused; one that does not is left. Does nothing where nobody has paused."""
        if not self._gate.closed:
            return

        async def resume(seat: Seat) -> None:
            await seat.updatable.resume()

        try:
            if self._gate.closed == 1:
                paused, self._paused = self._paused, []
                await self._each(paused, resume)
        finally:
            self._gate.open()
            for seat in self._seats.values():
                seat.held = self._gate.closed > 0 and seat.held
            self._busy -= 1
            self._tell()

    async def aclose(self) -> None:
        """Closes the members too; requests in flight fail."""
        self._closed = True
        self._tell()
        for seat in self._seats.values():
            seat.give_up()
        minders = [seat.minder for seat in self._seats.values() if seat.minder is not None]
        for minder in minders:
            minder.cancel()
        await asyncio.gather(*minders, return_exceptions=True)
        await asyncio.gather(*(seat.generator.aclose() for seat in self._seats.values()))

    async def _prepare(self, weights: Any, version: int) -> "_Ready":
        """Gets the weights ready once for each way in which they reach members."""
        ready = _Ready(weights)
        for sync in {seat.sync for seat in self._seats.values()} - {None}:
            ready.by_sync[sync] = await sync.prepare(weights, version)
        return ready

    async def _each(self, seats: Sequence[Seat], act: Callable[[Seat], Awaitable[None]]) -> list[Exception]:
        """Does the same with several members at once, and returns what went wrong."""

        async def one(seat: Seat) -> Exception | None:
            try:
                async with seat.given_up_with():
                    await act(seat)
            except Left:
                return GeneratorGone(f"{seat.name}: {seat.why or 'it was taken out'}")
            except GeneratorGone as error:
                self._leave(seat, _reason(error))
                return error
            except Exception as error:  # noqa: BLE001 - the other members must not suffer from it
                seat.why = _reason(error)
                logger.warning("%s, a member of %s: %s", seat.name, self.name, seat.why)
                return error
            return None

        return [error for error in await asyncio.gather(*map(one, seats)) if error is not None]

    def _choose(self, rollout: str) -> Seat | None:
        """Where a rollout is sampled: where it was, or else where the least is in flight."""
        home = self._homes.get(rollout)
        if home is None or not home.usable:
            usable = [seat for seat in self._seats.values() if seat.usable]
            if not usable:
                return None
            home = min(usable, key=lambda seat: seat.load)
        self._homes[rollout] = home
        self._homes.move_to_end(rollout)
        if len(self._homes) > _REMEMBERED_ROLLOUTS:
            self._homes.popitem(last=False)
        return home

    async def _await_member(self, rollout: str) -> Seat:
        """Waits for a member that can be used: one may come back, or be added."""
        try:
            async with asyncio.timeout(self._patience):
                while not self._closed:
                    if (seat := self._choose(rollout)) is not None:
                        return seat
                    await self._news.wait()
        except TimeoutError:
            pass
        if self._closed:
            raise GeneratorError(f"{self.name} is closed")
        raise GeneratorError(f"no member of {self.name} can be used: {self._state()}")

    def _state(self) -> str:
        return "; ".join(f"{name} ({self._why(seat)})" for name, seat in self._seats.items()) or "it has none"

    def _why(self, seat: Seat) -> str:
        """Why a member is not used."""
        if seat.draining:
            return "draining"
        return seat.why or f"its weights are of version {seat.generator.policy_version}, not {self._version}"

    def _tell(self) -> None:
        """Wakes those that wait for something to change."""
        self._news.set()
        self._news = asyncio.Event()

    def _leave(self, seat: Seat, why: str) -> None:
        """Takes a member for dead: what it was doing is given up, and it must catch up before it is used again."""
        if seat.well:
            logger.warning("%s leaves %s, and does its work elsewhere: %s", self.name, seat.name, why)
        seat.well = seat.current = False
        seat.why = why
        seat.give_up()
        self._tell()

    def _begin(self) -> None:
        if not self._busy:
            for seat in self._seats.values():
                self._mind(seat)
        self._busy += 1

    def _mind(self, seat: Seat) -> None:
        minder = seat.minder
        if minder is None or minder.done() or minder.get_loop() is not asyncio.get_running_loop():
            seat.minder = asyncio.create_task(self._minding(seat), name=f"minder of {seat.name}")

    async def _minding(self, seat: Seat) -> None:
        """Looks after a member while there is something to do."""
        while True:
            if not (seat.well and seat.current):
                await self._look_after(seat)
            await asyncio.sleep(self._probe_seconds)
            if not (self._busy or self._watchful) or self._closed or self._seats.get(seat.name) is not seat:
                return
            if (seat.scopes or self._watchful) and seat.well and seat.current:
                await self._look_after(seat)

    async def _look_after(self, seat: Seat) -> None:
        answers = await seat.answers(self._probe_seconds)
        heard, seat.heard = seat.heard, seat.sampled
        # One that samples is not dead, however late its answer: it, this process or both may have too much to do.
        if not answers and not (seat.well and seat.sampled > heard):
            seat.missed += 1
            if seat.missed >= _PROBES_MISSED:
                self._leave(seat, seat.why if not seat.well else f"it missed {seat.missed} health checks")
            return
        seat.missed = 0
        seat.well = True
        if not (seat.current or seat.held):
            await self._catch_up(seat)

    async def _catch_up(self, seat: Seat) -> None:
        """Uses a member again if its weights are of the pool's version by now."""
        generator: Any = seat.generator
        version = self._version
        seat.catching_up = True
        try:
            knows_how = hasattr(generator, "catch_up")
            there = await generator.catch_up(version) if knows_how else generator.policy_version == version
        except Exception as error:  # noqa: BLE001 - it stays out, and is tried again
            why = f"it did not load version {version}: {_reason(error)}"
        else:
            if there and version == self._version:
                seat.current, seat.why = True, ""
                logger.warning("%s uses %s again", self.name, generator.name)
                self._tell()
                return
            why = f"it has not the weights of version {version}, and waits for the next update"
        finally:
            seat.catching_up = False
        if why != seat.why:
            logger.warning("%s does not use %s: %s", self.name, generator.name, why)
        seat.why = why


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


class _Ready:
    """Weights as the members of a pool take them."""

    def __init__(self, weights: Any) -> None:
        self.by_sync: dict[Any, Any] = {}
        self._weights = weights

    def of(self, seat: Seat) -> Any:
        return self.by_sync.get(seat.sync, self._weights)
