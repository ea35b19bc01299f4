"""More small Python packages as text: see `repo_repair_packages`."""

from gymhost.envs.shelf.repo_repair_packages import Package

__all__ = ["GRAPH", "SETTINGS"]

GRAPH = Package(
    "finds ways through a network",
    {
        "graph": '''"""Networks of places, with ways that have lengths and go in one direction."""


class Graph:
    """Ways by the place that they begin at."""

    def __init__(self):
        self.ways = {}

    def add(self, start, end, length=1):
        """Adds a way; a second one between the same places counts where it is shorter."""
        ways = self.ways.setdefault(start, {})
        self.ways.setdefault(end, {})
        ways[end] = min(length, ways.get(end, length))

    def turned(self):
        """Returns the network with all ways in the other direction."""
        other = Graph()
        for start, ways in self.ways.items():
            for end, length in ways.items():
                other.add(end, start, length)
        return other
''',
        "routes": '''"""Ways from a place to another."""

import heapq


def shortest(graph, start, end):
    """Returns length and places of a shortest way; None where there is none."""
    heap, done = [(0, [start])], set()
    while heap:
        length, places = heapq.heappop(heap)
        here = places[-1]
        if here == end:
            return length, places
        if here in done:
            continue
        done.add(here)
        for place, more in graph.ways.get(here, {}).items():
            heapq.heappush(heap, (length + more, [*places, place]))
    return None


def reachable(graph, start, seen=None):
    """Returns the places that ways from a start lead to, itself included, sorted."""
    seen = set() if seen is None else seen
    if start not in seen:
        seen.add(start)
        for place in graph.ways.get(start, {}):
            reachable(graph, place, seen)
    return sorted(seen)
''',
        "atlas": '''"""Routes that are asked for often."""

from .routes import shortest


class Atlas:
    """Remembers the routes of a network that does not change."""

    def __init__(self, graph):
        self.graph = graph
        self.known = {}

    def length(self, start, end):
        """Returns the length of a shortest way; None where there is none."""
        key = (start, end)
        if key not in self.known:
            found = shortest(self.graph, start, end)
            self.known[key] = None if found is None else found[0]
        return self.known[key]
''',
    },
    """import unittest

from @pkg@.atlas import Atlas
from @pkg@.graph import Graph
from @pkg@.routes import reachable, shortest


class GraphTest(unittest.TestCase):
    def setUp(self):
        self.graph = Graph()
        self.graph.add("@item@", "x", 2)
        self.graph.add("x", "y", 3)

    def test_routes(self):
        self.assertEqual(shortest(self.graph, "@item@", "y"), (5, ["@item@", "x", "y"]))
        self.assertIsNone(shortest(self.graph, "y", "@item@"))
        self.assertEqual(Atlas(self.graph).length("@item@", "y"), 5)

    def test_reachable(self):
        self.assertEqual(reachable(self.graph, "@item@"), ["@item@", "x", "y"])

    def test_turned(self):
        self.assertEqual(shortest(self.graph.turned(), "y", "@item@"), (5, ["y", "x", "@item@"]))
""",
    (
        "g = graph.Graph()\nfor a, b, l in [('a', 'b', 9), ('a', 'c', 1), ('c', 'b', 1), ('b', 'd', @n@)]:\n"
        "    g.add(a, b, l)\nresult = (routes.shortest(g, 'a', 'd'), routes.shortest(g, 'a', 'b'))",
        "g = graph.Graph()\ng.add('a', 'b', 1)\ng.add('a', 'b', 5 + @n@)\nresult = routes.shortest(g, 'a', 'b')",
        "g = graph.Graph()\ng.add('a', 'b', 5 + @n@)\ng.add('a', 'b', 2)\nresult = routes.shortest(g, 'a', 'b')",
        "g = graph.Graph()\ng.add('a', '@item@')\ng.add('x', 'y')\n"
        "result = [routes.reachable(g, p) for p in ('x', 'a', 'y', '@item@', 'x')]",
        "g = graph.Graph()\ng.add('a', 'b', @n@)\ng.add('b', 'c', @m@)\ng.add('a', 'z', 100 + @n@)\n"
        "at = atlas.Atlas(g)\nresult = [at.length('a', p) for p in 'bczaq'] + [at.length('b', 'c')]",
        "g = graph.Graph()\ng.add('a', 'b', @n@)\ng.add('b', 'a', @m@)\nt = g.turned()\n"
        "result = (t.ways, g.ways, routes.shortest(t, 'a', 'b'))",
        "g = graph.Graph()\nfor i in range(20):\n    for j in range(9):\n"
        "        g.add(i, (i * 7 + j * 3 + @n@) % 20, 1 + (i * j + @m@) % 13)\n"
        "result = [(routes.shortest(g, 0, e) or [None])[0] for e in range(20)]",
        "g = graph.Graph()\nresult = (routes.shortest(g, 'a', 'a'), routes.reachable(g, 'a'))",
    ),
)

