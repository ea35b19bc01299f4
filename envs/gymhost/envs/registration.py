"""Registering environments with how they run, and making them.

Gymnasium's own registry holds the environments; how each is run by a server is kept beside it.
"""

import copy
import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import inspect
import traceback
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from gymhost.envs import packages
from gymhost.envs.packages import Package
from gymhost.envs.toolenv import ToolEnv
from gymhost.wire.attributes import is_public
from gymhost.wire.errors import InvalidArgument

ENTRY_POINT_GROUP = "gymhost.envs"

Mode = Literal["thread", "async", "inline"]
Isolation = Literal["shared", "process"]


@dataclass(frozen=True, slots=True)
class Hosting:
    """How a server runs an environment.

    Attributes:
        mode: `thread` gives each session a thread of its own; `async` awaits its `areset` and `astep` on the worker's
            event loop; `inline` calls it on the loop itself, for steps of well under a millisecond that never block.
        isolation: `shared` puts many sessions in a worker process, `process` gives each one of its own.
        step_timeout: Seconds that a step may take; None for no limit.
        reset_timeout: Seconds that a reset may take.
        description: What the environment is, in a line or a few.
        attributes: The attributes and methods that clients may reach; `*` stands for all without a leading underscore.
        memory_limit: Bytes that the worker of a session may take, with what it starts; None for no limit.
        replayable: Whether the same commands after the same seeded reset give the same replies, in another process too.
    """

    mode: Mode = "thread"
    isolation: Isolation = "shared"
    step_timeout: float | None = 300.0
    reset_timeout: float | None = 300.0
    description: str = ""
    attributes: tuple[str, ...] = ()
    memory_limit: int | None = None
    replayable: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """An environment in the registry.

    Attributes:
        id: Its id.
        hosting: How it runs.
        source: The distribution that it comes from, such as `gymhost 0.1.0`; empty where that is not known.
        licence: The licence of that, as it says itself; empty where that is not known.
    """

    id: str
    hosting: Hosting
    source: str
    licence: str


@dataclass(frozen=True, slots=True)
class Problem:
    """An entry point that could not be loaded.

    Attributes:
        source: The entry point, and its distribution.
        message: What happened, in a line.
        traceback: Where.
    """

    source: str
    message: str
    traceback: str


# Registered by gymhost.client, which a module of environments may import: no server connects elsewhere for others.
_NOT_HOSTED = ("gymhost/Remote-v0",)

# By the spec that was registered: an id that is registered anew by other means has nothing here.
_hosting: dict[str, tuple[EnvSpec, Hosting]] = {}
_sources: dict[str, tuple[EnvSpec, Package]] = {}


def register(
    id: str,
    entry_point: str | Callable[..., Any],
    *,
    mode: Mode = "thread",
    isolation: Isolation = "shared",
    step_timeout: float | None = 300.0,
    reset_timeout: float | None = 300.0,
    description: str | None = None,
    attributes: Iterable[str] = (),
    memory_limit: int | None = None,
    replayable: bool = False,
    kwargs: dict[str, Any] | None = None,
    max_episode_steps: int | None = None,
    **gymnasium_options: Any,
) -> None:
    """Registers an environment with Gymnasium, and how a server runs it.

    Args:
        id: The id, such as `acme/Maze-v0`.
        entry_point: The class or a function that makes the environment, or where it is: `module:name`.
        mode: How sessions share a worker: `thread`, `async` or `inline`; see `Hosting`.
        isolation: `shared` or `process`.
        step_timeout: Seconds that a step may take; None for no limit.
        reset_timeout: Seconds that a reset may take; None for no limit.
        description: What the environment is, for lists.
        attributes: Names of attributes that clients may read and set, and of methods that they may call; `*` stands for
            all without a leading underscore.
        memory_limit: With isolation="process": bytes that a session's worker may take, with what it starts. It is
            looked at about once a second; beyond it the session is lost, and no other. None for no limit.
        replayable: Whether the same commands after the same seeded reset give the same replies, in another process too,
            whatever was before the reset: nothing depends on the time, on what is elsewhere, or on the order of a set.
            Then clients recover sessions whose worker or server has died, by repeating the commands. `gymhost check`
            proves it.
        kwargs: Keyword arguments that it is made with.
        max_episode_steps: Steps after which an episode is truncated.
        **gymnasium_options: What else `gymnasium.register` takes.

    Raises:
        ValueError: A setting has a value that it can't have.
    """
    text = inspect.cleandoc(description or "")
    hosting = _checked(
        Hosting(mode, isolation, step_timeout, reset_timeout, text, _names(attributes), memory_limit, replayable)
    )
    if replayable and gymnasium_options.get("nondeterministic"):
        raise ValueError("an environment that is nondeterministic can't be replayable")
    gymnasium.register(  # pyright: ignore[reportUnknownMemberType]
        id, entry_point, kwargs=kwargs, max_episode_steps=max_episode_steps, **gymnasium_options
    )
    _hosting[id] = (gymnasium.registry[id], hosting)


