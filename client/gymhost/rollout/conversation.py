"""A conversation that grows by appending: sampled ids are kept as they are, and history is never encoded again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from gymhost.rollout.chat import Chat, Message, Spoken, Tool
from gymhost.rollout.generators.base import Generation
from gymhost.rollout.trajectory import Row

__all__ = ["Conversation", "Extension", "as_messages"]


@dataclass(slots=True)
class Extension:
    """What new messages would add; nothing has been changed yet.

    `ids` follow the current row. If history was rewritten they are the prompt of a new row instead.
    """

    messages: list[Message]
    ids: list[int]
    rewritten: bool


class Conversation:
    """The messages of one rollout and their rows of token ids, kept in step.

    Args:
        chat: Renders and parses.
        messages: What the conversation begins with.
        tools: What the model may call: name, description, parameters.
    """

    def __init__(self, chat: Chat, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        self._chat = chat
        self.messages = list(messages)
        self.tools = list(tools)
        self._offer = chat.offer(tools)
        self.rows = [Row(prompt_ids=chat.prompt(self.messages, self._offer, {}))]
        self._sampled: dict[int, Spoken] = {}
        self._calls = 0
        self._last: Extension | None = None
        self._cut = 0

    @property
    def row(self) -> Row:
        """The row that grows now."""
        return self.rows[-1]

    @property
    def first_tokens(self) -> int:
        """The length of the first prompt."""
        return len(self.rows[0].prompt_ids)

    @property
    def context_tokens(self) -> int:
        """The length of what the model is given."""
        return len(self.row)

    @property
    def completion_tokens(self) -> int:
        """How much has been added to the first prompt."""
        return max(0, len(self.row) - self.first_tokens)

    def add_sampled(self, generation: Generation, *, complete: bool = True) -> Message:
        """Appends what was sampled, untouched, and returns the assistant message that it says.

        After a turn that was cut ("cut") comes the whole turn, which takes its place.

        Args:
            generation: What was sampled in the current context.
            complete: Whether the turn came to its end. What was cut off is kept as text, and no call in it may be run.
        """
        if self._cut:
            self.row.drop(self._cut)
            self.messages.pop()
        context = self.row.ids
        ids = list(generation.token_ids)
        self._cut = len(ids) if generation.finish_reason == "cut" else 0
        self.row.append_sampled(ids, generation.logprobs, generation.versions)
        if complete:
            message = self._chat.parse(ids, context, self._offer, self._calls)
            self._calls += len(message.get("tool_calls", ()))
        else:
            message = {"role": "assistant", "content": str(self._chat.tokenizer.decode(ids, skip_special_tokens=False))}
        self._last = None
        self._sampled[len(self.messages)] = Spoken(ids)
        self.messages.append(message)
        return message

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
        if extension.rewritten:
            self.rows.append(Row(prompt_ids=extension.ids))
        else:
            self.row.append_environment(extension.ids)
        self._last = extension

    def drop_unanswered(self) -> None:
        """Takes back, all of it, what was added after the last sampled turn, so that messages and ids end there."""
        extension = self._last
        if extension is None:
            return
        self._last = None
        del self.messages[len(self.messages) - len(extension.messages) :]
        if extension.rewritten:
            self.rows.pop()
        else:
            self.row.drop(len(extension.ids))

    def tokens_with(self, extension: Extension) -> int:
        """The length of the context once the extension is added."""
        return len(extension.ids) + (0 if extension.rewritten else len(self.row))


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
