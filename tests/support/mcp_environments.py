"""Environments whose tools are those of an MCP server: importing this module registers them."""

import sys
from pathlib import Path

from gymhost.envs import McpServer, Task, ToolEnv, register


class Remote(ToolEnv):
    """Has the tools of a server alone."""

    mcp = (McpServer(command=(sys.executable, str(Path(__file__).with_name("mcp_server.py")))),)

    def prompt(self, task: Task) -> str:
        return "Go."


register("test/McpAsync-v0", Remote, mode="async")
register("test/McpThread-v0", Remote, mode="thread")
