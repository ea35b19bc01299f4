"""What adapters have in common: finding packages, reading options, registering."""

import difflib
import fnmatch
import functools
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import gymnasium

from gymhost.envs import registration
from gymhost.envs.adapters import KINDS
from gymhost.envs.packages import Package

__all__ = ["add", "chosen", "imported", "needed", "value", "values"]


def needed(kind: str, module: str) -> Any:
    """Imports a module of the package that a kind of environments needs.

    Raises:
        ModuleNotFoundError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"environments of the kind {kind} need {error.name}: pip install 'gymhost[{KINDS[kind].extra}]', or, where "
            "that can't live beside the rest, have them run in another interpreter, which has it: "
            f"gymhost serve {kind}:NAME --python {kind}:NAME=PATH",
            name=error.name,
        ) from None


def value(text: str) -> Any:
    """Returns what an option's text stands for: JSON where it is that, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def values(options: Mapping[str, str]) -> dict[str, Any]:
    """Returns what the texts of options stand for."""
    return {option: value(text) for option, text in options.items()}


def chosen(kind: str, name: str, known: Iterable[str]) -> list[str]:
    """Returns the names that are meant by one: several where it has a `*`.

    Raises:
        ValueError: There is none.
    """
    names = sorted(known)
    found = fnmatch.filter(names, name) if "*" in name else [each for each in names if each == name]
    if not found:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names[:8])}, ..."
        raise ValueError(f"{kind} has no environment {name!r}; {hint}")
    return found


def imported(path: str) -> Any:
    """Returns what `module:name` names.

    Raises:
        ValueError: It is no such path, or there is none.
    """
    module, _, attribute = path.partition(":")
    try:
        return functools.reduce(getattr, attribute.split("."), cast(Any, importlib.import_module(module)))
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(f"{path!r} is to be MODULE:NAME: {type(error).__name__}: {error}") from error


def add(
    kind: str,
    name: str,
    entry_point: Callable[..., Any],
    *,
    description: str,
    package: Package | None = None,
    **how: Any,
) -> str:
    """Registers an environment of a package.

    Args:
        kind: Its kind.
        name: What the package calls it.
        entry_point: What makes it.
        description: What it is, in a line.
        package: What it comes from, where that is not the package of the kind.
        **how: What else `gymhost.envs.register` takes.

    Returns:
        Its id, in which all that Gymnasium takes for something else is a `-`.
    """
    id = f"{kind}/" + re.sub(r"[^\w.-]+", "-", name)
    # What is named twice has the later options.
    gymnasium.registry.pop(id, None)
    registration.register(id, entry_point, description=description, disable_env_checker=True, **how)
    if package is not None:
        registration.credit(id, package)
    return id
