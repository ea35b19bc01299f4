"""The datasets of reasoning-gym, hosted and scored by reasoning-gym itself."""

from importlib.metadata import version
from typing import Any

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

from gymhost.client import connect
from gymhost.envs.adapters import load
from gymhost.wire.errors import EnvironmentFault
from support.adapters import Host, Make
from support.server import ServerProcess

NAMES = ("basic_arithmetic", "letter_jumble", "pool_matrix", "sudoku", "spiral_matrix", "word_sorting")


@pytest.fixture(scope="module")
def server(host: Host) -> ServerProcess:
    return host(
        *(f"reasoning-gym:{name}?size=40&seed=7" for name in NAMES),
        "reasoning-gym:prime_factorization",
        "reasoning-gym:list_functions",
        "reasoning-gym:chain_sum?prompt=&min_terms=3&max_terms=3&seed=5",
    )


def answers(entry: dict[str, Any]) -> list[str]:
    return [
        f"Well.\n<answer>{entry['answer']}</answer>",
        f"<answer> {str(entry['answer'])[:-1]} </answer>",
        "<answer></answer>",
        f"{entry['answer']} it is, without tags",
        "",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_asks_and_pays_as_reasoning_gym_does(server: ServerProcess, remote: Make, name: str) -> None:
    env = remote(server, f"reasoning-gym/{name}")
    dataset = reasoning_gym.create_dataset(name, size=40, seed=7)
    for task in (0, 3, 39):
        entry = dataset[task]
        for text in answers(entry):
            observation, info = env.reset(options={"task": task})
            assert [message["content"] for message in observation] == [SYSTEM_PROMPTS["default"], entry["question"]]
            assert info == {"task": task, "split": "train"}
            _, reward, terminated, truncated, _ = env.step(text)
            assert (terminated, truncated) == (True, False)
            assert reward == pytest.approx(dataset.score_answer(extract_answer(text), entry))  # pyright: ignore


def test_without_a_prompt_the_whole_text_is_the_answer(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "reasoning-gym/chain_sum")
    entry = reasoning_gym.create_dataset("chain_sum", seed=5, min_terms=3, max_terms=3)[2]
    observation, _ = env.reset(options={"task": 2})
    assert [message["content"] for message in observation] == [entry["question"]]
    assert env.step(entry["answer"])[1] == 1.0
    env.reset(options={"task": 2})
    assert env.step(f"<answer>{entry['answer']}</answer>")[1] < 1.0


def test_a_task_is_the_same_each_time_where_the_package_s_own_is_not(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "reasoning-gym/list_functions")
    for task in (0, 1, 2):
        (first, _), (second, _) = (env.reset(options={"task": task}) for _ in range(2))
        assert first == second


def test_no_answer_runs_as_code(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "reasoning-gym/spiral_matrix")
    env.reset(options={"task": 0})
    assert env.step("<answer>__import__('os').abort()</answer>")[1:3] == (0.0, True)
    for name in ("simple_integration", "*_integration"):
        with pytest.raises(ValueError, match="its scorer runs answers as code"):
            load(f"reasoning-gym:{name}")


def test_what_a_scorer_raises_is_a_fault_and_no_reward(server: ServerProcess, remote: Make) -> None:
    env = remote(server, "reasoning-gym/prime_factorization")
    env.reset(options={"task": 0})
    with pytest.raises(EnvironmentFault, match="ValueError: invalid literal for int"):
        env.step("<answer>x</answer>")


async def test_all_are_listed_with_where_they_come_from_and_none_is_made(host: Host) -> None:
    server = host("reasoning-gym:*")
    async with connect(server.address) as connected:
        listed = await connected.environments("reasoning-gym/")
        assert len(listed) == len(DATASETS) - 3
        assert {(one.source, one.licence) for one in listed} == {
            (f"reasoning_gym {version('reasoning-gym')}", "Apache-2.0")
        }
        described = await connected.describe("reasoning-gym/chain_sum")
        assert (described.conversational, described.splits) == (True, {"train": 500})
        shown = await connected.tasks("reasoning-gym/chain_sum", limit=2)
    dataset = reasoning_gym.create_dataset("chain_sum", seed=0)
    assert shown.tasks == {index: {"question": dataset[index]["question"]} for index in (0, 1)}
