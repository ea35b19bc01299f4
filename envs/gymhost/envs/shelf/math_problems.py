"""Mathematical problems: word problems, equations, roots and polynomials, with exact answers."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from gymhost.envs.shelf.math_answers import Form

__all__ = ["KINDS", "Problem", "problem"]

_NAMES: Sequence[str] = (
    "Ada",
    "Ben",
    "Chen",
    "Dana",
    "Emil",
    "Fay",
    "Goran",
    "Hana",
    "Ines",
    "Jo",
    "Kofi",
    "Lena",
    "Mira",
    "Nils",
    "Olga",
    "Pia",
    "Rosa",
    "Sam",
    "Tariq",
    "Uma",
)
_GOODS: Sequence[str] = (
    "apples",
    "books",
    "candles",
    "lamps",
    "mugs",
    "notebooks",
    "pencils",
    "plates",
    "ropes",
    "scarves",
    "tiles",
    "towels",
)
_HELD_OUT = 10


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem.

    Attributes:
        kind: The kind of it.
        question: What is asked.
        answer: The answer, as LaTeX.
        form: What an answer is to look like.
    """

    kind: str
    question: str
    answer: str
    form: Form = "number"


def problem(number: int, kinds: Sequence[str], *, held_out: bool) -> Problem:
    """Returns a problem.

    Args:
        number: Which one.
        kinds: The kinds to choose from.
        held_out: Whether it is one to test on: what a question says decides on which side it is.
    """
    random = Random(f"math {number} {held_out}")
    kind = kinds[number % len(kinds)]
    while True:
        made = KINDS[kind](random)
        if (hashlib.sha256(made.question.encode()).digest()[0] % _HELD_OUT == 0) == held_out:
            return made


def _change(random: Random) -> Problem:
    name, (some, others) = random.choice(_NAMES), random.sample(_GOODS, 2)
    (a, b), (p, q) = (random.randint(2, 30) for _ in range(2)), (random.randint(2, 40) for _ in range(2))
    spent = a * p + b * q
    paid = spent + random.randint(1, 200)
    question = (
        f"{name} buys {a} {some} at {p} crowns each and {b} {others} at {q} crowns each, and pays with {paid} crowns. "
        f"How many crowns does {name} get back?"
    )
    return Problem("change", question, str(paid - spent))


def _speed(random: Random) -> Problem:
    a, b = random.randint(1, 9), random.randint(1, 9)
    v, w = random.sample(range(30, 160), 2)
    question = (
        f"A train runs for {a} hours at {v} km/h and then for {b} hours at {w} km/h. "
        "What is its average speed over the whole journey, in km/h?"
    )
    return Problem("speed", question, _latex(Fraction(a * v + b * w, a + b)))


def _ages(random: Random) -> Problem:
    older, younger = random.sample(_NAMES, 2)
    times, age, years = random.randint(2, 9), random.randint(2, 15), random.randint(1, 30)
    total = (times + 1) * age + 2 * years
    question = (
        f"{older} is {times} times as old as {younger}. In {years} years their ages add up to {total}. "
        f"How old is {older} now?"
    )
    return Problem("ages", question, str(times * age))


def _together(random: Random) -> Problem:
    one, other = random.sample(_NAMES, 2)
    a, b = random.randint(2, 60), random.randint(2, 60)
    question = (
        f"{one} paints a fence in {a} hours, and {other} paints the same fence in {b} hours. "
        "How many hours do they need together?"
    )
    return Problem("together", question, _latex(Fraction(a * b, a + b)))


def _barrel(random: Random) -> Problem:
    b, d = random.randint(3, 40), random.randint(3, 40)
    a, c = random.randint(1, b - 1), random.randint(1, d - 1)
    question = (
        f"A barrel is {a}/{b} full. {c}/{d} of what is in it is drawn off. Which part of the barrel is still full?"
    )
    return Problem("barrel", question, _latex(Fraction(a, b) * (1 - Fraction(c, d))))


def _linear(random: Random) -> Problem:
    a, c = random.sample([factor for factor in range(-20, 21) if factor], 2)
    b, d = random.randint(-50, 50), random.randint(-50, 50)
    question = f"Solve for x: {_polynomial(a, b)} = {_polynomial(c, d)}"
    return Problem("linear", question, _latex(Fraction(d - b, a - c)))


