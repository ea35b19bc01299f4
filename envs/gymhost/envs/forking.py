"""Copies of an environment that go on from its present state.

An environment is copied by `copy.deepcopy`, with the wrappers around it; one that has to be copied in another way says
so as any class does, by `__deepcopy__`. Its sandboxes are forked: wherever it holds one, its copies hold forks of that.
"""

import asyncio
import collections
import copy
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle

from gymhost.envs.local import LocalLoop
from gymhost.wire import errors

if TYPE_CHECKING:
    from gymhost.envs.sandbox import Sandbox

__all__ = ["adiscard", "afork", "discard", "fork"]

Env = gymnasium.Env[Any, Any]
E = TypeVar("E", bound=Env)

# What has no parts that are of interest.
_NUMBERS = (int, float, complex, np.ndarray)
_PLAIN = (str, bytes, bytearray, type(None), type, types.ModuleType, types.FunctionType, *_NUMBERS)
# How many parts are tried to find the one that can't be copied, and how deep.
_MOST_TRIED, _DEEPEST = 2000, 16
# What copying raises for what it does not know how to copy.
_UNCOPYABLE = (TypeError, ValueError, NotImplementedError, RecursionError, copy.Error)


def fork(env: E, contexts: Sequence[Context], *, timeout: float | None = None) -> list[E]:
    """Makes copies of an environment, on the calling thread.

    Args:
        env: The environment.
        contexts: One for each copy, which it is made in; so each may have an owner of its own.
        timeout: Seconds that forks of its sandboxes may take.

    Returns:
        The copies. They and the environment go on independently of each other.

    Raises:
        Unimplemented: It can't be copied; the message names what of it can't be, and says what to write.
        SandboxUnavailable, CapacityExhausted: A sandbox could not be forked.
        TimeoutError: The time is over.
    """
    known = _known(env)
    if not _sandboxes(env, known):
        copies: list[E] = []
        try:
            for context in contexts:
                copies.append(context.run(_copy, env, dict(known)))  # noqa: PERF401 - those before one that fails are closed
        except BaseException:
            discard(copies)
            raise
        return copies

    async def bounded() -> list[E]:
        async with asyncio.timeout(timeout):
            return await afork(env, contexts)

    loop = LocalLoop(env)
    try:
        return loop.run(bounded())
    finally:
        loop.close()


async def afork(env: E, contexts: Sequence[Context]) -> list[E]:
    """Makes copies of an environment on the running event loop, as `fork` does; it can be cancelled."""
    known = _known(env)
    copies: list[E] = []
    forked: dict[int, list[Sandbox]] = {}
    try:
        for key, sandbox in _sandboxes(env, known).items():
            forked[key] = await sandbox.fork(len(contexts), contexts=contexts)
        for number, context in enumerate(contexts):
            copies.append(context.run(_copy, env, known | {key: own[number] for key, own in forked.items()}))
    except BaseException:
        for own in forked.values():
            for sandbox in own:
                sandbox.kill()
        await adiscard(copies)
        raise
    return copies


def discard(copies: Sequence[Env]) -> None:
    """Closes copies that nobody wants, on the calling thread; whatever they raise is of no account."""
    for env in copies:
        try:
            env.close()
        except Exception:  # noqa: BLE001 - why there is no fork is told, and that is all
            pass


async def adiscard(copies: Sequence[Env]) -> None:
    """Closes copies that nobody wants, as `discard` does, on the running event loop."""
    for env in copies:
        try:
            if (aclose := getattr(env, "aclose", None)) is not None:
                await aclose()
            else:
                await asyncio.to_thread(env.close)
        except Exception:  # noqa: BLE001 - as above
            pass


def holds_sandboxes(env: Env) -> bool:
    """Whether an environment has sandboxes now: shells and Pythons that run in them begin anew in its forks."""
    return bool(_sandboxes(env, _known(env)))


def _known(env: Env) -> dict[int, Any]:
    """What the copies share with the environment, as a memo: modules, which are one to all, and tasks, only read."""
    known = {id(module): module for module in tuple(sys.modules.values())}
    tasks = getattr(env.unwrapped, "__dict__", {}).get("tasks")
    return known if tasks is None else known | {id(tasks): tasks}


