"""Rollouts whose every length and time may have a heavy tail: how they are drawn."""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

__all__ = ["MOST_TOKENS", "Draw", "Plan"]

# Of a text.
MOST_TOKENS = 2000


@dataclass(frozen=True)
class Draw:
    """A log-normal distribution, or one of Pareto, with an end.

    Attributes:
        middle: The median; of a Pareto distribution the least.
        sigma: How the logarithm spreads. 0: nothing does.
        most: The most.
        alpha: The exponent of a Pareto distribution; 0 for a log-normal one.
    """

    middle: float
    sigma: float = 0.0
    most: float = math.inf
    alpha: float = 0.0

    def of(self, draws: random.Random) -> float:
        """One draw."""
        if self.alpha:
            return min(self.most, self.middle * draws.paretovariate(self.alpha))
        return min(self.most, self.middle * math.exp(draws.gauss(0.0, self.sigma)))

    def words(self, unit: str) -> str:
        """It in words."""
        end = "" if math.isinf(self.most) else f", at most {self.most:g}"
        if self.alpha:
            return f"Pareto from {self.middle:g}{unit}, alpha {self.alpha:g}{end}"
        if self.sigma:
            return f"log-normal, median {self.middle:g}{unit}, sigma {self.sigma:g}{end}"
        return f"{self.middle:g}{unit}"


@dataclass(frozen=True)
class Plan:
    """What is played: groups without end.

    Attributes:
        seed: Of all draws.
        group: How many rollouts have the same prompt.
        prompt: Its tokens.
        turns: Turns of the model.
        said: Tokens that it samples in one.
        answered: Tokens of what the environment says to that.
        acting: Seconds of a step.
        init: Seconds of a reset.
        eval: Seconds of scoring.
    """

    seed: int = 0
    group: int = 8
    prompt: Draw = field(default=Draw(1500, 0.5, 6000))
    turns: Draw = field(default=Draw(6, 0.8, 30))
    said: Draw = field(default=Draw(150, 1.0, MOST_TOKENS))
    answered: Draw = field(default=Draw(250, 1.0, MOST_TOKENS))
    acting: Draw = field(default=Draw(1.0, 1.0, 60))
    init: Draw = field(default=Draw(0.0))
    eval: Draw = field(default=Draw(0.0))

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Makes it of what `dataclasses.asdict` made of it."""
        values: dict[str, Any] = {name: Draw(**of) if isinstance(of, dict) else of for name, of in fields.items()}
        return cls(**values)

    def words(self) -> str:
        """It in words."""
        said = {
            "turns": self.turns.words(""),
            "prompt": self.prompt.words(" tokens"),
            "a turn of the model": self.said.words(" tokens"),
            "the answer to it": self.answered.words(" tokens"),
            "which takes": self.acting.words(" s"),
        }
        said |= {name: draw.words(" s") for name, draw in (("INIT", self.init), ("EVAL", self.eval)) if draw.middle}
        return f"groups of {self.group} with the same prompt; " + "; ".join(
            f"{name}: {words}" for name, words in said.items()
        )
