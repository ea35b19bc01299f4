"""Servers of the Model Context Protocol (MCP) whose tools an environment offers."""

import asyncio
import base64
import contextlib
import functools
import importlib
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from gymhost.envs.content import Block, Content, Picture
from gymhost.envs.tools import ToolError, ToolSpec, render_result
from gymhost.wire.errors import Unimplemented

__all__ = ["McpConnection", "McpServer", "McpTool", "tools_of"]

# Seconds that a server gets to end by itself.
_CLOSE_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class McpServer:
    """A server of the Model Context Protocol: a program that is started, or a URL that is connected to.

    Each episode has a connection of its own, and so a program of its own. The program runs beside the environment, in
    no sandbox; of the environment variables it sees the few that the SDK hands on, and `env`.

    Attributes:
        command: The program and its arguments.
        url: In place of a program: where a server listens (streamable HTTP).
        env: Environment variables for the program.
        cwd: The folder that the program starts in.
        headers: HTTP headers for the URL, such as an authorization.
        only: The tools that are offered; None means all.
        prefix: What the names of its tools begin with in this environment, so that those of several servers differ.
        timeout: Seconds that a call may take; the model is told that it took longer.
        start_timeout: Seconds that starting and connecting may take.
        output_limit: The most characters of text that a call may give the model.
    """

    command: tuple[str, ...] | None = None
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    cwd: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    only: tuple[str, ...] | None = None
    prefix: str = ""
    timeout: float = 60.0
    start_timeout: float = 30.0
    output_limit: int | None = None

    def __post_init__(self) -> None:
        """Checks it.

        Raises:
            ValueError: It names neither a command nor a URL, or both, or a limit is not above 0.
        """
        if (self.command is None) == (self.url is None):
            raise ValueError("an McpServer has a command or a url")
        if not (self.timeout > 0 and self.start_timeout > 0):
            raise ValueError("an McpServer's timeout and start_timeout must be above 0")

    def __str__(self) -> str:
        return self.url or " ".join(self.command or ())

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncGenerator[Any, None]:
        """Yields a client of the SDK that is connected.

        Raises:
            ModuleNotFoundError: The SDK is not installed.
        """
        try:
            mcp: Any = importlib.import_module("mcp")
            http: Any = importlib.import_module("mcp.client.streamable_http")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("an McpServer needs the extra 'mcp': pip install 'gymhost[mcp]'") from error
        async with contextlib.AsyncExitStack() as stack:
            reached: Any = self.url
            if self.command is not None:
                program, *arguments = self.command
                variables = dict(self.env) or None
                reached = mcp.StdioServerParameters(command=program, args=arguments, env=variables, cwd=self.cwd)
            elif self.headers:
                client = await stack.enter_async_context(http.create_mcp_http_client(headers=dict(self.headers)))
                reached = http.streamable_http_client(self.url, http_client=client)
            yield await stack.enter_async_context(mcp.Client(reached))


class McpConnection:
    """A connection to a server. It may be used and closed from any task of the loop that it was opened on.

    A task of its own opens it and closes it, since what the SDK opens in a task must be closed in that one.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.client: Any = None
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Starts the server and connects to it.

        Raises:
            RuntimeError: It could not be reached in `start_timeout`.
        """
        ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(ready), name=f"mcp {self.server}")
        try:
            async with asyncio.timeout(self.server.start_timeout):
                await ready
        except BaseException as error:
            await self.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            why = f"no answer in {self.server.start_timeout:g} s (start_timeout)"
            why = why if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
            raise RuntimeError(f"the MCP server {self.server} could not be reached: {why}") from error

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self.server.connected() as client:
                self.client = client
                if not ready.done():
                    ready.set_result(None)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - whoever opens it is told; later ones show in the calls
            if not ready.done():
                ready.set_exception(_innermost(error))
        finally:
            self.client = None

    async def close(self) -> None:
        """Ends the connection, and the server if it was started. Bounded; may be called twice."""
        self._closing.set()
        task, self._task = self._task, None
        if task is None:
            return
        _, late = await asyncio.wait([task], timeout=_CLOSE_GRACE)
        if late:
            task.cancel()
            await asyncio.wait([task], timeout=_CLOSE_GRACE)

    def __deepcopy__(self, memo: object) -> Self:
        raise Unimplemented(
            f"the environment can't be forked: what the MCP server {self.server} knows of the episode can't be copied"
        )

    async def tools(self) -> "list[McpTool]":
        """Returns the tools that the server offers and `only` lets through.

        Raises:
            ValueError: `only` names a tool that the server does not have.
        """
        found: dict[str, McpTool] = {}
        cursor: str | None = None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            for one in page.tools:
                found[one.name] = McpTool(self.server, one.name, one.description or "", one.input_schema)
            cursor = page.next_cursor
            if cursor is None:
                break
        if self.server.only is None:
            return list(found.values())
        missing = [name for name in self.server.only if name not in found]
        if missing:
            raise ValueError(f"the MCP server {self.server} has no tool {missing[0]!r}: it has {', '.join(found)}")
        return [found[name] for name in self.server.only]

    async def call(self, name: str, arguments: dict[str, Any]) -> str | list[Block]:
        """Calls a tool, and returns what the model is given.

        Raises:
            ToolError: The tool says that it failed, or took longer than `timeout`.
            RuntimeError: The server is gone.
        """
        if self.client is None:
            raise RuntimeError(f"the connection to the MCP server {self.server} has ended")
        allowed = asyncio.timeout(self.server.timeout)
        try:
            async with allowed:
                result = await self.client.call_tool(name, arguments)
        except TimeoutError:
            if not allowed.expired():
                raise
            raise ToolError(f"{name} took more than {self.server.timeout:g} s and was stopped") from None
        parts = [_part(block) for block in result.content]
        if result.is_error:
            raise ToolError("\n".join(part for part in parts if isinstance(part, str)) or f"{name} failed")
        only_text = all(isinstance(part, str) for part in parts)
        shown = "\n".join(str(part) for part in parts) if only_text else Content(*parts)
        return render_result(shown, self.server.output_limit)


class McpTool:
    """A tool of a server, as an environment calls it."""

    parallel = False
    is_async = True

    def __init__(self, server: McpServer, name: str, description: str, schema: dict[str, Any]) -> None:
        self.server = server
        self.name = name
        self.spec = ToolSpec(server.prefix + name, description, schema)

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments as they are: the server checks them, and its complaint is the tool's answer."""
        return arguments


@functools.cache
def tools_of(server: McpServer) -> tuple[McpTool, ...]:
    """Returns the tools of a server, which is asked once in a process: it may be started for it.

    Raises:
        RuntimeError: It could not be reached.
    """
    answer: list[McpTool] = []
    failure: list[BaseException] = []

    async def ask() -> None:
        connection = McpConnection(server)
        await connection.open()
        try:
            async with asyncio.timeout(server.start_timeout):
                answer.extend(await connection.tools())
        finally:
            await connection.close()

    def run() -> None:
        try:
            asyncio.run(ask())
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asked
            failure.append(error)

    # In a thread, since the caller may be inside a running loop.
    thread = threading.Thread(target=run, name="mcp tools", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return tuple(answer)


def _part(block: Any) -> str | Picture:
    """A block of a result as text or picture; of what is neither, that it is there is said."""
    if block.type == "text":
        return block.text
    if block.type == "image":
        return Picture(base64.b64decode(block.data), block.mime_type)
    if block.type == "resource" and getattr(block.resource, "text", None) is not None:
        return block.resource.text
    return f"[{block.type}]"


def _innermost(error: BaseException) -> BaseException:
    """The first exception in groups of one, which task groups make."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
