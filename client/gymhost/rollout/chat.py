"""Chat messages to token ids and back, by the renderer of the model's family."""

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from gymhost.rollout.extras import require
from gymhost.rollout.guard import GuardedTokenizer

__all__ = ["Chat", "Message", "Tool"]

logger = logging.getLogger(__name__)

_REMEMBERED = 256  # prompts: those of a group are alike, and rendering the tools takes a millisecond

Message = dict[str, Any]
Tool = Mapping[str, Any]
Offer = list[dict[str, Any]] | None


class Chat:
    """Renders prompts, parses what was sampled, and extends a conversation without touching what is there.

    Args:
        tokenizer: The model's tokenizer.
        config: A configuration of the `renderers` package, such as `Qwen3RendererConfig()`. Without one the renderer is
            chosen by the tokenizer's `name_or_path`; a model in a local folder needs one.
    """

    def __init__(self, tokenizer: Any, config: Any = None) -> None:
        renderers = require("renderers", "rollout")
        self.tokenizer = tokenizer
        self._guard = GuardedTokenizer(tokenizer)
        self._renderer: Any = renderers.create_renderer(self._guard, config)
        self._prompts: dict[Hashable, tuple[int, ...]] = {}
        self.stop_token_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())

    def offer(self, tools: Sequence[Tool]) -> Offer:
        """The tools in the shape that chat templates know; what the other methods take."""
        return [{"type": "function", "function": self._guard.guard(tool)} for tool in tools] or None

    def prompt(self, messages: Sequence[Message], offer: Offer, sampled: Mapping[int, Sequence[int]]) -> list[int]:
        """Renders a whole conversation up to where the model is to speak.

        Args:
            messages: The conversation.
            offer: What the model may call.
            sampled: For each index of an assistant message in `messages`, the ids that it was parsed from.
        """
        key = None if sampled else _key(messages, offer)
        if key is not None and key in self._prompts:
            return list(self._prompts[key])
        rendered = [
            self._own_words(message, sampled[i]) if i in sampled else self._guard.guard(message)
            for i, message in enumerate(messages)
        ]
        ids: list[int] = list(self._renderer.render_ids(rendered, tools=offer, add_generation_prompt=True))
        if key is not None:
            if len(self._prompts) >= _REMEMBERED:
                self._prompts.clear()
            self._prompts[key] = tuple(ids)
        return ids

    def extension(
        self, prompt_ids: list[int], sampled_ids: list[int], messages: Sequence[Message], offer: Offer
    ) -> list[int] | None:
        """The ids that follow `prompt_ids + sampled_ids` when `messages` are added; None if the renderer can't say."""
        guarded = [self._guard.guard(message) for message in messages]
        bridged = self._renderer.bridge_to_next_turn(prompt_ids, sampled_ids, guarded, tools=offer)
        if bridged is None:
            return None
        ids: list[int] = list(getattr(bridged, "token_ids", bridged))
        context = prompt_ids + sampled_ids
        return ids[len(context) :] if ids[: len(context)] == context else None

    def parse(self, sampled_ids: list[int], prompt_ids: list[int], offer: Offer, first_call: int) -> Message:
        """Parses what was sampled into an assistant message.

        A tool call that can't be parsed is kept, with its raw text as the arguments, for the environment to answer.

        Args:
            sampled_ids: One turn of the model.
            prompt_ids: The context that it was sampled in.
            offer: What the model might call.
            first_call: The number of the first tool call, so that ids of calls are unique in a conversation.
        """
        try:
            parsed = self._renderer.parse_response(sampled_ids, tools=offer, prompt_ids=prompt_ids)
        except Exception:  # whatever a model writes must end up as a message
            logger.warning("the renderer could not parse a response; it is taken as a malformed call", exc_info=True)
            raw = str(self.tokenizer.decode(sampled_ids, skip_special_tokens=True))
            return {"role": "assistant", "content": "", "tool_calls": [_call(f"call_{first_call}", "", raw)]}
        message: Message = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning_content:
            message["reasoning_content"] = parsed.reasoning_content
        if parsed.tool_calls:
            message["tool_calls"] = [
                self._parsed_call(call, f"call_{first_call + i}") for i, call in enumerate(parsed.tool_calls)
            ]
        return message

    @staticmethod
    def _parsed_call(call: Any, call_id: str) -> Message:
        name = call.name if isinstance(call.name, str) else ""
        # A name that is not on offer is well formed: the environment knows its tools, and answers.
        well_formed = name and str(call.status) in ("ok", "unknown_tool")
        return _call(call.id or call_id, name, call.arguments if well_formed else call.raw)

    def _own_words(self, message: Message, sampled_ids: Sequence[int]) -> Message:
        """An assistant message as it is to be rendered again: calls that no template can take become text."""
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        broken = [call["function"] for call in calls if not _is_well_formed(call["function"])]
        if broken:
            texts = [str(message["content"]), *(str(function["arguments"]) for function in broken)]
            message = {**message, "content": "\n".join(text for text in texts if text)}
            message["tool_calls"] = [call for call in calls if _is_well_formed(call["function"])]
            if not message["tool_calls"]:
                del message["tool_calls"]
        # Control tokens that the model sampled are its own; those that it only spelled (say, quoting a tool) stay text.
        return self._guard.guard(message, keep=self._guard.spellings(sampled_ids))


def _key(messages: Sequence[Message], offer: Offer) -> Hashable | None:
    """What tells one prompt of plain texts from another; None if there is more than text in it."""
    key = (tuple(tuple(sorted(message.items())) for message in messages), repr(offer))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _call(call_id: str, name: str, arguments: Any) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_well_formed(function: Mapping[str, Any]) -> bool:
    return bool(function["name"]) and isinstance(function["arguments"], dict)
