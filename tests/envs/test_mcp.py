"""Environments whose tools are those of MCP servers, started as programs or reached by HTTP (case S18)."""

import asyncio
import contextlib
import gc
import json
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gymhost.envs import McpServer, Task, ToolEnv, tool
from support.account import calls
from support.server import alive

PROGRAM = Path(__file__).parent.parent / "support/mcp_server.py"
SERVER = McpServer(command=(sys.executable, str(PROGRAM)), timeout=20.0)


class Adder(ToolEnv):
    """Has a tool of its own beside those of a server."""

    mcp = (SERVER,)

    def prompt(self, task: Task) -> str:
        return "Go."

    @tool
    def own(self) -> str:
        """Is the environment's own."""
        return "own"


async def said(env: ToolEnv, *made: tuple[str, dict[str, Any]]) -> list[Any]:
    observation, *_ = await env.astep(calls(*made))
    return [message["content"] for message in observation]


async def pid_of(env: ToolEnv) -> int:
    return int((await said(env, ("pid", {})))[0])


def test_the_tools_of_a_server_are_offered_with_their_schemas() -> None:
    env = Adder()
    assert env.is_async
    specs = {spec.name: spec for spec in env.tools}
    assert set(specs) == {"own", "add", "increment", "pid", "variables", "fail", "picture", "hang", "end"}
    assert specs["add"].description == "Adds two numbers."
    assert specs["add"].parameters["required"] == ["a", "b"]


async def test_calls_go_to_the_server_and_what_it_says_to_the_model() -> None:
    env = Adder()
    await env.areset()
    first, own, failed, wrong, unknown = await said(
        env, ("add", {"a": 2, "b": 3}), ("own", {}), ("fail", {}), ("add", {"a": "x", "b": 1}), ("nothing", {})
    )
    assert (first, own) == ("5", "own")
    assert failed.startswith("Error: ")
    assert "it does not work" in failed
    assert wrong.startswith("Error: ")
    assert "no tool 'nothing'; the tools are own, add," in unknown
    (shown,) = await said(env, ("picture", {}))
    assert shown == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}]
    await env.aclose()


async def test_each_episode_has_a_program_of_its_own_that_ends_with_it() -> None:
    env = Adder()
    await env.areset()
    assert await said(env, ("increment", {}), ("increment", {})) == ["1", "2"]
    before = await pid_of(env)
    await env.areset()
    assert await said(env, ("increment", {})) == ["1"]
    after = await pid_of(env)
    assert before != after
    assert not alive(before)
    await env.aclose()
    await env.aclose()
    assert not alive(after)


async def test_only_some_tools_with_a_prefix_and_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOO_PRIVATE", "secret")
    server = McpServer(
        command=SERVER.command, only=("hang", "variables"), prefix="far_", timeout=0.3, env={"OWN_SETTING": "1"}
    )

    class Env(Adder):
        mcp = (server,)

    env = Env()
    assert [spec.name for spec in env.tools] == ["own", "far_hang", "far_variables"]
    await env.areset()
    hung, variables = await said(env, ("far_hang", {}), ("far_variables", {}))
    assert hung == "Error: hang took more than 0.3 s and was stopped"
    assert "OWN_SETTING" in variables
    assert "FOO_PRIVATE" not in variables
    await env.aclose()


async def test_a_server_that_ends_is_a_fault_and_the_next_episode_works() -> None:
    env = Adder()
    await env.areset()
    with pytest.raises(Exception, match=r"MCP|[Cc]onnection"):
        await said(env, ("end", {}))
    await env.areset()
    assert await said(env, ("add", {"a": 1, "b": 1})) == ["2"]
    await env.aclose()


def test_plain_use_and_an_environment_that_is_forgotten() -> None:
    env = Adder()
    env.reset()
    observation, *_ = env.step(calls(("pid", {})))
    pid = int(observation[0]["content"])
    assert alive(pid)
    del env
    gc.collect()
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline


@contextlib.contextmanager
def http_server() -> Generator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([sys.executable, str(PROGRAM), str(port)], stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer x"}])
async def test_a_server_that_is_reached_by_http(headers: dict[str, str]) -> None:
    with http_server() as url:

        class Env(Adder):
            mcp = (McpServer(url=url, headers=headers),)

        env = await asyncio.to_thread(Env)
        await env.areset()
        assert await said(env, ("add", {"a": 20, "b": 22}), ("own", {})) == ["42", "own"]
        await env.aclose()


def test_what_can_not_be_reached_is_told_when_it_is_made() -> None:
    class Env(Adder):
        mcp = (McpServer(command=("no-such-program-anywhere",)),)

    with pytest.raises(RuntimeError, match="MCP server no-such-program-anywhere could not be reached"):
        Env()


def test_two_tools_of_one_name_are_refused() -> None:
    class Env(Adder):
        mcp = (SERVER, McpServer(command=SERVER.command, timeout=21.0))

    with pytest.raises(TypeError, match="give that McpServer a prefix"):
        Env()


@pytest.mark.parametrize("settings", [{}, {"command": ("a",), "url": "b"}, {"url": "b", "timeout": 0}])
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="McpServer"):
        McpServer(**settings)


async def test_opened_in_one_task_called_in_others_and_closed_in_another() -> None:
    env = Adder()
    await asyncio.create_task(env.areset())
    results = [await asyncio.create_task(said(env, ("increment", {}))) for _ in range(5)]
    assert json.dumps(results) == '[["1"], ["2"], ["3"], ["4"], ["5"]]'
    pid = await asyncio.create_task(pid_of(env))
    await asyncio.create_task(env.aclose())
    assert not alive(pid)
    assert asyncio.all_tasks() == {asyncio.current_task()}
