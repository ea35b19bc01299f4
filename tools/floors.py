"""Prints the oldest versions that the base dependencies allow, one a line, as a constraints file for pip."""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def floors() -> list[str]:
    """Return `name==version` for each base dependency, from its `>=`."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    return [_floor(requirement) for requirement in project["dependencies"]]


def _floor(requirement: str) -> str:
    found = re.match(r"([\w.-]+)>=([\w.]+)", requirement)
    if found is None:
        raise ValueError(f"the base dependency {requirement!r} names no floor: write it as name>=version")
    return f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    print("\n".join(floors()))
