"""Servers of the Model Context Protocol as environments: `mcp:COMMAND`, or `mcp:URL`."""

import functools
import re
import shlex
from pathlib import PurePath

from gymhost.envs import packages
from gymhost.envs.adapters.support import add, needed
from gymhost.envs.mcp_servers import McpServer
from gymhost.envs.packages import Package
from gymhost.envs.tasks import Task
from gymhost.envs.toolenv import ToolEnv

__all__ = ["McpTools", "about", "register"]


class McpTools(ToolEnv):
    """A conversation with the tools of an MCP server. It has no tasks, and nothing in it is paid.

    Args:
        server: The server.
        prompt: How an episode opens.
        system: The system prompt; empty for none.
        max_turns: How many turns an episode may have; None for no limit.
    """

    without_call = "end"

    def __init__(self, server: McpServer, *, prompt: str, system: str = "", max_turns: int | None = None) -> None:
        self.mcp = (server,)
        self.system = system or None
        self.max_turns = max_turns
        self._prompt = prompt
        super().__init__()

    def prompt(self, task: Task) -> str:
        """Tells the prompt."""
        return self._prompt


def register(
    name: str,
    *,
    id: str = "",
    prompt: str = "Use the tools.",
    system: str = "",
    prefix: str = "",
    only: str = "",
    timeout: str = "60",
    max_turns: str = "",
) -> list[str]:
    """Registers an environment with the tools of an MCP server.

    Args:
        name: The program with its arguments, as in a shell, or the URL where it listens (streamable HTTP).
        id: What it is called here, after `mcp/`; without it what is told of the program or the URL.
        prompt: How an episode opens.
        system: The system prompt.
        prefix: What the names of its tools begin with here.
        only: The tools that are offered, with `,` between them; without it all.
        timeout: Seconds that a call may take.
        max_turns: How many turns an episode may have.

    Raises:
        ModuleNotFoundError: The SDK is not installed.
        ValueError: An option can't be.
    """
    needed("mcp", "mcp")
    is_url = name.startswith(("http://", "https://"))
    words = [] if is_url else shlex.split(name)
    server = McpServer(
        command=tuple(words) or None,
        url=name if is_url else None,
        only=tuple(only.split(",")) if only else None,
        prefix=prefix,
        timeout=float(timeout),
    )
    turns = int(max_turns) if max_turns else None
    called = id or (re.sub(r"^https?://", "", name) if is_url else "-".join(PurePath(word).name for word in words))
    return [
        add(
            "mcp",
            called,
            functools.partial(McpTools, server, prompt=prompt, system=system, max_turns=turns),
            description=f"The tools of the MCP server {called}.",
            package=Package(name if is_url else words[0]),
            mode="async",
        )
    ]


def about() -> Package:
    """Returns the package of the protocol's SDK."""
    return packages.installed("mcp")
