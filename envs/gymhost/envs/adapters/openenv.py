"""Environments of OpenEnv: `openenv:echo`, `openenv:module:Class`, or `openenv:http://HOST:PORT` of a running server.

One with tools (an MCP environment) is a conversation with these tools. Another one is acted in by the fields of its
actions, and observed as a dict; with `?chat=true` it is a conversation too, whose one tool `act` takes these fields.
"""

import functools
import importlib
import inspect
import math
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import gymnasium

from gymhost.envs import packages
from gymhost.envs.adapters.openenv_answers import ends, reset_data, task_fields, text, tool_text
from gymhost.envs.adapters.openenv_classes import action_of, class_of, observation_of
from gymhost.envs.adapters.openenv_links import Answer, Link, PackageLink, ServerLink, about_server
from gymhost.envs.adapters.openenv_spaces import Actions, observation_space
from gymhost.envs.adapters.support import add, imported, needed, value, values
from gymhost.envs.content import Block
from gymhost.envs.local import LocalLoop
from gymhost.envs.messages import CallRequest
from gymhost.envs.packages import Package
from gymhost.envs.rubrics import rubric
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import Observation, ToolEnv
from gymhost.envs.tools import ToolError, ToolSpec
from gymhost.envs.turns import Turn

__all__ = ["OpenEnv", "OpenEnvTools", "about", "register"]

T = TypeVar("T")

# Seconds that are added to what an answer may take, for a limit that fires where that one does not.
MARGIN = 15.0


class OpenEnv(gymnasium.Env[Any, Any]):
    """An environment of OpenEnv behind Gymnasium's API.

    The options of a reset go to OpenEnv's `reset`, beside the seed. A reward of None is no reward: the step's info says
    that it is invalid. Where `metadata` says `truncated`, the end of an episode is that.

    Args:
        link: The way to it.
        actions: Its actions.
        observations: The space of its observations.
    """

    def __init__(self, link: Link, actions: Actions, observations: gymnasium.Space[Any]) -> None:
        self._link = link
        self._actions = actions
        self.action_space = actions.space
        self.observation_space = observations
        self._loop: LocalLoop | None = None

    @property
    def state(self) -> dict[str, Any]:
        """OpenEnv's state of an environment that is in this process."""
        if not isinstance(self._link, PackageLink):
            raise AttributeError("the state of a server's environment is not known here")
        return self._link.state

    @property
    def splits(self) -> Mapping[str, Tasks]:
        """The tasks by split; the first is the default one."""
        return self._link.splits

    @property
    def public_fields(self) -> list[str]:
        """The fields of tasks that clients may see."""
        return task_fields(self._link.splits)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins an episode."""
        answer = await self._link.reset(reset_data(self._link, seed, options))
        return answer["observation"], answer.get("metadata") or {}

    async def astep(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Acts."""
        answer = await self._link.step(self._actions.read(action))
        terminated, truncated = ends(answer)
        info: dict[str, Any] = dict(answer.get("metadata") or {})
        reward = answer.get("reward")
        if reward is None:
            info["reward_invalid"] = True
        return answer["observation"], float(reward or 0.0), terminated, truncated, info

    async def aclose(self) -> None:
        """Ends the session."""
        await self._link.close()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins an episode."""
        return self._run(self.areset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Acts."""
        return self._run(self.astep(action))

    def close(self) -> None:
        """Ends the session."""
        self._run(self.aclose())
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = LocalLoop(self)
        return self._loop.run(coroutine)


