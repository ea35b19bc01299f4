"""Imports of optional packages, with an error that says what to install."""

import importlib
from types import ModuleType

__all__ = ["require"]


def require(module: str, extra: str) -> ModuleType:
    """Imports `module`, or raises an ImportError that names the extra which brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ImportError(f"{module} is needed here: pip install 'gymhost[{extra}]'", name=module) from error
