"""Ways to an environment of OpenEnv: an instance in this process, or a session of a server over its WebSocket protocol.

Both answer as OpenEnv's server does: `{"observation": {...}, "reward": ..., "done": ..., "metadata": {...}}`.
"""

import asyncio
import contextlib
import functools
import importlib
import inspect
import ipaddress
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from gymnasium.error import ResetNeeded

from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.tools import ToolSpec
from gymhost.wire.errors import CapacityExhausted, InvalidArgument

__all__ = ["About", "Answer", "Link", "PackageLink", "ServerLink", "about_server", "tool_specs"]

Answer = dict[str, Any]
"""What OpenEnv answers to a reset and a step, as JSON has it."""

# The largest message of a server, as OpenEnv's own client has it.
MESSAGE_BYTES = 100 * 2**20
# Seconds to connect.
CONNECT_LIMIT = 10.0


class Link(Protocol):
    """A way to one environment of OpenEnv."""

    @property
    def splits(self) -> Mapping[str, Tasks]:
        """The tasks by split, where the environment has OpenEnv's tasks."""
        ...

    async def reset(self, data: dict[str, Any]) -> Answer:
        """Begins an episode with the arguments of OpenEnv's `reset`."""
        ...

    async def step(self, action: dict[str, Any]) -> Answer:
        """Acts: the fields of the action as JSON has them."""
        ...

    async def close(self) -> None:
        """Ends it. May be called twice."""
        ...


