"""Tests that documents name: `` `folder/test_file.py::test` `` or `` `folder/test_file.py::TestClass::test` ``."""

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parent.parent

_NAMED = re.compile(r"`(?:tests/)?([\w/]+\.py)(?:::([\w:]+))?`")


def named(text: str) -> list[tuple[str, str]]:
    """The files and the tests in them that a text names; a test is empty where a file is meant."""
    return _NAMED.findall(text)


def missing(text: str) -> list[str]:
    """What a text names and is not there."""
    return [f"{file}::{test}" for file, test in named(text) if test not in _tests_of(file)]


@functools.cache
def _tests_of(file: str) -> set[str]:
    path = TESTS / file
    if not path.is_file():
        return set()
    found = {""}
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for each in inner:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_"):
                found.add(f"{node.name}::{each.name}" if isinstance(node, ast.ClassDef) else each.name)
    return found
