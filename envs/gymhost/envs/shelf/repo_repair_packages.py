"""Small Python packages as text: modules, tests that anybody may see, and what hidden tests ask.

`@pkg@` stands for a package's name and `@item@` for a word, `@n@` and `@m@` for numbers; they differ from task to task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["SPANS", "STOCK", "TEXT", "Package"]


@dataclass(frozen=True, slots=True)
class Package:
    """A package.

    Attributes:
        purpose: What it is for.
        modules: The texts of its modules by their names.
        tests: The text of its tests.
        checks: What hidden tests ask: code that sets `result`, in which the modules have their names.
    """

    purpose: str
    modules: Mapping[str, str]
    tests: str
    checks: Sequence[str]


STOCK = Package(
    "keeps count of what is on shelves, and of orders",
    {
        "shelf": '''"""What is on a shelf."""


class Shelf:
    """Counts of things by their names."""

    def __init__(self, counts=None):
        self.counts = dict(counts or {})

    def put(self, name, number=1):
        """Adds things."""
        if number < 1:
            raise ValueError(f"can't put {number} of {name}")
        self.counts[name] = self.counts.get(name, 0) + number

    def take(self, name, number=1):
        """Takes things away; raises KeyError where there are not enough."""
        if self.counts.get(name, 0) < number:
            raise KeyError(name)
        self.counts[name] -= number
        if self.counts[name] == 0:
            del self.counts[name]

    def total(self):
        """Returns how many things there are."""
        return sum(self.counts.values())
''',
        "orders": '''"""Orders, such as `3 x @item@, 1 x lid`."""


def parse(line):
    """Returns the numbers of an order by name."""
    order = {}
    for part in line.split(","):
        number, _, name = part.strip().partition(" x ")
        name = name.strip()
        order[name] = order.get(name, 0) + int(number)
    return order


def missing(shelf, order):
    """Returns how many of each thing a shelf lacks for an order, in the order of the names."""
    lacks = {name: number - shelf.counts.get(name, 0) for name, number in order.items()}
    return {name: lacks[name] for name in sorted(lacks) if lacks[name] > 0}


def fill(shelf, order):
    """Takes all of an order from a shelf, or nothing; returns whether it was there."""
    if missing(shelf, order):
        return False
    for name, number in order.items():
        shelf.take(name, number)
    return True
''',
        "report": '''"""Reports on shelves."""


def ranking(shelf):
    """Returns names and counts, the greatest first, and by name where counts are equal."""
    return sorted(shelf.counts.items(), key=lambda pair: (-pair[1], pair[0]))


def table(shelf, width=12):
    """Returns a line for each thing, in the order of the ranking."""
    return "\\n".join(f"{name:<{width}}{count:>4}" for name, count in ranking(shelf))
''',
    },
    """import unittest

from @pkg@.orders import fill, missing, parse
from @pkg@.report import ranking, table
from @pkg@.shelf import Shelf


class ShelfTest(unittest.TestCase):
    def test_put_and_take(self):
        shelf = Shelf()
        shelf.put("@item@", 5)
        shelf.take("@item@", 2)
        self.assertEqual(shelf.total(), 3)
        with self.assertRaises(KeyError):
            shelf.take("@item@", 9)

    def test_orders(self):
        self.assertEqual(parse("3 x @item@, 1 x lid"), {"@item@": 3, "lid": 1})
        shelf = Shelf({"@item@": 2, "lid": 4})
        self.assertEqual(missing(shelf, {"@item@": 3, "lid": 1}), {"@item@": 1})
        self.assertFalse(fill(shelf, {"@item@": 3}))

    def test_reports(self):
        shelf = Shelf({"lid": 1, "@item@": 7})
        self.assertEqual(ranking(shelf), [("@item@", 7), ("lid", 1)])
        self.assertIn("lid", table(shelf))
