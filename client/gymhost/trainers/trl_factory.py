"""Environments on a server for TRL scripts that have an `environment_factory`.

    factory = remote_environment("gymhost/GuessNumber-v0", server="cpu7:50051")
    GRPOTrainer(model, args=config, train_dataset=dataset, environment_factory=factory).train()

TRL resets environments and calls their tools one after another, so a batch takes the sum of all its waits. Tools that
are coroutines would change nothing: it awaits those of one rollout before it comes to the next. With
`gymhost.trainers.trl.Environments` in its place all rollouts of a batch run at once, and end when their episode does.
"""

import asyncio
import atexit
import contextlib
import functools
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from gymhost.client import RemoteServer
from gymhost.client.tls import Tls, TlsLike
from gymhost.rollout.conversation import as_messages
from gymhost.rollout.faults import bound, retryable
from gymhost.rollout.guard import as_text
from gymhost.rollout.loop_thread import LoopThread
from gymhost.rollout.requests import Limits, RolloutRequest
from gymhost.rollout.sessions import Sessions, Source
from gymhost.trainers.connection import Connection
from gymhost.trainers.trl_content import Content, content_of
from gymhost.trainers.trl_tools import DeclaredTool, typed_method
from gymhost.wire import errors, values

__all__ = ["EnvironmentFactory", "RemoteEnvironment", "remote_environment"]

logger = logging.getLogger(__name__)

_FAILED_RESETS = 32
"""So many resets in a row that fail end the training: something is broken for good."""

_RETRY_SECONDS = 0.25
_RETRY_SECONDS_MAX = 8.0

# What was asked for is not there at all, whichever task is played.
_SETUP = (errors.UnknownEnvironment, errors.Unauthenticated, errors.PermissionDenied, errors.EncodeError)

_factories: dict[Any, "EnvironmentFactory"] = {}


def remote_environment(
    env_id: str,
    *,
    server: str | Source | None = None,
    token: str | None = None,
    tls: TlsLike = None,
    split: str | None = None,
    limits: Limits | None = None,
    idle_seconds: float = 1800.0,
    **env_kwargs: Any,
) -> "EnvironmentFactory":
    """Gives the factory of an environment, for the argument `environment_factory` of TRL's trainers.

    The same arguments give the same factory, and all that it makes is of one class: TRL tells by the class whose reward
    is whose. A factory can be pickled, as AsyncGRPO does to have rollouts in a process of its own.

    Args:
        env_id: The environment, such as "gymhost/GuessNumber-v0". It has to have tools.
        server: The address of a server ("host:port"), or an open connection of `gymhost.client.connect`, which can't be
            pickled. Without one an embedded server is started.
        token: The server's token; without it the environment variable GYMHOST_TOKEN is used, in every process its own.
        tls: How TLS is spoken with it, as for `gymhost.client.connect`.
        split: The split of the tasks, for rows that have no column `split`.
        limits: Of these `init_seconds`, `step_seconds`, `eval_seconds` and `retries` are kept to; tokens and turns are
            bounded by the trainer's configuration.
        idle_seconds: A session that nothing is asked of for so long is closed by the server. The next episode opens a
            new one.
        **env_kwargs: Keyword arguments of the environment.

    Raises:
        EncodeError: A keyword argument can't travel.
    """
    settings: dict[str, Any] = {
        "server": server,
        "token": token,
        # A factory is known by its settings, which have to be hashable.
        "tls": Tls(**tls) if isinstance(tls, Mapping) else tls,
        "split": split,
        "limits": limits or Limits(),
        "idle_seconds": idle_seconds,
    }
    key = (env_id, *settings.values(), values.dumps(env_kwargs))
    if key not in _factories:
        _factories[key] = EnvironmentFactory(env_id, settings, env_kwargs)
    return _factories[key]


def _again(env_id: str, settings: dict[str, Any], env_kwargs: dict[str, Any]) -> "EnvironmentFactory":
    """The factory of another process."""
    return remote_environment(env_id, **settings, **env_kwargs)


