"""Finding the classes of OpenEnv's environments, and those of what they take and tell."""

import importlib
import inspect
import pkgutil
from typing import Any, get_args, get_type_hints

__all__ = ["action_of", "class_of", "observation_of"]


def class_of(name: str) -> Any:
    """The class of an environment, by the name of its package: the one that is defined in the package's `server`.

    Raises:
        ValueError: There is no such package, or not one class in it.
    """
    package = name if name.endswith("_env") else f"{name}_env"
    try:
        server = importlib.import_module(f"{package}.server")
    except ModuleNotFoundError as error:
        if error.name not in (package, f"{package}.server"):
            raise
        raise ValueError(
            f"there is no package {package} of an OpenEnv environment: name one that is installed, or MODULE:CLASS"
        ) from None
    base: Any = importlib.import_module("openenv.core.env_server.interfaces").Environment
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(server.__path__):
        if module.name == "app":
            continue  # which makes a server
        for each in vars(importlib.import_module(f"{package}.server.{module.name}")).values():
            is_own = inspect.isclass(each) and each.__module__.startswith(f"{package}.")
            if is_own and issubclass(each, base) and not inspect.isabstract(each):
                found[f"{each.__module__}:{each.__name__}"] = each
    if len(found) != 1:
        raise ValueError(f"{package} has {len(found)} classes of environments ({', '.join(found)}): name MODULE:CLASS")
    return next(iter(found.values()))


def action_of(kind: Any) -> Any:
    """The class of an environment's actions: its type parameter, or what its `step` takes.

    Raises:
        ValueError: It does not say.
    """
    types: Any = importlib.import_module("openenv.core.env_server.types")
    kinds: Any = importlib.import_module("openenv.core.env_server.mcp_types")
    candidates: list[Any] = [*_parameters(kind)[:1], *_hints(kind, "step", "action")]
    for each in candidates:
        if inspect.isclass(each) and issubclass(each, types.Action) and each is not types.Action:
            return each
    if hasattr(kind, "mcp_session"):
        return kinds.CallToolAction
    raise ValueError(f"{kind.__name__} does not say what its actions are: name their class (?action=MODULE:CLASS)")


def observation_of(kind: Any) -> Any:
    """The class of an environment's observations; None where it does not say."""
    types: Any = importlib.import_module("openenv.core.env_server.types")
    for each in (*_parameters(kind)[1:2], *_hints(kind, "reset", "return"), *_hints(kind, "step", "return")):
        if inspect.isclass(each) and issubclass(each, types.Observation):
            return each
    return None


def _parameters(kind: Any) -> tuple[Any, ...]:
    """The type parameters that a class gives to OpenEnv's `Environment`."""
    for each in kind.__mro__:
        bases: tuple[Any, ...] = each.__dict__.get("__orig_bases__", ())
        for base in bases:
            if getattr(getattr(base, "__origin__", None), "__name__", "") == "Environment":
                return get_args(base)
    return ()


def _hints(kind: Any, method: str, name: str) -> list[Any]:
    try:
        hints = get_type_hints(getattr(kind, method))
    except (NameError, TypeError):  # what is imported for checkers alone
        return []
    return [hints[name]] if name in hints else []
