"""A server spoken to by others' protocols: OpenEnv's, by a small client of its own, and MCP, by the official client."""

import asyncio
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import mcp
import pytest
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as open_socket

from gymhost.client import connect, make
from gymhost.envs.shelf.guess_number import secret
from support.adapters import Host
from support.certificates import Authority
from support.gateways import GatewayProcess
from support.openenv_client import OpenEnvSocket
from support.server import ServerProcess, until_sessions

GUESS = "gymhost/GuessNumber-v0"
TOKEN = {"Authorization": "Bearer one"}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(
        workers=1, capacity=3, modules=["support.environments", "support.gateway_environments"]
    ) as process:
        yield process


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerProcess]:
    with ServerProcess(workers=1, modules=[], tokens={"one": "alice", "two": "bob"}) as process:
        yield process


@pytest.fixture(scope="module")
def openenv(server: ServerProcess) -> Iterator[GatewayProcess]:
    with GatewayProcess("openenv", server, environment=GUESS, create_timeout=0.5) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def guarded_openenv(guarded: ServerProcess) -> Iterator[GatewayProcess]:
    with GatewayProcess("openenv", guarded, wants_token=True) as gateway:
        yield gateway


def post(url: str, body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers or {})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def status_of(url: str, body: Any = None, headers: dict[str, str] | None = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=20)
    raised.value.close()
    return raised.value.code


# -- OpenEnv -----------------------------------------------------------------------------------------------------------


async def test_an_episode_over_a_socket(openenv: GatewayProcess, server: ServerProcess) -> None:
    number = secret(1, 7, 5)
    wrong = number % 7 + 1
    with OpenEnvSocket(openenv.url()) as client:
        told = client.ask("reset", {"task": 5, "seed": 0, "episode_id": "mine"})
        assert told["observation"]["text"] == "Guess the number from 1 to 7. You have 3 guesses."
        assert (told["reward"], told["done"], told["metadata"]) == (None, False, {"task": 5, "split": "train"})
        (tool,) = client.ask("step", {"type": "list_tools"})["observation"]["tools"]
        assert (tool["name"], tool["input_schema"]["required"]) == ("guess", ["number"])
        told = client.ask("step", {"type": "call_tool", "tool_name": "guess", "arguments": {"number": wrong}})
        assert (told["reward"], told["done"]) == (0.0, False)
        assert told["observation"]["result"]["data"].startswith("Too ")
        assert client.ask("state") == {"episode_id": "mine", "step_count": 1}
        call = {"id": "a", "type": "function", "function": {"name": "guess", "arguments": {"number": number}}}
        told = client.ask("step", {"message": "", "tool_calls": [call], "metadata": {}})
        assert (told["reward"], told["done"]) == (1.0, True)
        assert told["metadata"]["terminated"] is True
        assert told["metadata"]["rewards"] == {"win": 1.0, "format": 0.0}
        assert "ended" in client.refused("step", {"message": "more"})["message"]
    async with connect(server.address) as remote:
        await until_sessions(remote, 0)


def test_a_step_before_a_reset_begins_an_episode(openenv: GatewayProcess) -> None:
    with OpenEnvSocket(openenv.url()) as client:
        assert client.ask("step", {"message": "hello"})["done"] is False


def test_spaces_are_what_json_has(openenv: GatewayProcess) -> None:
    own = gymnasium.make("CartPole-v1")
    seen, _ = own.reset(seed=3)
    schema = get(openenv.url("CartPole-v1") + "/schema")
    assert schema["action"]["properties"] == {"value": {"type": "integer", "minimum": 0, "maximum": 1}}
    with OpenEnvSocket(openenv.url("CartPole-v1")) as client:
        assert client.ask("reset", {"seed": 3})["observation"]["value"] == pytest.approx(seen.tolist())
        seen, reward, *_ = own.step(1)
        told = client.ask("step", {"value": 1})
        assert told["observation"]["value"] == pytest.approx(seen.tolist())
        assert told["reward"] == reward
        why = client.refused("step", {"value": 2})
        assert (why["code"], why["errors"]) == ("VALIDATION_ERROR", ["2 is not in Discrete(2)"])
    own.close()


