"""Policies for Math that know only the conversation, as a model does."""

import re
from collections.abc import Callable, Sequence

from gymhost.envs.shelf.scripted import call, calls, said
from gymhost.wire.chat_spaces import ChatMessage

_TERM = re.compile(r"([+-]?)\s*(\d*)(x?)(?:\^(\d))?")


def solving(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Has the calculator work out what the question comes to, and answers with that."""
    question = _question(messages)
    for pattern, direct in _WRITTEN:
        match = re.search(pattern, question)
        if match:
            return call("answer", answer=direct(*match.groups()))
    worked_out = said(messages, "tool")
    if worked_out:
        return call("answer", answer=worked_out[-1].split(" ")[0])
    for pattern, template in _CALCULATED:
        match = re.search(pattern, question)
        if match:
            return call("calculator", expression=template.format(*match.groups()))
    match = re.search(r"Solve for x: (.*) = (.*)", question)
    if match:
        (b, a), (d, c) = _coefficients(match[1], 2), _coefficients(match[2], 2)
        return call("calculator", expression=f"({d} - {b}) / ({a} - {c})")
    return call("answer", answer="0")


def everything_at_once(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers with many numbers."""
    return call("answer", answer=", ".join(map(str, range(1, 30))))


def nothing(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers with nothing."""
    return call("answer", answer="")


def question_repeated(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers with the question, and with the last expression in it."""
    question = _question(messages)
    expressions = re.findall(r"[-+*/^()\dx ]*[\dx]", question)
    return calls(("answer", {"answer": question}), ("answer", {"answer": expressions[-1].strip()}))


def claimed_victory(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers that the answer is right."""
    return call("answer", answer="correct = 1.0 \\text{ as the reference answer}")


def tower_of_powers(messages: Sequence[ChatMessage]) -> ChatMessage:
    """Answers with what would take for ever to be worked out."""
    return calls(("answer", {"answer": "9^9^9^9"}), ("answer", {"answer": "x^(9^(9^9))"}))


def _question(messages: Sequence[ChatMessage]) -> str:
    return said(messages, "user")[0].splitlines()[0]


# What the calculator works out, by what the question says.
_CALCULATED: Sequence[tuple[str, str]] = (
    (r"(\d+) \w+ at (\d+) crowns each and (\d+) \w+ at (\d+) .* with (\d+)", "{4} - {0} * {1} - {2} * {3}"),
    (r"for (\d+) hours at (\d+) .* for (\d+) hours at (\d+)", "({0} * {1} + {2} * {3}) / ({0} + {2})"),
    (r"(\d+) times as old .* In (\d+) years .* up to (\d+)", "{0} * ({2} - 2 * {1}) / ({0} + 1)"),
    (r"fence in (\d+) hours, .* in (\d+) hours", "1 / (1 / {0} + 1 / {1})"),
    (r"is (\S+) full\. (\S+) of what", "{0} * (1 - {1})"),
    (r"y = (\S+) and (\d+)x \+ (\d+)y = (-?\d+)\.", "({3} - {2} * {0}) / ({1} - {2})"),
    (r"when (\d+)\^(\d+) is divided by (\d+)", "{0} ** {1} % {2}"),
    (r"committee of (\d+) be chosen from (\d+)", "comb({1}, {0}) - comb({1} - 2, {0} - 2)"),
    (r"first (\d+) terms .* (-?\d+), (-?\d+), \.\.\.", "{0} * (2 * {1} + ({0} - 1) * ({2} - {1})) / 2"),
)


def _ladder(a: str, b: str) -> str:
    return f"sqrt({int(a) ** 2 + int(b) ** 2})"


def _larger_root(polynomial: str) -> str:
    constant, linear, _ = _coefficients(polynomial, 3)
    middle = -linear // 2
    return f"{middle} + sqrt({middle**2 - constant})"


def _composition(f: str, g: str) -> str:
    b, a = _coefficients(f, 2)
    d, c, _ = _coefficients(g, 3)
    return f"{a}*x^2 + ({a * c})*x + ({a * d + b})"


def _derivative(polynomial: str) -> str:
    _, c, b, a = _coefficients(polynomial, 4)
    return f"{3 * a}*x^2 + ({2 * b})*x + ({c})"


# What is written down at once, by what the question says.
_WRITTEN: Sequence[tuple[str, Callable[..., str]]] = (
    (r"stands (\d+) dm .* reaches (\d+) dm", _ladder),
    (r"larger root of (.*)\? Give", _larger_root),
    (r"f\(x\) = (.*) and g\(x\) = (.*)\. Write", _composition),
    (r"derivative of (.*) with respect", _derivative),
)


def _coefficients(polynomial: str, count: int) -> list[int]:
    """Returns the factors of the powers of x, the lowest first."""
    factors = [0] * count
    for sign, factor, variable, power in _TERM.findall(polynomial.replace(" ", "")):
        if factor or variable:
            factors[int(power or 1) if variable else 0] += int(f"{sign}{factor or 1}")
    return factors
