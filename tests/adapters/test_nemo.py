"""Resources servers of NeMo Gym, hosted: a stand-in for each kind, with the OpenAPI of a real one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymhost.envs.adapters import load
from gymhost.envs.shelf.scripted import call
from gymhost.wire.errors import EnvironmentFault
from support.adapters import Host, Make
from support.nemo_resources import Resources, blackjack, counter
from support.server import ServerProcess

DATA = Path(__file__).parent / "data/nemo"
USER = {"role": "user", "content": "Count to seven."}
INCREMENT = {
    "type": "function",
    "name": "increment_counter",
    "description": "Adds to the counter.",
    "parameters": {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]},
    "strict": True,
}
ROWS = [
    {"responses_create_params": {"input": [USER]}, "initial_count": 3, "expected_count": 7},
    {"responses_create_params": {"input": [USER], "tools": [INCREMENT]}, "initial_count": 0, "expected_count": 7},
    {"responses_create_params": {"input": "Fail."}, "initial_count": 0, "expected_count": -1},
]


@pytest.fixture(scope="module")
def counting() -> Iterator[Resources]:
    resources = counter(DATA / "example_session_state_mgmt.json")
    yield resources
    resources.close()


@pytest.fixture(scope="module")
def playing() -> Iterator[Resources]:
    resources = blackjack(DATA / "blackjack.json")
    yield resources
    resources.close()


@pytest.fixture(scope="module")
def server(
    host: Host, counting: Resources, playing: Resources, tmp_path_factory: pytest.TempPathFactory
) -> ServerProcess:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "counter.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (folder / "blackjack.jsonl").write_text(json.dumps({"cards": [10, 2, 9, 8, 6, 9]}))
    return host(
        f"nemo:{counting.url}?id=counter&tasks={folder / 'counter.jsonl'}",
        f"nemo:{playing.url}/?id=blackjack&tasks={folder / 'blackjack.jsonl'}",
    )


def of_session(resources: Resources, key: str) -> list[tuple[str, dict[str, Any]]]:
    return [(path, body) for path, session, body in resources.asked if session == key]


def test_tools_are_called_and_the_verifier_pays(server: ServerProcess, remote: Make, counting: Resources) -> None:
    env, beside = remote(server, "nemo/counter"), remote(server, "nemo/counter")
    observation, info = env.reset(options={"task": 0})
    beside.reset(options={"task": 0})
    assert (observation, info) == ([USER], {"task": 0, "split": "tasks"})
    beside.step(call("increment_counter", count=100))
    observation, reward, terminated, _, _ = env.step(call("increment_counter", count=4))
    assert (observation[0]["content"], float(reward), terminated) == ('{"success":true}', 0.0, False)
    # What the server says of a wrong call is the model's to read.
    [told], *_ = env.step(call("increment_counter", count="four"))
    assert "valid integer" in told["content"]
    for name in ("verify", "no_such_tool"):
        [told], *_ = env.step(call(name, expected_count=1))
        assert f"there is no tool '{name}'" in told["content"]
    observation, reward, terminated, truncated, info = env.step("It is seven.")
    assert (observation, float(reward), terminated, truncated) == ([], 1.0, True, False)
    assert info["nemo"] == {"reward": 1.0, "mask_sample": False, "failure_kind": None, "failure_reason": None}

    path, key, body = counting.asked[-1]
    assert path == "/verify"
    asked = of_session(counting, key)
    assert [path for path, _ in asked] == ["/seed_session", "/increment_counter", "/increment_counter", "/verify"]
    assert asked[0][1] == ROWS[0]
    assert asked[1][1] == {"count": 4}
    output = body["response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "function_call_output"] * 4 + ["message"]
    assert output[1]["call_id"] == output[0]["call_id"]
    assert output[1]["output"] == '{"success":true}'
    assert body["response"]["object"] == "response"


def test_tools_are_told_by_the_server_or_by_the_task(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "nemo/counter")
    unwrapped: Any = env.unwrapped
    tools = {tool["name"]: tool["parameters"] for tool in unwrapped.tools}
    assert list(tools) == ["increment_counter", "get_counter_value"]
    assert tools["increment_counter"]["properties"]["count"]["type"] == "integer"
    assert tools["increment_counter"]["required"] == ["count"]
    _, info = env.reset(options={"task": 1})
    assert info["conversation"] == "anew"
    assert info["tools"] == [
        {key: INCREMENT[key] for key in ("name", "description", "parameters")},
    ]
    [told], *_ = env.step(call("get_counter_value"))
    assert "there is no tool" in told["content"]


def test_what_fails_there_is_a_fault_and_no_reward(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "nemo/counter")
    env.reset(options={"task": 2})
    _, reward, terminated, _, info = env.step("I give up.")
    assert (float(reward), terminated, info["reward_invalid"]) == (0.0, True, True)
    assert "the judge is not there" in info["rewards_errors"]["verify"]
    env.reset(options={"task": 0})
    with pytest.raises(EnvironmentFault, match=r"increment_counter failed with status 500: .*Internal Server Error"):
        env.step(call("increment_counter", count=500))
    observation, _ = env.reset(options={"task": 0})
    assert observation == [USER]


def test_a_stepped_server_pays_each_turn(server: ServerProcess, remote: Make, playing: Resources) -> None:
    env = remote(server, "nemo/blackjack")
    [opening], _ = env.reset()
    assert opening["content"].startswith("Your hand: [10, 2] = 12\nDealer shows: 9\n")
    [told], reward, terminated, truncated, _ = env.step("<action>hit</action>")
    assert told["role"] == "user"
    assert told["content"].startswith("Your hand: [10, 2, 6] = 18")
    assert (float(reward), terminated, truncated) == (0.0, False, False)
    observation, reward, terminated, _, info = env.step("<action>stand</action>")
    assert (observation, float(reward), terminated, info["nemo"]) == ([], 1.0, True, {"result": "win"})
    assert [path for path, *_ in playing.asked] == ["/reset", "/step", "/step"]
    assert len({key for _, key, _ in playing.asked}) == 1
    env.reset()
    env.step("hit")
    _, reward, *_ = env.step("hit")
    assert float(reward) == -1.0
    env.reset()
    _, reward, terminated, truncated, info = env.step("cut")
    assert (float(reward), terminated, truncated, info["limit"]) == (0.5, False, True, "environment")


@pytest.mark.parametrize(
    ("name", "why", "error"),
    [
        ("http://127.0.0.1:9", "no resources server of NeMo Gym answers at http://127.0.0.1:9", ConnectionError),
        ("127.0.0.1:9", "is to be the URL", ValueError),
        ("http://127.0.0.1:9?timeout=soon", "number of seconds", ValueError),
        ("http://127.0.0.1:9?rows=x", "no option 'rows'", ValueError),
    ],
)
def test_what_is_no_resources_server(name: str, why: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=why):
        load(f"nemo:{name}")


def test_what_says_something_else(playing: Resources, tmp_path: Path) -> None:
    other = Resources({"paths": {"/hello": {"post": {}}}}, {})
    try:
        with pytest.raises(ValueError, match="neither /verify nor /reset and /step"):
            load(f"nemo:{other.url}")
    finally:
        other.close()
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(ValueError, match="has no rows"):
        load(f"nemo:{playing.url}?tasks={tmp_path / 'none.jsonl'}")