class OpenEnvTools(ToolEnv):
    """An environment of OpenEnv as a conversation. Each call of a tool is one of OpenEnv's steps.

    A turn pays what its calls do; if one of them has no reward, the turn's is invalid.

    Args:
        link: The way to it.
        tools: Its tools; None asks it.
        actions: For one without tools of its own: its actions, which `act` takes.
        system: The system prompt; empty for none.
        prompt: How an episode opens, before what the environment says first.
        max_turns: How many turns an episode may have; None for no limit.
    """

    def __init__(
        self,
        link: Link,
        tools: tuple[ToolSpec, ...] | None = None,
        actions: Actions | None = None,
        *,
        system: str = "",
        prompt: str = "",
        max_turns: int | None = None,
    ) -> None:
        self._link = link
        self._actions = actions
        if tools is None:
            assert isinstance(link, PackageLink)
            tools = tuple(self._run(link.tools()))
        self._offered = {spec.name: _Offered(spec) for spec in tools}
        self._data: dict[str, Any] = {}
        self._opening: Answer = {}
        self._paid: list[Any] = []
        self._truncated = self._resetting = False
        self._metadata: dict[str, Any] = {}
        self._prompt = prompt
        self.system = system or None
        self.max_turns = max_turns
        self.public_fields = task_fields(link.splits)
        super().__init__()

    @property
    def is_async(self) -> bool:
        """Always."""
        return True

    @property
    def splits(self) -> Mapping[str, Tasks]:
        """The tasks by split. In a reset it is OpenEnv that chooses, so that there are none to choose from then."""
        return {} if self._resetting else self._link.splits

    @property
    def state(self) -> dict[str, Any]:
        """OpenEnv's state of an environment that is in this process."""
        if not isinstance(self._link, PackageLink):
            raise AttributeError("the state of a server's environment is not known here")
        return self._link.state

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode."""
        self._data = reset_data(self._link, seed, options)
        apart = {"evaluate_apart": (options or {}).get("evaluate_apart")}
        self._resetting = True
        try:
            messages, info = await super().areset(seed=seed, options=apart)
        finally:
            self._resetting = False
        return messages, info | (self._opening.get("metadata") or {})

    async def setup(self, task: Task) -> None:
        """Begins OpenEnv's episode."""
        self._opening = await self._link.reset(self._data)
        self._truncated, self._metadata = False, {}

    def prompt(self, task: Task) -> str:
        """Tells the prompt, and what the environment says first."""
        said = text(self._opening["observation"])
        return "\n\n".join(part for part in (self._prompt, said) if part) or "Begin."

    @rubric(per_turn=True, low=-math.inf, high=math.inf)
    def openenv(self) -> Any:
        """What OpenEnv pays for the calls of the turn; None where it does not say."""
        return None if any(reward is None for reward in self._paid) else sum(self._paid)

    async def aclose(self) -> None:
        """Ends the episode, and the session unless another episode is about to begin in it."""
        await super().aclose()
        if not self._resetting:
            await self._link.close()

    async def play(self, name: str, arguments: dict[str, Any]) -> str | list[Block]:
        """Has OpenEnv take the step that a call stands for, and returns what the model is told.

        Raises:
            ToolError: The tool failed, as OpenEnv says.
        """
        if self._actions is None:
            action = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        else:
            action = self._actions.read(arguments)
        answer = await self._link.step(action)
        self._paid.append(answer.get("reward"))
        self._metadata = answer.get("metadata") or {}
        terminated, self._truncated = ends(answer)
        if terminated:
            self.finish()
        observation = answer["observation"]
        if self._actions is not None:
            return text(observation)
        if observation.get("error"):
            raise ToolError(observation["error"].get("message") or "the tool failed")
        return tool_text(observation.get("result"))

    async def _respond(self, turn: Turn, requests: list[CallRequest]) -> tuple[Observation, dict[str, Any]]:
        self._paid, self._metadata = [], {}
        observation, info = await super()._respond(turn, requests)
        return observation, info | self._metadata

    def _all_tools(self) -> Any:
        return self._offered

    def _spent_budget(self) -> str | None:
        return "environment" if self._truncated else super()._spent_budget()


class _Offered:
    """A tool of an environment of OpenEnv."""

    parallel = False
    is_async = True

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments as they are: OpenEnv checks them, and its complaint is the tool's answer."""
        return arguments

    async def call(self, owner: Any, arguments: dict[str, Any]) -> str | list[Block]:
        """Calls the tool."""
        return await owner.play(self.spec.name, arguments)


