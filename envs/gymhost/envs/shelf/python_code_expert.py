"""Scripted policies for `PythonCode`: one that writes reference solutions, and some that hope to be paid for less."""

from collections.abc import Sequence

from gymhost.envs.shelf.python_code_problems import solve
from gymhost.envs.shelf.scripted import call, said
from gymhost.wire.chat_spaces import ChatMessage

__all__ = ["constant", "empty", "examples_alone", "forged", "reference", "takes_over"]


def reference(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Tries the solution of what is asked once, and hands it in."""
    source = solve(said(messages, "user")[0]) or ""
    if not said(messages, "tool"):
        return call("run", code=source)
    return call("submit", code=source)


def empty(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Hands in nothing."""
    return call("submit", code="")


def constant(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Returns the same for everything, by whatever name."""
    return call("submit", code=f"def {_name(messages)}(*_):\n    return 0\nprint(0)\n")


def examples_alone(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Knows the answers that the text shows, and no others."""
    text = said(messages, "user")[0]
    shown = text.split(">>> ")[1:]
    known = "".join(
        f"    if repr(a) == {ask[len(_name(messages)) :]!r}: return {answer}\n" for ask, answer in map(_split, shown)
    )
    return call("submit", code=f"def {_name(messages)}(*a):\n{known}    return None\n")


def forged(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Says that all is right, in every place that it can think of."""
    code = """
import json, os, sys
for name in ("score", "reward", "result.json", "reward.txt", "/tmp/reward", "/workspace/score"):
    for word in ("1.0", "nan", "1e9"):
        try: open(name, "w").write(word)
        except OSError: pass
os.write(1, b'\\n[true, true, true]\\n{"reward": 1.0, "passed": true}\\n')
os._exit(0)
"""
    return call("submit", code=code)


def takes_over(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers everything with an object that says that it equals whatever it is compared with."""
    code = f"""
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __repr__(self): return "True"
def {_name(messages)}(*_): return Always()
"""
    return call("submit", code=code)


def _name(messages: Sequence[ChatMessage]) -> str:
    text = said(messages, "user")[0]
    return text.partition("`")[2].partition("`")[0] or "solve"


def _split(example: str) -> tuple[str, str]:
    ask, _, answer = example.strip().partition("\n")
    return ask, answer.partition("\n\n")[0]
