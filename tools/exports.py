"""Prints all public names, one a line. Nothing is imported for it.

Public is what a package lists in the `__all__` of its `__init__.py`, and what a module of gymhost.trainers lists.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE_ROOTS = ("client", "envs", "proto", "server")


def exports() -> list[str]:
    """Return `package.module.name` for every name in an `__all__`, sorted."""
    return sorted(f"{module}.{name}" for module, path in _modules() for name in _all(path))


def _modules() -> Iterator[tuple[str, Path]]:
    for root in SOURCE_ROOTS:
        for path in (ROOT / root).rglob("*.py"):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            match parts:
                case ["gymhost", *package, "__init__"]:
                    yield ".".join(["gymhost", *package]), path
                case ["gymhost", "trainers", trainer]:
                    yield f"gymhost.trainers.{trainer}", path
                case _:
                    pass


def _all(path: Path) -> list[str]:
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.Assign(targets=[ast.Name("__all__")], value=value):
                return ast.literal_eval(value)
            case _:
                pass
    return []


if __name__ == "__main__":
    print("\n".join(exports()))
