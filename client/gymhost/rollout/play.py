"""The turns of one rollout: generate, step, append, until something ends it."""

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any, cast

from gymhost.rollout.chat import Chat, Message
from gymhost.rollout.conversation import Conversation, as_messages
from gymhost.rollout.dialogue import Dialogue
from gymhost.rollout.faults import LimitReached, bound
from gymhost.rollout.requests import Limits
from gymhost.rollout.sessions import Session
from gymhost.rollout.speaking import Said, Speaker
from gymhost.rollout.threads import Threads
from gymhost.rollout.trajectory import Outcome, Trajectory

__all__ = ["Play"]

_LATE = 5.0  # a server, told the same limit, stops the step itself, and says more about it


class Play:
    """Plays one episode in a session that has been reset, and writes it into a trajectory.

    Args:
        chat: Turns messages into ids and back; None with a chat endpoint, whose trajectories have no rows.
        session: Where the steps are taken.
        trajectory: What is written; it is whole after every await.
        limits: What ends the episode.
        speaker: Has the model take turns.
    """

    def __init__(
        self, chat: Chat | None, session: Session, trajectory: Trajectory, limits: Limits, speaker: Speaker
    ) -> None:
        self._chat = chat
        self._session = session
        self._trajectory = trajectory
        self._limits = limits
        self._speaker = speaker
        self._stepping = False
        self._ended = False
        self._unscored = False
        self._conversation: Conversation | Dialogue | Threads

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
        trajectory.tools = [dict(tool) for tool in self._session.tools]
        scope = self._speaker.scope
        healthy = True
        try:
            async with scope:
                led = info.get("conversation") == "anew"
                outcome = await (self._play_led if led else self._play)(observation, info)
        except Exception:  # whatever comes of being cancelled
            if not scope.expired():
                raise
            outcome = Outcome(kind="truncated", limit="episode_seconds")
            healthy = not self._stepping  # else a step may still be running in it
        if outcome.kind == "truncated":
            self._drop_unanswered()
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

    async def _play(self, observation: Any, info: dict[str, Any]) -> Outcome:
        """Takes turns until something ends them: what the model says is what the environment is given."""
        speaker, trajectory = self._speaker, self._trajectory
        opening, tools = as_messages(observation), self._session.tools
        conversation = Dialogue(opening, tools) if self._chat is None else Conversation(self._chat, opening, tools)
        trajectory.messages = conversation.messages
        trajectory.token_rows = conversation.rows
        self._conversation = conversation
        try:
            while True:
                outcome, messages, _ = await self._given(await speaker.speak(conversation), conversation)
                if outcome is not None:
                    return outcome
                conversation.add(await speaker.extension(conversation, messages))
        except LimitReached as reached:
            return Outcome(kind="truncated", limit=reached.limit, message=reached.detail)

    async def _play_led(self, observation: Any, info: dict[str, Any]) -> Outcome:
        """Takes turns in conversations that the environment leads, as one does whose agent is a harness.

        An observation goes on from what the model said before, unless the info has `conversation` as "anew": then it is
        all of a conversation, with the info's `tools`, which may go on from an earlier one.
        """
        threads = self._conversation = Threads(self._speaker, self._trajectory)
        messages, tools = as_messages(observation), info["tools"]
        self._trajectory.tools = [dict(tool) for tool in tools]
        try:
            while True:
                async with threads.turn(messages, tools) as thread:
                    said = await self._speaker.speak(thread.talk, salt=thread.number)
                outcome, messages, info = await self._given(said, thread.talk)
                if outcome is not None:
                    return outcome
                if info.get("conversation") == "anew":
                    tools = info["tools"]
                else:
                    messages = [*thread.talk.messages, *messages]
        except LimitReached as reached:
            return Outcome(kind="truncated", limit=reached.limit, message=reached.detail)

    async def _given(
        self, said: Said, conversation: Conversation | Dialogue
    ) -> tuple[Outcome | None, list[Message], dict[str, Any]]:
        """Gives the environment what the model said.

        Returns:
            What ended the episode, if anything did; else what is new; and the info.
        """
        if said.cut_by:
            return Outcome(kind="truncated", limit=said.cut_by), [], {}
        observation, reward, terminated, truncated, info = await self._step(said.message)
        said.turn.reward = reward
        limits = self._limits
        last = limits.turns is not None and len(self._trajectory.turns) >= limits.turns
        if terminated or truncated or last:
            with contextlib.suppress(ValueError):  # nobody is going to be shown it, so it may be none
                conversation.messages.extend(as_messages(observation))
            return self._end(terminated, truncated, info) or Outcome(kind="truncated", limit="turns"), [], info
        messages = as_messages(observation)
        if not messages:
            raise ValueError("the environment neither ended the episode nor said anything for the model to answer")
        return None, messages, info

    def _drop_unanswered(self) -> None:
        self._conversation.drop_unanswered()

    async def _step(self, message: Message) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        """Takes one step; a reward that is invalid is None."""
        begun = time.perf_counter()
        action = message["content"] if self._speaks_text else message
        self._stepping = True
        try:
            step = await self._answered(action)
        finally:
            seconds = time.perf_counter() - begun
            self._trajectory.timings.environment += seconds
            if turns := self._trajectory.turns:
                turns[-1].environment_seconds += seconds
        self._speaker.still_on()
        self._stepping = False
        observation, reward, terminated, truncated, info = step
        self._ended = terminated or truncated
        self._note(info)
        return observation, None if info.get("reward_invalid") else _reward(reward), terminated, truncated, info

    @staticmethod
    def _end(terminated: bool, truncated: bool, info: dict[str, Any]) -> Outcome | None:
        """How the environment ended the episode, if it did."""
        if terminated:
            return Outcome(kind="terminated")
        return Outcome(kind="truncated", limit=str(info.get("limit") or "environment")) if truncated else None

    async def _answered(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seconds = self._limits.step_seconds
        if seconds is None:
            return await self._session.step(action)
        async with bound("step_seconds", seconds, "environment", late=_LATE):
            return await self._session.step(action, timeout=seconds)

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