def rehost(id: str, **changes: Any) -> None:
    """Changes how an environment runs that is registered already.

    Args:
        id: Its id.
        **changes: Attributes of `Hosting`.

    Raises:
        gymnasium.error.UnregisteredEnv: No such id is registered.
        ValueError: A setting has a value that it can't have.
    """
    _hosting[id] = (_spec(id), _checked(dataclasses.replace(hosted(id), **changes)))


def hosted(id: str) -> Hosting:
    """Returns how an environment runs; one that was registered with Gymnasium alone has the defaults.

    Raises:
        gymnasium.error.UnregisteredEnv: No such id is registered.
    """
    spec = _spec(id)
    registered, hosting = _hosting.get(id, (None, Hosting()))
    return hosting if registered is spec else Hosting()


def catalog() -> dict[str, Registered]:
    """Returns all that is registered now, by id: also what was registered with Gymnasium alone."""
    listed: dict[str, Registered] = {}
    for id, spec in sorted(gymnasium.registry.items()):
        if id not in _NOT_HOSTED:
            source = _source(spec)
            listed[id] = Registered(id, hosted(id), str(source or ""), source.licence if source else "")
    return listed


def credit(id: str, package: Package) -> None:
    """Says what an environment comes from, where that is not the distribution of its entry point.

    Raises:
        gymnasium.error.UnregisteredEnv: No such id is registered.
    """
    _sources[id] = (_spec(id), package)


def credited(id: str) -> bool:
    """Whether it was said what an environment comes from."""
    return _sources.get(id, (None, None))[0] is gymnasium.registry.get(id)


def load(modules: Iterable[str] = ()) -> list[Problem]:
    """Loads what registers environments: what is named, and the entry points that installed packages declare.

    Args:
        modules: Names of modules, which are imported, and of other packages' environments, such as `gem:game:Sudoku-v0`
            (see `gymhost.envs.adapters`).

    Returns:
        The entry points that could not be loaded; they keep none of the others from it.

    Raises:
        ImportError: What one of the names stands for could not be loaded; its cause has the traceback of the module's
            own code.
    """
    for module in modules:
        try:
            if ":" in module:
                # It registers by means of this module.
                importlib.import_module("gymhost.envs.adapters").load(module)
            else:
                importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - it is raised on
            raise ImportError(
                f"can't import the environments of {module!r}: {type(error).__name__}: {error}"
            ) from error.with_traceback(_in_module(error.__traceback__))
    problems: list[Problem] = []
    for entry_point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        source = None if entry_point.dist is None else packages.installed(entry_point.dist.name)
        before = dict(gymnasium.registry)
        try:
            loaded = entry_point.load()
            # An entry point names a module, which registers when it is imported, or a function, which does when called.
            if not inspect.ismodule(loaded) and callable(loaded):
                loaded()
        except Exception as error:  # noqa: BLE001 - it is reported
            name = f"{entry_point.name} = {entry_point.value} ({source or 'unknown distribution'})"
            problems.append(Problem(name, f"{type(error).__name__}: {error}", traceback.format_exc()))
        for id, spec in gymnasium.registry.items():
            if source is not None and before.get(id) is not spec:
                _sources[id] = (spec, source)
    return problems


