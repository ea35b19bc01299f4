"""GRPO in one file of plain torch: environments on a gymhost server, tokens and log-probs from the rollout engine.

    python -m examples.small_model small-model        # a model of 160,000 parameters that knows how to call a tool
    python examples/grpo.py small-model --renderer qwen3 --kwargs '{"low": 1, "high": 7, "guesses": 3}'

plays on a server of its own, and `--server HOST:PORT` on one elsewhere. The policy is trained in this process, on a GPU
if there is one. What samples is a copy of it here, or with `--vllm URL ...` one or more vLLM servers, which get their
weights through a folder that they see too (start them with VLLM_SERVER_DEV_MODE=1 and `--logprobs-mode
processed_logprobs`; between GPUs `TransferWeights` is quicker than `DiskWeights`).

With `--staleness 0` each step waits for its rollouts, and these for the step. With more, rollouts go on while the
policy is trained, and may be so many updates behind; ratios are to the policy that sampled each token. It was run on
CPUs alone.
"""

import argparse
import asyncio
import copy
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from renderers import config_from_name
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymhost.client import RemoteServer, connect
from gymhost.rollout import (
    Chat,
    Grouping,
    Limits,
    RolloutEngine,
    RolloutRequest,
    Sampling,
    Trajectory,
    as_tensors,
    group_advantages,
    pack,
)
from gymhost.rollout.generators import DiskWeights, GeneratorPool, TransformersGenerator, Updatable, VllmServerGenerator


def parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", help="a folder, or a name on the Hugging Face Hub")
    parser.add_argument("--output", type=Path, default=Path("grpo-output"), help="checkpoints and metrics.jsonl")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --output")
    parser.add_argument("--seed", type=int, default=0)
    environment = parser.add_argument_group("the environment")
    environment.add_argument("--server", metavar="HOST:PORT", help="without one, a server is started for this run")
    environment.add_argument("--module", action="append", default=[], help="that registers environments there")
    environment.add_argument("--env", default="gymhost/GuessNumber-v0")
    environment.add_argument("--kwargs", type=json.loads, default={}, help="of the environment, as JSON")
    environment.add_argument("--train-split", default="train")
    environment.add_argument("--test-split", default="test")
    environment.add_argument("--test-tasks", type=int, default=100)
    rollouts = parser.add_argument_group("rollouts")
    rollouts.add_argument("--vllm", metavar="URL", nargs="+", help="vLLM servers to sample with")
    rollouts.add_argument("--renderer", help="such as qwen3; without one by the model's name, or its chat template")
    rollouts.add_argument("--groups", type=int, default=7, help="tasks a step")
    rollouts.add_argument("--size", type=int, default=16, help="rollouts a task")
    rollouts.add_argument("--extra", type=int, default=0, help="rollouts begun beyond these, for which nobody waits")
    rollouts.add_argument("--staleness", type=int, default=0, help="updates that a rollout may be behind")
    rollouts.add_argument("--temperature", type=float, default=1.0)
    rollouts.add_argument("--turns", type=int, help="of the model, at most")
    rollouts.add_argument("--turn-tokens", type=int, default=16, help="that the model may sample in a turn")
    rollouts.add_argument("--context", type=int, default=512, help="tokens of a whole rollout")
    training = parser.add_argument_group("training")
    training.add_argument("--steps", type=int, default=150)
    training.add_argument("--epochs", type=int, default=1, help="optimizer steps on the same rollouts")
    training.add_argument("--learning-rate", type=float, default=2e-3, help="for a tiny model; 1e-6 for a large one")
    training.add_argument("--epsilon", type=float, default=3e-5, help="of Adam; 1e-8 for a large model")
    training.add_argument("--warmup", type=int, default=5, help="steps")
    training.add_argument("--clip", type=float, nargs=2, default=(0.2, 0.28), help="below and above a ratio of 1")
    training.add_argument("--entropy", type=float, default=0.02, help="weight of a bonus that keeps it trying")
    training.add_argument("--test-every", type=int, default=25, help="steps")
    training.add_argument("--save-every", type=int, default=50, help="steps")
    return parser


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    return parser("GRPO over a gymhost server.").parse_args(given)


