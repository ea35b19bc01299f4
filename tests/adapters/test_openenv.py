"""OpenEnv both ways: its environments hosted, and its own clients on a server; OpenEnv's server is beside them."""

# OpenEnv is not installed where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUntypedBaseClass=false

import asyncio
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.types import State
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient

from gymhost.client import connect
from gymhost.envs.shelf.scripted import call
from gymhost.wire.errors import CapacityExhausted, EnvironmentFault, InvalidArgument
from support.adapters import Make
from support.gateways import GatewayProcess
from support.openenv_environments import Left, Take
from support.server import TESTS, ServerProcess

# OpenEnv takes long to import, and does so in several processes.
pytestmark = [pytest.mark.adapter("openenv"), pytest.mark.timeout(240)]

HERE = "support.openenv_environments"
PLAY: list[dict[str, Any]] = [
    {"amount": 1},
    {"amount": 3, "note": "null island", "tags": ["a", "b"]},
    {"amount": 2, "tags": ["unpaid"]},
    {"amount": 1, "how": "high", "note": None},
    *([{"amount": 1}] * 5),
]


def openenv_server(app: str) -> Iterator[str]:
    """OpenEnv's own server of an application."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", f"{HERE}:{app}", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, cwd=TESTS) as process:
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
        yield f"http://127.0.0.1:{port}"
        process.terminate()


@pytest.fixture(scope="module")
def countdown() -> Iterator[str]:
    yield from openenv_server("countdown")


@pytest.fixture(scope="module")
def calculator() -> Iterator[str]:
    yield from openenv_server("calculator")


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `openenv init` writes: an environment that is to be installed."""
    folder = tmp_path_factory.mktemp("scaffold")
    command = [str(Path(sys.executable).with_name("openenv")), "init", "parrot_env"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=50)
    return folder


@pytest.fixture(scope="module")
def server(countdown: str, calculator: str, scaffold: Path) -> Iterator[ServerProcess]:
    modules = [
        f"openenv:{HERE}:Countdown?most=20",
        f"openenv:{HERE}:Calculator",
        "openenv:parrot",
        f"openenv:{countdown}?timeout=20",
        f"openenv:{calculator}",
    ]
    with ServerProcess(workers=1, modules=modules, paths=[str(TESTS), str(scaffold)]) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(server: ServerProcess) -> Iterator[GatewayProcess]:
    with GatewayProcess("openenv", server, environment=f"openenv/{HERE}-Countdown") as process:
        yield process


def remote_id(url: str) -> str:
    return "openenv/" + url.removeprefix("http://").replace(":", "-")


@pytest.mark.parametrize("seed", [1, 5, 8])
@pytest.mark.parametrize("where", ["package", "url"])
def test_an_environment_answers_as_its_own_server(
    server: ServerProcess, countdown: str, remote: Make, where: str, seed: int
) -> None:
    env = remote(server, f"openenv/{HERE}-Countdown" if where == "package" else remote_id(countdown))
    with GenericEnvClient(base_url=countdown).sync() as client:
        result = client.reset(seed=seed, least=4)
        assert env.reset(seed=seed, options={"least": 4}) == (result.observation, {})
        for action in PLAY:
            result = client.step(action)
            observation, reward, terminated, truncated, info = env.step(action)
            assert observation == result.observation
            assert (info.pop("reward_invalid", False), reward) == (result.reward is None, result.reward or 0.0)
            assert (terminated or truncated, info) == (result.done, result.metadata)
            assert truncated == ("truncated" in info)
            if result.done:
                break
        assert result.done


@pytest.mark.parametrize("where", ["package", "url"])
async def test_tasks_are_listed_and_chosen(server: ServerProcess, countdown: str, where: str) -> None:
    id = f"openenv/{HERE}-Countdown" if where == "package" else remote_id(countdown)
    async with connect(server.address) as remote:
        assert (await remote.describe(id)).splits == {"train": 5, "hard": 2}
        assert (await remote.tasks(id, split="hard")).tasks == {n: {"id": f"hard-{n}", "left": 10 + n} for n in (0, 1)}
        async with remote.session(id, task=3) as session:
            assert (await session.reset())[0]["left"] == 13
            assert (await session.reset(options={"task": 1, "split": "hard"}))[0]["left"] == 11


def test_actions_are_members_of_the_space_or_what_json_has(server: ServerProcess, remote: Make) -> None:
    env = remote(server, f"openenv/{HERE}-Countdown")
    assert set(env.action_space.spaces) == {"amount", "note", "tags", "how"}  # pyright: ignore[reportAttributeAccessIssue]
    env.reset(seed=1)
    observation, *_ = env.step({"amount": 2, "note": "null", "tags": '["x"]', "how": "low"})
    assert (observation["history"], observation["note"]) == ([2], None)
    with pytest.raises(InvalidArgument, match="less than or equal to 3"):
        env.step({"amount": 9})
    with pytest.raises(EnvironmentFault, match="told to"):
        env.step({"amount": 1, "note": "raise"})


