"""Turns of a model: sampled within the limits of a rollout, and written down."""

import asyncio
import bisect
import functools
import itertools
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from gymhost.rollout.chat import Chat, Message, Tool
from gymhost.rollout.continuing import sample_turn
from gymhost.rollout.conversation import Conversation, Extension
from gymhost.rollout.dialogue import Dialogue, checked
from gymhost.rollout.faults import LimitReached, StageTimeout, bound
from gymhost.rollout.generators.base import (
    ChatGenerator,
    Generation,
    Generator,
    GeneratorError,
    PromptTooLong,
    Sampling,
)
from gymhost.rollout.requests import Limits
from gymhost.rollout.trajectory import Trajectory, Turn
from gymhost.rollout.turnstile import Gate, Turnstile, passed

__all__ = ["Said", "Speaker"]

T = TypeVar("T")

_OWN = "max_tokens"


@dataclass(slots=True)
class Said:
    """A turn of the model.

    Args:
        message: What it said.
        turn: Its record.
        cut_by: The limit that cut it off, if one of the rollout's did.
    """

    message: Message
    turn: Turn
    cut_by: str | None


class Speaker:
    """Has a model take turns in conversations of one rollout.

    Args:
        chat: Turns messages into ids and back; None with a chat endpoint.
        generator: Samples, or with a chat endpoint answers.
        trajectory: What is written; it is whole after every await.
        limits: What ends the rollout.
        sampling: How to sample.
        name: Names the rollout towards the generator.
        turnstile: What all rollouts pass before each generation.
        gate: What this one passes besides.
        settled: Whether the trajectory is not to change any more, since somebody has cancelled the rollout.

    Attributes:
        scope: The time for all turns together.
        sampling: How to sample, unless a turn is asked for otherwise.
        abandons: Whether a turn that is cancelled, while the rollout goes on, is taken out of the record.
    """

    def __init__(
        self,
        chat: Chat | None,
        generator: Generator | ChatGenerator,
        trajectory: Trajectory,
        limits: Limits,
        sampling: Sampling,
        name: str,
        turnstile: Turnstile,
        gate: Gate,
        settled: Callable[[], bool],
    ) -> None:
        self.scope = asyncio.timeout(limits.episode_seconds)
        self._chat = chat
        self._generator = generator
        self._trajectory = trajectory
        self._limits = limits
        self.sampling = sampling
        self.abandons = False
        self._name = name
        self._turnstile = turnstile
        self._gate = gate
        self._settled = settled
        self._numbers = itertools.count(1)
        self._promised = 0  # tokens that turns in progress may still sample

    @property
    def settled(self) -> bool:
        """Whether the trajectory is not to change any more."""
        return self._settled()

    def still_on(self) -> None:
        """Ends the rollout where whoever was awaited has gone on in spite of being cancelled."""
        if self.scope.expired():
            raise TimeoutError
        if self._settled():
            raise asyncio.CancelledError

    async def speak(
        self,
        conversation: Conversation | Dialogue,
        sampling: Sampling | None = None,
        *,
        stop: tuple[str, ...] = (),
        salt: int = 0,
    ) -> Said:
        """Has the model take a turn, and adds it to the conversation.

        Args:
            conversation: What the model is to go on with.
            sampling: How to sample, if not as the rollout does.
            stop: Texts that end the turn: what was sampled is kept up to the first, and said without it.
            salt: What makes the seed of this turn another one than that of a turn elsewhere in the same context.

        Raises:
            LimitReached: The limits leave no room for it, or the model takes no context of this length.
            GeneratorError: The generator failed.
            StageTimeout: It took too long.
        """
        sampling = sampling or self.sampling
        self._room(conversation, sampling)
        await passed(self.scope, self._turnstile, self._gate)
        room, limit = self._room(conversation, sampling)  # others may have used it up meanwhile
        ends = () if self._chat is None else self._chat.stop_token_ids
        how = _How(sampling, room, tuple(dict.fromkeys((*sampling.stop_token_ids, *ends))), stop, salt)
        turn = Turn(
            row=conversation.row_index,
            start=len(conversation.row.completion_ids) if isinstance(conversation, Conversation) else 0,
            policy_version=self._generator.policy_version,
            begun=max(0.0, time.time() - self._trajectory.created),
        )
        self._trajectory.turns.append(turn)
        self._promised += room
        try:
            message = await self._sampled(conversation, turn, how)
        except PromptTooLong as error:
            self.forget(turn)
            raise LimitReached("context_tokens", str(error)) from error
        except asyncio.CancelledError:
            if self.abandons and not (self.settled or self.scope.expired()):
                self.forget(turn)
            raise
        finally:
            self._promised -= room
        turn.calls = len(message.get("tool_calls", ()))
        if turn.finish_reason != "length":
            return Said(message, turn, None)
        # The model's own context can be smaller than what the budgets allow.
        cut_by = limit if turn.tokens >= room else "context_tokens"
        return Said(message, turn, None if cut_by == _OWN else cut_by)

    def forget(self, turn: Turn) -> None:
        """Takes a turn out of the record."""
        self._trajectory.turns[:] = [other for other in self._trajectory.turns if other is not turn]

    def passed(self, conversation: Conversation | Dialogue, tokens: int) -> str | None:
        """The name of the limit that leaves no room to sample in a context of so many tokens."""
        limits = self._limits
        if limits.completion_tokens is not None and tokens - conversation.first_tokens >= limits.completion_tokens:
            return "completion_tokens"
        if limits.context_tokens is not None and tokens >= limits.context_tokens:
            return "context_tokens"
        return None

    async def extension(self, conversation: Conversation | Dialogue, messages: Sequence[Message]) -> Extension:
        """Works out what messages would add.

        Raises:
            LimitReached: They leave no room to sample after them.
            CannotRender: The model can't be shown one of them.
        """
        if least := self._chat.least_tokens(messages) if self._chat else 0:
            if limit := self.passed(conversation, least):
                raise LimitReached(limit)
            # All other rollouts would have to wait while a long text is encoded.
            extension = await asyncio.to_thread(conversation.extend, messages)
        else:
            extension = conversation.extend(messages)
        if limit := self.passed(conversation, conversation.tokens_with(extension)):
            raise LimitReached(limit)
        return extension

    async def opening(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Conversation | Dialogue:
        """Begins a conversation.

        Raises:
            LimitReached: The messages leave no room to sample after them.
            CannotRender: The model can't be shown one of them.
        """
        if self._chat is None:
            return Dialogue(messages, tools)
        least = self._chat.least_tokens(messages)
        if least and self._limits.context_tokens is not None and least >= self._limits.context_tokens:
            raise LimitReached("context_tokens")
        begin = functools.partial(Conversation, self._chat, messages, tools)
        return await asyncio.to_thread(begin) if least else begin()

    def _room(self, conversation: Conversation | Dialogue, sampling: Sampling) -> tuple[int, str]:
        """How many tokens the next turn may sample, and the name of the limit that says so.

        Raises:
            LimitReached: There is no room for another turn.
        """
        limits, trajectory = self._limits, self._trajectory
        if limits.turns is not None and len(trajectory.turns) >= limits.turns:
            raise LimitReached("turns")
        room, name = limits.turn_tokens, "turn_tokens"
        if sampling.max_tokens < room:
            # What an agent asks for of its own accord is no limit of the rollout.
            room, name = sampling.max_tokens, _OWN if sampling.max_tokens < self.sampling.max_tokens else "turn_tokens"
        for limit, used in (
            ("completion_tokens", conversation.completion_tokens),
            ("context_tokens", conversation.context_tokens),
            ("sampled_tokens", trajectory.sampled_tokens + self._promised if limits.sampled_tokens else 0),
        ):
            budget: int | None = getattr(limits, limit)
            if budget is not None and budget - used < room:
                room, name = budget - used, limit
        if room <= 0:
            raise LimitReached(name)
        return room, name

    async def _sampled(self, conversation: Conversation | Dialogue, turn: Turn, how: "_How") -> Message:
        """Has the model take a turn, which may be cut and gone on with, and adds it to the conversation."""
        request_id = f"{self._name}/{next(self._numbers)}"
        if isinstance(conversation, Dialogue):
            endpoint = cast(ChatGenerator, self._generator)
            asked = endpoint.respond(
                conversation.messages,
                conversation.tools,
                self._sampling_of(how, how.room, len(conversation.messages)),
                request_id=request_id,
            )
            response = checked(await self._generated(turn, asked))
            self._count(turn, response.completion_tokens)
            turn.finish_reason = response.finish_reason
            turn.generator = endpoint.name
            message = conversation.add_sampled(response, complete=response.finish_reason == "stop")
            return _without(how.stop, message)
        generator = cast(Generator, self._generator)

        async def sample(prompt_ids: Sequence[int], tokens: int) -> Generation:
            await passed(self.scope, self._turnstile, self._gate)
            sampling = self._sampling_of(how, tokens, len(prompt_ids))
            return await self._generated(turn, generator.generate(prompt_ids, sampling, request_id=request_id))

        said = await sample_turn(
            sample,
            conversation.row.ids,
            how.room,
            how.ends,
            # So it is in the record already if time or somebody ends the rollout before it has come to its end.
            cut=lambda so_far: self._say(conversation, turn, so_far),
        )
        if how.stop:
            self._stop_at(how.stop, said)
        return _without(how.stop, self._say(conversation, turn, said))

    def _stop_at(self, stop: tuple[str, ...], said: Generation) -> None:
        """Leaves out what was sampled after the first of some texts."""
        assert self._chat is not None
        decode = functools.partial(self._chat.tokenizer.decode, skip_special_tokens=False)

        def holds_one(count: int) -> bool:
            text = str(decode(list(said.token_ids[:count])))
            return any(end in text for end in stop)

        whole = len(said.token_ids)
        if holds_one(whole):
            count = bisect.bisect_left(range(whole), True, key=holds_one)
            versions = said.versions[:count]
            said.token_ids, said.logprobs = said.token_ids[:count], said.logprobs[:count]
            said.token_versions, said.finish_reason = versions, "stop"

    def _say(self, conversation: Conversation, turn: Turn, said: Generation) -> Message:
        """Writes down what was sampled: a whole turn, or what there is so far of one that was cut."""
        self._count(turn, len(said.token_ids))
        turn.policy_version = said.policy_version
        turn.mixed_versions = said.mixed_versions
        turn.finish_reason = said.finish_reason
        turn.generator = said.generator
        return conversation.add_sampled(said, complete=said.finish_reason == "stop")

    def _count(self, turn: Turn, tokens: int) -> None:
        self._turnstile.tokens += tokens - turn.tokens
        turn.tokens = tokens

    def _sampling_of(self, how: "_How", tokens: int, context: int) -> Sampling:
        """How to sample so many tokens after so much context."""
        sampling, seed = how.sampling, how.sampling.seed
        if seed is not None:
            # One of its own for each piece of each turn: with the same for all the rollouts of a group would be alike.
            of = self._trajectory
            own = (seed, of.env_id, of.split, of.task, of.seed, of.group, of.index, context, how.salt)
            seed = zlib.crc32(repr(own).encode())
        return Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, tokens, how.ends, seed)

    async def _generated(self, turn: Turn, asked: Awaitable[T]) -> T:
        """Awaits the generator, within its time, so that what it raises is not taken for the environment's."""
        begun = time.perf_counter()
        self._turnstile.generating += 1
        try:
            async with bound("generation_seconds", self._limits.generation_seconds, "generator"):
                answered = await asked
        except (GeneratorError, StageTimeout):
            raise
        except Exception as error:
            raise GeneratorError(f"{type(error).__name__}: {error}") from error
        finally:
            self._turnstile.generating -= 1
            seconds = time.perf_counter() - begun
            turn.generation_seconds += seconds
            self._trajectory.timings.generation += seconds
        self.still_on()
        return answered


@dataclass(frozen=True, slots=True)
class _How:
    """How one turn is sampled."""

    sampling: Sampling
    room: int
    ends: tuple[int, ...]
    stop: tuple[str, ...]
    salt: int


def _without(stop: tuple[str, ...], message: Message) -> Message:
    """A message up to the first of some texts."""
    places = [place for end in stop if (place := message["content"].find(end)) >= 0]
    if places:
        message["content"] = message["content"][: min(places)]
    return message
