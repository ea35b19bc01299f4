"""A small model is trained on what it says to mini-swe-agent, which works in a sandbox."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout import Chat, Limits, Row, Trajectory
from gymhost.rollout.conversation import Conversation
from gymhost.rollout.generators.base import Generation
from gymhost.trainers.trl import Environments
from support.harness_environments import MiniSweAgentDesk
from support.local_source import LocalSource
from support.models import tiny_qwen3
from support.recompute import check_rows
from support.tokenizers import call, encode, qwen3_tokenizer
from support.trl_trainers import RENDERER, grpo_trainer, log_of

pytestmark = pytest.mark.heavy

OPENING = [{"role": "system", "content": "Use bash."}, {"role": "user", "content": "Write {url} to answer.txt."}]
BASH: dict[str, Any] = {
    "name": "bash",
    "description": "Execute a bash command",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
        "required": ["command"],
    },
}
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def row(*commands: str) -> Row:
    """What an episode of these commands would be as a row."""
    talk = Conversation(Chat(qwen3_tokenizer(), RENDERER), OPENING, [BASH])
    for number, command in enumerate(commands):
        if number:
            answer = {"role": "tool", "tool_call_id": f"call_{number - 1}", "name": "bash", "content": "0"}
            talk.add(talk.extend([answer]))
        ids = encode(call("bash", json.dumps({"command": command})))
        talk.add_sampled(Generation(ids, [0.0] * len(ids), "stop", 0))
    return talk.row


def somewhat_taught() -> Any:
    """A tiny model that has seen, in some seconds, what may be done: sometimes it does it right."""
    import torch

    rows = [row("echo '{url}' >answer.txt", SUBMIT), row("echo >answer.txt", SUBMIT)]
    longest = max(map(len, rows))
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for number, each in enumerate(rows):
        ids[number, : len(each)] = torch.tensor(each.ids)
        sampled = [token if chosen else -100 for token, chosen in zip(each.completion_ids, each.mask, strict=True)]
        labels[number, len(each.prompt_ids) : len(each)] = torch.tensor(sampled)
    model = tiny_qwen3()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(45):
        loss = model(ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


# Each episode imports LiteLLM.
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_what_a_model_says_to_mini_swe_agent_trains_it(tmp_path: Path) -> None:
    played: list[Trajectory] = []
    environments = Environments(
        "test/MiniSweAgentDesk",
        server=LocalSource(MiniSweAgentDesk),
        tasks=[0],
        renderer=RENDERER,
        limits=Limits(turn_tokens=100),
        on_rollouts=played.extend,
    )
    model = somewhat_taught()
    before = copy.deepcopy(model)
    trainer = grpo_trainer(
        environments,
        tmp_path,
        model=model,
        per_device_train_batch_size=4,
        max_completion_length=400,
        max_steps=1,
    )
    trainer.train()
    assert [trajectory.outcome.kind for trajectory in played] == ["terminated"] * 4
    assert any(len(trajectory.turns) > 1 for trajectory in played)
    # What is learned from is what the model said, in the very contexts that it was asked in.
    check_rows(played, {0: before})
    [step] = log_of(trainer)
    assert step["reward"] == sum(trajectory.reward or 0.0 for trajectory in played) / 4
    assert math.isfinite(step["loss"])
    assert math.isfinite(step["grad_norm"])
    assert (step["grad_norm"] > 0) == (step["reward_std"] > 0)
