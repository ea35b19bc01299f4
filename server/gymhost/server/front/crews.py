"""Crews: workers that run the same modules in the same Python, since not all packages can live in one environment."""

import sys

from gymhost.server.config import ServerConfig

__all__ = ["Crew", "crews"]


class Crew:
    """Workers that can stand in for each other.

    Args:
        python: The interpreter; empty for the server's own.
        modules: What they import.
        wanted: How many shared workers of it there are to be at first.
        most: How many there may be.

    Attributes:
        starting: How many are being started in the place of others.
    """

    def __init__(self, python: str, modules: tuple[str, ...], wanted: int, most: int) -> None:
        self.python = python
        self.modules = modules
        self.wanted = wanted
        self.starting = 0
        self._most = most

    @property
    def executable(self) -> str:
        """The interpreter's path."""
        return self.python or sys.executable

    @property
    def can_grow(self) -> bool:
        """Whether there may be more workers of it than there are to be now."""
        return self.wanted < self._most

    def explain(self, problem: str) -> str:
        """What to say of a worker that could not start."""
        if not self.python:
            return problem
        hint = ""
        if "No module named 'gymhost'" in problem or "No module named gymhost" in problem:
            hint = "; gymhost must be installed there too, in the same version: pip install 'gymhost[worker]'"
        return f"{problem} (with --python {self.python}{hint})"


def crews(config: ServerConfig) -> list[Crew]:
    """The crews of a server: first that of its own interpreter, then one for each other.

    Those of other interpreters have one worker, until it is not enough.
    """
    own = tuple(module for module in config.modules if module not in config.python)
    made = [Crew("", own, config.worker_count, config.worker_count)]
    for python in dict.fromkeys(config.python.values()):
        modules = tuple(module for module in config.modules if config.python.get(module) == python)
        made.append(Crew(python, modules, 1, config.worker_count))
    return made
