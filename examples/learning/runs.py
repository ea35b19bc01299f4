"""The runs: what is learned in each, from whom, and for how long."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from examples.demo.games import Player
from examples.demo.scripted import ScriptedPlayer
from examples.learning.players import Guide, Helper

MODULES = ("examples.learning.chores", "examples.learning.house")
"""What the server is to import for the environments that are not of the shelf."""


@dataclass(frozen=True)
class Lesson:
    """One environment of a run.

    Attributes:
        env_id: Its id.
        label: What it is called in figures and tables.
        player: Makes the scripted player whose games the model begins with, from its luck.
        kwargs: The environment's keyword arguments.
    """

    env_id: str
    label: str
    player: Callable[[random.Random], Player]
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Plan:
    """How much of everything is done in a run.

    Attributes:
        games: Scripted games of each environment.
        sft_steps: Steps of fine-tuning on them.
        steps: Steps of GRPO.
        held_out: Held-out tasks of each environment, each played once before and once after.
        kwargs: Keyword arguments of the environments, where they are others than those of the lessons.
    """

    games: int
    sft_steps: int
    steps: int
    held_out: int
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Run:
    """Something to learn.

    Attributes:
        title: What it is called in figures and tables.
        lessons: The environments; several are mixed evenly.
        tasks_a_step: How many tasks a batch has.
        full: For a learning curve.
        short: To see that it learns.
        turn_tokens: How many tokens a turn may have.
        settings: Of the trainer, where they are others than those of the demo.
    """

    title: str
    lessons: tuple[Lesson, ...]
    tasks_a_step: int
    full: Plan
    short: Plan
    turn_tokens: int = 16
    settings: dict[str, Any] = field(default_factory=dict[str, Any])


GUESS_NUMBER = Lesson(
    "gymhost/GuessNumber-v0",
    "GuessNumber",
    lambda rng: ScriptedPlayer(rng, blind=0.3),
    {"low": 1, "high": 7, "guesses": 3},
)
HOUSE = Lesson("examples/House-v0", "House", lambda rng: Guide(rng, careless=0.6))
CHORES = Lesson("examples/Chores-v0", "Chores", lambda rng: Helper(rng, careless=0.4))

RUNS = {
    "guess_number": Run(
        "GuessNumber",
        (GUESS_NUMBER,),
        tasks_a_step=7,
        full=Plan(games=3000, sft_steps=500, steps=120, held_out=200),
        # So much can't be learned in a minute or two: fewer numbers can.
        short=Plan(games=800, sft_steps=350, steps=24, held_out=60, kwargs={"high": 3, "guesses": 2}),
    ),
    "text_game": Run(
        "A text game: the plan of a house",
        (HOUSE,),
        tasks_a_step=6,
        full=Plan(games=800, sft_steps=250, steps=80, held_out=192),
        short=Plan(games=500, sft_steps=200, steps=24, held_out=72),
        settings={"max_completion_length": 256},
    ),
    "sandbox": Run(
        "Chores in a sandbox",
        (CHORES,),
        tasks_a_step=6,
        full=Plan(games=600, sft_steps=250, steps=60, held_out=200),
        short=Plan(games=600, sft_steps=250, steps=20, held_out=50),
        turn_tokens=24,
        settings={"max_completion_length": 256},
    ),
    "mix": Run(
        "The house and the chores, mixed",
        (HOUSE, CHORES),
        tasks_a_step=10,
        full=Plan(games=800, sft_steps=600, steps=80, held_out=200),
        short=Plan(games=500, sft_steps=400, steps=24, held_out=60),
        turn_tokens=24,
        settings={"max_completion_length": 256},
    ),
}
