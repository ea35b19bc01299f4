"""A server of the Model Context Protocol for tests: by standard streams, or by HTTP where it is given a port."""

import asyncio
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("tests")
count = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def increment() -> int:
    """Counts calls: state of the program."""
    global count
    count += 1
    return count


@server.tool()
def pid() -> int:
    """Tells the process id."""
    return os.getpid()


@server.tool()
def variables() -> list[str]:
    """Tells the names of the environment variables."""
    return sorted(os.environ)


@server.tool()
def fail() -> str:
    """Fails."""
    raise ToolError("it does not work")


@server.tool()
def picture() -> Image:
    """Shows a picture."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
async def hang() -> str:
    """Waits for ever."""
    await asyncio.Event().wait()
    return "never"


@server.tool()
def end() -> str:
    """Ends the program."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
