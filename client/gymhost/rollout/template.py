"""Chat by a model's template alone, where `renderers` does not know the model's family.

A template says how a whole conversation is written, and nothing about how one is continued. What it adds after a turn
of the model is therefore taken as a difference: the conversation is written with and without what is new, and the
difference is used only if the template left everything before it as it was, and reads the model's turn as the model
said it. Where it does not, nothing is appended: `extension` returns None, and the conversation begins a new row.
"""

import importlib
import itertools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from gymhost.rollout.content import CannotRender
from gymhost.rollout.extras import require
from gymhost.rollout.guard import GuardedTokenizer, as_said
from gymhost.rollout.hermes import describe_tools, read_hermes

__all__ = ["Parser", "TemplateRenderer"]

logger = logging.getLogger(__name__)

Message = dict[str, Any]
Parser = Callable[[str], Any]
"""Reads the text of a turn into a `renderers.ParsedResponse`."""

_PROBE = "probe-3f7a"
_TELLING = "[aB]  c,|d"
_CALL: Message = {"id": "call00000", "type": "function", "function": {"name": _PROBE, "arguments": {}}}
_TOOL = {"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {"type": "object"}}}
_USER: Message = {"role": "user", "content": "x"}


class TemplateRenderer:
    """Does what the renderers of the `renderers` package do, by a tokenizer's chat template.

    Args:
        tokenizer: The tokenizer, with a chat template.
        config: A `renderers.DefaultRendererConfig`: further arguments of the template, and the names of parsers.
        parser: Reads the text of a turn. By default the parsers that `config` names do, or else it is read in Hermes'
            way.

    Raises:
        ValueError: The tokenizer has no chat template, or nothing that ends a turn.
    """

    def __init__(self, tokenizer: GuardedTokenizer, config: Any, parser: Parser | None = None) -> None:
        self._tokenizer = tokenizer
        self._name = str(getattr(tokenizer, "name_or_path", ""))
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(f"no renderer is known for {self._name!r}, and it has no chat template to go by")
        self._arguments = dict(config.model_extra or {})
        named = config.tool_parser or config.reasoning_parser
        self._parsers: Any = require("renderers", "rollout").DefaultRenderer(tokenizer, config) if named else None
        self._parser = parser or read_hermes
        self._wants_blocks = False
        if _PROBE not in self._probe([{"role": "user", "content": _PROBE}]):
            self._wants_blocks = True
            self._wants_blocks = _PROBE in self._probe([{"role": "user", "content": _PROBE}])
        shown = self._probe([{"role": "user", "content": _TELLING}])
        if shown and _TELLING not in shown:
            logger.warning(
                "the chat template of %r changes what messages say: text of an environment may come out of it as a"
                " control token, which nothing notices",
                self._name,
            )
        self._knows_tools = _PROBE in self._probe([_USER], tools=[_TOOL])
        self._knows_calls = _PROBE in self._probe([_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}])
        self._knows_reasoning = _PROBE in self._probe(
            [_USER, {"role": "assistant", "content": "x", "reasoning_content": _PROBE}]
        )
        answer: Message = {"role": "tool", "tool_call_id": _CALL["id"], "name": _PROBE, "content": _PROBE}
        said: Message = {"role": "assistant", "content": "x"}
        self._knows_loose_answers = _PROBE * 2 in self._probe([_USER, said, {**answer, "content": _PROBE * 2}])
        self._knows_answers = _PROBE * 2 in self._probe(
            [_USER, {**said, "tool_calls": [_CALL]}, {**answer, "content": _PROBE * 2}]
        )
        self._knows_system = _PROBE in self._probe([{"role": "system", "content": _PROBE}, _USER])
        self._close = self._find_close()
        self._stop_ids = self._find_stop_ids()
        if not self._stop_ids:
            raise ValueError(f"nothing is known that ends a turn of {self._name!r}: set its eos_token")
        self._tell(parser, named)

    def get_stop_token_ids(self) -> list[int]:
        """The ids that end a turn."""
        return list(self._stop_ids)

    def render_ids(self, messages: list[Message], *, tools: Any, add_generation_prompt: bool) -> list[int]:
        """The ids of a whole conversation.

        Raises:
            CannotRender: The template refuses it.
        """
        return self._tokenizer.encode(self._text(messages, tools, add_generation_prompt), add_special_tokens=False)

    def parse_response(self, token_ids: list[int], *, tools: Any, prompt_ids: list[int] | None) -> Any:
        """Reads a turn of the model into a `renderers.ParsedResponse`."""
        if self._parsers is not None:
            return self._parsers.parse_response(token_ids, tools=tools, prompt_ids=prompt_ids)
        text = self._tokenizer.read(self._body(token_ids))
        if self._begins_in_thought(prompt_ids or []) and not text.lstrip().startswith("<think>"):
            text = "<think>" + text
        response = self._parser(text)
        response.content = as_said(response.content)
        response.reasoning_content = as_said(response.reasoning_content)
        for call in response.tool_calls:
            call.name, call.arguments, call.raw = as_said(call.name), as_said(call.arguments), as_said(call.raw)
        return response

    def own_words(self, message: Message, sampled_ids: Sequence[int], *, broken: bool) -> Message | None:
        """A turn as the text that was sampled, where the template can't write down what was read from it; else None.

        Args:
            message: What was read from the turn.
            sampled_ids: The turn.
            broken: Whether it holds a call that no template can take.
        """
        calls = bool(message.get("tool_calls")) and not self._knows_calls
        thoughts = bool(message.get("reasoning_content")) and not self._knows_reasoning
        if not (calls or thoughts or broken):
            return None
        return {"role": "assistant", "content": self._tokenizer.read(self._body(sampled_ids))}

    def extension(
        self,
        history: Sequence[Message],
        prompt_ids: list[int],
        sampled_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Any,
    ) -> list[int] | None:
        """The ids that follow a turn when messages are added; None if they can't be appended to what is there.

        Args:
            history: What was said so far, guarded; the turn that was sampled is the last.
            prompt_ids: The context that it was sampled in.
            sampled_ids: The turn.
            messages: What is new, guarded.
            tools: What the model may call.

        Raises:
            CannotRender: The template refuses it.
        """
        before = self._text(history[:-1], tools, True)
        after = self._text([*history, *messages], tools, True)
        if not after.startswith(before):
            return None
        said = self._tokenizer.read(sampled_ids)
        if after.startswith(said, len(before)):
            added: str | None = after[len(before) + len(said) :]
        else:
            added = self._after_other_spelling(history, prompt_ids, sampled_ids, before, after, tools)
        return None if added is None else self._ids_after(before + said, added)

    def _after_other_spelling(
        self,
        history: Sequence[Message],
        prompt_ids: list[int],
        sampled_ids: Sequence[int],
        before: str,
        after: str,
        tools: Any,
    ) -> str | None:
        """What follows a turn that the template writes in its own way (say, with other spaces in a call's JSON).

        None if what it writes does not read as the same turn, such as one without its thoughts.
        """
        written = self._text(history, tools, False)
        if not (written.startswith(before) and after.startswith(written)):
            return None
        ended = len(self._body(sampled_ids)) < len(sampled_ids)
        close = self._tokenizer.read(sampled_ids[-1:]) if ended else self._close
        if not close:
            return None
        body, found, rest = written[len(before) :].rpartition(close)
        if not found:
            return None
        same = self._tokenizer.encode(body, add_special_tokens=False)
        if self._gist(same, prompt_ids, tools) != self._gist(sampled_ids, prompt_ids, tools):
            return None
        return (rest if ended else close + rest) + after[len(written) :]

    def _gist(self, ids: Sequence[int], prompt_ids: list[int], tools: Any) -> Any:
        response = self.parse_response(list(ids), tools=tools, prompt_ids=prompt_ids)
        calls = [
            (call.name, call.arguments) if str(call.status) == "ok" else call.raw for call in response.tool_calls or ()
        ]
        return response.content.strip(), (response.reasoning_content or "").strip(), calls

    def _ids_after(self, text: str, added: str) -> list[int] | None:
        """The ids of what is added to a text; None if tokens would reach over the border.

        Control tokens stand by themselves, so that what is encoded is the text from the last of them on.
        """
        start = max((text.rfind(spelling) for spelling in self._tokenizer.controls), default=0)
        known = self._tokenizer.encode(text[max(0, start) :], add_special_tokens=False)
        both = self._tokenizer.encode(text[max(0, start) :] + added, add_special_tokens=False)
        return both[len(known) :] if both[: len(known)] == known else None

    def _text(self, messages: Sequence[Message], tools: Any, add_generation_prompt: bool) -> str:
        """What the template writes.

        Raises:
            CannotRender: The template refuses it.
        """
        shown = self._speakable(messages, tools)
        try:
            return self._apply(shown, tools if self._knows_tools else None, add_generation_prompt)
        except Exception as error:  # a template may raise whatever it likes
            roles = ", ".join(str(message.get("role")) for message in shown)
            raise CannotRender(
                f"the chat template of {self._name!r} can't write messages of the roles {roles}: {error}"
            ) from error

    def _apply(self, messages: Sequence[Message], tools: Any, add_generation_prompt: bool = False) -> str:
        shown = list(messages)
        if self._wants_blocks:
            shown = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in shown]
        return self._tokenizer.apply_chat_template(
            shown,
            tools=tools,
            tokenize=False,
            **{**self._arguments, "add_generation_prompt": add_generation_prompt},
        )

    def _probe(self, messages: Sequence[Message], tools: Any = None) -> str:
        try:
            return self._apply(messages, tools)
        except Exception:  # noqa: BLE001 - whatever it is, the template does not know this
            return ""

    def _speakable(self, messages: Sequence[Message], tools: Any) -> list[Message]:
        """The messages in what the template has words for."""
        shown: list[Message] = []
        for is_answer, run in itertools.groupby(messages, key=lambda message: message.get("role") == "tool"):
            asked = bool(shown and shown[-1].get("tool_calls"))
            if is_answer and not (self._knows_loose_answers or (asked and self._knows_answers)):
                answers = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in run]
                shown.append({"role": "user", "content": "\n".join(answers)})
            else:
                shown.extend(run)
        opening = [describe_tools(tools)] if tools and not self._knows_tools else []
        if shown and shown[0].get("role") == "system" and (opening or not self._knows_system):
            opening.insert(0, str(shown.pop(0)["content"]))
        if not opening:
            return shown
        text = "\n\n".join(opening)
        if self._knows_system:
            return [{"role": "system", "content": text}, *shown]
        if not shown:
            return [{"role": "user", "content": text}]
        return [{**shown[0], "content": f"{text}\n\n{shown[0]['content']}"}, *shown[1:]]

    def _body(self, sampled_ids: Sequence[int]) -> list[int]:
        """A turn without what ended it."""
        ids = list(sampled_ids)
        return ids[:-1] if ids and ids[-1] in self._stop_ids else ids

    def _begins_in_thought(self, prompt_ids: list[int]) -> bool:
        return self._tokenizer.read(prompt_ids[-16:]).rstrip().endswith("<think>")

    def _find_close(self) -> str:
        """The control token that the template puts after a turn of the model, as it is spelled; empty without one."""
        written = self._probe([_USER, {"role": "assistant", "content": _PROBE}]).rpartition(_PROBE)[2]
        controls = sorted(self._tokenizer.controls, key=len, reverse=True)
        match = re.search("|".join(map(re.escape, controls)), written) if controls else None
        return match[0] if match else ""

    def _find_stop_ids(self) -> tuple[int, ...]:
        close = [self._tokenizer.controls[self._close]] if self._close else []
        eos = self._tokenizer.eos_token_id
        return tuple(dict.fromkeys([*close, *([] if eos is None else [eos]), *_configured_eos(self._name)]))

    def _tell(self, parser: Parser | None, named: str | None) -> None:
        way = (
            "as you say"
            if parser
            else f"by {named!r}"
            if named
            else "in Hermes' way (<tool_call>{json}</tool_call>, <think>)"
        )
        gaps = {
            "tools (they are described in the first message)": self._knows_tools,
            "tool calls (they stay the text that was sampled)": self._knows_calls,
            "reasoning (it stays the text that was sampled)": self._knows_reasoning,
            "tools' answers (they become a user's messages)": self._knows_answers,
            "the system's role (it becomes a part of the first message)": self._knows_system,
        }
        lacking = ", ".join(what for what, known in gaps.items() if not known)
        logger.info(
            "`renderers` does not know %r: its own chat template is used, turns end with %s and are read %s%s",
            self._name,
            ", ".join(self._tokenizer.read([i]) for i in self._stop_ids),
            way,
            f"; the template does not know {lacking}" if lacking else "",
        )


def _configured_eos(name: str) -> list[int]:
    """What the generation config beside the tokenizer says, if one is on this machine."""
    try:
        transformers: Any = importlib.import_module("transformers")
        eos: Any = transformers.GenerationConfig.from_pretrained(name, local_files_only=True).eos_token_id
    except (ImportError, OSError, ValueError):  # another kind of tokenizer, or no such file
        return []
    return [] if eos is None else [eos] if isinstance(eos, int) else cast(list[int], list(eos))
