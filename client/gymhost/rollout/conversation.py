"""A conversation that grows by appending: sampled ids are kept as they are, and history is never encoded again."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

from gymhost.rollout.chat import Chat, Message, Spoken, Tool
from gymhost.rollout.generators.base import Generation
from gymhost.rollout.trajectory import Row

__all__ = ["Calls", "Conversation", "Extension", "as_messages"]


@dataclass(slots=True)
class Calls:
    """How many calls were made, so that each has another id."""

    made: int = 0


@dataclass(slots=True)
class Extension:
    """What new messages would add; nothing has been changed yet.

    `ids` follow the current row. If history was rewritten they are the prompt of a new row instead.
    """

    messages: list[Message]
    ids: list[int]
    rewritten: bool


class Conversation:
    """The messages of one conversation and its rows of token ids, kept in step.

    Args:
        chat: Renders and parses.
        messages: What the conversation begins with.
        tools: What the model may call: name, description, parameters.

    Attributes:
        rows: Where its rows are, perhaps among others'.
        row: The row that grows now.
        first_tokens: The length of the first prompt.
    """

    def __init__(self, chat: Chat, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        self._chat = chat
        self.messages = list(messages)
        self.tools = list(tools)
        self._offer = chat.offer(tools)
        self.row = Row(prompt_ids=chat.prompt(self.messages, self._offer, {}))
        self.rows = [self.row]
        self.first_tokens = len(self.row)
        self._calls = Calls()
        self._sampled: dict[int, Spoken] = {}
        self._ends: dict[int, tuple[Row, int]] = {}
        self._last: Extension | None = None
        self._before = self.row
        self._cut = 0

    @property
    def row_index(self) -> int:
        """The place of the row that grows now among the rows."""
        return next(i for i in reversed(range(len(self.rows))) if self.rows[i] is self.row)

    @property
    def context_tokens(self) -> int:
        """The length of what the model is given."""
        return len(self.row)

    @property
    def completion_tokens(self) -> int:
        """How much has been added to the first prompt."""
        return max(0, len(self.row) - self.first_tokens)

    @property
    def cut(self) -> bool:
        """Whether it ends with a turn that was cut and not gone on with."""
        return bool(self._cut)

    def spoke(self, index: int) -> bool:
        """Whether the model said a message here."""
        return index in self._sampled

    def add_sampled(self, generation: Generation, *, complete: bool = True) -> Message:
        """Appends what was sampled, untouched, and returns the assistant message that it says.

        After a turn that was cut ("cut") comes the whole turn, which takes its place.

        Args:
            generation: What was sampled in the current context.
            complete: Whether the turn came to its end. What was cut off is kept as text, and no call in it may be run.
        """
        self.drop_cut()
        context = self.row.ids
        ids = list(generation.token_ids)
        self._cut = len(ids) if generation.finish_reason == "cut" else 0
        self._last = self._last if self._cut else None
        self.row.append_sampled(ids, generation.logprobs, generation.versions)
        if complete:
            message = self._chat.parse(ids, context, self._offer, self._calls.made)
            self._calls.made += len(message.get("tool_calls", ()))
        else:
            message = {"role": "assistant", "content": str(self._chat.tokenizer.decode(ids, skip_special_tokens=False))}
        place = len(self.messages)
        self._sampled[place] = Spoken(ids)
        self._ends[place] = self.row, len(self.row)
        self.messages.append(message)
        return message

    def drop_cut(self) -> None:
        """Takes back what there is of a turn that was cut and not gone on with."""
        if self._cut:
            self.row.drop(self._cut)
            self._cut = 0
            self.messages.pop()

    def extend(self, messages: Sequence[Message]) -> Extension:
        """Works out what `messages` add after the last sampled turn, without adding it."""
        context = self.row.ids
        ids = self._chat.extension(self.messages, self._sampled, context, messages, self._offer)
        if ids is not None:
            return Extension(list(messages), ids, rewritten=False)
        whole = self._chat.prompt([*self.messages, *messages], self._offer, self._sampled)
        if whole[: len(context)] == context:
            return Extension(list(messages), whole[len(context) :], rewritten=False)
        return Extension(list(messages), whole, rewritten=True)

    def add(self, extension: Extension) -> None:
        """Adds what `extend` worked out: messages and ids, all of it."""
        self.messages.extend(extension.messages)
        self._before = self.row
        if extension.rewritten:
            self.row = Row(prompt_ids=extension.ids)
            self.rows.append(self.row)
        else:
            self.row.append_environment(extension.ids)
        self._last = extension

    def drop_unanswered(self) -> None:
        """Takes back, all of it, what was added after the last sampled turn, so that messages and ids end there."""
        if (extension := self._last) is None or self._cut:
            return
        self._last = None
        del self.messages[len(self.messages) - len(extension.messages) :]
        if not extension.rewritten:
            self.row.drop(len(extension.ids))
            return
        self.leave()
        self.row = self._before

    def tokens_with(self, extension: Extension) -> int:
        """The length of the context once the extension is added."""
        return len(extension.ids) + (0 if extension.rewritten else len(self.row))

    def fork(self, count: int) -> Self:
        """Another conversation that goes on after the first `count` messages, of which the model said the last.

        Its row begins with the tokens of this one, as they were sampled; they are its prompt.
        """
        row, length = self._ends[count - 1]
        twin = copy.copy(self)
        twin.messages = self.messages[:count]
        twin.row = twin._before = Row(prompt_ids=row.ids[:length])
        twin.rows = [twin.row]
        twin._sampled = {place: spoken for place, spoken in self._sampled.items() if place < count}
        twin._ends = {}
        twin._last = None
        twin._cut = 0
        return twin

    def join(self, rows: list[Row], calls: Calls) -> None:
        """Becomes one of several conversations, whose rows are together and whose calls are counted together."""
        rows.append(self.row)
        self.rows = rows
        self._calls = calls

    def leave(self) -> None:
        """Takes its row away again, unless others have followed: turns name rows by their place."""
        if self.rows[-1] is self.row:
            self.rows.pop()


def as_messages(observation: object) -> list[Message]:
    """The messages of an observation: a list of them, one, or plain text from the user's side.

    Raises:
        ValueError: The observation is none of these.
    """
    kind = type(observation).__name__
    if isinstance(observation, str):
        return [{"role": "user", "content": observation}]
    items = cast(Sequence[object], [observation] if isinstance(observation, dict) else observation)
    if isinstance(items, list | tuple) and all(isinstance(item, dict) and "role" in item for item in items):
        return [dict(item) for item in cast(Sequence[Message], items)]
    raise ValueError(f"a rollout needs messages or text to observe, this is {kind}: is the environment conversational?")