class EnvironmentFactory:
    """Makes the environments of a trainer, all of one class; `remote_environment` gives it.

    Args:
        env_id: The environment.
        settings: The arguments of `remote_environment` that have a name.
        env_kwargs: Keyword arguments of the environment.
    """

    def __init__(self, env_id: str, settings: Mapping[str, Any], env_kwargs: Mapping[str, Any]) -> None:
        self.env_id = env_id
        self.split: str | None = settings["split"]
        self.limits: Limits = settings["limits"]
        self._settings = dict(settings)
        self._env_kwargs = dict(env_kwargs)
        self._connection = Connection(settings["server"], settings["token"], settings["tls"])
        self.failed_resets = 0

    def __call__(self) -> "RemoteEnvironment":
        """Makes an environment: a place that one rollout after another is played at."""
        return self.environment_class()

    def __reduce__(self) -> tuple[Any, ...]:
        if not isinstance(self._settings["server"], str | None):
            raise TypeError(
                "an open connection can't be sent to another process: give remote_environment the server's address"
            )
        return _again, (self.env_id, self._settings, self._env_kwargs)

    @functools.cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The tools as the server declares them: `name`, `description` and `parameters` (JSON Schema).

        Raises:
            ValueError: There are none, or there is one that TRL could not offer.
        """
        tools = [dict(tool) for tool in _loop().run(self._declared())]
        if not tools:
            raise ValueError(
                f"{self.env_id} has no tools, and TRL's environment_factory lets a model act by tools alone: use"
                " gymhost.trainers.trl.Environments, where what the model says is told to the environment"
            )
        for name in (str(tool["name"]) for tool in tools):
            if name.startswith("_") or hasattr(RemoteEnvironment, name):
                raise ValueError(
                    f"the tool {name!r} of {self.env_id} has a name that TRL's environment_factory can't offer a model:"
                    " rename it, or use gymhost.trainers.trl.Environments"
                )
        return tools

    @functools.cached_property
    def environment_class(self) -> type["RemoteEnvironment"]:
        """The class of the environments: its public methods are the tools, `reset` and `get_reward`.

        It is named after the environment, and so is the trainer's column of rewards.
        """
        methods = {tool["name"]: typed_method(tool, _call_by_name(str(tool["name"]))) for tool in self.tools}
        name = self.env_id.rpartition("/")[2].rpartition("-v")[0] or self.env_id
        return type(name, (RemoteEnvironment,), {"_factory": self, "__doc__": f"{self.env_id} on a server.", **methods})

    def request(self, row: Mapping[str, Any]) -> RolloutRequest:
        """What is to be played for a row of the trainer's dataset: columns of no special meaning are options."""
        options = {name: value for name, value in row.items() if name not in _COLUMNS and value is not None}
        # Other sources of sessions, such as those of this process, have no idle sessions to fear for.
        served = isinstance(self._connection.source, RemoteServer)
        idle = {"idle_timeout": self._settings["idle_seconds"]} if served else {}
        split = row.get("split")
        return RolloutRequest(
            self.env_id,
            row.get("task"),
            row.get("seed"),
            self.split if split is None else split,
            kwargs=self._env_kwargs | idle,
            options=options,
        )

    def reset_failed(self, error: Exception) -> None:
        """Counts resets that fail.

        Raises:
            RuntimeError: There are too many in a row.
        """
        self.failed_resets += 1
        if self.failed_resets >= _FAILED_RESETS:
            raise RuntimeError(
                f"{_FAILED_RESETS} resets of {self.env_id} in a row have failed; the last one:"
                f" {type(error).__name__}: {error}"
            ) from error

    @property
    def sessions(self) -> Sessions:
        """The sessions of one more place."""
        return Sessions(self._connection.source, close_seconds=self.limits.eval_seconds)

    async def _declared(self) -> Sequence[Mapping[str, Any]]:
        async with (
            bound("init_seconds", self.limits.init_seconds, "infrastructure"),
            self._connection.source.session(self.env_id, **self._env_kwargs) as session,
        ):
            return session.tools


# What is no option: the trainer's own columns, and those that say what is played.
_COLUMNS = frozenset({"prompt", "completion", "image", "images", "task", "split", "seed"})


class RemoteEnvironment:
    """What TRL takes for an environment: one place, which one rollout after another is played at.

    Nobody has to close it: an episode ends the one before it, and the session ends with this object or its process.
    """

    _factory: ClassVar[EnvironmentFactory]

    def __init__(self) -> None:
        self._place = place = _Place(self._factory)
        for tool in self._factory.tools:
            name = str(tool["name"])
            call = functools.partial(_call, place, name)
            # TRL finds the method of the class, and gets this one of the object.
            vars(self)[name] = DeclaredTool(tool, getattr(type(self), name), call)
        _loop().call(place.prepare)

    # It is Content | None, which TRL takes; but TRL is annotated for less, and scripts have their types checked.
    def reset(self, **row: Any) -> Any:
        """Begins the episode of a row: its `task`, `split` and `seed`, with the other columns as reset options.

        The trainer's own columns (`prompt`, `images` and the like) are no options.

        Returns:
            What opens the conversation, for the trainer to add to the prompt: its text, or blocks where it has
            pictures. None if the episode could not be begun: then it has no reward.

        Raises:
            RuntimeError: So many resets in a row have failed that something must be broken for good.
            UnknownEnvironment: The server has no such environment.
            Unauthenticated: The server did not take the token.
            PermissionDenied: The server does not allow it.
            EncodeError: A column of the row can't travel.
        """
        return _loop().run(self._place.begin(row))

    def get_reward(self) -> float | None:
        """Scores the episode, which ends it; None where there is no valid reward."""
        return _loop().run(self._place.reward())

    def _close(self) -> None:
        """Closes the session. A later reset opens a new one."""
        _loop().run(self._place.close())


def _call_by_name(name: str) -> Callable[..., Content]:
    def call(environment: RemoteEnvironment, /, **arguments: Any) -> Content:
        return _call(environment._place, name, **arguments)  # pyright: ignore[reportPrivateUsage]

    return call


def _call(place: "_Place", name: str, /, **arguments: Any) -> Content:
    return _loop().run(place.call(name, arguments))


