"""The text of single token ids, for people to read."""

import functools
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["piece", "pieces"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def pieces(tokenizer: Any, token_ids: Iterable[int]) -> dict[int, str]:
    """Returns the text of each of the ids; see `piece`."""
    added = tokenizer.added_tokens_decoder  # one look, since tokenizers make it anew each time
    return {token_id: _piece(tokenizer, token_id, added) for token_id in token_ids}


def piece(tokenizer: Any, token_id: int) -> str:
    r"""Returns the text that a token stands for within a longer text, so with the space that it begins with.

    Control tokens are given as they are spelled. Bytes that are no text on their own, such as a part of an emoji, are
    given like `\xf0\x9f`, and ids that no token has like `[151900]`.

    Args:
        tokenizer: A tokenizer of transformers.
        token_id: One of its ids.
    """
    return pieces(tokenizer, [token_id])[token_id]


def _piece(tokenizer: Any, token_id: int, added: dict[int, Any]) -> str:
    if token_id in added:
        return str(added[token_id])
    try:
        token: str | None = tokenizer.convert_ids_to_tokens(token_id)
    except (IndexError, KeyError, OverflowError):  # tokenizers differ in how they say that there is none
        token = None
    if not token:
        return f"[{token_id}]"
    once = _decoded(tokenizer, [token_id])
    if "�" in once:
        return _bytes_of(token).decode("utf-8", "backslashreplace")
    # Some tokenizers drop the space at the beginning of a text: the second of two has it.
    twice = _decoded(tokenizer, [token_id, token_id])
    return twice.removeprefix(once) if twice.startswith(once) else once


def _decoded(tokenizer: Any, token_ids: list[int]) -> str:
    return str(tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _bytes_of(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    table = _byte_level()
    if all(letter in table for letter in token):
        return bytes(table[letter] for letter in token)
    return token.encode()


@functools.cache
def _byte_level() -> dict[str, int]:
    """The letters that byte-level tokenizers write for bytes: printable ones for themselves, others from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}
