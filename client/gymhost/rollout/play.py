"""The turns of one rollout: generate, step, append, until something ends it."""

import asyncio
import math
import time
from typing import Any

from gymhost.rollout.chat import Chat, Message
from gymhost.rollout.conversation import Conversation, as_messages
from gymhost.rollout.faults import bound
from gymhost.rollout.generators.base import Generation, Generator, GeneratorError, PromptTooLong, Sampling
from gymhost.rollout.requests import Limits
from gymhost.rollout.sessions import Session
from gymhost.rollout.trajectory import Outcome, Trajectory, Turn
from gymhost.rollout.turnstile import Turnstile

__all__ = ["Play"]


class Play:
    """Plays one episode in a session that has been reset, and writes it into a trajectory.

    Args:
        chat: Turns messages into ids and back.
        generator: Samples.
        session: Where the steps are taken.
        trajectory: What is written; it is whole after every await.
        limits: What ends the episode.
        sampling: How to sample.
        name: Names the rollout towards the generator.
        turnstile: What is passed before each generation.
    """

    def __init__(
        self,
        chat: Chat,
        generator: Generator,
        session: Session,
        trajectory: Trajectory,
        limits: Limits,
        sampling: Sampling,
        name: str,
        turnstile: Turnstile,
    ) -> None:
        self._chat = chat
        self._generator = generator
        self._session = session
        self._trajectory = trajectory
        self._limits = limits
        self._stop = tuple(dict.fromkeys((*sampling.stop_token_ids, *chat.stop_token_ids)))
        self._sampling = sampling
        self._turn_tokens = min(limits.turn_tokens, sampling.max_tokens)
        self._name = name
        self._turnstile = turnstile

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
        conversation = Conversation(self._chat, as_messages(observation), self._session.tools)
        trajectory.tools = [dict(tool) for tool in conversation.tools]
        trajectory.messages = conversation.messages
        trajectory.token_rows = conversation.rows
        scope = asyncio.timeout(self._limits.episode_seconds)
        healthy = True
        try:
            async with scope:
                outcome = await self._turns(conversation, scope)
        except TimeoutError:
            if not scope.expired():
                raise
            outcome = Outcome(kind="truncated", limit="episode_seconds")
            healthy = False  # a step may still be running in it
        if outcome.kind == "truncated":
            conversation.drop_unanswered()
        outcome.turn = len(trajectory.turns)
        trajectory.outcome = outcome
        paid = [turn.reward for turn in trajectory.turns]
        trajectory.reward = None if None in paid else sum(reward for reward in paid if reward is not None)
        return healthy

    async def _turns(self, conversation: Conversation, scope: asyncio.Timeout) -> Outcome:
        limits = self._limits
        while True:
            room, limit = self._room(conversation)
            if room <= 0:
                return Outcome(kind="truncated", limit=limit)
            if self._turnstile.shut:
                await self._turnstile.passed(scope)
            start = len(conversation.row.completion_ids)
            turn = Turn(row=len(conversation.rows) - 1, start=start, policy_version=self._generator.policy_version)
            self._trajectory.turns.append(turn)
            try:
                generation = await self._generate(conversation, turn, room)
            except PromptTooLong as error:
                self._trajectory.turns.pop()
                return Outcome(kind="truncated", limit="context_tokens", message=str(error))
            complete = generation.finish_reason != "length"
            message = conversation.add_sampled(generation, complete=complete)
            if not complete:
                # The model's own context can be smaller than what the budgets allow.
                return Outcome(kind="truncated", limit=limit if turn.tokens >= room else "context_tokens")
            observation, terminated, truncated, info = await self._step(message, turn)
            messages = as_messages(observation)
            last = limits.turns is not None and len(self._trajectory.turns) >= limits.turns
            if terminated or truncated or last:
                conversation.messages.extend(messages)
                limit = str(info.get("limit") or "environment") if truncated else "turns"
                return Outcome(kind="terminated") if terminated else Outcome(kind="truncated", limit=limit)
            if not messages:
                raise ValueError("the environment neither ended the episode nor said anything for the model to answer")
            extension = conversation.extend(messages)
            if limit := self._passed(conversation, conversation.tokens_with(extension)):
                return Outcome(kind="truncated", limit=limit)
            conversation.add(extension)

    async def _generate(self, conversation: Conversation, turn: Turn, room: int) -> Generation:
        begun = time.perf_counter()
        sampling = self._sampling
        sampling = Sampling(
            sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, room, self._stop, sampling.seed
        )
        request_id = f"{self._name}/{len(self._trajectory.turns)}"
        self._turnstile.generating += 1
        try:
            async with bound("generation_seconds", self._limits.generation_seconds, "generator"):
                generation = await self._sample(conversation.row.ids, sampling, request_id)
        finally:
            self._turnstile.generating -= 1
            turn.generation_seconds = time.perf_counter() - begun
            self._trajectory.timings.generation += turn.generation_seconds
        turn.tokens = len(generation.token_ids)
        self._turnstile.tokens += turn.tokens
        turn.policy_version = generation.policy_version
        turn.mixed_versions = generation.mixed_versions
        turn.finish_reason = generation.finish_reason
        return generation

    async def _sample(self, prompt_ids: list[int], sampling: Sampling, request_id: str) -> Generation:
        try:
            return await self._generator.generate(prompt_ids, sampling, request_id=request_id)
        except GeneratorError:
            raise
        except Exception as error:  # so that it is not taken for the environment's
            raise GeneratorError(f"{type(error).__name__}: {error}") from error

    async def _step(self, message: Message, turn: Turn) -> tuple[Any, bool, bool, dict[str, Any]]:
        begun = time.perf_counter()
        action = message["content"] if self._speaks_text else message
        try:
            observation, reward, terminated, truncated, info = await self._session.step(
                action, timeout=self._limits.step_seconds
            )
        finally:
            turn.environment_seconds = time.perf_counter() - begun
            self._trajectory.timings.environment += turn.environment_seconds
        turn.reward = None if info.get("reward_invalid") else _finite(reward)
        self._note(info)
        return observation, terminated, truncated, info

    def _note(self, info: dict[str, Any]) -> None:
        trajectory = self._trajectory
        trajectory.info = info
        rewards: dict[str, Any] = info.get("rewards") or {}
        trajectory.rewards.update({name: _finite(value) for name, value in rewards.items()})
        task = info.get("task")
        if trajectory.task is None and isinstance(task, int):  # an info may hold anything under that name
            trajectory.task = task

    def _room(self, conversation: Conversation) -> tuple[int, str]:
        """How many tokens the next turn may sample, and the name of the limit that says so."""
        limits = self._limits
        room, name = self._turn_tokens, "turn_tokens"
        for limit, used in (
            ("completion_tokens", conversation.completion_tokens),
            ("context_tokens", conversation.context_tokens),
            ("sampled_tokens", self._trajectory.sampled_tokens),
        ):
            budget: int | None = getattr(limits, limit)
            if budget is not None and budget - used < room:
                room, name = budget - used, limit
        return room, name

    def _passed(self, conversation: Conversation, tokens: int) -> str | None:
        """The name of the limit that leaves no room to sample in a context of so many tokens."""
        limits = self._limits
        first = len(conversation.rows[0].prompt_ids)
        if limits.completion_tokens is not None and tokens - first >= limits.completion_tokens:
            return "completion_tokens"
        if limits.context_tokens is not None and tokens >= limits.context_tokens:
            return "context_tokens"
        return None


def _finite(value: Any) -> float | None:
    """A reward as a number, or None for what is none: not a number, or an infinite one."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