""",
    (
        "s = shelf.Shelf()\ns.put('@item@', @n@)\ns.take('@item@', @n@)\nresult = (s.counts, s.total())",
        "given = {'@item@': @n@, 'lid': @m@}\ns = shelf.Shelf(given)\ns.put('lid', 2)\ns.take('@item@')\n"
        "result = (given, sorted(s.counts.items()))",
        "s = shelf.Shelf({'@item@': @n@})\ns.put('@item@', 0)",
        "s = shelf.Shelf({'@item@': 1})\ns.take('@item@', 2)",
        "result = orders.parse('@n@ x @item@, 2 x lid, @m@ x @item@')",
        "result = orders.missing(shelf.Shelf({'lid': 3}), {'@item@': @n@, 'lid': 2, 'cap': 1})",
        "s = shelf.Shelf({'@item@': @n@, 'lid': @m@})\nresult = (orders.fill(s, {'@item@': @n@, 'lid': 1}), s.counts)",
        "s = shelf.Shelf({'@item@': 1})\nresult = (orders.fill(s, {'@item@': 1, 'cork': @n@}), s.counts)",
        "result = report.ranking(shelf.Shelf({'pin': @n@, 'cap': @n@, '@item@': @m@, 'axe': @n@}))",
        "result = report.table(shelf.Shelf({'@item@': @n@, 'cap': @n@}), 15)",
    ),
)

TEXT = Package(
    "puts texts into shape",
    {
        "wrap": '''"""Lines of a width."""


def wrap(text, width):
    """Returns lines of words, none longer than the width but for words that are."""
    lines = [[]]
    for word in text.split():
        if lines[-1] and len(" ".join([*lines[-1], word])) > width:
            lines.append([])
        lines[-1].append(word)
    return [" ".join(line) for line in lines if line]


def shorten(text, width, mark="..."):
    """Returns a text of at most a width: the start of a longer one, and a mark that counts too."""
    if len(text) <= width:
        return text
    return text[: width - len(mark)].rstrip() + mark
''',
        "slugs": '''"""Names for addresses."""

import re


def slug(title):
    """Returns a title in lower case, with a hyphen for all that is no letter or digit between others."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def unique(title, taken):
    """Returns the slug of a title, with `-2`, `-3` and so on where it is taken."""
    base = name = slug(title)
    number = 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name
''',
        "columns": '''"""Tables of texts."""


def widths(rows):
    """Returns the width of each column: that of its longest text."""
    return [max(len(cell) for cell in column) for column in zip(*rows)]


def align(rows):
    """Returns the rows as lines, with columns that begin below each other."""
    found = widths(rows)
    return [" ".join(cell.ljust(width) for cell, width in zip(row, found)).rstrip() for row in rows]
''',
    },
    """import unittest

from @pkg@.columns import align, widths
from @pkg@.slugs import slug, unique
from @pkg@.wrap import shorten, wrap


class TextTest(unittest.TestCase):
    def test_wrap(self):
        self.assertEqual(wrap("one two three", 9), ["one two", "three"])
        self.assertEqual(wrap("", 9), [])

    def test_shorten(self):
        self.assertEqual(shorten("@item@", 20), "@item@")

    def test_slugs(self):
        self.assertEqual(slug("The @item@ Again"), "the-@item@-again")
        self.assertEqual(unique("Red", ["red"]), "red-2")

    def test_columns(self):
        self.assertEqual(widths([["long", "a"], ["b", "c"]]), [4, 1])
        self.assertEqual(align([["long", "a"], ["b", "c"]]), ["long a", "b    c"])
""",
    (
        "result = wrap.wrap('aaaa bbb @item@ cc ddddd ' * 3, 8)",
        "result = [wrap.wrap('abc de fgh i', width) for width in range(1, 13)]",
        "result = [wrap.shorten('the @item@ of @n@ and @m@', width) for width in range(6, 30)]",
        "result = wrap.shorten('a long text that ends', 10, '~')",
        "result = [slugs.slug(t) for t in ('  The @item@! ', '@n@ @item@s?', '--', 'A/B', '(x) & (y)')]",
        "taken = ['@item@', '@item@-2', '@item@-3', 'x']\n"
        "result = [slugs.unique(t, taken) for t in ('@item@', 'X', 'y')]",
        "taken = ['x', 'x-2']\nresult = slugs.unique(' X!', taken)",
        "result = columns.widths([['a', '@item@'], ['@item@ @n@', 'b'], ['', '']])",
        "result = columns.align([['a', 'b', 'c'], ['@item@', '', '@n@'], ['x' * 12, 'yy', '']])",
    ),
)

SPANS = Package(
    "reckons with times of the day and spans of them",
    {
        "clock": '''"""Times of the day, in minutes since midnight."""