@functools.cache
def _loop() -> LoopThread:
    """The event loop of all environments of this process."""
    thread = LoopThread("gymhost-environments")
    atexit.register(thread.close)
    return thread


class _Place:
    """Where one rollout after another is played: a session, and how the episode in it stands."""

    def __init__(self, factory: EnvironmentFactory) -> None:
        self._factory = factory
        self._limits = factory.limits
        self._sessions = factory.sessions
        self._lease = self._sessions.lease(factory.request({}))
        self._ahead: asyncio.Task[None] | None = None
        self._over: str | None = "the episode has not begun"
        self._paid: float | None = None
        self._scored: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Has the session opened while others still are being reset."""

        async def open_session() -> None:
            with contextlib.suppress(Exception):  # the reset tries again, and tells
                async with bound("init_seconds", self._limits.init_seconds, "infrastructure"):
                    await self._sessions.prepare(self._factory.request({}))

        self._ahead = asyncio.create_task(open_session())

    async def begin(self, row: Mapping[str, Any]) -> Content | None:
        """Begins an episode."""
        await self._settle()
        request = self._factory.request(row)
        if self._lease.session is not None:
            await self._sessions.end(self._lease, healthy=True)
        for attempt in itertools.count(1):
            try:
                async with bound("init_seconds", self._limits.init_seconds, "infrastructure"):
                    _, observation, _ = await self._sessions.begin(self._lease, request)
                opening = content_of(as_messages(observation))
            except BaseException as error:
                await self._fail(error)
                if not isinstance(error, Exception) or isinstance(error, _SETUP):
                    raise
                if attempt > self._limits.retries or not retryable(error):
                    self._factory.reset_failed(error)
                    return None
                await asyncio.sleep(min(_RETRY_SECONDS * 2**attempt, _RETRY_SECONDS_MAX))
            else:
                self._factory.failed_resets = 0
                self._over, self._paid = None, 0.0
                return opening
        raise AssertionError("counting has no end")

    async def call(self, name: str, arguments: dict[str, Any]) -> Content:
        """Calls a tool.

        Raises:
            RuntimeError: The episode is over. TRL shows the model what this says, and counts a failed call.
        """
        session = self._lease.session
        if self._over is not None or session is None:
            raise RuntimeError(f"{self._over}: call no more tools")
        function = {"name": name, "arguments": arguments}
        message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
        }
        try:
            observation, reward, terminated, truncated, info = await session.step(
                as_text(message), timeout=self._limits.step_seconds
            )
            answer = content_of(as_messages(observation))
        except BaseException as error:
            await self._fail(error)
            if not isinstance(error, Exception):
                raise
            raise RuntimeError(f"{self._over}: call no more tools") from None
        self._pay(reward, info)
        if not (terminated or truncated):
            return answer
        self._over = "the episode is over"
        if session.evaluates and "evaluation_due" in info:
            self._scored = asyncio.create_task(self._score())
        # TRL asks for one more turn of the model in any case.
        over = "The episode is over."
        return f"{answer}\n\n{over}" if isinstance(answer, str) else [*answer, {"type": "text", "text": over}]

    async def reward(self) -> float | None:
        """Scores the episode, and returns what it paid."""
        session = self._lease.session
        if self._over is None:
            self._over = "the episode is over"
            if session is not None and session.evaluates:
                self._scored = asyncio.create_task(self._score())
        if self._scored is not None:
            await self._scored
        return self._paid

    async def close(self) -> None:
        """Ends the session."""
        await self._settle()
        self._over, self._paid = "the episode has not begun", None
        await self._sessions.end(self._lease, healthy=False)
        await self._sessions.aclose()

    async def _score(self) -> None:
        session, seconds = self._lease.session, self._limits.eval_seconds
        assert session is not None
        try:
            async with bound("eval_seconds", seconds, "environment"):
                _, reward, _, _, info = await session.evaluate(None, timeout=seconds)
            self._pay(reward, info)
        except Exception as error:  # noqa: BLE001 - whatever it is, the log tells, and there is no reward
            await self._fail(error)

    async def _settle(self) -> None:
        """Waits for what was begun ahead."""
        for task in (self._ahead, self._scored):
            if task is not None:
                await task
        self._ahead = self._scored = None

    def _pay(self, reward: Any, info: Mapping[str, Any]) -> None:
        if reward is None or info.get("reward_invalid") or not math.isfinite(reward):
            self._paid = None
            logger.warning("an episode of %s has no valid reward: %s", self._factory.env_id, info.get("rewards_errors"))
        elif self._paid is not None:
            self._paid += float(reward)

    async def _fail(self, error: BaseException) -> None:
        """Ends the episode without a reward, and its session, which may be doing anything."""
        self._over, self._paid = "the environment failed, and the episode is over", None
        if isinstance(error, Exception):
            # As a text: whoever keeps the log would keep the session, by way of the traceback.
            logger.warning("an episode of %s failed: %s: %s", self._factory.env_id, type(error).__name__, str(error))
        await self._sessions.end(self._lease, healthy=False)