def test_a_reward_that_could_not_be_told_is_null(openenv: GatewayProcess) -> None:
    with OpenEnvSocket(openenv.url("test/Unpaid-v0")) as client:
        client.ask("reset")
        told = client.ask("step", {"message": "done"})
        assert (told["reward"], told["done"]) == (None, True)


def test_what_is_malformed_leaves_the_socket_open(openenv: GatewayProcess) -> None:
    with OpenEnvSocket(openenv.url()) as client:
        assert client.raw("{")["data"]["code"] == "INVALID_JSON"
        assert client.refused("dance")["code"] == "UNKNOWN_TYPE"
        assert client.refused("step", {"moves": 1})["code"] == "VALIDATION_ERROR"
        assert client.raw('{"type": "state", "id": 7}')["data"]["code"] == "VALIDATION_ERROR"
        assert client.refused("reset", {"task": -1})["code"] in ("EXECUTION_ERROR", "VALIDATION_ERROR")
        assert client.ask("reset", {})["done"] is False
    with OpenEnvSocket(openenv.url("test/Raises-v0")) as client:
        client.ask("reset")
        why = client.refused("step", {"message": "raise"})
        assert (why["code"], "told to" in why["message"]) == ("EXECUTION_ERROR", True)
        client.ask("reset")


async def test_a_full_server_says_so_in_openenvs_words(openenv: GatewayProcess, server: ServerProcess) -> None:
    sockets = [OpenEnvSocket(openenv.url()) for _ in range(3)]
    for client in sockets:
        client.ask("reset")
    fourth = OpenEnvSocket(openenv.url())
    assert fourth.next()["data"]["code"] == "CAPACITY_REACHED"
    fourth.socket.close()
    # A socket that breaks frees its place as one that says goodbye does.
    sockets[0].socket.socket.shutdown(socket.SHUT_RDWR)
    sockets[0].socket.close()
    async with connect(server.address) as remote:
        await until_sessions(remote, 2)
    with OpenEnvSocket(openenv.url()) as client:
        client.ask("reset")
    for client in sockets[1:]:
        client.__exit__()
    with OpenEnvSocket(openenv.url("test/NoSuch-v0")) as client:
        assert client.next()["data"]["code"] == "SESSION_ERROR"


async def test_a_socket_that_goes_stops_what_runs_for_it(openenv: GatewayProcess, server: ServerProcess) -> None:
    client = OpenEnvSocket(openenv.url("test/Async-v0"))
    client.ask("reset")
    client.socket.send('{"type": "step", "data": {"value": 600.0}}')
    client.socket.close()
    async with connect(server.address) as remote:
        await until_sessions(remote, 0)


