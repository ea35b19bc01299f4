# pyright: reportMissingImports=false, reportMissingTypeStubs=false
"""SkyRL-Gym's environments, hosted and driven by SkyRL-Gym's own API."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import skyrl_gym

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
