"""Imports that need an extra, with a message that names it."""

import importlib
import importlib.util
from types import ModuleType

from gymhost.cli.app import Failure

__all__ = ["need", "need_installed"]


def need(extra: str, command: str, *modules: str) -> list[ModuleType]:
    """Imports modules of gymhost.

    Raises:
        Failure: One needs a package that is not installed.
    """
    try:
        return [importlib.import_module(module) for module in modules]
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "gymhost":
            raise
        raise Failure(
            f"{command} needs the extra {extra!r}: pip install 'gymhost[{extra}]'  ({error.name} is not installed)"
        ) from None


def need_installed(extra: str, command: str, *packages: str) -> None:
    """Sees to it that packages are installed, without importing them.

    Raises:
        Failure: One is not.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Failure(
                f"{command} needs the extra {extra!r}: pip install 'gymhost[{extra}]'  ({package} is not installed)"
            )
