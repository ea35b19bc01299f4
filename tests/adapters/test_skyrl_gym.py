# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""SkyRL-Gym's environments, hosted and driven by SkyRL-Gym's own API."""

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv

from gymhost.envs import make
from gymhost.envs.adapters import load
from gymhost.wire.errors import EnvironmentFault
from support.adapters import Host, Make
from support.server import ServerProcess

pytestmark = pytest.mark.adapter("skyrl-gym")

ROWS: list[dict[str, Any]] = [
    {
        "data_source": "made",
        "prompt": [{"role": "system", "content": "Reckon."}, {"role": "user", "content": f"{number} + 4?"}],
        "reward_spec": {"method": "rule", "ground_truth": str(number + 4)},
        "reward_model": {"ground_truth": str(number + 4)},
        "extra_info": {"max_turns": 3, "index": number},
    }
    for number in range(4)
]
TEXTS = ("#### 4", "No idea.", "It is 2 + 4 = 6.\nAnswer: 6", "#### 5", "Answer: \\boxed{6}", "Well.")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rows") / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, {"prompt": "What?"}]))
    return file


@pytest.fixture(scope="module")
def server(host: Host, rows: Path) -> ServerProcess:
    return host(
        f"skyrl-gym:gsm8k?tasks={rows}", f"skyrl-gym:gsm8k_multi_turn?tasks={rows}", f"skyrl-gym:aime?tasks={rows}"
    )


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_multi_turn", "aime"])
def test_an_episode_is_skyrl_gyms_own(server: ServerProcess, remote: Make, name: str) -> None:
    env, rewards = remote(server, f"skyrl-gym/{name}"), set[float]()
    for task, row in enumerate(ROWS):
        extras = {field: value for field, value in copy.deepcopy(row).items() if field != "prompt"}
        own = skyrl_gym.make(name, env_config=None, extras=extras)
        said, about = own.init(copy.deepcopy(row["prompt"]))
        observation, info = env.reset(options={"task": task})
        assert (observation, info) == (said, {"task": task, "split": "train", **about})
        terminated = False
        for text in TEXTS[task:]:
            step = own.step(text)
            observation, reward, terminated, truncated, info = env.step(text)
            assert (observation, reward, terminated, truncated) == (
                step["observations"],
                step["reward"],
                step["done"],
                False,
            )
            assert info.items() >= step["metadata"].items()
            rewards.add(reward)
            if terminated:
                assert info["metrics"] == own.get_metrics()
                break
        assert terminated
    assert len(rewards) > 1


class Retriever(BaseHTTPRequestHandler):
    """Finds the same for everybody, as SkyRL's retrieval service answers."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(query)
        found = [{"document": {"contents": "Ada did."}, "score": 1.0}]
        answer = json.dumps({"result": [found]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def test_options_configure_it(rows: Path) -> None:
    (id,) = load(f"skyrl-gym:gsm8k_multi_turn?tasks={rows}&max_turns=1")
    env = make(id)
    env.reset(options={"task": 1})
    assert env.step("No idea.")[1:3] == (0.0, True)
    with ThreadingHTTPServer(("127.0.0.1", 0), Retriever) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}/retrieve"
        (id,) = load(f"skyrl-gym:search?tasks={rows}&search_url={url}&topk=2&timeout=9&log_requests=false")
        env = make(id)
        assert env.reset(options={"task": 0})[0] == ROWS[0]["prompt"]
        observation, _, terminated, _, _ = env.step("Hm. <search>who</search> So.")
        server.shutdown()
    assert ("Ada did." in observation[0]["content"], terminated) == (True, False)
    assert [(query["query"], query["topk"]) for query in Retriever.asked] == [("who", 2)]
    env.close()


class Shouting(BaseTextEnv):  # pyright: ignore[reportUntypedBaseClass]
    """Reads texts in another way than they were written, as SkyRL's environments may."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()

    def step(self, action: str) -> Any:
        return {
            "observations": [],
            "reward": 0.5,
            "done": True,
            "metadata": None,
            "postprocessed_action": action.upper(),
        }


def test_one_that_is_not_in_the_package(rows: Path) -> None:
    skyrl_gym.register("shouting", Shouting)
    (id,) = load(f"skyrl-gym:shouting?tasks={rows}")
    env = make(id)
    assert env.reset(options={"task": 4})[0] == [{"role": "user", "content": "What?"}]
    observation, reward, terminated, _, info = env.step("hey")
    assert (observation, reward, terminated, info["postprocessed_action"]) == ([], 0.5, True, "HEY")
    skyrl_gym.registry.pop("shouting")


def test_what_it_raises_is_a_fault_and_no_reward(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "skyrl-gym/gsm8k")
    with pytest.raises(EnvironmentFault, match="reward_spec field is required"):
        env.reset(options={"task": 4})
    assert env.reset(options={"task": 0})[0] == ROWS[0]["prompt"]


def test_a_file_is_needed_and_what_runs_code_is_refused(rows: Path) -> None:
    with pytest.raises(ValueError, match=r"takes its tasks from a file: \?tasks=PATH"):
        load("skyrl-gym:gsm8k")
    with pytest.raises(ValueError, match="it runs what a model wrote, in no sandbox"):
        load(f"skyrl-gym:lcb?tasks={rows}")
