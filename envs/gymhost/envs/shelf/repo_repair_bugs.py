"""Bugs in small packages: what was right, what became of it, and how somebody tells of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from gymhost.envs.shelf.repo_repair_more_packages import GRAPH, SETTINGS
from gymhost.envs.shelf.repo_repair_packages import SPANS, STOCK, TEXT, Package

__all__ = ["BUGS", "Bug", "Repair", "repair", "solve"]

_NAMES = ("acorn", "birch", "clover", "dahlia", "elder", "fennel", "ginger", "heath", "iris", "juniper", "kelp")
_ITEMS = ("jar", "bolt", "lamp", "crate", "spool", "valve", "wheel", "tile")


@dataclass(frozen=True, slots=True)
class Bug:
    """A kind of bug.

    Attributes:
        kind: What is wrong.
        package: Where.
        module: The name of the module.
        right: A part of the module's text, which it has once.
        wrong: What is there in its place, which it then has once.
        issue: What somebody tells of it, with the package's placeholders.
    """

    kind: str
    package: Package
    module: str
    right: str
    wrong: str
    issue: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds the issue, and what the placeholders stand for in it."""
        seen = set[str]()

        def place(found: re.Match[str]) -> str:
            name = found[1]
            known, _ = name in seen, seen.add(name)
            return rf"(?P={name})" if known else rf"(?P<{name}>\w+)"

        return re.compile(re.sub(r"@(\w+)@", place, re.escape(" ".join(self.issue.split()))))


@dataclass(frozen=True, slots=True)
class Repair:
    """A repository to repair.

    Attributes:
        bug: What is wrong with it.
        issue: What is told of it.
        package: The package's name.
        files: Its files as they are.
        repaired: Its files as they were before the bug came in.
        checks: What the hidden tests ask.
    """

    bug: Bug
    issue: str
    package: str
    files: Mapping[str, str]
    repaired: Mapping[str, str]
    checks: list[str]


def repair(seed: str) -> Repair:
    """Returns the repository of a seed, the same one each time."""
    draw = Random(f"repair {seed}")
    bug = draw.choice(BUGS)
    values = {
        "pkg": draw.choice(_NAMES) + draw.choice(["", "kit", "lib", "_tools"]),
        "item": draw.choice(_ITEMS),
        "n": str(draw.randint(3, 30)),
        "m": str(draw.randint(3, 30)),
    }
    name = values["pkg"]
    modules = dict(bug.package.modules)
    before = _files(bug.package, modules, values)
    modules[bug.module] = modules[bug.module].replace(bug.right, bug.wrong)
    files = _files(bug.package, modules, values)
    checks = [_filled(check, values) for check in bug.package.checks]
    return Repair(bug, _filled(" ".join(bug.issue.split()), values), name, files, before, checks)


def solve(text: str) -> tuple[str, str, str] | None:
    """Returns the path, what is there and what is to be there, for what an issue tells of; or None."""
    for bug in BUGS:
        found = bug.pattern.search(text)
        if found is not None:
            values = found.groupdict()
            return f"{values['pkg']}/{bug.module}.py", _filled(bug.wrong, values), _filled(bug.right, values)
    return None


def _files(package: Package, modules: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    name = values["pkg"]
    texts = {
        "README.md": f"# {name}\n\nIt {package.purpose}.\n\nTests: `python3 -m unittest`\n",
        f"{name}/__init__.py": f'"""{name} {package.purpose}."""\n',
        "tests/__init__.py": "",
        f"tests/test_{name}.py": package.tests,
        **{f"{name}/{module}.py": text for module, text in modules.items()},
    }
    return {path: _filled(text, values) for path, text in texts.items()}


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], text)


