# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Tasksets of verifiers, hosted and run by verifiers itself with its own client: same requests, same rewards."""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

from gymhost.client import RemoteEnv
from gymhost.envs.adapters import load
from gymhost.envs.adapters.verifiers_program import install
from gymhost.envs.shelf.scripted import call
from gymhost.wire import openai_chat
from gymhost.wire.errors import EnvironmentFault
from gymhost.wire.openai import Reply
from support.adapters import Make
from support.server import TESTS, ServerProcess, until

# verifiers is warned of how it uses others.
WARNED = pytest.mark.filterwarnings("ignore::DeprecationWarning")
pytestmark = [pytest.mark.adapter("verifiers"), pytest.mark.timeout(240), WARNED]

DATA = Path(__file__).parent / "data/verifiers"
Policy = Callable[[list[dict[str, Any]]], Any]


@pytest.fixture(scope="module", autouse=True)
def packages() -> Iterator[None]:
    """Lets tasksets be found, here, by servers and by what these start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(DATA))
        patch.syspath_prepend(str(DATA))
        install()
        yield


@pytest.fixture(scope="module")
def server(packages: None) -> Iterator[ServerProcess]:
    modules = ["verifiers:vf-sums", "verifiers:vf_pantry?max_turns=4"]
    with ServerProcess(modules=modules, workers=1, paths=[str(TESTS), str(DATA)]) as server:
        yield server


class Stub:
    """A model behind OpenAI's API that a policy plays; keeps what it was asked."""

    def __init__(self, policy: Policy) -> None:
        self.asked: list[Any] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                ask = openai_chat.parse(body)
                stub.asked.append(ask)
                action = policy(ask.messages)
                message = action if isinstance(action, dict) else {"role": "assistant", "content": action}
                reply = Reply(message, prompt_tokens=1, completion_tokens=1, model="stub")
                said = "".join(openai_chat.chunks(reply, include_usage=True)).encode()
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def by_verifiers(taskset: str, index: int, policy: Policy, harness: str, **agent: Any) -> tuple[Any, list[Any]]:
    """Runs an episode with verifiers; returns its trace, and what its model was asked."""
    stub = Stub(policy)

    async def run() -> Any:
        seat = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}, **agent}
        given = {"taskset": {"id": taskset}, "interception": {"type": "server"}, "agent": seat}
        environment = load_environment(resolve_env_config(given))
        task = list(environment.taskset)[index]
        context = ModelContext(model="stub", client=EvalClientConfig(base_url=stub.url, api_key_var="NO_KEY"))
        async with environment.serving():
            [slot] = environment.slots(task)
            return await environment.run_slot(slot, context)

    try:
        episode: vf.Episode = asyncio.run(run())
    finally:
        stub.close()
    assert episode.ok, episode.traces[0].errors
    return episode.traces[0], stub.asked


def hosted(
    env: RemoteEnv, index: int, policy: Policy
) -> tuple[list[Any], list[Any], float, bool, bool, dict[str, Any]]:
    """Plays an episode; returns the conversation, the tools, the reward, how it ended and the last info."""
    messages, info = env.reset(options={"task": index})
    tools, messages = info["tools"], list(messages)
    while True:
        action = policy(messages)
        observation, reward, terminated, truncated, info = env.step(action)
        assert info.get("conversation") is None
        messages += [action if isinstance(action, dict) else {"role": "assistant", "content": action}, *observation]
        if terminated or truncated:
            return messages, tools, float(reward), terminated, truncated, info


def assert_same(played: tuple[Any, ...], trace: Any, asked: list[Any]) -> None:
    messages, tools, reward, _, _, info = played
    assert reward == pytest.approx(trace.reward, abs=1e-12)
    assert info["verifiers"] == {
        "rewards": {name: each.score for name, each in trace.rewards.items()},
        "metrics": trace.metrics,
        "stop": trace.stop_condition,
    }
    assert tools == list(asked[0].tools)
    told = [{key: value for key, value in message.items() if key != "name"} for message in messages]
    own = [{key: value for key, value in message.items() if key != "name"} for message in asked[-1].messages]
    assert told[: len(own)] == own