def _sandboxes(env: Env, known: Mapping[int, Any]) -> "dict[int, Sandbox]":
    """Returns the sandboxes that an environment holds, wherever in it, by their identity."""
    module = sys.modules.get("gymhost.envs.sandbox.sandbox")
    found: dict[int, Sandbox] = {}
    if module is None:
        return found
    seen = set(known)
    left: list[object] = [env]
    while left:
        whole = left.pop()
        for _, part in _parts(whole):
            if id(part) in seen or isinstance(part, _PLAIN):
                continue
            seen.add(id(part))
            if isinstance(part, module.Sandbox):
                found[id(part)] = cast("Sandbox", part)
            else:
                left.append(part)
    return found


def _copy(env: E, memo: dict[int, Any]) -> E:
    """Copies an environment with its wrappers.

    Raises:
        Unimplemented: It can't be copied.
    """
    try:
        for layer in reversed(list(_layers(env))):
            if _is_made_anew(layer):
                twin = object.__new__(type(layer))
                memo[id(layer)] = twin
                vars(twin).update({name: copy.deepcopy(value, memo) for name, value in vars(layer).items()})
        return copy.deepcopy(env, memo)
    except errors.Error:
        raise
    except _UNCOPYABLE as error:
        raise errors.Unimplemented(_reason(env, error)) from error


def _layers(env: Env) -> Iterator[Env]:
    """The wrappers of an environment, the outermost first, and the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = cast("gymnasium.Wrapper[Any, Any, Any, Any]", env).env
    yield env


def _is_made_anew(layer: Env) -> bool:
    """Whether a copy would be as it was made, not as it is: Gymnasium's EzPickle has that for pickles."""
    of = type(layer)
    has_own_way = hasattr(of, "__deepcopy__") or getattr(of, "__getstate__", None) is not EzPickle.__getstate__
    return isinstance(layer, EzPickle) and not has_own_way


def _reason(env: Env, error: Exception) -> str:
    """Says what of an environment can't be copied, and what to write."""
    known = _known(env)
    known |= _sandboxes(env, known)
    for layer in _layers(env):
        name = type(layer).__name__
        path, part = _culprit(layer, known | {id(each): each for each in _layers(env)}, {id(layer)})
        if path:
            break
    else:
        name, path, part = type(env).__name__, "", env
    what = f"{name}{path} is a {_kind(part)}, which" if path else name
    return (
        f"the environment can't be forked: {what} can't be copied ({type(error).__name__}: {error}). Define "
        f"`__deepcopy__(self, memo)` for {name}, or for what it holds there, that makes such a thing anew"
    )


def _culprit(whole: object, known: Mapping[int, Any], tried: set[int], depth: int = 0) -> tuple[str, object]:
    """Finds the innermost part of something that can't be copied: the path to it, and the part."""
    if depth < _DEEPEST and len(tried) < _MOST_TRIED:
        for step, part in _parts(whole):
            if id(part) in tried or isinstance(part, _PLAIN):
                continue
            tried.add(id(part))
            try:
                copy.deepcopy(part, dict(known))
            except Exception:  # noqa: BLE001 - it is what is looked for
                path, innermost = _culprit(part, known, tried, depth + 1)
                return step + path, innermost
    return "", whole


def _parts(whole: object) -> Iterator[tuple[str, object]]:
    """What something consists of, each with how it is written: items, or attributes."""
    thing: Any = whole
    if isinstance(whole, dict):
        for key, value in list(cast("dict[object, object]", whole).items()):
            yield f"[{key!r}]", value
    elif isinstance(whole, list | tuple | set | frozenset | collections.deque):
        for index, value in enumerate(list(cast("Iterable[object]", whole))):
            yield f"[{index}]", value
    elif isinstance(whole, types.MethodType):
        yield ".__self__", thing.__self__
    names = [*getattr(thing, "__dict__", ())]
    for base in type(thing).__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    for name in names:
        if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
            yield f".{name}", getattr(thing, name)


def _kind(value: object) -> str:
    kind = type(value)
    # What extension modules make may have none.
    module = getattr(kind, "__module__", "builtins")
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