def test_http_and_json_rpc(openenv: GatewayProcess) -> None:
    base = openenv.url(GUESS)
    assert get(openenv.url() + "/health") == {"status": "healthy"}
    assert get(base + "/metadata")["name"] == GUESS
    assert get(base + "/state") == {"episode_id": None, "step_count": 0}
    assert GUESS in get(openenv.url() + "/list_environments")
    assert post(base + "/reset", {"seed": 1})["done"] is False
    assert post(base + "/step", {"action": {"message": "hello"}})["reward"] == 0.0
    assert status_of(base + "/step", {}) == 422
    assert status_of(openenv.url("test/NoSuch-v0") + "/schema") == 404

    def rpc(method: str, **params: Any) -> dict[str, Any]:
        return post(base + "/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    id = rpc("openenv/session/create")["result"]["session_id"]
    number = secret(1, 7, 2)
    with OpenEnvSocket(base, query=f"?session_id={id}") as client:
        client.ask("reset", {"task": 2})
        second = OpenEnvSocket(base, query=f"?session_id={id}")
        assert second.next()["data"]["code"] == "SESSION_ERROR"
        second.socket.close()
        (tool,) = rpc("tools/list", session_id=id)["result"]["tools"]
        assert tool["name"] == "guess"
        called = rpc("tools/call", name="guess", arguments={"number": number}, session_id=id)["result"]
        assert (called["data"], called["meta"]["reward"]) == ("Correct.", 1.0)
        assert client.ask("state")["step_count"] == 1
    assert rpc("openenv/session/close", session_id=id)["result"]["session_id"] == id
    assert "no session" in rpc("tools/call", name="guess", session_id=id)["error"]["message"]
    assert "no method" in rpc("dance")["error"]["message"]


async def test_a_gateway_that_stops_leaves_no_session(server: ServerProcess) -> None:
    with GatewayProcess("openenv", server, environment=GUESS) as process:
        client = OpenEnvSocket(process.url())
        client.ask("reset")
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
        post(process.url() + "/mcp", rpc)
        process.stop()
        client.socket.close()
    async with connect(server.address) as remote:
        await until_sessions(remote, 0)


def test_who_has_no_token_is_not_let_in(guarded_openenv: GatewayProcess) -> None:
    url = guarded_openenv.url(GUESS)
    for headers in ({}, {"Authorization": "Bearer none"}):
        client = OpenEnvSocket(url, headers=headers)
        assert "token" in client.next()["data"]["message"]
        client.socket.close()
        assert status_of(url + "/reset", {}, headers) == 401
    for query, headers in (("?token=one", {}), ("", TOKEN)):
        with OpenEnvSocket(url, query=query, headers=headers) as client:
            client.ask("reset")
    create = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    id = post(url + "/mcp", create, TOKEN)["result"]["session_id"]
    client = OpenEnvSocket(url, query=f"?session_id={id}&token=two")
    assert "no session" in client.next()["data"]["message"], "it is somebody else's"
    client.socket.close()


def test_callers_speak_tls_where_the_server_does(guarded: ServerProcess, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with GatewayProcess("openenv", guarded, wants_token=True, **authority.server("127.0.0.1")) as gateway:
        trusted = ssl.create_default_context(cafile=authority.trusted.ca)
        address = f"wss://{gateway.address}/env/{GUESS}/ws?token=one"
        with open_socket(address, ssl=trusted, proxy=None) as client:
            client.send('{"type": "reset"}')
            assert json.loads(client.recv(20))["type"] == "observation"


def test_who_tries_tokens_waits_and_those_beside_do_not(guarded_openenv: GatewayProcess) -> None:
    url = guarded_openenv.url(GUESS) + "/reset"
    assert post(url, {}, TOKEN)["done"] is False
    tries = [status_of(url, {}, {"Authorization": f"Bearer wrong-{number}"}) for number in range(6)]
    assert (tries[0], tries[-1]) == (401, 503)
    assert post(url, {}, TOKEN)["done"] is False


def test_pages_from_elsewhere_open_nothing(openenv: GatewayProcess) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        assert status_of(openenv.url() + "/schema", headers=headers) == 403
    with pytest.raises(InvalidStatus):
        open_socket(f"ws://{openenv.address}/ws", origin="http://evil.example", proxy=None)  # pyright: ignore[reportArgumentType]


def test_a_gateway_is_an_openenv_server_that_can_be_hosted(openenv: GatewayProcess, host: Host) -> None:
    process = host(f"openenv:{openenv.url()}", f"openenv:{openenv.url('CartPole-v1')}")
    place = openenv.address.replace(":", "-")
    env, own = make(f"openenv/{place}-env-CartPole-v1", server=process.address), gymnasium.make("CartPole-v1")
    seen, _ = own.reset(seed=4)
    assert env.reset(seed=4)[0]["value"] == pytest.approx(seen.tolist())
    terminated = False
    while not terminated:
        seen, reward, terminated, truncated, _ = own.step(1)
        told = env.step({"value": 1})
        assert told[0]["value"] == pytest.approx(seen.tolist())
        assert told[1:4] == (reward, terminated, truncated)
    env.close()
    own.close()
    talk = make(f"openenv/{place}", server=process.address)
    talk.reset(options={"task": 5})
    call = {"id": "a", "type": "function", "function": {"name": "guess", "arguments": {"number": secret(1, 7, 5)}}}
    said, reward, terminated, *_ = talk.step({"role": "assistant", "content": "", "tool_calls": [call]})
    assert (said[0]["content"], reward, terminated) == ("Correct.", 1.0, True)
    talk.close()


# -- MCP ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(server: ServerProcess) -> Iterator[GatewayProcess]:
    with GatewayProcess("mcp", server, environment=GUESS) as process:
        yield process


def text(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


async def test_an_mcp_client_lists_tools_and_plays(gateway: GatewayProcess, server: ServerProcess) -> None:
    async with asyncio.timeout(40), connect(server.address) as remote:
        described = await remote.describe(GUESS)
        async with mcp.Client(f"{gateway.url()}/mcp") as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["guess", "reset", "evaluate"]
            assert tools["guess"].input_schema == described.tools[0]["parameters"]
            assert await remote.sessions() == [], "to look at tools takes no place"
            result = await client.call_tool("guess", {"number": 1})
            assert (result.is_error, "reset" in text(result)) == (True, True)
            result = await client.call_tool("reset", {"task": 5})
            assert text(result) == "Guess the number from 1 to 7. You have 3 guesses."
            assert result.structured_content is not None
            assert result.structured_content["info"] == {"task": 5, "split": "train"}
            number = secret(1, 7, 5)
            result = await client.call_tool("guess", {"number": number % 7 + 1})
            assert result.structured_content is not None
            assert (result.structured_content["reward"], result.structured_content["terminated"]) == (0.0, False)
            result = await client.call_tool("guess", {"number": number})
            assert text(result) == "Correct.\nThe episode has ended: reward 1."
            assert result.structured_content is not None
            assert result.structured_content["info"]["rewards"] == {"win": 1.0, "format": 0.0}
            assert result.structured_content["terminated"] is True
            # Another session is another client's.
            async with mcp.Client(f"{gateway.url(GUESS)}/mcp") as second:
                await second.call_tool("reset", {"task": 5})
                result = await second.call_tool("evaluate", {})
                assert result.structured_content is not None
                assert (result.structured_content["reward"], result.structured_content["truncated"]) == (0.0, True)
                assert len(await remote.sessions()) == 2
            assert (await client.call_tool("nothing", {})).is_error
        await until_sessions(remote, 0)


async def test_environments_without_tools_are_played_too(gateway: GatewayProcess) -> None:
    own = gymnasium.make("CartPole-v1")
    own.reset(seed=1)
    async with asyncio.timeout(40), mcp.Client(f"{gateway.url('CartPole-v1')}/mcp") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["reset", "step"]
        await client.call_tool("reset", {"seed": 1})
        result = await client.call_tool("step", {"action": 0})
        assert result.structured_content is not None
        assert result.structured_content["observation"] == pytest.approx(own.step(0)[0].tolist())
        assert "not in Discrete" in text(await client.call_tool("step", {"action": 9}))
    async with asyncio.timeout(40), mcp.Client(f"{gateway.url('gymhost/Echo-v0')}/mcp") as client:
        assert "say" in [tool.name for tool in (await client.list_tools()).tools]
        await client.call_tool("reset", {})
        assert not (await client.call_tool("say", {"text": "hello"})).is_error
    own.close()


async def test_mcp_with_tokens(guarded: ServerProcess) -> None:
    with GatewayProcess("mcp", guarded, wants_token=True) as gateway:
        url = f"{gateway.url(GUESS)}/mcp"
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
        assert status_of(url, hello, {"Authorization": "Bearer none"}) == 401
        assert status_of(url, hello) == 401
        async with (
            asyncio.timeout(40),
            create_mcp_http_client(headers=TOKEN) as http,
            mcp.Client(streamable_http_client(url, http_client=http)) as client,
        ):
            assert not (await client.call_tool("reset", {})).is_error
        async with asyncio.timeout(40), mcp.Client(f"{url}?token=two") as client:
            assert not (await client.call_tool("reset", {})).is_error


async def test_the_tools_of_an_mcp_server_are_hosted(gateway: GatewayProcess, host: Host) -> None:
    process = host(f"mcp:{gateway.url()}/mcp?id=guess&prompt=Play.&max_turns=3")
    async with connect(process.address) as remote:
        described = await remote.describe("mcp/guess")
        assert [tool["name"] for tool in described.tools] == ["guess", "reset", "evaluate"]
        async with remote.session("mcp/guess") as session:
            observation, _ = await session.reset()
            assert observation == [{"role": "user", "content": "Play."}]
            observation, reward, *_ = await session.call_tool("reset", {"task": 5})
            assert (observation[0]["content"][:16], reward) == ("Guess the number", 0.0)
            assert (await session.step("That is all."))[2] is True
