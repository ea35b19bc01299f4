"""Answers to mathematical questions: which are taken, and which are right.

math-verify compares them. It bounds its work by signals, which reach the main thread alone, so its limits are off and
what is given to it is bounded before: answers are short, of a few signs, and have no powers that would have to be
worked out for ever.
"""

import logging
import re
from fractions import Fraction
from typing import Any, Literal

from gymhost.envs.shelf.extra import needed

__all__ = ["MEANT", "AnswerRefused", "Form", "as_latex", "equal", "load"]

Form = Literal["number", "root", "polynomial"]
"""What an answer is to look like: one number, numbers with square roots, or a polynomial in x."""

MEANT: dict[Form, str] = {
    "number": "one number that is worked out, such as 7, -3/4 or 2.5",
    "root": "an exact number, such as 7, 3/4 or 2 + 3*sqrt(5)",
    "polynomial": "an expression in x, such as 3*x^2 - x + 1",
}
"""How the forms are told to a model."""

_LONGEST = 120
_LONGEST_NUMBER = 12
_MOST_ROOTS = 3
_MOST_SIGNS = 16
_DEEPEST = 4
# All exponents multiplied, so that powers of powers are bounded too.
_LARGEST_EXPONENT = 8

_PLAIN = {
    "\\left": "",
    "\\right": "",
    "\\displaystyle": "",
    "\\dfrac": "\\frac",
    "\\tfrac": "\\frac",
    "\\cdot": "*",
    "\\times": "*",
    "\\,": "",
    "\\ ": " ",
    "$": "",
    "**": "^",
    "\N{MIDDLE DOT}": "*",
    "\N{MULTIPLICATION SIGN}": "*",
    "\N{MINUS SIGN}": "-",
    "\N{SQUARE ROOT}": "sqrt",
}
_BOXED = re.compile(r"\\boxed\{(.*)\}")
_NAMED = re.compile(r"^[a-z](?:\(x\))?\s*=\s*")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TOKENS = re.compile(r"(?:\d+|\\frac|\\?sqrt|x|[-+*/^(){}]|\.(?=\d)|\s)*")
_NUMBER = re.compile(r"-?\s*(?:\d+|\d*\.\d+|\d+\s*/\s*\d+|\\frac\{\d+\}\{\d+\})")
_EXPONENT = re.compile(r"\^\s*(?:(\d{1,2})|\{\s*(\d{1,2})\s*\}|\(\s*(\d{1,2})\s*\))(?!\s*[\d^])")
_SIGNS_IN_A_ROW = re.compile(r"(?:[-+*/^]\s*){3}")


class AnswerRefused(ValueError):
    """An answer that is not taken; the text says what is."""


def load() -> None:
    """Imports what is needed to compare answers.

    Raises:
        ModuleNotFoundError: math-verify is not installed; the message names the extra.
    """
    module = needed("math_verify", "gymhost/Math-v0")
    # It warns once that its limits are off, which is meant here.
    for part in (module.parser, module.grader):
        logging.getLogger(part.__name__).setLevel(logging.ERROR)


def as_latex(answer: str, form: Form) -> str:
    """Returns an answer as LaTeX.

    Raises:
        AnswerRefused: It has not the form, or is more than can be compared in no time.
    """
    refused = AnswerRefused(f"the answer is {MEANT[form]}, and nothing else")
    if len(answer) > _LONGEST:
        raise refused
    text = answer.strip()
    boxed = _BOXED.fullmatch(text.strip("$ "))
    text = boxed[1] if boxed else text
    for written, plain in _PLAIN.items():
        text = text.replace(written, plain)
    text = _THOUSANDS.sub("", _NAMED.sub("", text.strip())).strip()
    digits = max((len(number) for number in re.findall(r"\d+", text)), default=0)
    if (not digits and "x" not in text) or digits > _LONGEST_NUMBER or not _TOKENS.fullmatch(text):
        raise refused
    if form == "number":
        if not _NUMBER.fullmatch(text):
            raise refused
        return _fraction(text, refused)
    wrong = "sqrt" if form == "polynomial" else "x"
    if "." in text or wrong in text:
        raise refused
    signs = len(re.findall(r"[-+*/^]|\\frac", text))
    if (
        signs > _MOST_SIGNS
        or text.count("sqrt") > _MOST_ROOTS
        or _depth(text) > _DEEPEST
        or _SIGNS_IN_A_ROW.search(text)
    ):
        raise AnswerRefused(f"this is too long to be compared: simplify it to {MEANT[form]}")
    product = 1
    for exponent in _EXPONENT.finditer(text):
        product *= max(1, int(exponent[1] or exponent[2] or exponent[3]))
    if len(_EXPONENT.findall(text)) != text.count("^") or product > _LARGEST_EXPONENT:
        raise AnswerRefused(f"exponents are whole numbers, {_LARGEST_EXPONENT} at most, and {MEANT[form]} is meant")
    return _roots(text).replace("*", r" \cdot ")


def equal(right: str, latex: str) -> bool:
    """Whether an answer, as `as_latex` returns it, equals the right one, which is LaTeX."""
    module: Any = needed("math_verify", "gymhost/Math-v0")
    config = [module.LatexExtractionConfig()]
    gold, given = (
        module.parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None) for text in (right, latex)
    )
    return bool(given) and module.verify(gold, given, timeout_seconds=None)


def _depth(text: str) -> int:
    """Returns how deep brackets are nested."""
    depth = deepest = 0
    for sign in text:
        depth += (sign in "({") - (sign in ")}")
        deepest = max(deepest, depth)
    return deepest


def _fraction(text: str, refused: AnswerRefused) -> str:
    """Returns a number as a fraction, so that decimals are exact."""
    plain = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", text).replace(" ", "")
    try:
        value = Fraction(plain)
    except ZeroDivisionError:
        raise refused from None
    sign = "-" if value < 0 else ""
    whole, parts = abs(value.numerator), value.denominator
    return f"{sign}{whole}" if parts == 1 else rf"{sign}\frac{{{whole}}}{{{parts}}}"


def _roots(text: str) -> str:
    """Returns a text with `sqrt(...)` and `sqrt 5` written as LaTeX."""
    text = re.sub(r"\\?sqrt\s*", r"\\sqrt", text)
    text = re.sub(r"\\sqrt(\d+)", r"\\sqrt{\1}", text)
    while (start := text.find("\\sqrt(")) >= 0:
        start += len("\\sqrt")
        depth = 0
        for end in range(start, len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0:
                text = f"{text[:start]}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
                break
        else:
            raise AnswerRefused("a parenthesis is not closed")
    return text
