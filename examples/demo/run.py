"""The demo's story, from top to bottom."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from renderers import Qwen3RendererConfig

from examples.demo import report
from examples.demo.games import Game, play_games
from examples.demo.model import build_model, build_tokenizer, save
from examples.demo.progress import console, progress
from examples.demo.quiet import be_quiet, stderr_to
from examples.demo.scripted import ScriptedPlayer
from examples.demo.server import Server, environment_server
from examples.demo.sft import fine_tune
from examples.demo.train import Follower, make_trainer, won
from gymhost.client import connect
from gymhost.rollout import Limits, Trajectory, as_text
from gymhost.trainers.trl import Environments

ENVIRONMENT = "gymhost/GuessNumber-v0"
LOW, HIGH, GUESSES = 1, 7, 3
GAME: dict[str, Any] = {"low": LOW, "high": HIGH, "guesses": GUESSES}
NUMBERS = HIGH - LOW + 1
BLIND = 0.3
"""The share of the scripted player's guesses that ignore what it was told."""

RENDERER = Qwen3RendererConfig(thinking_retention="all")


@dataclass(frozen=True)
class Plan:
    """How much of everything is done."""

    games: int = 3000
    sft_steps: int = 500
    steps: int = 150
    held_out: int = 200

    @classmethod
    def quick(cls) -> Plan:
        """Next to nothing of everything."""
        return cls(games=300, sft_steps=60, steps=3, held_out=70)


def run(plan: Plan, *, seed: int, output: Path) -> None:
    """Plays, teaches, trains and reports.

    Args:
        plan: How much is done.
        seed: Of everything that is random.
        output: A folder for what is kept; it is there.
    """
    be_quiet()
    torch.set_num_threads(1)
    begun = time.monotonic()

    with environment_server(output / "server.log") as server:
        console.rule("[bold]gymhost: a small model learns a hosted game")
        console.print(f"An environment server listens on {server.address}, in a process of its own.")
        console.print(f"The game is {ENVIRONMENT}: a number from {LOW} to {HIGH}, {GUESSES} guesses.\n")

        lessons = _play(server, plan.games, "train", seed)
        examples = _play(server, plan.held_out, "test", seed + 1)
        scripted = _score([game.won for game in examples])
        console.print(f"A scripted, careless player played {plan.games} games. Held-out games won: {scripted}\n")

        tokenizer = build_tokenizer(lessons[:500])
        model = build_model(tokenizer, seed)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        console.print(f"A model: {parameters:,} parameters, and {len(tokenizer)} tokens made from the game's text.")
        with progress("SFT on these games", plan.sft_steps) as advance:
            fine_tune(
                model,
                tokenizer,
                lessons,
                renderer=RENDERER,
                steps=plan.sft_steps,
                seed=seed,
                on_step=lambda _, loss: advance(f"loss {loss:.3f}"),
            )
        folder = save(model, tokenizer, output / "model-after-sft")

        with (
            progress("GRPO with vLLM over gRPC", plan.steps) as advance,
            # Over gRPC although the server is on this machine, as it would be from another.
            connect(server.address, token=server.token, direct=False) as remote,
        ):
            follower = Follower(on_step=lambda wins: advance(f"games won {wins:.2f}"))
            environments = Environments(
                ENVIRONMENT,
                server=remote,
                num_tasks=plan.steps * NUMBERS,
                renderer=RENDERER,
                limits=Limits(turn_tokens=16),
                on_rollouts=follower.see,
                **GAME,
            )
            with stderr_to(output / "libraries.log"):
                trainer = make_trainer(
                    folder,
                    tokenizer,
                    environments,
                    follower,
                    tasks_a_step=NUMBERS,
                    steps=plan.steps,
                    seed=seed,
                    folder=output,
                )
            held_out = list(environments.dataset("test", num_tasks=plan.held_out))
            taught_games = environments.rollout(trainer, held_out)
            trainer.train()
            trainer.vllm_generation.sync_weights()
            trained_games = environments.rollout(trainer, held_out)
        trainer.save_model(str(output / "model-after-grpo"))

    taught = _score(map(won, taught_games))
    trained = _score(map(won, trained_games))
    best = report.best_possible(LOW, HIGH, GUESSES)
    marks = [("best possible", best), ("after SFT", taught.rate), ("scripted play", scripted.rate)]
    report.plot_learning_curve(follower.wins, marks, output / "learning-curve.png")
    _write_games(examples, taught_games, trained_games, output / "games.txt")

    console.print()
    rows = [
        ("scripted play", str(scripted)),
        ("after SFT", str(taught)),
        ("after GRPO", str(trained)),
        ("best possible", f"{best:.3f}"),
    ]
    console.print(report.results_table(rows, plan.held_out))
    console.print("Held out are games, not numbers: the prompt never tells the number, so a policy can't know it.")
    console.print(
        f"Importance sampling ratio of vLLM and trainer: furthest from 1 was {follower.worst_ratio:.4f}. "
        f"{len(follower.wins)} steps, {time.monotonic() - begun:.0f} s in all, seed {seed}."
    )
    console.print(f"The learning curve, some games and the models are in [bold]{output}/[/bold].")
    # On a GPU vLLM samples in bfloat16, and TRL corrects for what that makes of the log-probs.
    if abs(follower.worst_ratio - 1) > 0.01 and not torch.cuda.is_available():
        raise SystemExit("vLLM and the trainer disagree on log-probs: the ratio should be within 1 +- 0.01.")


def _play(server: Server, games: int, split: str, seed: int) -> list[Game]:
    """Has the scripted player play games on the server."""

    def player(task: int) -> ScriptedPlayer:
        return ScriptedPlayer(random.Random(f"{seed} {task}"), BLIND)

    played = play_games(server.address, server.token, ENVIRONMENT, range(games), split=split, player=player, **GAME)
    return asyncio.run(played)


def _score(games: Iterable[bool]) -> report.Score:
    results = list(games)
    return report.Score(sum(results), len(results))


def _write_games(
    scripted: Sequence[Game], taught: Sequence[Trajectory], trained: Sequence[Trajectory], path: Path, count: int = 3
) -> None:
    parts = [report.readable(game.messages, f"scripted play, game {i}") for i, game in enumerate(scripted[:count])]
    for name, trajectories in (("after SFT", taught), ("after GRPO", trained)):
        parts += [f"== {name}: {as_text(trajectory)}" for trajectory in trajectories[:count]]
    path.write_text("\n".join(parts))
