"""Writing environments for language models, and registering any Gymnasium environment to be hosted."""

try:
    from gymhost.envs import shelf  # Registers what comes with gymhost.
except ModuleNotFoundError as error:
    if error.name != "pydantic":
        raise
    raise ModuleNotFoundError(
        "gymhost.envs needs the extra 'envs': pip install 'gymhost[envs]'", name=error.name
    ) from None
from gymhost.envs.content import Content, Picture
from gymhost.envs.mcp_servers import McpServer
from gymhost.envs.registration import Hosting, Problem, Registered, catalog, hosted, load, make, register
from gymhost.envs.rubrics import Rubric, rubric
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.tools import ToolError, ToolSpec, tool
from gymhost.envs.turns import Call, Turn
from gymhost.wire.chat_spaces import ChatMessage

__all__ = [
    "Call",
    "ChatMessage",
    "Content",
    "Hosting",
    "McpServer",
    "Picture",
    "Problem",
    "Registered",
    "Rubric",
    "Task",
    "Tasks",
    "ToolEnv",
    "ToolError",
    "ToolSpec",
    "Turn",
    "catalog",
    "hosted",
    "load",
    "make",
    "register",
    "rubric",
    "shelf",
    "tool",
]