def _system(random: Random) -> Problem:
    x, y = random.randint(-30, 30), random.randint(-30, 30)
    a, b = random.sample(range(2, 20), 2)
    question = f"x + y = {x + y} and {a}x + {b}y = {a * x + b * y}. What is x?"
    return Problem("system", question, str(x))


def _remainder(random: Random) -> Problem:
    base, exponent, modulus = random.randint(2, 30), random.randint(20, 400), random.randint(50, 997)
    question = f"What is the remainder when {base}^{exponent} is divided by {modulus}?"
    return Problem("remainder", question, str(pow(base, exponent, modulus)))


def _committee(random: Random) -> Problem:
    one, other = random.sample(_NAMES, 2)
    people, chosen = random.randint(6, 40), random.randint(2, 5)
    question = (
        f"In how many ways can a committee of {chosen} be chosen from {people} people, "
        f"{one} and {other} among them, who will not both be on it?"
    )
    return Problem("committee", question, str(math.comb(people, chosen) - math.comb(people - 2, chosen - 2)))


def _series(random: Random) -> Problem:
    first, step, count = random.randint(-40, 60), random.randint(2, 30), random.randint(10, 200)
    question = f"What is the sum of the first {count} terms of the arithmetic sequence {first}, {first + step}, ...?"
    return Problem("series", question, str(count * (2 * first + (count - 1) * step) // 2))


def _ladder(random: Random) -> Problem:
    a, b = random.randint(1, 60), random.randint(1, 60)
    question = (
        f"A ladder stands {a} dm away from a wall and reaches {b} dm up. How many dm long is it? Give the exact length."
    )
    return Problem("ladder", question, _root(0, a * a + b * b), "root")


def _larger_root(random: Random) -> Problem:
    middle = random.randint(-15, 15)
    radicand = random.randint(2, 90)
    question = f"What is the larger root of {_polynomial(1, -2 * middle, middle**2 - radicand)}? Give the exact number."
    return Problem("larger root", question, _root(middle, radicand), "root")


def _composition(random: Random) -> Problem:
    a = random.choice([factor for factor in range(-9, 10) if factor not in (0, 1)])
    b, c, d = (random.randint(-20, 20) for _ in range(3))
    question = f"Let f(x) = {_polynomial(a, b)} and g(x) = {_polynomial(1, c, d)}. Write f(g(x)) as a polynomial in x."
    return Problem("composition", question, _polynomial(a, a * c, a * d + b), "polynomial")


def _derivative(random: Random) -> Problem:
    a, b = (random.choice([factor for factor in range(-15, 16) if factor]) for _ in range(2))
    c, d = random.randint(-30, 30), random.randint(-30, 30)
    question = f"What is the derivative of {_polynomial(a, b, c, d)} with respect to x?"
    return Problem("derivative", question, _polynomial(3 * a, 2 * b, c), "polynomial")


KINDS: dict[str, Callable[[Random], Problem]] = {
    "change": _change,
    "speed": _speed,
    "ages": _ages,
    "together": _together,
    "barrel": _barrel,
    "linear": _linear,
    "system": _system,
    "remainder": _remainder,
    "committee": _committee,
    "series": _series,
    "ladder": _ladder,
    "larger root": _larger_root,
    "composition": _composition,
    "derivative": _derivative,
}
"""What makes a problem, by its kind."""


def _latex(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    whole, parts = abs(value.numerator), value.denominator
    return f"{sign}{whole}" if parts == 1 else rf"{sign}\frac{{{whole}}}{{{parts}}}"


def _root(added: int, radicand: int) -> str:
    root = math.isqrt(radicand)
    if root * root == radicand:
        return str(added + root)
    return rf"{added or ''}{'+' if added else ''}\sqrt{{{radicand}}}"


def _polynomial(*coefficients: int) -> str:
    """Writes a polynomial in x, the highest power first."""
    text = ""
    for power, factor in zip(reversed(range(len(coefficients))), coefficients, strict=True):
        if factor == 0:
            continue
        times = "" if abs(factor) == 1 and power else str(abs(factor))
        variable = "" if power == 0 else "x" if power == 1 else f"x^{power}"
        sign = ("-" if factor < 0 else "") if not text else (" - " if factor < 0 else " + ")
        text += f"{sign}{times}{variable}"
    return text or "0"
