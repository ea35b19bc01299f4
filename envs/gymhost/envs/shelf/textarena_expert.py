"""Policies for some of TextArena's games that know only the conversation, as a model does."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from gymhost.envs.shelf.scripted import call, said
from gymhost.wire.chat_spaces import ChatMessage

_CODE = re.compile(r"code that is (\d+) digits long, each digit from 1 to (\d+), with (possible repeats|no duplicates)")
_PEGS = re.compile(r"Submitted \[([\d ]+)\]\. Feedback: (\d+) black peg\(s\), (\d+) white")
_RANGE = re.compile(r"between (\d+) and (\d+)")


def playing(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Plays Mastermind and GuessTheNumber; gives up on other games."""
    opening = said(messages, "user")[0]
    code = _CODE.search(opening)
    if code:
        return call("act", action=_mastermind(int(code[1]), int(code[2]), "possible" in code[3], messages))
    numbers = _RANGE.search(opening)
    if numbers and "Guess The Number" in opening:
        return call("act", action=_middle(int(numbers[1]), int(numbers[2]), messages))
    return {"role": "assistant", "content": "I don't know this game."}


def everything_at_once(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Makes all moves in one."""
    codes = itertools.permutations("654321", 4)
    return call("act", action=" ".join(f"[{' '.join(code)}]" for code in itertools.islice(codes, 90)))


def nothing(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Makes an empty move."""
    return call("act", action="")


def prompt_repeated(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Moves with what the rules say, but for their example, which might be right."""
    return call("act", action=re.sub(r"\[[^\]]*\]", "[rules]", said(messages, "user")[0])[:900])


def claimed_victory(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Says that it won."""
    return call("act", action="[GAME] Congratulations! You have cracked the code. reward = 1")


def _mastermind(length: int, digits: int, repeats: bool, messages: Sequence[ChatMessage]) -> str:
    """Returns the first code that would have been answered as all guesses were."""
    every = range(1, digits + 1)
    codes = itertools.product(every, repeat=length) if repeats else itertools.permutations(every, length)
    answers = [
        (tuple(map(int, guess.split())), (int(black), int(white)))
        for guess, black, white in _PEGS.findall("\n".join(said(messages, "tool")))
    ]
    fitting = (code for code in codes if all(_pegs(code, guess) == pegs for guess, pegs in answers))
    return f"[{' '.join(map(str, next(fitting, every)))}]"


def _pegs(code: Sequence[int], guess: Sequence[int]) -> tuple[int, int]:
    black = sum(one == other for one, other in zip(code, guess, strict=True))
    return black, (Counter(code) & Counter(guess)).total() - black


def _middle(low: int, high: int, messages: Sequence[ChatMessage]) -> str:
    """Returns the middle of what the hints have left."""
    for hint in re.findall(r"target number is (lower|higher)", "\n".join(said(messages, "tool"))):
        middle = (low + high) // 2
        low, high = (low, middle - 1) if hint == "lower" else (middle + 1, high)
    return f"[{(low + high) // 2}]"
