"""Small programming problems, made by the dozen: what is asked, a reference solution, and what it is tested with.

A kind of problem has numbers in its text that differ from task to task, so that a solution of one is none of another.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

__all__ = ["KINDS", "Kind", "Problem", "problem", "solve"]

# How many inputs a problem is tested with, beside the two that the text shows.
HIDDEN = 20
SHOWN = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem.

    Attributes:
        name: The name of the function to be written; of a program, what it is called.
        text: What is asked; `{0}` and so on stand for numbers.
        numbers: Draws them.
        source: The reference solution, in which `N0` and so on stand for the numbers.
        draw: Draws an input: the function's arguments, or the text on standard input.
        program: Whether a program is asked for that reads and prints, not a function.
    """

    name: str
    text: str
    numbers: Callable[[Random], list[int]]
    source: str
    draw: Callable[[Random, list[int]], Any]
    program: bool = False

    def solution(self, numbers: list[int]) -> str:
        """Returns the reference solution for some numbers."""
        return re.sub(r"\bN(\d)\b", lambda match: str(numbers[int(match[1])]), self.source.lstrip())

    def ask(self, numbers: list[int]) -> str:
        """Returns what is asked with some numbers."""
        return " ".join(self.text.format(*numbers).split())

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds what is asked by a problem of this kind, and the numbers in it, as groups `n0` and so on."""
        text = re.escape(" ".join(self.text.split()))
        for number in "01":
            place = re.escape("{" + number + "}")
            text = text.replace(place, rf"(?P<n{number}>-?\d+)", 1).replace(place, rf"(?P=n{number})")
        return re.compile(text)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem.

    Attributes:
        kind: Its kind.
        numbers: The numbers in its text.
        text: What is asked, with examples.
        inputs: What a solution is tested with: arguments of a call each, or texts on standard input.
        outputs: What it must return or print.
    """

    kind: Kind
    numbers: list[int]
    text: str
    inputs: list[Any]
    outputs: list[Any]


def problem(seed: str) -> Problem:
    """Returns the problem of a seed, the same one each time."""
    draw = Random(seed)
    kind = draw.choice(KINDS)
    numbers = kind.numbers(draw)
    inputs = [kind.draw(draw, numbers) for _ in range(SHOWN + HIDDEN)]
    outputs = [_reference(kind, numbers, given) for given in inputs]
    shown = [_example(kind, *pair) for pair in zip(inputs[:SHOWN], outputs[:SHOWN], strict=True)]
    if kind.program:
        head = f"Write a Python program that reads standard input and prints its answer. {kind.ask(numbers)}"
    else:
        head = f"Write a Python function `{kind.name}`. {kind.ask(numbers)}"
    return Problem(kind, numbers, "\n\n".join([head, *shown]), inputs, outputs)


def solve(text: str) -> str | None:
    """Returns the reference solution of what a text asks, or None."""
    for kind in KINDS:
        found = kind.pattern.search(text)
        if found is not None:
            return kind.solution([int(number) for number in found.groups()])
    return None


def _example(kind: Kind, given: Any, answer: Any) -> str:
    if kind.program:
        return f"Input:\n{given}\nOutput:\n{answer}"
    return f">>> {kind.name}({', '.join(map(repr, given))})\n{answer!r}"


def _reference(kind: Kind, numbers: list[int], given: Any) -> Any:
    # The reference solutions are this module's own text.
    if not kind.program:
        names: dict[str, Any] = {}
        exec(kind.solution(numbers), names)
        return names[kind.name](*given)
    printed: list[str] = []

    def show(*words: object) -> None:
        printed.append(" ".join(map(str, words)))

    source = kind.solution(numbers).replace("sys.stdin.read()", "input()").replace("import sys\n", "")
    exec(source, {"input": lambda: given, "print": show})
    return "\n".join(printed)


def _list(draw: Random, low: int = -20, high: int = 60, longest: int = 12) -> list[int]:
    return [draw.randint(low, high) for _ in range(draw.randint(0, longest))]


def _words(draw: Random) -> str:
    letters = "aabcdeeefghiijklmnooprstuuvwxyz"
    return " ".join("".join(draw.choices(letters, k=draw.randint(1, 8))) for _ in range(draw.randint(1, 8)))


