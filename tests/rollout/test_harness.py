"""Rollouts whose agent is a harness in a sandbox: what it asks is rendered, sampled and recorded token by token."""

import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from gymhost.client import RemoteServer, connect
from gymhost.envs.shelf.mini_swe_agent_expert import reference
from gymhost.rollout import Limits, RolloutEngine, RolloutRequest, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from support.rollouts import CHAT, whole
from support.server import ServerProcess
from support.tokenizers import call, decode, encode

pytestmark = pytest.mark.heavy

DESK, MINI = "test/HarnessedDesk-v0", "gymhost/MiniSweAgentRepoRepair-v0"
LIMITS = Limits(turn_tokens=4096)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(modules=["support.harness_environments"]) as server:
        yield server


class Told:
    """What a script was asked and what it said, turn by turn."""

    def __init__(self, script: Callable[[str], str]) -> None:
        self.script = script
        self.turns: list[tuple[list[int], list[int]]] = []

    def __call__(self, prompt_ids: Sequence[int], _name: str) -> list[int]:
        said = encode(self.script(decode(list(prompt_ids))))
        self.turns.append((list(prompt_ids), said))
        return said


async def play(server: ServerProcess, script: Callable[[str], str], *requests: RolloutRequest) -> list[Trajectory]:
    """Plays, and sees that each row consists of what the model was given and of what it sampled, and nothing else."""
    told = Told(script)
    async with connect(server.address) as remote:
        assert isinstance(remote, RemoteServer)
        async with RolloutEngine(remote, CHAT, ScriptedGenerator(told), limits=LIMITS) as engine:
            trajectories = await engine.collect(requests)
    for trajectory in trajectories:
        whole(trajectory)
        for turn in trajectory.turns:
            row = trajectory.token_rows[turn.row]
            at = len(row.prompt_ids) + turn.start
            assert (row.ids[:at], row.ids[at : at + turn.tokens]) in told.turns
            assert row.mask[turn.start : turn.start + turn.tokens] == [1] * turn.tokens
        assert sum(sum(row.mask) for row in trajectory.token_rows) == trajectory.sampled_tokens
    assert sum(len(trajectory.turns) for trajectory in trajectories) == len(told.turns)
    return sorted(trajectories, key=lambda trajectory: trajectory.task or 0)


def bash(command: str, text: str = "") -> str:
    return text + call("bash", json.dumps({"command": command}))


async def test_an_episode_is_one_row_of_what_was_sampled(server: ServerProcess) -> None:
    script = iter([bash("pwd", "Hm.\n\n"), bash("echo '{url}' >answer.txt"), "Done.<|im_end|>"])
    [played] = await play(server, lambda _: next(script), RolloutRequest(DESK))
    assert (played.reward, str(played.outcome), played.info["harness"]["exit_status"]) == (1.0, "terminated", 0)
    [row] = played.token_rows
    assert [tool["name"] for tool in played.tools] == ["bash"]
    assert decode(row.prompt_ids).count('"name": "bash"') == 1
    roles = [message["role"] for message in played.messages]
    assert roles == ["system", "user", *["assistant", "tool"] * 2, "assistant"]
    # It sends back what it was told with other spaces, which make no difference.
    assert "0: /workspace" in decode(row.completion_ids)


async def test_history_that_was_shortened_begins_a_row(server: ServerProcess) -> None:
    request = RolloutRequest(DESK, kwargs={"form": "forgetful"})
    [played] = await play(server, lambda _: "One.<|im_end|>", request)
    assert [turn.row for turn in played.turns] == [0, 0, 1]
    assert [[message["role"] for message in aside] for aside in played.asides] == [["system", "user", "assistant"]]
    assert "So far: One., One." in decode(played.token_rows[1].prompt_ids)


async def test_agents_that_take_turns_have_a_row_each(server: ServerProcess) -> None:
    request = RolloutRequest(DESK, kwargs={"form": "several"})
    [played] = await play(server, lambda _: "Yes?<|im_end|>", request)
    rows = [decode(row.ids) for row in played.token_rows]
    assert sorted(text.count("answer.txt. ") for text in rows) == [1, 1]
    assert sorted(turn.row for turn in played.turns) == [0, 0, 1, 1]  # whose turn is first is theirs to settle
    assert all(text.endswith("And?<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>") for text in rows)


async def test_an_episode_that_a_budget_ends_is_scored(server: ServerProcess) -> None:
    request = RolloutRequest(DESK, limits=Limits(turn_tokens=4096, turns=2))
    [played] = await play(server, lambda _: bash("echo '{url}' >answer.txt"), request)
    assert (played.reward, str(played.outcome)) == (1.0, "truncated by turns")


def mini(prompt: str) -> str:
    """Plays a repair by mini-swe-agent's tool; the first one only talks at first, the second one hands in at once."""
    task = prompt.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    done = prompt.count('"returncode":')
    if not done and "Tool call error" not in prompt:
        return "I shall repair it.<|im_end|>"
    if done == 1 and "acornkit" not in task:
        return bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    asked = reference([{"role": "user", "content": task}, *[{"role": "tool", "content": ""}] * done])
    return bash(asked["tool_calls"][0]["function"]["arguments"]["command"])


# LiteLLM takes some seconds to be imported, twice.
@pytest.mark.timeout(240)
async def test_mini_swe_agent_repairs_a_repository(server: ServerProcess) -> None:
    requests = [RolloutRequest(MINI, task=task, split="train") for task in (3, 4)]
    right, wrong = await play(server, mini, *requests)
    assert (right.reward, wrong.reward) == (1.0, 0.0), (right.info, wrong.info)
    for played in (right, wrong):
        assert str(played.outcome) == "terminated"
        assert played.info["harness"]["exit_status"] == 0
        # It leaves out what it could not use, which is another conversation then, and goes on from there.
        assert [turn.row for turn in played.turns] == [0, *[1] * (len(played.turns) - 1)]
        assert [tool["name"] for tool in played.tools] == ["bash"]
    assert len(right.turns) == 5
    assert "Ran 3 tests" in decode(right.token_rows[1].completion_ids)
