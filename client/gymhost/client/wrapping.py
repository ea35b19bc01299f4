"""Wrappers that a server is asked for: the ways to name one, and how they travel."""

import functools
from collections.abc import Iterable
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.envs.registration import WrapperSpec

from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import values
from gymhost.wire.errors import InvalidArgument

# A wrapper by its name, with its keyword arguments.
Wrapping = tuple[str, dict[str, Any]]


def normalise(wrappers: Iterable[Any]) -> tuple[Wrapping, ...]:
    """Reads a list of wrappers, the innermost first.

    Args:
        wrappers: Each the name of a class of `gymnasium.wrappers`, `module:Class`, a class, a pair of one of these and
            a dict of keyword arguments, a `functools.partial` of a class, or a `WrapperSpec` of Gymnasium's.

    Raises:
        InvalidArgument: One is something else, or a class that a server can't import.
    """
    if isinstance(wrappers, (str, dict)):
        raise InvalidArgument(f"wrappers is a list of wrappers, not {wrappers!r}")
    return tuple(_normalise(each) for each in wrappers)


def messages(wrappings: Iterable[Wrapping]) -> list[pb.WrapperSpec]:
    """What wrappers travel as.

    Raises:
        EncodeError: A keyword argument can't travel.
    """
    return [
        pb.WrapperSpec(name=name, kwargs=values.encode(kwargs, name=f"{name}'s keyword arguments"))
        for name, kwargs in wrappings
    ]


def _normalise(wrapper: Any) -> Wrapping:
    kwargs: Any = {}
    if isinstance(wrapper, (tuple, list)) and len(cast(list[Any], wrapper)) == 2:
        wrapper, kwargs = cast(tuple[Any, Any], wrapper)
    elif isinstance(wrapper, WrapperSpec):
        if wrapper.kwargs is None:
            raise InvalidArgument(f"the wrapper {wrapper.name} did not keep its arguments, so it can't be made again")
        wrapper, kwargs = wrapper.entry_point, wrapper.kwargs
    elif isinstance(wrapper, functools.partial) and not wrapper.args:
        wrapper, kwargs = cast("functools.partial[Any]", wrapper).func, wrapper.keywords
    if isinstance(wrapper, str) and isinstance(kwargs, dict):
        name = wrapper
    elif isinstance(wrapper, type) and isinstance(kwargs, dict):
        if wrapper.__module__ == "__main__":
            raise InvalidArgument(
                f"the server can't import {wrapper.__qualname__} from a script: put the class into a module, or wrap "
                "the environment here"
            )
        name = f"{wrapper.__module__}:{wrapper.__qualname__}"
    else:
        raise InvalidArgument(
            f"a wrapper on the server is a name, a class, or one of these with a dict of keyword arguments, not "
            f"{wrapper!r}; what a function does can be wrapped around the environment here"
        )
    return _short(name), {key: _plain(value) for key, value in cast(dict[str, Any], kwargs).items()}


def _short(name: str) -> str:
    """The bare name of a wrapper of Gymnasium's."""
    module, _, attribute = name.partition(":")
    known = vars(gymnasium.wrappers).get(attribute)
    if isinstance(known, type) and module in ("gymnasium.wrappers", known.__module__):
        return attribute
    return name


def _plain(value: Any) -> Any:
    """A keyword argument as it can travel: a type of numbers by its name."""
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, (np.generic, bool, int, float))):
        return np.dtype(cast(Any, value)).name
    return cast(Any, value)