KINDS = (
    Kind(
        "sum_of_multiples",
        """It takes a list of integers and returns the sum of those that are divisible by {0} or by {1}, but not by
both.""",
        lambda draw: draw.sample(range(2, 12), 2),
        """
def sum_of_multiples(items):
    return sum(x for x in items if (x % N0 == 0) != (x % N1 == 0))
""",
        lambda draw, numbers: [_list(draw)],
    ),
    Kind(
        "rotate",
        """It takes a list and returns a new one in which every element has moved {0} places to the right; those that
fall off at the end come in again at the start.""",
        lambda draw: [draw.randint(1, 30)],
        """
def rotate(items):
    k = N0 % len(items) if items else 0
    return items[len(items) - k:] + items[:len(items) - k]
""",
        lambda draw, numbers: [_list(draw)],
    ),
    Kind(
        "caesar",
        """It takes a text and returns it with every small letter from a to z moved {0} places on in the alphabet, from
z on to a again; everything else stays as it is.""",
        lambda draw: [draw.randint(1, 25)],
        """
def caesar(text):
    return "".join(chr((ord(c) - 97 + N0) % 26 + 97) if "a" <= c <= "z" else c for c in text)
""",
        lambda draw, numbers: [_words(draw).replace("e", draw.choice("eE1"))],
    ),
    Kind(
        "long_words",
        """It takes a text of words with one space between them and returns how often each word of at least {0} letters
occurs, as a dict.""",
        lambda draw: [draw.randint(2, 6)],
        """
def long_words(text):
    found = {}
    for word in text.split():
        if len(word) >= N0:
            found[word] = found.get(word, 0) + 1
    return found
""",
        lambda draw, numbers: [" ".join(draw.choices(_words(draw).split(), k=draw.randint(1, 12)))],
    ),
    Kind(
        "digits",
        """It takes an integer from 0 up and returns the list of its digits in base {0}, the most significant first; 0
has the one digit 0.""",
        lambda draw: [draw.choice([2, 3, 5, 6, 7, 8, 9, 11, 12, 13])],
        """
def digits(number):
    found = []
    while True:
        number, digit = divmod(number, N0)
        found.insert(0, digit)
        if not number:
            return found
""",
        lambda draw, numbers: [draw.choice([0, 1, draw.randint(2, 100), draw.randint(100, 10**9)])],
    ),
    Kind(
        "windows",
        """It takes a list of integers and returns the largest sum of {0} neighbouring elements, or None where there
are fewer.""",
        lambda draw: [draw.randint(2, 6)],
        """
def windows(items):
    sums = [sum(items[i:i + N0]) for i in range(len(items) - N0 + 1)]
    return max(sums) if sums else None
""",
        lambda draw, numbers: [_list(draw)],
    ),
    Kind(
        "pairs",
        """It takes a list of integers and returns how many pairs of places there are, the first before the second,
whose elements add up to {0}.""",
        lambda draw: [draw.randint(-5, 20)],
        """
def pairs(items):
    return sum(a + b == N0 for i, a in enumerate(items) for b in items[i + 1:])
""",
        lambda draw, numbers: [_list(draw, -8, 12, 20)],
    ),
    Kind(
        "runs",
        """It takes a list of integers and returns the list of its runs of equal neighbours that are at least {0} long,
each as a tuple of the element and the length.""",
        lambda draw: [draw.randint(2, 4)],
        """
def runs(items):
    found, i = [], 0
    while i < len(items):
        j = i
        while j < len(items) and items[j] == items[i]:
            j += 1
        if j - i >= N0:
            found.append((items[i], j - i))
        i = j
    return found
""",
        lambda draw, numbers: [[item for item in _list(draw, 0, 9) for _ in range(draw.randint(1, 6))]],
    ),
    Kind(
        "steps",
        """It takes an integer from 1 up and returns after how many steps it is 1: an even number is halved, an odd one
is multiplied by 3 and 1 is added. After {0} steps it gives up and returns -1.""",
        lambda draw: [draw.randint(20, 120)],
        """
def steps(n):
    for count in range(N0 + 1):
        if n == 1:
            return count
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return -1
""",
        lambda draw, numbers: [draw.randint(1, 400)],
    ),
    Kind(
        "chunks",
        """It takes a text and returns the list of its pieces of {0} characters, in order, each reversed; the last one
may be shorter.""",
        lambda draw: [draw.randint(2, 9)],
        """
def chunks(text):
    return [text[i:i + N0][::-1] for i in range(0, len(text), N0)]
""",
        lambda draw, numbers: [_words(draw)],
    ),
    Kind(
        "table",
        """The first line has an integer n from 0 up; n lines follow with a name and an integer each, with a space
between them. Print the names whose integers add up to more than {0}, in the order of the alphabet, one a
line, and `none` where there are none.""",
        lambda draw: [draw.randint(10, 60)],
        """
import sys
lines = sys.stdin.read().splitlines()
sums = {}
for line in lines[1:int(lines[0]) + 1]:
    name, number = line.split()
    sums[name] = sums.get(name, 0) + int(number)
print("\\n".join(sorted(name for name in sums if sums[name] > N0)) or "none")
""",
        lambda draw, numbers: _table(draw),
        program=True,
    ),
    Kind(
        "robot",
        """The one line has letters N, E, S and W. A robot begins at 0 0 and moves {0} to the north for N, which adds
to the second number, {0} to the south for S, and {1} to the east for E, which adds to the first, or to the
west for W. Print where it is in the end, as two integers with a space between them.""",
        lambda draw: [draw.randint(2, 9), draw.randint(10, 19)],
        """
text = input()
x = (text.count("E") - text.count("W")) * N1
y = (text.count("N") - text.count("S")) * N0
print(x, y)
""",
        lambda draw, numbers: "".join(draw.choices("NESW", k=draw.randint(1, 20))),
        program=True,
    ),
)


def _table(draw: Random) -> str:
    names = draw.sample(["ada", "bo", "cem", "dora", "eli", "fay", "gus", "hal"], k=4)
    rows = [f"{draw.choice(names)} {draw.randint(-20, 50)}" for _ in range(draw.randint(0, 9))]
    return "\n".join([str(len(rows)), *rows])