class Policy:
    """The model that is trained, with its optimizer."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        saved = sorted(args.output.glob("step-*"), key=lambda path: int(path.name[5:]))
        if saved and not args.resume:
            raise SystemExit(f"{args.output} has checkpoints: go on from them with --resume, or name another --output")
        source = saved[-1] if saved else args.model
        self.step = int(saved[-1].name[5:]) if saved else 0
        self.tokenizer: Any = AutoTokenizer.from_pretrained(source)
        self.model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        self.model.to("cuda" if torch.cuda.is_available() else "cpu")
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), args.learning_rate, betas=(0.9, 0.95), eps=args.epsilon, weight_decay=0.0
        )
        if saved:
            state = self.optimizer.state_dict()
            for name, tensor in load_file(saved[-1] / "optimizer.safetensors").items():
                place, field = name.split(".")
                state["state"].setdefault(int(place), {})[field] = tensor
            self.optimizer.load_state_dict(state)

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Takes one step, which is an update of the weights an epoch, and returns what is to be logged of it."""
        args, self.step = self.args, self.step + 1
        pad_id = self.tokenizer.pad_token_id or 0
        # Rollouts without a reward have no advantage, and are left out: a failure is nothing to learn from.
        advantages = group_advantages(trajectories)
        batch = as_tensors(pack(trajectories, args.context, pad_id, advantages=advantages), self.model.device)
        tokens = int(batch["loss_mask"].sum())
        if tokens == 0:
            return {"tokens": 0}
        for group in self.optimizer.param_groups:
            group["lr"] = args.learning_rate * min(1.0, self.step / args.warmup)
        figures: dict[str, float] = {"tokens": tokens}
        for epoch in range(args.epochs):
            ratios: list[torch.Tensor] = []
            entropy = 0.0
            self.optimizer.zero_grad()
            for line in range(len(batch["input_ids"])):  # a line of several rollouts at a time bounds the memory
                loss, ratio, spread = self._loss({name: batch[name][line : line + 1] for name in PER_TOKEN})
                (loss / tokens).backward()
                ratios.append(ratio)
                entropy += spread / tokens
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if epoch == 0:  # before the first update: on-policy, all that differs is how sampler and trainer compute
                every = torch.cat(ratios)
                figures |= {"ratio": every.mean().item(), "ratio_low": every.min().item()}
                figures |= {"ratio_high": every.max().item(), "entropy": entropy, "gradient": norm.item()}
        return figures

    def _loss(self, line: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, float]:
        """The loss of a line, summed over its sampled tokens; their importance ratios; and the sum of their entropy."""
        # Without an attention mask the rollouts of a line are told apart by their positions; see `pack`.
        output = self.model(line["input_ids"], position_ids=line["position_ids"], use_cache=False)
        sampled = line["loss_mask"][:, 1:]
        table = (output.logits[:, :-1][sampled].float() / self.args.temperature).log_softmax(-1)
        new = table.gather(-1, line["input_ids"][:, 1:][sampled].unsqueeze(-1)).squeeze(-1)
        ratio = (new - line["logprobs"][:, 1:][sampled]).exp()
        advantage = line["advantages"][:, 1:][sampled]
        low, high = self.args.clip
        gain = torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
        entropy = -(table.exp() * table).sum(-1)
        return -(gain + self.args.entropy * entropy).sum(), ratio.detach(), entropy.sum().item()

    def save(self) -> None:
        """Writes a checkpoint, which is there as a whole or not at all."""
        partial, folder = self.args.output / "partial", self.args.output / f"step-{self.step}"
        self.model.save_pretrained(partial)
        self.tokenizer.save_pretrained(partial)
        state = self.optimizer.state_dict()["state"]
        tensors = {f"{place}.{name}": tensor for place, fields in state.items() for name, tensor in fields.items()}
        save_file(tensors, partial / "optimizer.safetensors")
        partial.rename(folder)


PER_TOKEN = ("input_ids", "position_ids", "loss_mask", "logprobs", "advantages")