def make(id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Makes an environment as a worker hosts it: without Gymnasium's checker, and lean where it can be.

    What Gymnasium would wrap is left bare where the wrapper adds nothing: a `ToolEnv` keeps the order of calls
    and counts its turns itself. An environment that needs no wrapper shares its spec with the others of its kind.

    Args:
        id: A registered id, exactly.
        **kwargs: Goes to the environment, but for `max_episode_steps`.

    Raises:
        gymnasium.error.UnregisteredEnv: No such id is registered.
        InvalidArgument: It would open a window.
    """
    spec = _spec(id)
    check_render_mode(kwargs)
    if spec.entry_point is None:
        raise gymnasium.error.Error(f"{id} has no entry point: it can be made only as a vector environment")
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    made: object = creator.func if isinstance(creator, functools.partial) else creator
    is_tool_env = isinstance(made, type) and issubclass(made, ToolEnv)
    steps = kwargs.get("max_episode_steps", spec.max_episode_steps)
    wrapped = not is_tool_env and (spec.order_enforce or steps is not None)
    if wrapped or spec.additional_wrappers or kwargs.get("render_mode") is not None:
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)
    given = {
        **copy.deepcopy(spec.kwargs),
        **{name: value for name, value in kwargs.items() if name != "max_episode_steps"},
    }
    env = cast(object, creator(**given))
    if not isinstance(env, gymnasium.Env):
        raise TypeError(f"{id}: its entry point made {type(env).__name__}, which is no gymnasium.Env")
    env = cast(gymnasium.Env[Any, Any], env)
    env.unwrapped.spec = _instance_spec(spec, given)
    if isinstance(env, ToolEnv) and steps is not None and steps > 0:
        env.max_turns = steps if env.max_turns is None else min(steps, env.max_turns)
    return env


def check_render_mode(kwargs: dict[str, Any]) -> None:
    """Refuses to render for people's eyes.

    Raises:
        InvalidArgument: The render mode would open a window, or print, where the environment runs.
    """
    if kwargs.get("render_mode") == "human":
        raise InvalidArgument(
            "render_mode='human' would open a window on the server: use render_mode='rgb_array', and put "
            "gymnasium.wrappers.HumanRendering around the environment here"
        )


def _instance_spec(spec: EnvSpec, kwargs: dict[str, Any]) -> EnvSpec:
    """Returns a spec that says how an instance was made: the registered one where no argument differs."""
    if kwargs == spec.kwargs:
        return spec
    own = copy.copy(spec)
    own.kwargs = kwargs
    return own


def _spec(id: str) -> EnvSpec:
    spec = gymnasium.registry.get(id)
    if spec is None:
        close = difflib.get_close_matches(id, gymnasium.registry, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise gymnasium.error.UnregisteredEnv(f"no environment {id!r} is registered{hint}")
    return spec


def _source(spec: EnvSpec) -> Package | None:
    registered, source = _sources.get(spec.id, (None, None))
    if registered is spec:
        return source
    entry_point = spec.entry_point or spec.vector_entry_point
    module = entry_point.partition(":")[0] if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return packages.of_module(module)


def _in_module(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Returns a traceback without what led to the module's own code."""
    machinery = (__file__, importlib.__file__)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in machinery and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace


def _checked(hosting: Hosting) -> Hosting:
    _one_of("mode", hosting.mode, ("thread", "async", "inline"))
    _one_of("isolation", hosting.isolation, ("shared", "process"))
    _positive("step_timeout", hosting.step_timeout)
    _positive("reset_timeout", hosting.reset_timeout)
    memory_limit = cast(object, hosting.memory_limit)
    if memory_limit is not None and (
        not isinstance(memory_limit, int) or memory_limit < 1 or hosting.isolation != "process"
    ):
        raise ValueError(
            f"memory_limit is a number of bytes above 0 and goes with isolation='process', not {memory_limit!r} with "
            f"isolation={hosting.isolation!r}"
        )
    return hosting


def _one_of(setting: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{setting} is one of {', '.join(allowed)}, not {value!r}")


def _names(attributes: Iterable[str]) -> tuple[str, ...]:
    # A text is a collection of texts, too.
    names = (attributes,) if isinstance(attributes, str) else tuple(attributes)
    if isinstance(attributes, str) or not all(is_public(name) for name in names):
        raise ValueError(f"attributes are public names, such as ('gravity',), or ('*',) for all, not {names!r}")
    return names


def _positive(setting: str, value: object) -> None:
    if value is not None and not (isinstance(value, (int, float)) and value > 0):
        raise ValueError(f"{setting} is a number of seconds above 0, or None for no limit, not {value!r}")
