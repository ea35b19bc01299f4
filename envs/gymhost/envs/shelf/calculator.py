"""A calculator with exact fractions: expressions are read as a syntax tree, nothing is run."""

import ast
import math
import re
from collections.abc import Callable
from fractions import Fraction

__all__ = ["FUNCTIONS", "CalculatorError", "calculate"]

_LONGEST = 500
_MOST_BITS = 4096
_MOST_DIGITS = 500
_LARGEST_FACTORIAL = 500
_LARGEST_COMB = 2000
_DECIMAL = re.compile(r"\d+\.?\d*|\.\d+")


class CalculatorError(ValueError):
    """An expression that is not worked out; the text says why."""


def calculate(expression: str) -> Fraction:
    """Works out an arithmetic expression, exactly.

    There are whole and decimal numbers, `+ - * / // % ** ^`, parentheses and `FUNCTIONS`. Numbers on the way have at
    most some thousand bits, so that every expression is worked out at once.

    Raises:
        CalculatorError: It is no such expression, has no value, or its numbers become too large.
    """
    if len(expression) > _LONGEST:
        raise CalculatorError(f"an expression has at most {_LONGEST} characters")
    text = expression.replace("^", "**").strip()
    try:
        return _value(ast.parse(text, mode="eval").body, text)
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        if isinstance(error, CalculatorError):
            raise
        raise CalculatorError("this is no arithmetic expression") from None
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None


def _value(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant():
            return _number(ast.get_source_segment(text, node) or "")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, text)
        case ast.BinOp(left=left, op=operator, right=right):
            work_out = _OPERATORS.get(type(operator))
            if work_out is not None:
                return _bounded(work_out(_value(left, text), _value(right, text)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if name in FUNCTIONS:
                return _bounded(_call(name, [_value(argument, text) for argument in arguments]))
        case _:
            pass
    segment = ast.get_source_segment(text, node) or ""
    raise CalculatorError(
        f"{segment[:50]!r} is not understood: there are numbers, + - * / // % ** and {', '.join(FUNCTIONS)}"
    )


def _number(text: str) -> Fraction:
    if not _DECIMAL.fullmatch(text) or len(text) > _MOST_DIGITS:
        raise CalculatorError(f"{text[:50]!r} is no number that the calculator takes")
    return Fraction(text.rstrip("."))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MOST_BITS:
        raise CalculatorError("the numbers become too large")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    power = _whole(exponent, "an exponent")
    # Bounded before it is worked out: it might take for ever.
    if abs(power) * max(base.numerator.bit_length(), base.denominator.bit_length()) > _MOST_BITS:
        raise CalculatorError("the numbers become too large")
    return base**power


def _call(name: str, arguments: list[Fraction]) -> Fraction:
    try:
        return Fraction(FUNCTIONS[name](*arguments))
    except TypeError:
        raise CalculatorError(f"{name} does not take {len(arguments)} numbers") from None


def _whole(value: Fraction, what: str, most: int | None = None) -> int:
    if value.denominator != 1:
        raise CalculatorError(f"{what} is a whole number here, not {value}")
    if most is not None and not 0 <= value <= most:
        raise CalculatorError(f"{what} is from 0 to {most} here, not {value}")
    return value.numerator


def _sqrt(value: Fraction) -> Fraction:
    if value < 0:
        raise CalculatorError("a negative number has no square root here")
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root * root != value:
        # A fraction is shifted into the range where an integer root has as many digits as are told.
        about = math.isqrt(value.numerator * 10**24 // value.denominator) / 10**12
        raise CalculatorError(f"sqrt({value}) is no fraction; it is about {about:.12g}")
    return root


def _factorial(value: Fraction) -> int:
    return math.factorial(_whole(value, "a factorial's number", _LARGEST_FACTORIAL))


def _comb(total: Fraction, chosen: Fraction) -> int:
    return math.comb(_whole(total, "comb's number", _LARGEST_COMB), _whole(chosen, "comb's number", _LARGEST_COMB))


def _gcd(first: Fraction, second: Fraction) -> int:
    return math.gcd(_whole(first, "gcd's number"), _whole(second, "gcd's number"))


def _lcm(first: Fraction, second: Fraction) -> int:
    return math.lcm(_whole(first, "lcm's number"), _whole(second, "lcm's number"))


FUNCTIONS: dict[str, Callable[..., Fraction | int]] = {
    "abs": Fraction.__abs__,
    "ceil": Fraction.__ceil__,
    "comb": _comb,
    "factorial": _factorial,
    "floor": Fraction.__floor__,
    "gcd": _gcd,
    "lcm": _lcm,
    "sqrt": _sqrt,
}
"""The functions that an expression may call."""

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: lambda left, right: left % right,
    ast.Pow: _power,
}
