"""Makes a model of 160,000 parameters that knows how GuessNumber is played, and not how it is won.

`python -m examples.small_model FOLDER` has a careless scripted player play on a server of its own, makes a tokenizer of
what was said, and teaches a Qwen3-style model to speak like that: half a minute on a CPU. The folder is a model as
transformers and vLLM load it, for `examples/grpo.py` to begin with.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path
from typing import Any

from renderers import Qwen3RendererConfig

from examples.demo.games import Game, play_games
from examples.demo.model import build_model, build_tokenizer, save
from examples.demo.scripted import ScriptedPlayer
from examples.demo.server import environment_server
from examples.demo.sft import fine_tune

ENVIRONMENT = "gymhost/GuessNumber-v0"
GAME: dict[str, Any] = {"low": 1, "high": 7, "guesses": 3}


def make(folder: Path, *, games: int = 1500, steps: int = 250, blind: float = 0.5, seed: int = 0) -> None:
    """Makes the model.

    Args:
        folder: Where it is written.
        games: How many games it learns from.
        steps: Optimizer steps.
        blind: The share of the player's guesses that ignore what it was told.
        seed: Of everything that is random.
    """
    folder.mkdir(parents=True, exist_ok=True)
    played = _play(folder / "server.log", games, blind, seed)
    tokenizer = build_tokenizer(played[:500])
    model = build_model(tokenizer, seed)
    fine_tune(
        model,
        tokenizer,
        played,
        renderer=Qwen3RendererConfig(thinking_retention="all"),
        steps=steps,
        seed=seed,
        on_step=lambda step, loss: print(f"step {step}: loss {loss:.3f}", flush=True) if step % 50 == 0 else None,
    )
    save(model, tokenizer, folder)


def _play(log: Path, games: int, blind: float, seed: int) -> list[Game]:
    def player(task: int) -> ScriptedPlayer:
        return ScriptedPlayer(random.Random(f"{seed} {task}"), blind)

    with environment_server(log) as server:
        played = play_games(
            server.address, server.token, ENVIRONMENT, range(games), split="train", player=player, **GAME
        )
        return asyncio.run(played)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes a small model for examples/grpo.py.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--games", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--blind", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    make(chosen.folder, games=chosen.games, steps=chosen.steps, blind=chosen.blind, seed=chosen.seed)
