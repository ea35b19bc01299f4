"""Several conversations in one trajectory: each is found again by what was said in it."""

import copy
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gymhost.rollout.chat import Message, Tool
from gymhost.rollout.conversation import Calls, Conversation
from gymhost.rollout.dialogue import Dialogue
from gymhost.rollout.speaking import Speaker
from gymhost.rollout.trajectory import Trajectory
from gymhost.wire.openai_messages import same_message

__all__ = ["Thread", "Threads"]


@dataclass(slots=True, eq=False)
class Thread:
    """One conversation.

    Args:
        talk: Its messages and rows.
        number: Its place among those that were begun.
        turns: Turns that the model has taken in it.
        busy: Whether the model is taking one.
    """

    talk: Conversation | Dialogue
    number: int
    turns: int = 0
    busy: bool = True


class Threads:
    """The conversations of a rollout whose agent tells the whole of one each time.

    What continues a conversation is appended to it: what the model said stays the tokens that it sampled. What leaves
    it in the middle (another try, a branch) goes on from its tokens up to there, in a row of its own. Anything else,
    such as a sub-agent or a history that was shortened, begins a new one.

    Args:
        speaker: Renders, within the limits.
        trajectory: What all rows and messages are written into.
    """

    def __init__(self, speaker: Speaker, trajectory: Trajectory) -> None:
        self._speaker = speaker
        self._trajectory = trajectory
        self._opening = trajectory.messages
        self._threads: list[Thread] = []
        self._begun = 0
        self._calls = Calls()

    @asynccontextmanager
    async def turn(self, messages: Sequence[Message], tools: Sequence[Tool]) -> AsyncGenerator[Thread]:
        """Holds the conversation that these messages are the whole of, for a turn of the model.

        Where that turn does not come about, the conversation is as it was before.

        Raises:
            LimitReached: The messages leave no room to sample after them.
            CannotRender: The model can't be shown one of them.
        """
        thread = await self._open(messages, [dict(tool) for tool in tools])
        try:
            yield thread
            thread.turns += 1
        except BaseException:
            self._take_back(thread)
            raise
        finally:
            thread.busy = False

    def drop_unanswered(self) -> None:
        """Takes back what was added after the last turns of the model, so that messages and ids end there."""
        for thread in self._threads:
            thread.talk.drop_unanswered()

    async def _open(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> Thread:
        thread, known = self._find(messages, tools)
        new = copy.deepcopy(list(messages[known:]))  # they are the caller's, who may change them
        if thread is None:
            return self._begin(await self._speaker.opening(new, tools))
        if thread.busy or known < len(thread.talk.messages):
            talk = thread.talk.fork(known)
            talk.add(await self._speaker.extension(talk, new))
            return self._begin(talk)
        thread.busy = True
        try:
            thread.talk.add(await self._speaker.extension(thread.talk, new))
        except BaseException:
            thread.busy = False
            raise
        return thread

    def _find(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> tuple[Thread | None, int]:
        """The conversation that these messages share the most with, and how many, of which the model said the last."""
        best, most = None, 0
        for thread in self._threads:
            known = _shared(thread.talk, messages) if thread.talk.tools == tools else 0
            goes_on = known == len(thread.talk.messages) and not thread.busy
            if known > most or (known == most > 0 and goes_on):
                best, most = thread, known
        return best, most

    def _begin(self, talk: Conversation | Dialogue) -> Thread:
        thread = Thread(talk, self._begun)
        self._begun += 1
        talk.join(self._trajectory.token_rows, self._calls)
        self._threads.append(thread)
        self._write()
        return thread

    def _take_back(self, thread: Thread) -> None:
        speaker, talk = self._speaker, thread.talk
        if speaker.settled:
            return
        if not speaker.scope.expired():  # else it is what the rollout ends with
            talk.drop_cut()
        talk.drop_unanswered()
        if not thread.turns and not talk.cut:
            talk.leave()
            self._threads.remove(thread)
            self._write()

    def _write(self) -> None:
        first, *others = [thread.talk.messages for thread in self._threads] or [self._opening]
        self._trajectory.messages = first
        self._trajectory.asides = others
        if self._threads:
            self._trajectory.tools = [dict(tool) for tool in self._threads[0].talk.tools]


def _shared(talk: Conversation | Dialogue, messages: Sequence[Message]) -> int:
    """How many messages a conversation begins with that these begin with too; the model said the last of them.

    One message at least is new, or there would be nothing to answer.
    """
    known = 0
    for place, (mine, theirs) in enumerate(zip(talk.messages, messages[:-1], strict=False)):
        if mine != theirs and not same_message(mine, theirs):
            break
        if talk.spoke(place):
            known = place + 1
    return known
