"""Keeps control-token spellings in text of the environment from becoming control tokens.

A tokenizer turns the spelling of a control token (`<|im_end|>`, `<tool_call>`, ...) into that token wherever it stands,
so that a tool could forge a turn of the system. Here such spellings are broken by a marker before the chat template is
applied, and the tokenizer that the renderer is given encodes the pieces on each side of a marker on their own: the
model reads the same characters, made of ordinary tokens.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["GuardedTokenizer", "as_said", "as_text"]

# A noncharacter of Unicode: it is set aside for internal use and never stands in text that is to be exchanged.
MARKER = "\ufdd0"
REPLACEMENT = "\ufffd"

# No tokenizer takes half of a surrogate pair, which a model can write in JSON as "\\ud800".
_NO_TEXT = re.compile(f"[{MARKER}\ud800-\udfff]")

_SPACES = " \t\r\n\u2581"  # the last one is how SentencePiece writes a space

_SHORT = 256
_REMEMBERED = 8192


class GuardedTokenizer:
    """A tokenizer that knows the marker; everything else is that of the tokenizer it wraps.

    Args:
        tokenizer: A Hugging Face tokenizer, or what else `renderers` takes.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.controls = _control_spellings(tokenizer)
        self._folds = _folds(tokenizer)
        self._control_ids = frozenset(self.controls.values())
        self._patterns: dict[frozenset[str], re.Pattern[str] | None] = {}
        # A renderer encodes the same short pieces of its template over and over, and a tokenizer's call costs 0.1 ms
        # whatever its length.
        self._encode_short = functools.lru_cache(_REMEMBERED)(self._encode)
        self._offsets_short = functools.lru_cache(_REMEMBERED)(self._offsets)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def guard(self, value: Any, keep: frozenset[str] = frozenset()) -> Any:
        """Breaks the spellings in a text, or in all texts in lists and mappings.

        Args:
            value: What to guard; anything that is no text, list or mapping is returned as it is.
            keep: Spellings to leave as they are, since they stand for control tokens that the model itself sampled.
        """
        return in_texts(value, lambda text: self._guard_text(text, keep))

    def _guard_text(self, text: str, keep: frozenset[str]) -> str:
        text = _readable(text)
        pattern = self._pattern(keep)
        if pattern is None:
            return text
        # Once more after each pass: the rest of one spelling may be the start of another.
        while pattern.search(text):
            text = pattern.sub(lambda match: _broken(match[0]), text)
        return self._guard_folded(text, keep) if self._folds else text

    def _guard_folded(self, text: str, keep: frozenset[str]) -> str:
        """Breaks what only becomes the spelling of a control token as the tokenizer normalizes it."""
        while True:
            ids, offsets = self._offsets(text)
            parts: list[str] = []
            done = 0
            for token, (start, end) in zip(ids, offsets, strict=True):
                # What is to be kept is spelled as the decoder spells it, perhaps with spaces that the token takes in.
                if token in self._control_ids and done <= start < end and text[start:end].strip() not in keep:
                    parts += (text[done:start], _broken(text[start:end]))
                    done = end
            if not parts:
                return text
            text = "".join(parts) + text[done:]

    def _pattern(self, keep: frozenset[str]) -> re.Pattern[str] | None:
        if keep not in self._patterns:
            spellings = sorted(self.controls.keys() - keep, key=len, reverse=True)
            self._patterns[keep] = re.compile("|".join(map(re.escape, spellings))) if spellings else None
        return self._patterns[keep]

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        """Encodes text, piece by piece where it is marked."""
        if MARKER not in text and (args or kwargs != {"add_special_tokens": False}):
            return self._tokenizer.encode(text, *args, **kwargs)
        return list(self._encode_short(text) if len(text) <= _SHORT else self._encode(text))

    def _encode(self, text: str) -> tuple[int, ...]:
        pieces = text.split(MARKER)
        return tuple(i for piece in pieces if piece for i in self._tokenizer.encode(piece, add_special_tokens=False))

    def __call__(self, text: Any, *args: Any, **kwargs: Any) -> Any:
        """Encodes text with character offsets, piece by piece where it is marked."""
        usual = not args and kwargs == {"add_special_tokens": False, "return_offsets_mapping": True}
        if not isinstance(text, str) or (MARKER not in text and not usual):
            return self._tokenizer(text, *args, **kwargs)
        ids, offsets = self._offsets_short(text) if len(text) <= _SHORT else self._offsets(text)
        return {"input_ids": list(ids), "offset_mapping": list(offsets)}

    def _offsets(self, text: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        position = 0
        for piece in text.split(MARKER):
            if piece:
                encoded = self._tokenizer(piece, add_special_tokens=False, return_offsets_mapping=True)
                ids.extend(encoded["input_ids"])
                offsets.extend((position + start, position + end) for start, end in encoded["offset_mapping"])
            position += len(piece) + len(MARKER)
        return tuple(ids), tuple(offsets)

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Renders with the tokenizer's own template, and encodes what it wrote piece by piece."""
        tokenize = kwargs.pop("tokenize", True)
        kwargs.pop("return_dict", None)
        text = self._tokenizer.apply_chat_template(conversation, tokenize=False, **kwargs)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def spellings(self, ids: Iterable[int]) -> frozenset[str]:
        """The spellings of the control tokens among `ids`."""
        present = set(ids)
        return frozenset(text for text, token in self.controls.items() if token in present)

    def read(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, guarded: only what is a control token in them is spelled like one."""
        sampled = self.spellings(ids)
        text = self._decode(ids)
        if sum(map(text.count, sampled)) == sum(token in self._control_ids for token in ids):
            return self._guard_text(text, sampled)
        # Some are spelled too. They are told apart run by run, which is not the rule since decoders may look at
        # neighbours.
        runs = itertools.groupby(ids, key=self._control_ids.__contains__)
        return "".join(
            self._decode(list(run)) if control else self._guard_text(self._decode(list(run)), frozenset())
            for control, run in runs
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _broken(spelling: str) -> str:
    """A spelling that is none any more; of one that can't be broken nothing is left."""
    return spelling[0] + MARKER + spelling[1:] if len(spelling) > 1 else REPLACEMENT


def in_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Changes a text, or all texts in lists and mappings, whose keys may be a tool's as well."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {in_texts(key, change): in_texts(item, change) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [in_texts(item, change) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def as_said(value: Any) -> Any:
    """What was guarded, as it was before."""
    return in_texts(value, lambda text: text.replace(MARKER, ""))


def as_text(value: Any) -> Any:
    """What a model wrote, without what is no text."""
    return in_texts(value, _readable)


def _readable(text: str) -> str:
    return text if text.isascii() else _NO_TEXT.sub(REPLACEMENT, text)


def _control_spellings(tokenizer: Any) -> dict[str, int]:
    """What the tokenizer cuts out of text before it encodes: special tokens and others that were added."""
    added: dict[str, int] = dict(tokenizer.get_added_vocab()) if hasattr(tokenizer, "get_added_vocab") else {}
    decoder: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
    special: set[str] = {*(getattr(tokenizer, "all_special_tokens", None) or ())}
    special.update(token.content for token in decoder.values() if token.special)
    for spelling in special:
        added.setdefault(spelling, tokenizer.convert_tokens_to_ids(spelling))
    return {spelling: token for spelling, token in added.items() if _is_control(spelling, spelling in special)}


def _is_control(spelling: str, special: bool) -> bool:
    """Whether text must not hold a token: all but spaces, and single characters that stand for nothing but themselves.

    A single character can't be broken, and is taken out of text. That may be one for private use, or one that is
    special, but neither a letter that was added to a vocabulary nor the "!" that some tokenizers pad with.
    """
    core = spelling.strip(_SPACES)
    if len(core) != 1:
        return len(core) > 1
    plain = core == REPLACEMENT or (core.isascii() and core.isprintable())
    return unicodedata.category(core) == "Co" or (special and not plain)


def _folds(tokenizer: Any) -> bool:
    """Whether the tokenizer looks for control tokens in text that it has normalized (say, to lower case)."""
    if getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None) is None:
        return False
    return any(token.normalized for token in tokenizer.added_tokens_decoder.values())