class PackageLink:
    """An environment of OpenEnv in this process.

    Args:
        kind: Its class.
        action: The class of its actions.
        **kwargs: What it is made with.
    """

    def __init__(self, kind: Any, action: Any, **kwargs: Any) -> None:
        self._base: Any = importlib.import_module("openenv.core.env_server.interfaces").Environment
        self._serialization: Any = importlib.import_module("openenv.core.env_server.serialization")
        self._action = action
        self._env: Any = kind(**kwargs)
        self._splits: Mapping[str, Tasks] | None = None

    @property
    def state(self) -> dict[str, Any]:
        """OpenEnv's state of the environment."""
        state = self._env.state
        return state.model_dump(mode="json") if hasattr(state, "model_dump") else dict(state or {})

    async def reset(self, data: dict[str, Any]) -> Answer:
        """Begins an episode; of the arguments it is given those that its `reset` takes, as by OpenEnv's server."""
        reset = self._method("reset")
        taken = inspect.signature(reset).parameters
        anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
        return await self._answer(reset(**{name: data[name] for name in data if anything or name in taken}))

    async def step(self, action: dict[str, Any]) -> Answer:
        """Acts.

        Raises:
            InvalidArgument: It is no action of the environment.
        """
        try:
            read = self._serialization.deserialize_action(action, self._action)
        except ValueError as error:
            raise InvalidArgument(f"this is no {self._action.__name__}: {error}") from None
        return await self._answer(self._method("step")(read))

    @property
    def splits(self) -> Mapping[str, Tasks]:
        """The tasks by split, where the environment tells them by plain methods."""
        if self._splits is None:
            self._splits = self._told_splits()
        return self._splits

    def _told_splits(self) -> Mapping[str, Tasks]:
        env = self._env
        methods = [getattr(env, name, None) for name in ("list_splits", "num_tasks", "get_task")]
        if not all(callable(method) and not inspect.iscoroutinefunction(method) for method in methods):
            return {}
        names = [_split_name(split) for split in env.list_splits()]
        return {
            name: Tasks.generate(lambda index, name=name: _task(env.get_task(name, index)), int(env.num_tasks(name)))
            for name in names
        }

    async def tools(self) -> list[ToolSpec]:
        """Returns the tools of an environment that has some."""
        kinds: Any = importlib.import_module("openenv.core.env_server.mcp_types")
        told = await self._method("step")(kinds.ListToolsAction())
        if "error" in told.metadata:
            raise RuntimeError(f"{type(self._env).__name__} can't tell its tools: {told.metadata['error']}")
        return tool_specs([tool.model_dump() for tool in told.tools])

    async def close(self) -> None:
        """Closes the environment."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _method(self, name: str) -> Any:
        """The method, or its coroutine where the environment has one of its own."""
        own = f"{name}_async"
        kind = cast(Any, type(self._env))
        is_own = getattr(kind, own) is not getattr(self._base, own)
        return getattr(self._env, own if is_own else name)

    async def _answer(self, told: Any) -> Answer:
        observation = await told if inspect.isawaitable(told) else told
        answer = self._serialization.serialize_observation(observation)
        # What travels is JSON, as over OpenEnv's own wire.
        core: Any = importlib.import_module("pydantic_core")
        return core.to_jsonable_python(answer, fallback=_plain)


class ServerLink:
    """A session of an OpenEnv server, which has it for as long as the socket is open.

    Args:
        url: Where the environment is: `http://HOST:PORT`, with the path that it has there.
        token: What is shown as a bearer token; empty for none.
        timeout: Seconds that an answer may take.
        splits: The tasks by split.
    """

    def __init__(
        self, url: str, token: str = "", timeout: float = 60.0, splits: Mapping[str, Tasks] | None = None
    ) -> None:
        self._splits: Mapping[str, Tasks] = splits or {}
        self._url = url
        self._token = token
        self._timeout = timeout
        self._socket: Any = None
        self._began = False

    @property
    def splits(self) -> Mapping[str, Tasks]:
        """The tasks by split."""
        return self._splits

    async def reset(self, data: dict[str, Any]) -> Answer:
        """Begins an episode, in a new session where there is none.

        Raises:
            CapacityExhausted: The server is full.
            RuntimeError: It can't be reached, or failed.
        """
        if self._socket is None:
            await self._connect()
        return await self._ask("reset", data)

    async def step(self, action: dict[str, Any]) -> Answer:
        """Acts.

        Raises:
            ResetNeeded: The session is gone.
            InvalidArgument: It is no action of the environment.
            RuntimeError: The server failed, or did not answer in time.
        """
        if self._socket is None:
            if self._began:
                raise ResetNeeded(f"there is no session of the OpenEnv server {self._url} any more: call reset")
            await self._connect()  # what a step without a reset does is the environment's affair
        return await self._ask("step", action)

    async def close(self) -> None:
        """Ends the session."""
        socket, self._socket = self._socket, None
        if socket is not None:
            try:
                async with asyncio.timeout(self._timeout):
                    await socket.send('{"type": "close"}')
                    await socket.close()
            except (OSError, TimeoutError, _closed()):
                pass

    async def _connect(self) -> None:
        client: Any = importlib.import_module("websockets.asyncio.client")
        try:
            self._socket = await client.connect(
                self._url.replace("http", "ws", 1) + "/ws",
                open_timeout=CONNECT_LIMIT,
                max_size=MESSAGE_BYTES,
                additional_headers=_headers(self._token),
                **({"proxy": None} if _is_here(self._url) else {}),
            )
        except (OSError, importlib.import_module("websockets.exceptions").WebSocketException) as error:
            raise RuntimeError(
                f"the OpenEnv server {self._url} could not be reached: {error or 'no answer'}"
            ) from error

    async def _ask(self, kind: str, data: dict[str, Any]) -> Answer:
        socket, self._socket = self._socket, None
        answered = False
        try:
            async with asyncio.timeout(self._timeout):
                with contextlib.suppress(_closed()):  # what it said before is still there to be read
                    await socket.send(json.dumps({"type": kind, "data": data}))
                told: dict[str, Any] = json.loads(await socket.recv())
            answered = True
        except TimeoutError:
            raise RuntimeError(
                f"the OpenEnv server {self._url} did not answer within {self._timeout:g} s (?timeout=SECONDS): reset"
            ) from None
        except _closed() as error:
            raise RuntimeError(f"the OpenEnv server {self._url} ended the session: {error}") from error
        finally:
            if answered:
                self._socket = socket
            else:
                # Its answer, should one come, would be taken for that to the next request.
                socket.transport.abort()
        told_data: dict[str, Any] = told.get("data") or {}
        if told.get("type") != "error":
            return told_data
        code, words = told_data.get("code"), f"the OpenEnv server {self._url}: {told_data.get('message')}"
        if code == "CAPACITY_REACHED":
            self._socket = None
            socket.transport.abort()
            raise CapacityExhausted(words)
        if code == "VALIDATION_ERROR":
            raise InvalidArgument(f"{words}: {json.dumps(told_data.get('errors'), default=str)}")
        raise RuntimeError(f"{words} ({code})")


@dataclass(frozen=True, slots=True)
class About:
    """What an OpenEnv server tells of its environment.

    Attributes:
        action: The JSON Schema of its actions.
        observation: That of its observations.
        tools: Its tools; None where it has no such.
        splits: Its tasks by split; they are asked for one by one.
    """

    action: dict[str, Any]
    observation: dict[str, Any]
    tools: tuple[ToolSpec, ...] | None
    splits: Mapping[str, Tasks]


@functools.cache
def about_server(url: str, token: str, timeout: float) -> About:
    """Asks an OpenEnv server about its environment, once in a process.

    Raises:
        RuntimeError: It can't be reached, or is none.
    """
    schema = _http(url, "/schema", token, timeout, None)
    request: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    try:
        listed = _http(url, "/mcp", token, timeout, request).get("result")
    except RuntimeError:
        listed = None  # an older one
    tools = None if not isinstance(listed, dict) else cast("dict[str, Any]", listed).get("tools")
    return About(
        schema.get("action") or {},
        schema.get("observation") or {},
        None if tools is None else tuple(tool_specs(tools)),
        _server_splits(url, token, timeout),
    )


def tool_specs(listed: list[dict[str, Any]]) -> list[ToolSpec]:
    """Returns tools as gymhost has them: the schemas are the ones that are listed."""
    return [
        ToolSpec(
            tool["name"],
            tool.get("description") or "",
            tool.get("inputSchema") or tool.get("input_schema") or {"type": "object", "properties": {}},
        )
        for tool in listed
    ]


def _server_splits(url: str, token: str, timeout: float) -> Mapping[str, Tasks]:
    """The tasks of a server that has some: without them it answers with an error."""

    def ask(path: str, body: Any = None) -> Any:
        return _http(url, path, token, timeout, body)

    try:
        name = ask("/list_environments")[0]
        found: dict[str, Tasks] = {}
        for told in ask(f"/{name}/splits"):
            split = _split_name(told)

            def task(index: int, split: str = split) -> Task:
                return _task(ask(f"/{name}/task", {"split": split, "index": index})["task"])

            found[split] = Tasks.generate(task, int(ask(f"/{name}/num_tasks", {"split": split})["num_tasks"]))
    except (IndexError, KeyError, RuntimeError, TypeError):
        return {}
    return found


def _split_name(split: Any) -> str:
    told: Any = split.model_dump() if hasattr(split, "model_dump") else split
    return str(cast("dict[str, Any]", told)["name"] if isinstance(told, dict) else told)


def _task(told: Any) -> Task:
    fields: Any = told.model_dump(mode="json") if hasattr(told, "model_dump") else told
    return cast(Task, fields) if isinstance(fields, dict) else {"task": fields}


def _http(url: str, path: str, token: str, timeout: float, body: Any) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **_headers(token)}
    request = urllib.request.Request(url + path, data, headers)
    handlers = [urllib.request.ProxyHandler({})] if _is_here(url) else []
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout) as response:
            return json.load(response)
    except (OSError, ValueError) as error:
        raise RuntimeError(f"the OpenEnv server {url} does not tell {path}: {error}") from error


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _is_here(url: str) -> bool:
    """Whether a URL is on this machine, to which no proxy leads."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _closed() -> type[Exception]:
    return importlib.import_module("websockets.exceptions").ConnectionClosed


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