DAY = 24 * 60


def parse(text):
    """Returns the minutes of a time such as `9:05`; raises ValueError where it is none."""
    hours, _, minutes = text.partition(":")
    if not 0 <= int(hours) < 24 or not 0 <= int(minutes) < 60:
        raise ValueError(f"{text} is no time")
    return 60 * int(hours) + int(minutes)


def show(time):
    """Returns a time as text, such as `09:05`."""
    return f"{time // 60:02}:{time % 60:02}"


def later(time, minutes):
    """Returns the time that it is some minutes after another, or before where they are negative."""
    return (time + minutes) % DAY
''',
        "spans": '''"""Spans: pairs of a start and an end, which is no part of the span."""


def merge(spans):
    """Returns spans that cover the same, sorted, and as few as can be."""
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def total(spans):
    """Returns how much spans cover, what several cover once."""
    return sum(end - start for start, end in merge(spans))


def free(spans, start, end):
    """Returns the spans between a start and an end that are covered by no span."""
    gaps, at = [], start
    for begin, stop in merge(spans):
        if begin > at:
            gaps.append((at, min(begin, end)))
        at = max(at, stop)
        if at >= end:
            return gaps
    gaps.append((at, end))
    return gaps
''',
        "plan": '''"""Plans for the @item@."""

from .clock import parse, show
from .spans import free


def slots(taken, opens, closes, minutes):
    """Returns the free slots of so many minutes each, as texts, one right after the other."""
    spans = [(parse(start), parse(end)) for start, end in taken]
    found = []
    for start, end in free(spans, parse(opens), parse(closes)):
        while start + minutes <= end:
            found.append(show(start))
            start += minutes
    return found
''',
    },
    """import unittest

from @pkg@.clock import later, parse, show
from @pkg@.plan import slots
from @pkg@.spans import free, merge, total


class SpansTest(unittest.TestCase):
    def test_clock(self):
        self.assertEqual(parse("10:30"), 630)
        self.assertEqual(show(630), "10:30")
        self.assertEqual(later(600, 45), 645)
        with self.assertRaises(ValueError):
            parse("24:00")

    def test_spans(self):
        self.assertEqual(merge([(1, 3), (2, 5), (7, 9)]), [(1, 5), (7, 9)])
        self.assertEqual(total([(1, 3), (2, 5), (7, 9)]), 6)
        self.assertEqual(free([(1, 3), (4, 10)], 0, 10), [(0, 1), (3, 4)])

    def test_slots(self):
        self.assertEqual(slots([("10:00", "11:10"), ("11:30", "12:00")], "10:00", "12:00", 15), ["11:10"])
""",
    (
        "result = [clock.parse(t) for t in ('0:00', '09:05', '23:59')]",
        "result = clock.parse('12:60')",
        "result = [clock.show(t) for t in (0, 5, @n@, 600 + @m@, 1439)]",
        "result = [clock.later(@n@, m) for m in (0, 1440, -@n@ - 1, 1439, 3000 + @m@)]",
        "result = spans.merge([(50, 60), (1, 3 + @n@), (2, 3), (4 + @n@, 5 + @n@), (3 + @n@, 4 + @n@)])",
        "result = spans.merge([(1, 40), (2, @n@), (@n@, @n@ + 1), (39, 41)])",
        "result = spans.total([(10, 20 + @m@), (12, 15), (90, 95), (0, 4)])",
        "result = [spans.free([(5, 10), (20, 30)], 0, end) for end in (4, 7, 12, 25, 30, 30 + @n@)]",
        "result = spans.free([], @n@, @n@ + 5)",
        "result = plan.slots([('13:00', '14:00'), ('09:00', '10:30')], '8:05', '16:00', 20 + @m@)",
        "result = plan.slots([('9:00', '12:00'), ('9:30', '10:00')], '8:00', '13:00', 30)",
    ),
)
