"""Wrappers that a server puts around environments at a client's wish: which are allowed, and how they are applied."""

import difflib
import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

import gymnasium
import numpy as np

from gymhost.wire.errors import InvalidArgument, PermissionDenied

# The wrappers of Gymnasium that take no functions, open no files and no windows, and return what can travel. Some are
# not in every version.
SAFE = (
    "AddRenderObservation",
    "AddWhiteNoise",
    "AtariPreprocessing",
    "Autoreset",
    "ClipAction",
    "ClipReward",
    "DelayObservation",
    "DiscretizeAction",
    "DiscretizeObservation",
    "DtypeObservation",
    "FilterObservation",
    "FlattenObservation",
    "FrameStackObservation",
    "GrayscaleObservation",
    "MaxAndSkipObservation",
    "NormalizeObservation",
    "NormalizeReward",
    "ObstructView",
    "OrderEnforcing",
    "PassiveEnvChecker",
    "RecordEpisodeStatistics",
    "RenderCollection",
    "RepeatAction",
    "RescaleAction",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
    "StickyAction",
    "TimeAwareObservation",
    "TimeLimit",
)

# Of these, those that tell the time, or keep something beyond a seeded reset.
_NOT_REPLAYABLE = ("NormalizeObservation", "NormalizeReward", "RecordEpisodeStatistics")

# The largest number that a client may give a safe wrapper, but for limits of steps.
_MOST = 4096

# A wrapper to apply, and its keyword arguments.
Wrapping = tuple[Callable[..., gymnasium.Env[Any, Any]], dict[str, Any]]


def resolve(wanted: Iterable[tuple[str, dict[str, Any]]], allowed: Collection[str] = ()) -> list[Wrapping]:
    """Finds wrappers by their names.

    Args:
        wanted: Names, each the name of a class of `gymnasium.wrappers` or `module:Class`, and keyword arguments.
        allowed: What is allowed beyond the safe ones, as `module:Class`; `*` stands for all that there are.

    Raises:
        PermissionDenied: One is not allowed, or there is no such one.
        InvalidArgument: One can't be imported, or its keyword arguments are none.
    """
    found: list[Wrapping] = []
    for name, kwargs in wanted:
        if not isinstance(cast(object, kwargs), dict):
            raise InvalidArgument(f"the keyword arguments of the wrapper {name} must be a dict, not {kwargs!r}")
        if name in SAFE and hasattr(gymnasium.wrappers, name):
            _check_size(name, kwargs)
            found.append((getattr(gymnasium.wrappers, name), _with_types(kwargs)))
        elif ":" in name and (name in allowed or "*" in allowed):
            try:
                found.append((load(name), _with_types(kwargs)))
            except ImportError as error:
                raise InvalidArgument(str(error)) from error
        else:
            raise PermissionDenied(_refusal(name, allowed))
    return found


def _check_size(name: str, kwargs: dict[str, Any]) -> None:
    """Refuses numbers that would have the worker compute, or fill its memory, for ever."""
    for argument, value in kwargs.items():
        numbers = cast("list[Any]", value) if isinstance(value, (list, tuple)) else [value]
        if argument != "max_episode_steps" and any(isinstance(each, int) and abs(each) > _MOST for each in numbers):
            raise InvalidArgument(f"{argument}={value!r} of the wrapper {name} is more than {_MOST}")


def wrap(env: gymnasium.Env[Any, Any], wrappings: Sequence[Wrapping]) -> gymnasium.Env[Any, Any]:
    """Puts wrappers around an environment, the innermost first; one that raises has the environment closed."""
    try:
        for wrapper, kwargs in wrappings:
            env = wrapper(env, **kwargs)
    except BaseException:
        env.close()
        raise
    return env


def replayable(wrappings: Sequence[Wrapping]) -> bool:
    """Whether a replayable environment stays one with wrappers around it.

    Of Gymnasium's most do; one's own says so by a class attribute `replayable`.
    """
    safe = [getattr(gymnasium.wrappers, name, None) for name in SAFE if name not in _NOT_REPLAYABLE]
    return all(wrapper in safe or bool(getattr(wrapper, "replayable", False)) for wrapper, _ in wrappings)


@functools.cache
def load(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    """Imports a wrapper.

    Args:
        name: Where it is: `module:Class`.

    Raises:
        ImportError: There is no such one.
    """
    module, _, attribute = name.partition(":")
    try:
        wrapper: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except Exception as error:
        raise ImportError(f"can't import the wrapper {name!r}: {type(error).__name__}: {error}") from error
    is_class = isinstance(cast(object, wrapper), type)
    if not (issubclass(wrapper, gymnasium.Wrapper) if is_class else callable(cast(object, wrapper))):
        raise ImportError(f"the wrapper {name!r} is no wrapper, but {wrapper!r}")
    return wrapper


def _with_types(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Makes a type of numbers of its name, as which it travels: not every version of Gymnasium takes that."""
    dtype = kwargs.get("dtype")
    if not isinstance(dtype, str):
        return kwargs
    try:
        return {**kwargs, "dtype": np.dtype(dtype).type}
    except TypeError as error:
        raise InvalidArgument(f"dtype={dtype!r}: {error}") from None


def _refusal(name: str, allowed: Collection[str]) -> str:
    known = [each for each in SAFE if hasattr(gymnasium.wrappers, each)] + sorted(allowed)
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else "."
    where = name if ":" in name else "MODULE:CLASS"
    return (
        f"the wrapper {name!r} is none of those that this server allows{hint} It allows the wrappers of Gymnasium that "
        f"take no functions and open no files or windows; gymhost serve --wrapper {where} adds one. Any wrapper can be "
        "put around the environment on the client."
    )
