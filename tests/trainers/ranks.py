"""A training script that several ranks run at once; each of them writes what it saw to a file of its own, as JSON."""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from renderers import Qwen3RendererConfig

from gymhost.rollout import Limits, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.trainers.trl import Environments
from support.local_source import LocalSource
from support.talk import Talk, end, go_on, tool, user
from support.text_environments import Letters
from support.tokenizers import call, decode, encode
from support.trl_trainers import grpo_trainer, log_of

RANK = int(os.environ["RANK"])
PATIENCE_SECONDS = 60.0


class Marked(Talk):
    """A conversation with a marker of its own, which a tool's result tells; every other one ends after one turn.

    On the second rank they wait until the first rank has played all of its own.

    Args:
        number: Of the conversation among those of all ranks.
        first: The file which is there once the first rank has played.
    """

    def __init__(self, number: int, first: Path) -> None:
        super().__init__(lambda _env, _message: self.answer_to_call(), lambda _env: [user(f"Marker M{number}M.")])
        self.number = number
        self.first = first

    def answer_to_call(self) -> Any:
        if len(self.said) == 1 and self.number % 2 == 0:
            return go_on(tool(f"Marker M{self.number}M."))
        return end(reward=float(self.number))

    async def astep(self, action: Any) -> Any:
        """Takes a step, once it is this rank's turn."""
        if RANK == 1:
            await asyncio.to_thread(wait_for, self.first)
        return self.step(action)


def wait_for(path: Path) -> None:
    """Waits until another process has made a file."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < give_up, f"{path} does not come"
        time.sleep(0.02)


def echo(prompt_ids: Any, _request_id: str) -> list[int]:
    """Says the marker that it was told last."""
    marker = decode(list(prompt_ids)).rsplit("Marker M", 1)[1].split("M.")[0]
    return encode(call("echo", f'{{"text": "M{marker}M"}}'))


def marked(folder: Path, batches: list[list[Trajectory]]) -> Environments:
    """Four marked conversations a rank."""
    numbers = iter(range(4 * RANK, 4 * RANK + 4))
    first = folder / "first-has-played"

    def played(trajectories: list[Trajectory]) -> None:
        batches.append(trajectories)
        if RANK == 0:
            first.touch()

    return Environments(
        "marked",
        server=LocalSource(lambda: Marked(next(numbers), first)),
        tasks=range(8),
        renderer=Qwen3RendererConfig(thinking_retention="all"),
        generator=ScriptedGenerator(echo),
        on_rollouts=played,
    )


def served(service: str, folder: Path, batches: list[list[Trajectory]]) -> Environments:
    """A game that a rollout service plays."""
    return Environments("test/Letters-v0", service=service, on_rollouts=batches.append, weights=folder / "weights")


def letters(batches: list[list[Trajectory]]) -> Environments:
    """A game that the trained model plays."""
    return Environments(
        "test/Letters-v0",
        server=LocalSource(Letters),
        tasks=range(4),
        renderer=Qwen3RendererConfig(thinking_retention="all"),
        limits=Limits(turn_tokens=8),
        on_rollouts=batches.append,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--marked", action="store_true")
    parser.add_argument("--vllm", help="the URL of a vLLM server")
    parser.add_argument("--service", help="the address of a rollout service")
    parser.add_argument("--colocate", help="the folder of a model, for a vLLM in each rank")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    batches: list[list[Trajectory]] = []
    settings: dict[str, Any] = {"max_steps": 1 if arguments.marked else 3, "scale_rewards": "none"}
    if arguments.vllm:
        settings |= {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": arguments.vllm}
    if arguments.colocate:
        settings |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 256}
        settings |= {"vllm_gpu_memory_utilization": 0.2}
    if arguments.service:
        environments = served(arguments.service, arguments.folder, batches)
    else:
        environments = marked(arguments.folder, batches) if arguments.marked else letters(batches)
    trainer = grpo_trainer(
        environments,
        arguments.folder / "out",
        model=arguments.colocate,
        use_cpu=True,
        per_device_train_batch_size=4,
        num_generations=8,  # a group is of both ranks
        learning_rate=1e-2,
        **settings,
    )
    assert trainer.accelerator.num_processes == 2
    learned: list[tuple[str, float]] = []
    compute = trainer.compute_loss

    def look(model: Any, inputs: dict[str, Any], **rest: Any) -> Any:
        for ids, mask, advantage in zip(
            inputs["completion_ids"], inputs["tool_mask"], inputs["advantages"], strict=True
        ):
            learned.append((decode(ids[mask.bool()].tolist()), advantage.item()))
        return compute(model, inputs, **rest)

    trainer.compute_loss = look
    trainer.train()
    seen = {
        "learned": learned,
        "log": log_of(trainer),
        "places": [[[t.task, t.seed, t.index] for t in batch] for batch in batches],
        "outcomes": [[str(t.outcome) for t in batch] for batch in batches],
        "rewards": [[t.reward for t in batch] for batch in batches],
        "said": [[t.completion_ids for t in batch] for batch in batches],
        "versions": [sorted({turn.policy_version for t in batch for turn in t.turns}) for batch in batches],
    }
    (arguments.folder / f"rank-{RANK}.json").write_text(json.dumps(seen))
    # Left to the end of the process, the threads of the process group abort it now and then.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