@pytest.mark.parametrize(
    ("answer", "harness"), [("2", "gymhost"), ("6", "null"), ("It may be 6.", "gymhost"), ("", "gymhost")]
)
def test_a_single_turn_gets_the_rewards_that_verifiers_gives(
    server: ServerProcess, remote: Make, answer: str, harness: str
) -> None:
    played = hosted(remote(server, "verifiers/vf-sums"), 2, lambda _: answer)
    assert_same(played, *by_verifiers("vf-sums", 2, lambda _: answer, harness))
    assert played[3]
    assert [message["content"] for message in played[0][:2]] == ["Say the number alone.", "2 + 4"]


def fetcher(*calls: dict[str, Any] | str) -> Policy:
    """Makes calls of the shelf's tool, one after the other, and says a text where there is one."""

    def play(messages: list[dict[str, Any]]) -> Any:
        turn = sum(message["role"] == "assistant" for message in messages)
        action = calls[min(turn, len(calls) - 1)]
        return action if isinstance(action, str) else call("shelf_take", **action)

    return play


@pytest.mark.parametrize(
    ("policy", "harness", "reward", "stop"),
    [
        (fetcher({"name": "flour", "number": 3}, {"name": "salt"}, "All is done."), "null", 1.125, "agent_completed"),
        (fetcher({"name": "flour"}, {"name": "salt", "number": 9}, "So be it."), "gymhost", 0.25, "agent_completed"),
        (fetcher({"name": "flour"}, {"name": "poison"}, "done"), "gymhost", 0.25, "emptied"),
        (fetcher({"name": "flour"}), "gymhost", 0.75, "max_turns"),
    ],
)
def test_turns_with_tools_get_what_verifiers_gives(
    server: ServerProcess, remote: Make, policy: Policy, harness: str, reward: float, stop: str
) -> None:
    played = hosted(remote(server, "verifiers/vf_pantry"), 0, policy)
    trace, asked = by_verifiers("vf_pantry", 0, policy, harness, max_turns=4)
    assert_same(played, trace, asked)
    assert (played[2], trace.stop_condition) == (reward, stop)
    assert (played[3], played[4]) == (stop != "max_turns", stop == "max_turns")
    assert [tool["name"] for tool in played[1]] == ["shelf_take"]


def shelves() -> list[Path]:
    """The servers of tools that run."""
    found: list[Path] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path] if b"vf_pantry.servers" in path.read_bytes() else []
    return found


def test_an_episode_that_is_ended_from_outside_is_scored_as_it_is(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "verifiers/vf_pantry", max_episode_steps=1)
    env.reset(options={"task": 1})
    _, reward, terminated, truncated, info = env.step(call("shelf_take", name="rice", number=2))
    assert (float(reward), terminated, truncated, info["limit"]) == (0.5, False, True, "max_turns")
    assert info["verifiers"]["stop"] == "gymhost"
    # One that is left in its midst leaves no servers of tools behind.
    env.reset(options={"task": 0})
    assert shelves()
    env.close()
    asyncio.run(until(lambda: not shelves()))


def test_what_fails_in_verifiers_is_a_fault_and_no_reward(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "verifiers/vf-sums")
    env.reset(options={"task": 0})
    with pytest.raises(EnvironmentFault, match="no score for this"):
        env.step("boom")
    env.reset(options={"task": 0})
    _, reward, _, truncated, info = env.step("slow")
    assert (float(reward), truncated, info["limit"], info["reward_invalid"]) == (0.0, True, "scoring_timeout", True)
    assert "did not score" in info["rewards_errors"]["verifiers"]
    # It is usable on.
    assert hosted(env, 0, lambda _: "0")[2] == pytest.approx(1.95)


def test_sessions_side_by_side_and_left_behind(server: ServerProcess, remote: Make) -> None:
    envs = [remote(server, "verifiers/vf-sums") for _ in range(4)]
    for index, env in enumerate(envs):
        assert env.reset(options={"task": index})[0][-1]["content"] == f"{index} + {index * index}"
    envs[0].close()
    envs[1].reset(options={"task": 3})
    for index, env in enumerate(envs[1:], start=1):
        task = 3 if index == 1 else index
        assert float(env.step(str(task + task * task))[1]) > 1.8


def test_what_can_not_be_hosted_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_taskset"):
        load("verifiers:no-such-taskset")
    with pytest.raises(ValueError, match=r"runs what a model wrote.*runtime=docker"):
        load("verifiers:vf-sums?harness=bash")
    with pytest.raises(ValueError, match="numbre"):
        load("verifiers:vf-sums?numbre=3")
    assert load("verifiers:vf-sums?number=3") == ["verifiers/vf-sums"]
    assert os.environ["PYTHONPATH"] == str(DATA)
