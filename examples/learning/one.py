"""One run with one seed, in a process of its own: a process is good for one vLLM.

`python -m examples.learning.one RUN SEED FOLDER [--short] [--mode server]` leaves its figures in FOLDER/result.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.demo.quiet import LIBRARIES, be_quiet, stderr_to
from examples.learning.runs import MODULES, RUNS, Lesson, Plan, Run

os.environ.update(LIBRARIES | os.environ)


def learn(run: Run, plan: Plan, *, seed: int, mode: str, folder: Path) -> dict[str, Any]:
    """Has a model taught by scripted players and then learn by itself, and returns the figures.

    Args:
        run: What is learned.
        plan: How much of everything is done.
        seed: Of everything that is random.
        mode: TRL's vLLM mode, `colocate` or `server`.
        folder: For logs and models; it is there.
    """
    import torch
    from renderers import Qwen3RendererConfig

    from examples.demo.model import CONTEXT, build_model, build_tokenizer, save
    from examples.demo.progress import progress
    from examples.demo.server import environment_server
    from examples.demo.sft import fine_tune
    from examples.demo.train import Follower, make_trainer
    from examples.learning.vllm_server import vllm_server
    from gymhost.client import connect
    from gymhost.rollout import Limits
    from gymhost.trainers.trl import Env, Environments

    be_quiet()
    torch.set_num_threads(1)
    renderer = Qwen3RendererConfig(thinking_retention="all")
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(environment_server(folder / "server.log", *MODULES))
        taught_by = {lesson.label: _play(server, lesson, plan, seed=seed) for lesson in run.lessons}
        games = [game for played in zip(*taught_by.values(), strict=True) for game in played]
        tokenizer = build_tokenizer(games[:500])
        model = build_model(tokenizer, seed)
        with progress(f"{run.title}, seed {seed}: SFT", plan.sft_steps) as advance:
            fine_tune(
                model,
                tokenizer,
                games,
                renderer=renderer,
                steps=plan.sft_steps,
                seed=seed,
                on_step=lambda _, loss: advance(f"loss {loss:.3f}"),
            )
        path = save(model, tokenizer, folder / "model")

        settings = dict(run.settings)
        if mode == "server":
            url = stack.enter_context(vllm_server(path, folder / "vllm.log", length=CONTEXT))
            settings |= {"vllm_mode": "server", "vllm_server_base_url": url}
        remote = stack.enter_context(connect(server.address, token=server.token, direct=False))
        environments = Environments(
            [Env(lesson.env_id, kwargs=lesson.kwargs | plan.kwargs, name=lesson.label) for lesson in run.lessons],
            server=remote,
            num_tasks=plan.steps * run.tasks_a_step,
            renderer=renderer,
            limits=Limits(turn_tokens=run.turn_tokens),
            on_rollouts=lambda batch: follower.see(batch),
        )
        advance = stack.enter_context(progress(f"{run.title}, seed {seed}: GRPO", plan.steps))
        follower = Follower(lambda wins: advance(f"won {wins:.2f}"), goal=None)
        with stderr_to(folder / "libraries.log"):
            trainer = make_trainer(
                path,
                tokenizer,
                environments,
                follower,
                tasks_a_step=run.tasks_a_step,
                steps=plan.steps,
                seed=seed,
                folder=folder,
                **settings,
            )
        held_out = list(environments.dataset("test", num_tasks=plan.held_out * len(run.lessons)))
        before = _won(environments.rollout(trainer, held_out))
        trainer.train()
        after = _won(environments.rollout(trainer, held_out))

    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    several = len(run.lessons) > 1
    return {
        "seed": seed,
        "mode": mode,
        "reward": [entry["reward"] for entry in log],
        "ratios": [
            [entry[f"sampling/importance_sampling_ratio/{name}"] for name in ("min", "mean", "max")] for entry in log
        ],
        "environments": {
            lesson.label: {
                "won": [
                    entry[f"environments/{lesson.label}/rubrics/win" if several else "rubrics/win"] for entry in log
                ],
                "scripted": [sum(game.won for game in taught_by[lesson.label]), plan.games],
                "before": before[lesson.label],
                "after": after[lesson.label],
            }
            for lesson in run.lessons
        },
        "seconds": time.monotonic() - begun,
    }


def _play(server: Any, lesson: Lesson, plan: Plan, *, seed: int) -> list[Any]:
    """Has the scripted player play games to learn from."""
    from examples.demo.games import play_games

    played = play_games(
        server.address,
        server.token,
        lesson.env_id,
        range(plan.games),
        split="train",
        player=lambda task: lesson.player(random.Random(f"{seed} {task}")),
        **lesson.kwargs | plan.kwargs,
    )
    return asyncio.run(played)


def _won(trajectories: Sequence[Any]) -> dict[str, list[int]]:
    """How many games were won, and how many there were, of each environment."""
    from examples.demo.train import won

    counts: dict[str, list[int]] = {}
    for trajectory in trajectories:
        count = counts.setdefault(trajectory.labels["environment"], [0, 0])
        count[0] += won(trajectory)
        count[1] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.learning.one", description="One run with one seed.")
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mode", choices=("colocate", "server"), default="colocate")
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args()
    # Whoever ends it ends its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    run = RUNS[arguments.run]
    plan = run.short if arguments.short else run.full
    result = learn(run, plan, seed=arguments.seed, mode=arguments.mode, folder=folder)
    (folder / "result.json").write_text(json.dumps({"run": arguments.run, "short": arguments.short} | result))


if __name__ == "__main__":
    main()