def register(
    name: str,
    *,
    chat: str = "false",
    system: str = "",
    prompt: str = "",
    max_turns: str = "",
    timeout: str = "60",
    token_env: str = "",
    action: str = "",
    **options: str,
) -> list[str]:
    """Registers an environment of OpenEnv.

    Args:
        name: What its package is called, with or without `_env`; `module:Class` of it; or the URL of a server.
        chat: Whether one without tools is a conversation nevertheless: `true` or `false`.
        system: The system prompt of a conversation.
        prompt: How a conversation opens.
        max_turns: How many turns a conversation may have.
        timeout: Seconds that a server's answer may take.
        token_env: The variable of the process's environment with the token that a server is shown.
        action: `module:Class` of its actions, where its `step` does not say.
        **options: What an environment that is not a server's is made with.

    Raises:
        ModuleNotFoundError: What is needed is not installed.
        ValueError: There is none, or an option can't be.
    """
    told: dict[str, Any] = {"system": system, "prompt": prompt, "max_turns": int(max_turns) if max_turns else None}
    conversation = value(chat)
    if not isinstance(conversation, bool):
        raise ValueError(f"chat is true or false, not {chat!r}")
    if name.startswith(("http://", "https://")):
        return [_register_server(name.rstrip("/"), conversation, told, float(timeout), token_env, options)]
    needed("openenv", "openenv.core.env_server.interfaces")
    kind = imported(name) if ":" in name else class_of(name)
    actions = imported(action) if action else action_of(kind)
    link = functools.partial(PackageLink, kind, actions, **values(options))
    return [
        add(
            "openenv",
            name.removesuffix("_env"),
            functools.partial(_make, link, actions, observation_of(kind), conversation, told),
            description=f"OpenEnv's {kind.__name__}: {_summary(kind)}",
            package=packages.of_module(kind.__module__),
            attributes=("state",),
            order_enforce=False,
        )
    ]


def about() -> Package:
    """Returns OpenEnv's package."""
    return packages.installed("openenv")


def _register_server(
    url: str, conversation: bool, told: dict[str, Any], timeout: float, token_env: str, options: Mapping[str, str]
) -> str:
    if options:
        raise ValueError(f"{next(iter(options))!r} is no option of a server's environment, which is made there")
    if not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout:g}")
    if token_env and token_env not in os.environ:
        raise ValueError(f"token_env names {token_env}, which is not set in the environment")
    needed("openenv", "websockets")
    parts = urlsplit(url)
    # The server is asked when the first one is made: it may begin after this one, or be away for a while.
    return add(
        "openenv",
        parts.netloc + parts.path,
        functools.partial(_make_remote, url, os.environ.get(token_env, ""), timeout, conversation, told),
        description=f"The environment of the OpenEnv server {url}.",
        package=Package(url),
        mode="async",
        order_enforce=False,
        step_timeout=timeout + MARGIN,
        reset_timeout=timeout + MARGIN,
    )


def _make(
    link: Callable[[], PackageLink], actions: Any, observations: Any, conversation: bool, told: dict[str, Any]
) -> gymnasium.Env[Any, Any]:
    kinds: Any = importlib.import_module("openenv.core.env_server.mcp_types")
    if actions in (kinds.CallToolAction, kinds.ListToolsAction):
        return OpenEnvTools(link(), **told)
    schema = actions.model_json_schema()
    seen: dict[str, Any] = {} if observations is None else observations.model_json_schema()
    return _without_tools(link(), schema, seen, conversation, told)


def _make_remote(
    url: str, token: str, timeout: float, conversation: bool, told: dict[str, Any]
) -> gymnasium.Env[Any, Any]:
    of_server = about_server(url, token, timeout)
    link = ServerLink(url, token, timeout, of_server.splits)
    if of_server.tools is not None:
        return OpenEnvTools(link, of_server.tools, **told)
    return _without_tools(link, of_server.action, of_server.observation, conversation, told)


def _without_tools(
    link: Link, schema: dict[str, Any], observations: dict[str, Any], conversation: bool, told: dict[str, Any]
) -> gymnasium.Env[Any, Any]:
    actions = Actions(schema)
    if not conversation:
        return OpenEnv(link, actions, observation_space(observations))
    properties: dict[str, Any] = schema.get("properties") or {}
    parameters = {**schema, "properties": {name: each for name, each in properties.items() if name != "metadata"}}
    act = ToolSpec("act", schema.get("description") or "Acts in the environment.", parameters)
    return OpenEnvTools(link, (act,), actions, **told)


def _summary(kind: Any) -> str:
    lines = (inspect.getdoc(kind) or "an environment.").strip().splitlines()
    return lines[0]