SETTINGS = Package(
    "reads settings of the @item@ and puts them together",
    {
        "reader": '''"""Settings as text: a line each, such as `@item@.size = 3`."""


def parse(text):
    """Returns the settings of a text by their dotted names; empty lines and those with # in front are left out."""
    settings = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, _, value = line.partition("=")
        settings[name.strip()] = convert(value.strip())
    return settings


def convert(value):
    """Returns a whole number, true or false, or else the text, without quotes around it."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value.removeprefix("-").isdigit():
        return int(value)
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\\"":
        return value[1:-1]
    return value
''',
        "tree": '''"""Settings in folders."""


def nest(settings):
    """Returns settings with dotted names as dicts in dicts."""
    tree = {}
    for name, value in settings.items():
        *folders, last = name.split(".")
        at = tree
        for folder in folders:
            at = at.setdefault(folder, {})
        at[last] = value
    return tree


def merge(base, over):
    """Returns both together, folder by folder, where those of the second count; both stay as they are."""
    merged = dict(base)
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            value = merge(merged[name], value)
        merged[name] = value
    return merged


def lookup(tree, name, default=None):
    """Returns the setting of a dotted name, or the default where there is none."""
    at = tree
    for part in name.split("."):
        if not isinstance(at, dict) or part not in at:
            return default
        at = at[part]
    return at
''',
        "writer": '''"""Settings back to text."""


def lines(tree, folder=""):
    """Returns a line for each setting, sorted by their dotted names."""
    found = []
    for name, value in tree.items():
        if isinstance(value, dict):
            found += lines(value, f"{folder}{name}.")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found.append(f"{folder}{name} = {text}")
    return sorted(found)
''',
    },
    """import unittest

from @pkg@.reader import parse
from @pkg@.tree import lookup, merge, nest
from @pkg@.writer import lines


class SettingsTest(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(parse("# size\\n@item@.size = 3\\n\\nname = 'x'\\n"), {"@item@.size": 3, "name": "x"})

    def test_tree(self):
        tree = nest({"@item@.size": 3, "name": "x"})
        self.assertEqual(tree, {"@item@": {"size": 3}, "name": "x"})
        self.assertEqual(lookup(tree, "@item@.size"), 3)
        self.assertEqual(lookup(tree, "@item@.color", "red"), "red")
        self.assertEqual(merge({"a": 1}, {"b": 2}), {"a": 1, "b": 2})

    def test_lines(self):
        self.assertEqual(lines({"@item@": {"size": 3}, "zoom": "x"}), ["@item@.size = 3", "zoom = x"])
""",
    (
        "result = reader.parse('a = b = c\\nurl = http://x/?q=@n@&r=@m@\\n # no\\n  z=1')",
        "result = [reader.convert(v) for v in ('-@n@', 'TRUE', 'false', '\"@n@\"', \"'\", '--1', '', '-', 'x y')]",
        "result = tree.nest({'a.b.c': @n@, 'a.b.d': 2, 'a.e': 3, '@item@': 4})",
        "base = {'a': {'x': 1, 'y': {'p': 1, 'q': 2}}, 'b': 1}\nover = {'a': {'y': {'q': @n@}}, 'b': {'z': 0}}\n"
        "result = (tree.merge(base, over), base, over)",
        "base = {'a': {'x': 1}}\ntree.merge(base, {'a': {'y': @n@}, 'c': 3})\nresult = base",
        "t = {'a': {'b': 0, 'c': False, 'd': '', 'e': None}, '@item@': @n@}\n"
        "result = [tree.lookup(t, n, 'no') for n in ('a.b', 'a.c', 'a.d', 'a.e', 'a.z', '@item@', '@item@.x', 'q')]",
        "result = writer.lines({'z': True, 'a': {'b': {'c': @n@}, 'a': False}, '@item@': 'x'})",
        "text = 'a.b = @n@\\na.c = true\\n@item@.d = x\\n'\nresult = writer.lines(tree.nest(reader.parse(text)))",
    ),
)
