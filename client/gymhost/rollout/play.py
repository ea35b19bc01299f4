"""The turns of one rollout: generate, step, append, until something ends it."""

import asyncio
import contextlib
import math
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from gymhost.rollout.chat import Chat, Message
from gymhost.rollout.continuing import sample_turn
from gymhost.rollout.conversation import Conversation, as_messages
from gymhost.rollout.dialogue import Dialogue, checked
from gymhost.rollout.faults import StageTimeout, bound
from gymhost.rollout.generators.base import (
    ChatGenerator,
    Generation,
    Generator,
    GeneratorError,
    PromptTooLong,
    Sampling,
)
from gymhost.rollout.requests import Limits
from gymhost.rollout.sessions import Session
from gymhost.rollout.trajectory import Outcome, Trajectory, Turn
from gymhost.rollout.turnstile import Turnstile

__all__ = ["Play"]

T = TypeVar("T")

_LATE = 5.0  # a server, told the same limit, stops the step itself, and says more about it


class Play:
    """Plays one episode in a session that has been reset, and writes it into a trajectory.

    Args:
        chat: Turns messages into ids and back; None with a chat endpoint, whose trajectories have no rows.
        generator: Samples, or with a chat endpoint answers.
        session: Where the steps are taken.
        trajectory: What is written; it is whole after every await.
        limits: What ends the episode.
        sampling: How to sample.
        name: Names the rollout towards the generator.
        turnstile: What is passed before each generation.
        settled: Whether the trajectory is not to change any more, since somebody has cancelled the rollout.
    """

    def __init__(
        self,
        chat: Chat | None,
        generator: Generator | ChatGenerator,
        session: Session,
        trajectory: Trajectory,
        limits: Limits,
        sampling: Sampling,
        name: str,
        turnstile: Turnstile,
        settled: Callable[[], bool],
    ) -> None:
        self._chat = chat
        self._generator = generator
        self._session = session
        self._trajectory = trajectory
        self._limits = limits
        ends = () if chat is None else chat.stop_token_ids
        self._stop = tuple(dict.fromkeys((*sampling.stop_token_ids, *ends)))
        self._sampling = sampling
        self._turn_tokens = min(limits.turn_tokens, sampling.max_tokens)
        self._name = name
        self._turnstile = turnstile
        self._settled = settled
        self._stepping = False
        self._ended = False
        self._unscored = False

    async def run(self, observation: Any, info: dict[str, Any]) -> bool:
        """Plays to the end.

        Args:
            observation: What the reset gave: messages, or text from an environment that speaks plain text and is given
                plain text.
            info: The info of the reset.

        Returns:
            Whether the session can play another episode.
        """
        trajectory = self._trajectory
        self._speaks_text = isinstance(observation, str)
        self._note(info)
        opening, tools = as_messages(observation), self._session.tools
        conversation = Dialogue(opening, tools) if self._chat is None else Conversation(self._chat, opening, tools)
        trajectory.tools = [dict(tool) for tool in conversation.tools]
        trajectory.messages = conversation.messages
        trajectory.token_rows = conversation.rows
        self._scope = scope = asyncio.timeout(self._limits.episode_seconds)
        healthy = True
        try:
            async with scope:
                outcome = await self._turns(conversation, scope)
        except Exception:  # whatever comes of being cancelled
            if not scope.expired():
                raise
            outcome = Outcome(kind="truncated", limit="episode_seconds")
            healthy = not self._stepping  # else a step may still be running in it
        if outcome.kind == "truncated":
            conversation.drop_unanswered()
        outcome.turn = len(trajectory.turns)
        trajectory.outcome = outcome
        if self._session.evaluates:
            self._unscored = healthy and (not self._ended or "evaluation_due" in trajectory.info)
        if not self._unscored:
            # What a step that was never answered would have paid is not known, and no 0.0.
            self._sum_up(0.0 if healthy else None)
        return healthy

    async def evaluate(self) -> None:
        """Has the environment score the episode, where it does so apart from its steps."""
        if not self._unscored:
            return
        outcome = self._trajectory.outcome
        limit = outcome.limit if outcome.kind == "truncated" else None
        _, reward, _, _, info = await self._session.evaluate(limit, timeout=self._limits.eval_seconds)
        before = self._trajectory.info
        before.pop("evaluation_due", None)
        self._note(before | info)
        self._sum_up(None if info.get("reward_invalid") else _reward(reward))

    def _sum_up(self, last: float | None) -> None:
        """Sums up what the environment paid; what it paid at the end belongs to the last turn."""
        trajectory = self._trajectory
        if trajectory.turns:
            turn = trajectory.turns[-1]
            turn.reward = None if last is None or turn.reward is None else turn.reward + last
            paid = [turn.reward for turn in trajectory.turns]
        else:
            paid = [last]
        trajectory.reward = None if None in paid else sum(reward for reward in paid if reward is not None)

    async def _turns(self, conversation: Conversation | Dialogue, scope: asyncio.Timeout) -> Outcome:
        limits = self._limits
        while True:
            room, limit = self._room(conversation)
            if room <= 0:
                return Outcome(kind="truncated", limit=limit)
            if self._turnstile.shut:
                await self._turnstile.passed(scope)
            turn = Turn(
                row=len(conversation.rows) - 1,
                start=len(conversation.rows[-1].completion_ids) if conversation.rows else 0,
                policy_version=self._generator.policy_version,
                begun=max(0.0, time.time() - self._trajectory.created),
            )
            self._trajectory.turns.append(turn)
            try:
                message = await self._speak(conversation, turn, room, scope)
            except PromptTooLong as error:
                self._trajectory.turns.pop()
                return Outcome(kind="truncated", limit="context_tokens", message=str(error))
            if turn.finish_reason == "length":
                # The model's own context can be smaller than what the budgets allow.
                return Outcome(kind="truncated", limit=limit if turn.tokens >= room else "context_tokens")
            observation, terminated, truncated, info = await self._step(message, turn)
            last = limits.turns is not None and len(self._trajectory.turns) >= limits.turns
            if terminated or truncated or last:
                with contextlib.suppress(ValueError):  # nobody is going to be shown it, so it may be none
                    conversation.messages.extend(as_messages(observation))
                limit = str(info.get("limit") or "environment") if truncated else "turns"
                return Outcome(kind="terminated") if terminated else Outcome(kind="truncated", limit=limit)
            messages = as_messages(observation)
            if not messages:
                raise ValueError("the environment neither ended the episode nor said anything for the model to answer")
            if least := self._chat.least_tokens(messages) if self._chat else 0:
                if limit := self._passed(conversation, least):
                    return Outcome(kind="truncated", limit=limit)
                # All other rollouts would have to wait while a long text is encoded.
                extension = await asyncio.to_thread(conversation.extend, messages)
            else:
                extension = conversation.extend(messages)
            if limit := self._passed(conversation, conversation.tokens_with(extension)):
                return Outcome(kind="truncated", limit=limit)
            conversation.add(extension)

    async def _speak(
        self, conversation: Conversation | Dialogue, turn: Turn, room: int, scope: asyncio.Timeout
    ) -> Message:
        """Has the model take a turn, which may be cut and gone on with, and adds it to the conversation."""
        request_id = f"{self._name}/{len(self._trajectory.turns)}"
        if isinstance(conversation, Dialogue):
            endpoint = cast(ChatGenerator, self._generator)
            asked = endpoint.respond(
                conversation.messages,
                conversation.tools,
                self._sampling_of(room, len(conversation.messages)),
                request_id=request_id,
            )
            response = checked(await self._generated(turn, asked))
            self._count(turn, response.completion_tokens)
            turn.finish_reason = response.finish_reason
            turn.generator = endpoint.name
            message = conversation.add_sampled(response, complete=response.finish_reason == "stop")
        else:
            generator = cast(Generator, self._generator)

            async def sample(prompt_ids: Sequence[int], tokens: int) -> Generation:
                if self._turnstile.shut:
                    await self._turnstile.passed(scope)
                asked = generator.generate(
                    prompt_ids, self._sampling_of(tokens, len(prompt_ids)), request_id=request_id
                )
                return await self._generated(turn, asked)

            said = await sample_turn(
                sample,
                conversation.row.ids,
                room,
                self._stop,
                # So it is in the record already if time or somebody ends the rollout before it has come to its end.
                cut=lambda so_far: self._say(conversation, turn, so_far),
            )
            message = self._say(conversation, turn, said)
        turn.calls = len(message.get("tool_calls", ()))
        return message

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

    def _sampling_of(self, tokens: int, context: int) -> Sampling:
        """How to sample so many tokens after so much context."""
        sampling, seed = self._sampling, self._sampling.seed
        if seed is not None:
            # One of its own for each piece of each turn: with the same for all the rollouts of a group would be alike.
            of = self._trajectory
            own = (seed, of.env_id, of.split, of.task, of.seed, of.group, of.index, context)
            seed = zlib.crc32(repr(own).encode())
        return Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, tokens, self._stop, seed)

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
        self._still_on()
        return answered

    async def _step(self, message: Message, turn: Turn) -> tuple[Any, bool, bool, dict[str, Any]]:
        begun = time.perf_counter()
        action = message["content"] if self._speaks_text else message
        self._stepping = True
        try:
            step = await self._answered(action)
        finally:
            turn.environment_seconds = time.perf_counter() - begun
            self._trajectory.timings.environment += turn.environment_seconds
        self._still_on()
        self._stepping = False
        observation, reward, terminated, truncated, info = step
        self._ended = terminated or truncated
        self._note(info)
        turn.reward = None if info.get("reward_invalid") else _reward(reward)
        return observation, terminated, truncated, info

    async def _answered(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seconds = self._limits.step_seconds
        if seconds is None:
            return await self._session.step(action)
        async with bound("step_seconds", seconds, "environment", late=_LATE):
            return await self._session.step(action, timeout=seconds)

    def _still_on(self) -> None:
        """Ends the rollout where whoever was awaited has gone on in spite of being cancelled."""
        if self._scope.expired():
            raise TimeoutError
        if self._settled():
            raise asyncio.CancelledError

    def _note(self, info: dict[str, Any]) -> None:
        if not isinstance(info, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from anywhere
            raise ValueError(f"the environment gave an info that is no dict: {info!r:.100}")
        trajectory = self._trajectory
        trajectory.info = dict(info)  # it may be one that the environment fills anew each time
        # An info may hold anything under these names.
        rewards, task = info.get("rewards"), info.get("task")
        if isinstance(rewards, Mapping):
            named = cast(Mapping[Any, Any], rewards)
            trajectory.rewards.update({str(name): _score(value) for name, value in named.items()})
        if trajectory.task is None and isinstance(task, int):
            trajectory.task = task

    def _room(self, conversation: Conversation | Dialogue) -> tuple[int, str]:
        """How many tokens the next turn may sample, and the name of the limit that says so."""
        limits = self._limits
        room, name = self._turn_tokens, "turn_tokens"
        for limit, used in (
            ("completion_tokens", conversation.completion_tokens),
            ("context_tokens", conversation.context_tokens),
            ("sampled_tokens", self._trajectory.sampled_tokens if limits.sampled_tokens else 0),
        ):
            budget: int | None = getattr(limits, limit)
            if budget is not None and budget - used < room:
                room, name = budget - used, limit
        return room, name

    def _passed(self, conversation: Conversation | Dialogue, tokens: int) -> str | None:
        """The name of the limit that leaves no room to sample in a context of so many tokens."""
        limits = self._limits
        if limits.completion_tokens is not None and tokens - conversation.first_tokens >= limits.completion_tokens:
            return "completion_tokens"
        if limits.context_tokens is not None and tokens >= limits.context_tokens:
            return "context_tokens"
        return None


def _reward(value: Any) -> float | None:
    """A reward as a number, or None for what is none: not a number, or an infinite one."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the environment gave a reward that is no number: {value!r:.100}") from error
    return number if math.isfinite(number) else None


def _score(value: Any) -> float | None:
    """The reward of one rubric, or None for whatever is no number."""
    try:
        return _reward(value)
    except ValueError:
        return None
