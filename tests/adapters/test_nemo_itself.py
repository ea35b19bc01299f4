# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false
"""NeMo Gym's own resources servers, played by its own agents and hosted: same tool results, same rewards."""

import asyncio
import functools
import json
import random
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import resources_servers
import uvicorn
from nemo_gym.config_types import BaseServerConfig, ModelServerRef, ResourcesServerRef
from nemo_gym.server_utils import ServerClient
from omegaconf import DictConfig
from resources_servers.blackjack import app as blackjack_app
from resources_servers.example_multi_turn_gymnasium.app import ExampleMultiTurnEnv
from resources_servers.example_session_state_mgmt.app import (
    StatefulCounterResourcesServer,
    StatefulCounterResourcesServerConfig,
)
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent, GymnasiumAgentConfig
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig

from gymhost.envs.shelf.scripted import call
from gymhost.wire import openai_responses
from gymhost.wire.openai import Reply
from support.adapters import Host, Make
from support.server import ServerProcess

pytestmark = [pytest.mark.adapter("nemo"), pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]

DATA = Path(__file__).parent / "data/nemo"
BUNDLED = Path(resources_servers.__path__[0])
SERVERS = {
    "example_session_state_mgmt": StatefulCounterResourcesServer,
    "example_multi_turn_gymnasium": ExampleMultiTurnEnv,
    "blackjack": blackjack_app.BlackjackEnv,
}
URLS: dict[str, str] = {}


class Client(ServerClient):
    """Finds servers where this test has started them."""

    def _resolve_base_url(self, server_name: str) -> str:
        return URLS[server_name]


def client() -> Client:
    return Client(head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=DictConfig({}))


@functools.cache
def loop() -> asyncio.AbstractEventLoop:
    """A loop in a thread of its own: servers of a process share a client, which belongs to one."""
    made = asyncio.new_event_loop()
    threading.Thread(target=made.run_forever, daemon=True).start()
    return made


def serve(app: Any) -> str:
    """Serves an application for as long as the tests run."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    started, startup = threading.Event(), server.startup

    async def start(*args: Any, **kwargs: Any) -> None:
        await startup(*args, **kwargs)
        started.set()

    server.startup = start
    asyncio.run_coroutine_threadsafe(server.serve(), loop())
    assert started.wait(60)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Starts resources servers, and the agents that go with them."""
    with pytest.MonkeyPatch.context() as patch:
        # What its processes are handed when it starts them itself.
        patch.setenv("NEMO_GYM_CONFIG_DICT", '{"head_server": {"host": "127.0.0.1", "port": 1}}')
        start()
        yield


def start() -> None:
    for name, kind in SERVERS.items():
        config = StatefulCounterResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="", name=name)
        URLS[name] = serve(kind(config=config, server_client=client()).setup_webserver())
        agent, settings = (
            (SimpleAgent, SimpleAgentConfig) if "state" in name else (GymnasiumAgent, GymnasiumAgentConfig)
        )
        seat = settings(
            host="127.0.0.1",
            port=1,
            entrypoint="",
            name=f"{name}-agent",
            model_server=ModelServerRef(type="responses_api_models", name="model"),
            resources_server=ResourcesServerRef(type="resources_servers", name=name),
        )
        URLS[f"{name}-agent"] = serve(agent(config=seat, server_client=client()).setup_webserver())


Policy = Callable[[list[dict[str, Any]]], Any]


class Model:
    """A model behind OpenAI's API that a policy plays; keeps the conversation that it was shown last."""

    def __init__(self) -> None:
        self.policy: Policy = lambda _: ""
        self.shown: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                ask = openai_responses.parse(body)
                action = model.policy(ask.messages)
                message = action if isinstance(action, dict) else {"role": "assistant", "content": action}
                model.shown = [*ask.messages, message]
                reply = Reply(message, prompt_tokens=1, completion_tokens=1, model="model")
                data = json.dumps(openai_responses.response(reply, ask)).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        URLS["model"] = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def server(host: Host, servers: None) -> ServerProcess:
    names = (f"nemo:{URLS[name]}?id={name}&tasks={BUNDLED / name / 'data/example.jsonl'}" for name in SERVERS)
    return host(*names)


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (BUNDLED / name / "data/example.jsonl").read_text().splitlines()]