def generator_of(args: argparse.Namespace, policy: Policy) -> Updatable:
    """What samples: vLLM servers, or a copy of the policy, so that rollouts can go on while that is trained."""
    if not args.vllm:
        return TransformersGenerator(copy.deepcopy(policy.model), policy_version=policy.step, seed=args.seed)
    weights = DiskWeights(args.output / "weights")
    return GeneratorPool([VllmServerGenerator(url, sync=weights) for url in args.vllm])


def request(args: argparse.Namespace, splits: dict[str, int | None], split: str, number: int) -> RolloutRequest:
    """A task of a split by its number; what has no tasks is told apart by the seed alone."""
    if not splits:
        return RolloutRequest(args.env, seed=args.seed + number, kwargs=args.kwargs)
    if split not in splits:
        raise ValueError(f"{args.env} has no split {split!r}, but {', '.join(splits)}")
    task = number % (splits[split] or number + 1)  # some have tasks without an end
    return RolloutRequest(args.env, task, seed=args.seed + number, split=split, kwargs=args.kwargs)


async def test(args: argparse.Namespace, engine: RolloutEngine, splits: dict[str, int | None]) -> float | None:
    """The mean reward on tasks that are not trained on, with the likeliest tokens; None if no rollout has one."""
    numbers = range(1_000_000, 1_000_000 + args.test_tasks)
    held_out = [request(args, splits, args.test_split, number) for number in numbers]
    return mean_reward(await engine.collect([replace(each, sampling=Sampling(temperature=0.0)) for each in held_out]))


def mean_reward(trajectories: Sequence[Trajectory]) -> float | None:
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    return fmean(rewards) if rewards else None


async def train(args: argparse.Namespace, server: RemoteServer) -> None:
    torch.manual_seed(args.seed)
    args.output.mkdir(parents=True, exist_ok=True)
    policy = Policy(args)
    splits = dict((await server.describe(args.env, **args.kwargs)).splits)
    generator = generator_of(args, policy)
    engine = RolloutEngine(
        server,
        Chat(policy.tokenizer, config_from_name(args.renderer) if args.renderer else None),
        generator,
        sampling=Sampling(temperature=args.temperature),
        limits=Limits(turns=args.turns, turn_tokens=args.turn_tokens, context_tokens=args.context),
    )
    request(args, splits, args.test_split, 0)  # raises now, rather than at the first test
    tasks = (request(args, splits, args.train_split, number) for number in itertools.count(policy.step * args.groups))
    grouping = Grouping(args.size, args.extra)
    feed = engine.feed(tasks, batch_size=args.groups, max_staleness=args.staleness, grouping=grouping)
    try:
        if args.vllm:  # they may have other weights than those here
            await generator.update(policy.model, policy.step)
        async with engine, feed:
            while policy.step < args.steps:
                begun = time.monotonic()
                trajectories = [each for group in await feed.batch() for each in group.trajectories]
                played = time.monotonic()
                # On a thread, so that the rollouts ahead go on; and those in flight go on under the new weights.
                figures: dict[str, Any] = await asyncio.to_thread(policy.learn, trajectories)
                await generator.update(policy.model, policy.step, in_flight="cut")
                figures = {"step": policy.step, "reward": mean_reward(trajectories)} | figures
                figures["failed"] = sum(each.outcome.kind == "failed" for each in trajectories)
                figures |= {"playing": played - begun, "learning": time.monotonic() - played}
                if policy.step % args.test_every == 0 or policy.step == args.steps:
                    figures["test"] = await test(args, engine, splits)
                if policy.step % args.save_every == 0 or policy.step == args.steps:
                    policy.save()
                report(args, figures)
    finally:
        await generator.aclose()


def report(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    with (args.output / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(figures) + "\n")
    print("  ".join(f"{name} {value:.4g}" for name, value in figures.items() if value is not None), flush=True)


async def main(args: argparse.Namespace) -> None:
    async with connect(args.server, modules=args.module) as server:
        await train(args, server)


if __name__ == "__main__":
    asyncio.run(main(arguments()))