def test_a_full_server_is_told_and_its_places_come_back(server: ServerProcess, countdown: str, remote: Make) -> None:
    first, second, third = (remote(server, remote_id(countdown)) for _ in range(3))
    first.reset()
    second.reset()
    with pytest.raises(CapacityExhausted, match="OpenEnv server"):
        third.reset()
    first.close()
    deadline = time.monotonic() + 20
    while True:
        try:
            third.reset()
            break
        except CapacityExhausted:
            assert time.monotonic() < deadline
    with pytest.raises(InvalidArgument, match="no_such"):
        third.step({"amount": 1, "no_such": 1})
    assert third.step({"amount": 1})[0]["history"] == [1]


@pytest.mark.parametrize("where", ["package", "url"])
async def test_tools_are_the_ones_of_openenvs_client(server: ServerProcess, calculator: str, where: str) -> None:
    id = f"openenv/{HERE}-Calculator" if where == "package" else remote_id(calculator)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("add", {"a": 2, "b": 3}),
        ("describe", {"text": "abc"}),
        ("add", {"a": 1}),
    ]
    async with connect(server.address) as remote, MCPToolClient(base_url=calculator) as client:
        tools = [
            {"name": t.name, "description": t.description, "parameters": t.input_schema}
            for t in await client.list_tools()
        ]
        described = await remote.describe(id)
        assert list(described.tools) == tools
        async with remote.session(id) as session:
            opening, _ = await session.reset()
            assert opening == [{"role": "user", "content": "ready"}]
            await client.reset()
            for number, (name, arguments) in enumerate(calls, 1):
                observation, reward, terminated, *_ = await session.step(call(name, **arguments))
                told = await client.call_tool(name, **arguments)
                assert observation[0]["content"].replace(" ", "") == str(told).replace("'", '"').replace(" ", "")
                assert (reward, terminated) == (number / 4, number == 3)
            await session.reset()
            observation, reward, *_ = await session.step(call("add", a="x"))
            assert "valid integer" in observation[0]["content"]
            assert reward == 0.0


def test_what_openenv_init_writes_is_hosted_by_its_name(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "openenv/parrot")
    env.reset()
    observation, reward, *_ = env.step("hello")
    assert (observation["echoed_message"], observation["message_length"], reward) == ("hello", 5, 0.5)


# -- spoken ------------------------------------------------------------------------------------------------------------


class CountdownClient(EnvClient[Take, Left, State]):
    """A client as OpenEnv's environments bring one along."""

    def _step_payload(self, action: Take) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Left]:
        told = {**payload["observation"], "done": payload["done"], "reward": payload["reward"]}
        return StepResult(Left(**told), payload["reward"], payload["done"], payload.get("metadata"))

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(**payload)


def test_a_client_of_openenv_runs_unchanged(gateway: GatewayProcess, countdown: str) -> None:
    with CountdownClient(base_url=gateway.url()).sync() as here, CountdownClient(base_url=countdown).sync() as there:
        mine, theirs = here.reset(seed=1, least=12, episode_id="e"), there.reset(seed=1, least=12)
        assert (mine.observation, mine.metadata) == (theirs.observation, theirs.metadata)
        for action in PLAY[:4]:
            assert here.step(Take(**action)) == there.step(Take(**action))
        assert (here.state().episode_id, here.state().step_count) == ("e", 4)
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            here.step(Take.model_construct(amount=9, metadata={}))
        with pytest.raises(RuntimeError, match=r"told to.*EXECUTION_ERROR"):
            here.step(Take(amount=1, note="raise"))


async def test_many_sessions_and_tools_of_openenvs_clients(gateway: GatewayProcess) -> None:
    async def play(number: int) -> list[int]:
        async with GenericEnvClient(base_url=gateway.url()) as client:
            await client.reset(seed=number)
            for amount in (1, 2, 1 + number % 3):
                result = await client.step({"amount": amount})
            return result.observation["history"]

    assert await asyncio.gather(*map(play, range(12))) == [[1, 2, 1 + number % 3] for number in range(12)]
    for id, tools in ((f"openenv/{HERE}-Calculator", ["add", "describe"]), ("gymhost/GuessNumber-v0", ["guess"])):
        async with MCPToolClient(base_url=gateway.url(id)) as client:
            await client.reset(task=3)
            assert [tool.name for tool in await client.list_tools()] == tools
            arguments = {"a": 2, "b": 3} if tools[0] == "add" else {"number": 4}
            assert await client.call_tool(tools[0], **arguments)
            assert "no tool 'no_such'" in await client.call_tool("no_such")  # what a model is told