def by_nemo(name: str, row: dict[str, Any], policy: Policy, model: Model) -> tuple[dict[str, Any], list[Any]]:
    """Has NeMo Gym's agent play; returns its result, and the conversation."""
    model.policy = policy
    body = json.dumps(row).encode()
    request = urllib.request.Request(f"{URLS[f'{name}-agent']}/run", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read()), model.shown


def hosted(env: Any, index: int, policy: Policy) -> tuple[float, list[Any], list[Any], dict[str, Any]]:
    messages, info = env.reset(options={"task": index})
    messages, total, ended, tools = list(messages), 0.0, False, info.get("tools", [])
    while not ended:
        action = policy(messages)
        observation, reward, terminated, truncated, info = env.step(action)
        messages += [action if isinstance(action, dict) else {"role": "assistant", "content": action}, *observation]
        total += float(reward)
        ended = terminated or truncated
    return total, messages, tools, info


def said(messages: list[Any]) -> list[Any]:
    return [(message["role"], message.get("content") or "") for message in messages]


def counting(*counts: Any) -> Policy:
    """Makes calls with the counts, one after the other, asks for the count, and says that it is done."""

    def play(messages: list[dict[str, Any]]) -> Any:
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn < len(counts):
            return call("increment_counter", count=counts[turn])
        return call("get_counter_value") if turn == len(counts) else "Done."

    return play


@pytest.mark.parametrize(("counts", "reward"), [((1, 2), 1.0), ((1, 1), 0.0), ((1, "two", 2), 1.0)])
def test_a_server_with_tools(
    server: ServerProcess, remote: Make, model: Model, counts: tuple[Any, ...], reward: float
) -> None:
    name = "example_session_state_mgmt"
    row, policy = rows(name)[0], counting(*counts)
    result, shown = by_nemo(name, row, policy, model)
    total, messages, tools, info = hosted(remote(server, f"nemo/{name}"), 0, policy)
    assert total == result["reward"] == reward
    assert said(messages) == said(shown)
    assert [tool["name"] for tool in tools] == [tool["name"] for tool in row["responses_create_params"]["tools"]]
    assert info["nemo"]["reward"] == reward
    kinds = [item["type"] for item in result["response"]["output"]]
    assert kinds.count("function_call_output") == len(counts) + 1


@pytest.mark.parametrize("answers", [("Paris", "Two million", "The Eiffel tower"), ("Rome", "?", "?")])
def test_a_stepped_server(server: ServerProcess, remote: Make, model: Model, answers: tuple[str, ...]) -> None:
    name = "example_multi_turn_gymnasium"

    def policy(messages: list[dict[str, Any]]) -> str:
        return answers[sum(message["role"] == "assistant" for message in messages)]

    result, shown = by_nemo(name, rows(name)[0], policy, model)
    total, messages, _, _ = hosted(remote(server, f"nemo/{name}"), 0, policy)
    assert total == result["reward"] == float(answers[0] == "Paris")
    assert said(messages) == said(shown)


def test_blackjack(server: ServerProcess, remote: Make, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards: list[float] = []
    env = remote(server, "nemo/blackjack")

    def policy(messages: list[dict[str, Any]]) -> str:
        return "<action>hit</action>" if len(messages) < 3 else "<action>stand</action>"

    for seed in range(8):
        # It has no seeds: the cards of both are those of one here.
        monkeypatch.setattr(blackjack_app.random, "Random", lambda seed=seed: type(DEALER)(seed))
        result, shown = by_nemo("blackjack", rows("blackjack")[0], policy, model)
        total, messages, _, info = hosted(env, 0, policy)
        assert total == result["reward"]
        assert said(messages) == said(shown)
        assert info["nemo"] == result["info"]
        rewards.append(total)
    assert {1.0, -1.0} <= set(rewards)


DEALER = random.Random()


@pytest.mark.parametrize("name", ["example_session_state_mgmt", "blackjack"])
def test_what_the_quick_tests_stand_ins_say_of_themselves_is_what_these_say(name: str) -> None:
    with urllib.request.urlopen(f"{URLS[name]}/openapi.json", timeout=30) as answer:
        document = json.loads(answer.read())
    recorded = json.loads((DATA / f"{name}.json").read_text())
    assert list(document["paths"]) == list(recorded["paths"])
    for path in recorded["paths"]:
        assert document["paths"][path]["post" if "post" in document["paths"][path] else "get"]
