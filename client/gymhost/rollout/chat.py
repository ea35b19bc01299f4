"""Chat messages to token ids and back, by the renderer of the model's family."""

import contextlib
import functools
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymhost.rollout.content import CannotRender, text_only
from gymhost.rollout.extras import require
from gymhost.rollout.guard import GuardedTokenizer, as_text
from gymhost.rollout.template import Parser, TemplateRenderer

__all__ = ["Chat", "Message", "Spoken", "Tool"]

logger = logging.getLogger(__name__)

_ROLES = frozenset({"system", "user", "assistant", "tool"})
_LONG = 8192  # characters: what is shorter is encoded in a few milliseconds
_PROBE = "probe-3f7a"
_REMEMBERED = 256  # prompts: those of a group are alike, and rendering the tools takes a millisecond

Message = dict[str, Any]
Tool = Mapping[str, Any]
Offer = list[dict[str, Any]] | None


@dataclass(slots=True)
class Spoken:
    """What the model said in one turn: its ids, and the message that they are rendered as, once they were."""

    ids: Sequence[int]
    message: Message | None = None


class Chat:
    """Renders prompts, parses what was sampled, and extends a conversation without touching what is there.

    The renderer is the one that the `renderers` package has for the model's family. Where it knows none, the chat
    template of the tokenizer is used, and the log says what was assumed: see `gymhost.rollout.template`.

    Args:
        tokenizer: The model's tokenizer.
        config: A configuration of the `renderers` package, such as `Qwen3RendererConfig()`. Without one the renderer is
            chosen by the tokenizer's `name_or_path`; a model in a local folder, which goes by no name, is only known
            with one. `DefaultRendererConfig()` asks for the chat template.
        parser: For a model whose chat template is used: reads the text of a turn into a `renderers.ParsedResponse`.
            By default it is read in Hermes' way (`<tool_call>{json}</tool_call>`, `<think>`).

    Raises:
        ValueError: No renderer is known and the tokenizer has no chat template, or a parser was given for a model whose
            renderer parses.
        NotImplementedError: The configuration asks for what only the renderer of a known family can do.
    """

    def __init__(self, tokenizer: Any, config: Any = None, parser: Parser | None = None) -> None:
        self.tokenizer = tokenizer
        self._guard = GuardedTokenizer(tokenizer)
        self._renderer: Any = _renderer_of(self._guard, config, parser)
        self._template = self._renderer if isinstance(self._renderer, TemplateRenderer) else None
        self._prompts: dict[Hashable, tuple[int, ...]] = {}
        self._shows_role = functools.lru_cache(_REMEMBERED)(self._finds_role)
        self.stop_token_ids: tuple[int, ...] = tuple(self._renderer.get_stop_token_ids())

    def offer(self, tools: Sequence[Tool]) -> Offer:
        """The tools in the shape that chat templates know; what the other methods take."""
        return [{"type": "function", "function": self._guard.guard(tool)} for tool in tools] or None

    def prompt(self, messages: Sequence[Message], offer: Offer, sampled: Mapping[int, Spoken]) -> list[int]:
        """Renders a whole conversation up to where the model is to speak.

        Args:
            messages: The conversation.
            offer: What the model may call.
            sampled: For each index of an assistant message in `messages`, what it was parsed from.

        Raises:
            CannotRender: The model can't be shown one of the messages.
        """
        key = None if sampled else _key(messages, offer)
        if key is not None and key in self._prompts:
            return list(self._prompts[key])
        guarded = self._guarded(messages, sampled)
        ids: list[int] = list(self._renderer.render_ids(guarded, tools=offer, add_generation_prompt=True))
        if key is not None:
            if len(self._prompts) >= _REMEMBERED:
                self._prompts.clear()
            self._prompts[key] = tuple(ids)
        return ids

    def least_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens messages take at the least, told without encoding them; 0 unless they are long."""
        texts = (message.get("content") for message in messages)
        length = sum(len(text.strip()) for text in texts if isinstance(text, str))
        return length // self._longest_token if length > _LONG else 0

    @functools.cached_property
    def _longest_token(self) -> int:
        """The most characters that a token stands for."""
        return max(map(len, self.tokenizer.get_vocab()))

    def extension(
        self,
        history: Sequence[Message],
        sampled: Mapping[int, Spoken],
        context: list[int],
        messages: Sequence[Message],
        offer: Offer,
    ) -> list[int] | None:
        """The ids that follow the context when messages are added; None if they can't be appended to what is there.

        Args:
            history: The conversation, which ends with a turn of the model.
            sampled: For each index of an assistant message in `history`, what it was parsed from.
            context: The ids of the conversation, which end with those of that turn.
            messages: What is new.
            offer: What the model may call.

        Raises:
            CannotRender: The model can't be shown one of the messages.
        """
        turn = list(sampled[len(history) - 1].ids)
        prompt_ids = context[: len(context) - len(turn)]
        guarded = self._guarded(messages, {})
        if self._template is not None:
            return self._template.extension(self._guarded(history, sampled), prompt_ids, turn, guarded, offer)
        bridged = self._renderer.bridge_to_next_turn(prompt_ids, turn, guarded, tools=offer)
        if bridged is None:
            return None
        ids: list[int] = list(getattr(bridged, "token_ids", bridged))
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
        return as_text(message)

    @staticmethod
    def _parsed_call(call: Any, call_id: str) -> Message:
        name = call.name if isinstance(call.name, str) else ""
        # A name that is not on offer is well formed, and so is text where JSON would have been: the environment knows
        # its tools, and answers.
        status = str(call.status)
        arguments: Any = call.arguments
        plain = status == "invalid_json" and isinstance(arguments, dict)
        well_formed = name and (plain or status in ("ok", "unknown_tool"))
        return _call(call.id or call_id, name, arguments if well_formed else call.raw)

    def _guarded(self, messages: Sequence[Message], sampled: Mapping[int, Spoken]) -> list[Message]:
        """Messages as the renderer is to be given them."""
        return [
            self._own_words(message, sampled[i]) if i in sampled else self._guard.guard(self._shown(message))
            for i, message in enumerate(messages)
        ]

    def _shown(self, message: Message) -> Message:
        """What the model is shown of a message, if it is shown it at all."""
        role = message.get("role")
        if not (isinstance(role, str) and (role in _ROLES or self._shows_role(role))):
            raise CannotRender(f"the model is shown no messages of the role {role!r}: its renderer leaves them out")
        return text_only(message)

    def _finds_role(self, role: str) -> bool:
        """Whether the renderer knows a role; of what it does not know it says nothing."""
        probe, user = {"role": role, "content": _PROBE}, {"role": "user", "content": "x"}
        for messages in ([user, probe], [probe, user]):
            with contextlib.suppress(Exception):  # it has its own place for that role
                ids = self._renderer.render_ids(messages, tools=None, add_generation_prompt=False)
                return _PROBE in str(self.tokenizer.decode(list(ids)))
        return False

    def _own_words(self, message: Message, spoken: Spoken) -> Message:
        if spoken.message is None:
            spoken.message = self._in_own_words(message, spoken.ids)
        return spoken.message

    def _in_own_words(self, message: Message, sampled_ids: Sequence[int]) -> Message:
        """An assistant message as it is to be rendered again: calls that no template can take become text."""
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        broken = [call["function"] for call in calls if not _is_well_formed(call["function"])]
        if self._template is not None:
            words = self._template.own_words(message, sampled_ids, broken=bool(broken))
            if words is not None:
                return words
        if broken:
            texts = [str(message["content"]), *(str(function["arguments"]) for function in broken)]
            message = {**message, "content": "\n".join(text for text in texts if text)}
            message["tool_calls"] = [call for call in calls if _is_well_formed(call["function"])]
            if not message["tool_calls"]:
                del message["tool_calls"]
        # Control tokens that the model sampled are its own, apart from the one that ended its turn; those that it only
        # spelled (say, quoting a tool) stay text.
        ended = bool(sampled_ids) and sampled_ids[-1] in self.stop_token_ids
        return self._guard.guard(message, keep=self._guard.spellings(sampled_ids[:-1] if ended else sampled_ids))


def _renderer_of(tokenizer: GuardedTokenizer, config: Any, parser: Parser | None) -> Any:
    renderers = require("renderers", "rollout")
    known: Any = require("renderers.base", "rollout").MODEL_RENDERER_MAP
    auto = isinstance(config, renderers.AutoRendererConfig) and config.thinking_retention is None
    if (config is None or auto) and getattr(tokenizer, "name_or_path", "") not in known:
        config = renderers.DefaultRendererConfig()
    if isinstance(config, renderers.DefaultRendererConfig):
        return TemplateRenderer(tokenizer, config, parser)
    if parser is not None:
        raise ValueError("this model's renderer parses what it says: a parser is for models that are not known")
    return renderers.create_renderer(tokenizer, config)


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
