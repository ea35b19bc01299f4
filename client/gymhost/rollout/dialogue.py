"""A conversation of messages alone, with a chat endpoint that tells no token ids: good for evaluation only."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from gymhost.rollout.chat import Message, Tool
from gymhost.rollout.conversation import Calls, Extension
from gymhost.rollout.generators.base import GeneratorError, Response
from gymhost.rollout.guard import as_text
from gymhost.rollout.trajectory import Row

__all__ = ["Dialogue", "checked"]


class Dialogue:
    """What `Conversation` is, without rows: the counts of tokens are those that the endpoint tells.

    What an answer of the environment costs is known only once the endpoint was asked, so that a budget ends an episode
    before the next turn instead of before the answer. An endpoint that tells no counts has no budgets but those of
    single turns and of turns.

    Args:
        messages: What the conversation begins with; contents may be blocks of any kind.
        tools: What the model may call.
    """

    def __init__(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> None:
        self.messages = list(messages)
        self.tools = list(tools)
        self.rows: list[Row] = []
        self.row_index = 0
        self.cut = False
        self.first_tokens = 0
        self.context_tokens = 0
        self._spoke: set[int] = set()
        self._added = 0

    @property
    def completion_tokens(self) -> int:
        """How much has been added to what the conversation began with."""
        return self.context_tokens - self.first_tokens

    def spoke(self, index: int) -> bool:
        """Whether the model said a message here."""
        return index in self._spoke

    def add_sampled(self, response: Response, *, complete: bool = True) -> Message:
        """Appends the endpoint's answer, and returns it as an assistant message.

        Args:
            response: The answer.
            complete: Whether the turn came to its end. Of what was cut off no call may be run: it is kept as text.
        """
        self.first_tokens = self.first_tokens or response.prompt_tokens
        self.context_tokens = response.prompt_tokens + response.completion_tokens
        said = response.message
        calls: list[Mapping[str, Any]] = list(said.get("tool_calls") or ())
        texts = [str(said.get("content") or "")]
        if not complete:
            texts += [f"{call['function']['name']} {call['function']['arguments']}" for call in calls]
        message: Message = {"role": "assistant", "content": "\n".join(text for text in texts if text)}
        if said.get("reasoning_content"):
            message["reasoning_content"] = str(said["reasoning_content"])
        if calls and complete:
            message["tool_calls"] = calls
        message = as_text(message)
        self._added = 0
        self._spoke.add(len(self.messages))
        self.messages.append(message)
        return message

    def extend(self, messages: Sequence[Message]) -> Extension:
        """What `messages` would add."""
        return Extension(list(messages), [], rewritten=False)

    def add(self, extension: Extension) -> None:
        """Adds what `extend` worked out."""
        self.messages.extend(extension.messages)
        self._added = len(extension.messages)

    def drop_unanswered(self) -> None:
        """Takes back what was added after the last turn of the model."""
        del self.messages[len(self.messages) - self._added :]
        self._added = 0

    def drop_cut(self) -> None:
        """Does nothing: no turn is cut here."""

    def tokens_with(self, extension: Extension) -> int:
        """The length of the context, as far as it is known."""
        return self.context_tokens

    def fork(self, count: int) -> Self:
        """Another conversation that goes on after the first `count` messages."""
        twin = copy.copy(self)
        twin.messages = self.messages[:count]
        twin._spoke = {place for place in self._spoke if place < count}
        return twin

    def join(self, rows: list[Row], calls: Calls) -> None:
        """Becomes one of several conversations: rows there are none, and the endpoint numbers the calls."""

    def leave(self) -> None:
        """Does nothing: there are no rows."""


def checked(response: Response) -> Response:
    """What an endpoint answered, if a conversation can go on from it.

    Raises:
        GeneratorError: It can't.
    """
    try:
        calls = response.message.get("tool_calls") or ()
        sound = (
            response.finish_reason in ("stop", "length")
            and response.prompt_tokens >= 0
            and response.completion_tokens >= 0
            and all({"name", "arguments"} <= call["function"].keys() for call in calls)
        )
    except (AttributeError, TypeError, LookupError) as error:
        raise GeneratorError(f"what an endpoint returned is no response: {error}") from error
    if not sound:
        raise GeneratorError(f"what an endpoint returned is no response: {response!r:.200}")
    return response