BUGS = (
    Bug(
        "shared state",
        STOCK,
        "shelf",
        "self.counts = dict(counts or {})",
        "self.counts = {} if counts is None else counts",
        """In `@pkg@`, a Shelf that is made from a dict of counts changes that dict: after put and take of the
        @item@ my own dict has other numbers than before. A Shelf should leave what it is given alone.""",
    ),
    Bug(
        "boundary",
        STOCK,
        "shelf",
        "if self.counts.get(name, 0) < number:",
        "if self.counts.get(name, 0) <= number:",
        """With `@pkg@` I can't take the last ones from a Shelf: it has @n@ of the @item@, and take of @n@ raises
        KeyError. Taking all that is there should work.""",
    ),
    Bug(
        "lost duplicates",
        STOCK,
        "orders",
        "order[name] = order.get(name, 0) + int(number)",
        "order[name] = int(number)",
        """orders.parse of `@pkg@` loses things where a name comes twice: `@n@ x @item@, @m@ x @item@` gives only
        the last number, and should give the sum.""",
    ),
    Bug(
        "missing key",
        STOCK,
        "orders",
        "number - shelf.counts.get(name, 0) for",
        "number - shelf.counts[name] for",
        """orders.missing in `@pkg@` raises KeyError where the shelf has no @item@ at all. It should say that all
        of them are missing.""",
    ),
    Bug(
        "order of ties",
        STOCK,
        "report",
        "key=lambda pair: (-pair[1], pair[0]))",
        "key=lambda pair: pair[1], reverse=True)",
        """report.ranking of `@pkg@` is not in the order that it documents where two counts are equal: things with
        the same count come in the order in which they were put, and not by name.""",
    ),
    Bug(
        "off by one",
        TEXT,
        "wrap",
        '" ".join([*lines[-1], word])) > width:',
        '" ".join([*lines[-1], word])) >= width:',
        """wrap in `@pkg@` breaks lines too early: a line that would be exactly as long as the width is broken,
        though it fits.""",
    ),
    Bug(
        "length not counted",
        TEXT,
        "wrap",
        "text[: width - len(mark)].rstrip() + mark",
        "text[:width].rstrip() + mark",
        """shorten of `@pkg@` returns texts that are longer than the width that I ask for: the mark at the end
        comes on top.""",
    ),
    Bug(
        "ends not stripped",
        TEXT,
        "slugs",
        '"-", title.lower()).strip("-")',
        '"-", title.lower())',
        """In `@pkg@`, titles with a bracket or an exclamation mark at their start or end get slugs with hyphens
        there, such as `-@item@-`. There should be hyphens only between letters and digits.""",
    ),
    Bug(
        "growing name",
        TEXT,
        "slugs",
        'name = f"{base}-{number}"',
        'name = f"{name}-{number}"',
        """slugs.unique of `@pkg@` makes odd names when several are taken: with `@item@` and `@item@-2` taken I get
        `@item@-2-3` and not `@item@-3`.""",
    ),
    Bug(
        "first row alone",
        TEXT,
        "columns",
        "[max(len(cell) for cell in column) for column in zip(*rows)]",
        "[len(cell) for cell in rows[0]]",
        """Tables that `@pkg@` aligns are crooked when a later row has longer texts than the first one. The columns
        should be as wide as their longest text.""",
    ),
    Bug(
        "not padded",
        SPANS,
        "clock",
        'f"{time // 60:02}:{time % 60:02}"',
        'f"{time // 60}:{time % 60}"',
        """clock.show of `@pkg@` gives `9:5` for five past nine. It should be `09:05`, as documented. The plans for
        the @item@ show it too.""",
    ),
    Bug(
        "no wrap-around",
        SPANS,
        "clock",
        "return (time + minutes) % DAY",
        "return time + minutes",
        """clock.later in `@pkg@` does not know midnight: an hour after 23:30 it is 24:30, and some minutes before
        0:05 the time is negative.""",
    ),
    Bug(
        "not sorted",
        SPANS,
        "spans",
        "for start, end in sorted(spans):",
        "for start, end in spans:",
        """spans.merge of `@pkg@` only works where the spans come in the right order. Give it a later span first,
        and it returns them unmerged or wrong.""",
    ),
    Bug(
        "contained",
        SPANS,
        "spans",
        "merged[-1] = (merged[-1][0], max(end, merged[-1][1]))",
        "merged[-1] = (merged[-1][0], end)",
        """In `@pkg@`, merging a long span with a short one that lies within it gives one that ends where the short
        one ends. So free times are found where there are none.""",
    ),
    Bug(
        "last one missing",
        SPANS,
        "spans",
        "            return gaps\n    gaps.append((at, end))\n    return gaps",
        "            return gaps\n    return gaps",
        """spans.free in `@pkg@` forgets the time after the last span: where the last one ends before the end that
        I give, the rest up to there should be free as well.""",
    ),
    Bug(
        "done too early",
        GRAPH,
        "routes",
        "        if here in done:\n            continue\n        done.add(here)\n"
        "        for place, more in graph.ways.get(here, {}).items():\n"
        "            heapq.heappush(heap, (length + more, [*places, place]))",
        "        for place, more in graph.ways.get(here, {}).items():\n"
        "            if place not in done:\n                done.add(place)\n"
        "                heapq.heappush(heap, (length + more, [*places, place]))",
        """routes.shortest of `@pkg@` returns None or a detour although there is a shorter way: it seems that the
        first way by which a place is seen is taken, not the shortest one.""",
    ),
    Bug(
        "default kept",
        GRAPH,
        "routes",
        "def reachable(graph, start, seen=None):\n"
        '    """Returns the places that ways from a start lead to, itself included, sorted."""\n'
        "    seen = set() if seen is None else seen\n",
        "def reachable(graph, start, seen=set()):\n"
        '    """Returns the places that ways from a start lead to, itself included, sorted."""\n',
        """routes.reachable in `@pkg@` is right the first time, and then returns places of earlier calls too, even
        those of other networks.""",
    ),
    Bug(
        "half a key",
        GRAPH,
        "atlas",
        "key = (start, end)",
        "key = start",
        """An Atlas of `@pkg@` returns the same length for all ends once I have asked for one from the same start.""",
    ),
    Bug(
        "last one counts",
        GRAPH,
        "graph",
        "ways[end] = min(length, ways.get(end, length))",
        "ways[end] = length",
        """When I add two ways between the same places to a Graph of `@pkg@`, a longer one that is added later
        replaces the shorter one. The shorter one should count.""",
    ),
    Bug(
        "split too often",
        SETTINGS,
        "reader",
        'name, _, value = line.partition("=")',
        'name, _, value = line.rpartition("=")',
        """reader.parse of `@pkg@` can't read values with an equals sign in them, such as addresses with a query: a
        part of the value lands in the name.""",
    ),
    Bug(
        "shallow",
        SETTINGS,
        "tree",
        "            value = merge(merged[name], value)\n",
        "            value = {**merged[name], **value}\n",
        """tree.merge in `@pkg@` loses settings that lie two folders deep: where both have such a folder, only what
        the second one has in it is left.""",
    ),
    Bug(
        "argument changed",
        SETTINGS,
        "tree",
        "merged = dict(base)",
        "merged = base",
        """After tree.merge of `@pkg@` the first argument is changed: my defaults have the settings of the user in
        them. Both should stay as they are.""",
    ),
    Bug(
        "falsy",
        SETTINGS,
        "tree",
        "        at = at[part]\n    return at",
        "        at = at[part]\n    return at or default",
        """tree.lookup in `@pkg@` returns the default for settings that are there and are 0, false or empty.""",
    ),
)
