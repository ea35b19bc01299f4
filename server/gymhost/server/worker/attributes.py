"""Attributes and methods of one environment: what clients may reach of them, and how they are read, set and called."""

import functools
import inspect
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import gymnasium
import numpy as np

from gymhost.envs.registration import Hosting
from gymhost.wire import attributes, errors

# Gymnasium's base class has them, and its checkers look at them.
_GENERATOR = ("_np_random", "_np_random_seed")
# What trainers, checkers and wrappers ask for, and anybody may know.
_ALWAYS = (
    *_GENERATOR,
    "action_masks",
    "get_action_meanings",
    "metadata",
    "np_random",
    "np_random_seed",
    "render",
    "render_mode",
    "seed",
)
# They would reach what is private; and commands of their own do what they do.
_NEVER = ("get_wrapper_attr", "has_wrapper_attr", "set_wrapper_attr")


class Allowed:
    """The names that clients may reach of an environment.

    Args:
        environment_id: The environment.
        names: The names; `*` stands for all that do not begin with an underscore.

    Attributes:
        names: What is allowed, with what always is.
    """

    def __init__(self, environment_id: str, names: Iterable[str]) -> None:
        self.names = tuple(sorted({*names, *_ALWAYS}))
        self._environment_id = environment_id

    def check(self, name: str) -> None:
        """Checks a name that a client wants to reach.

        Raises:
            PermissionDenied: It may not be reached.
        """
        every = attributes.EVERY in self.names and attributes.is_public(name)
        if name in _NEVER:
            raise errors.PermissionDenied(
                f"{name} can't be called from a client, which has a command of its own for that"
            )
        if not every and name not in self.names:
            raise errors.PermissionDenied(self._refusal(name))

    def _refusal(self, name: str) -> str:
        id = self._environment_id
        if not attributes.is_public(name):
            return f"{name!r} of {id} can't be reached from a client: only public names can"
        return (
            f"{name!r} of {id} is not declared for clients: gymhost.envs.register(..., attributes=({name!r},)) does "
            f"that, or gymhost serve --attributes '{id}={name}'"
        )


@functools.cache
def allowed(environment_id: str, hosting: Hosting, settings: tuple[tuple[str, tuple[str, ...]], ...]) -> Allowed:
    """What clients may reach of an environment.

    Args:
        environment_id: The environment.
        hosting: What it declares.
        settings: What the server adds: patterns of ids, each with names.
    """
    names = set(hosting.attributes)
    for pattern, more in settings:
        if fnmatchcase(environment_id, pattern):
            names.update(more)
    return Allowed(environment_id, names)


def read(env: Any, name: str) -> tuple[Any, bool]:
    """Reads an attribute.

    Returns:
        The value, and whether it is a method.

    Raises:
        AttributeError: There is none of this name.
    """
    value = _find(env, name)
    return value, callable(value)


def write(env: Any, name: str, value: Any) -> None:
    """Sets an attribute, where there is one of this name; else it becomes one of the outermost wrapper.

    Raises:
        AttributeError: It can't be set.
    """
    if name in _GENERATOR:
        bare = env.unwrapped
        if isinstance(value, np.random.Generator) and _same_kind(bare.np_random, value):
            # The generator that the environment has: it may be held in other places.
            bare.np_random.bit_generator.state = value.bit_generator.state
        else:
            setattr(bare, name, value)
    elif isinstance(env, gymnasium.Env):
        env.set_wrapper_attr(name, value)
    else:
        setattr(env, name, value)


def call(env: Any, name: str, arguments: tuple[Any, ...], keyword_arguments: dict[str, Any]) -> Any:
    """Calls a method; of an attribute that can't be called, gives its value.

    Raises:
        AttributeError: There is none of this name.
    """
    value = _find(env, name)
    return value(*arguments, **keyword_arguments) if callable(value) else value


def refuse_coroutine(name: str, returned: Any) -> Any:
    """Returns what a method returned, unless that is a coroutine, where nobody awaits it.

    Raises:
        EnvironmentFault: It is one.
    """
    if inspect.iscoroutine(returned):
        returned.close()
        raise errors.EnvironmentFault(
            f"{name} is a coroutine function, which only environments of mode='async' may have"
        )
    return returned


def _find(env: Any, name: str) -> Any:
    if name in _GENERATOR:
        return getattr(env.unwrapped, name)
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name)
    return getattr(env, name)  # a vector environment


def _same_kind(one: np.random.Generator, other: np.random.Generator) -> bool:
    return type(one.bit_generator) is type(other.bit_generator)
