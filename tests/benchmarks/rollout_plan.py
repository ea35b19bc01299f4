"""What rollouts of a benchmark are: how many, of how many turns, and how long each act in them takes.

The draws are the same for whoever plays them. An environment of a rollout answers each call of its tool, and says with
the last one that it was the last; the model, which is simulated, calls the tool until it has read that, and then writes
a text without a call, which ends the episode.
"""

import heapq
import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

# What the tool answers. `Z` is a token of its own, which stands nowhere else.
MORE, LAST = "more", "Z"
# So many ids at the end of a prompt hold what the tool answered.
_TAIL = 16
_CALL = '<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call><|im_end|>'


@dataclass(frozen=True)
class Plan:
    """What is played.

    Attributes:
        rollouts: How many, all at once.
        least_turns: The fewest turns of the model in a rollout.
        most_turns: The most.
        tokens: What the model samples in each turn.
        slots: How many completions are sampled at once.
        tokens_per_second: What each slot samples; infinity for no time.
        delay: The median of what a tool takes, in seconds.
        sigma: How the delays spread: their logarithm is normal, with this deviation.
        blocking: Whether the tool holds its thread meanwhile.
    """

    rollouts: int
    least_turns: int
    most_turns: int
    tokens: int = 200
    slots: int = 64
    tokens_per_second: float = math.inf
    delay: float = 0.0
    sigma: float = 0.0
    blocking: bool = False

    @classmethod
    def read(cls, text: str) -> Self:
        """Reads what `write` wrote."""
        return cls(**json.loads(text))

    def write(self) -> str:
        """Writes it as JSON."""
        return json.dumps(asdict(self))

    def scaled(self, scale: float) -> "Plan":
        """The same with all waits so many times as long; what is computed takes what it takes."""
        return replace(self, tokens_per_second=self.tokens_per_second / scale, delay=self.delay * scale)

    def delays(self, rollout: int) -> list[float]:
        """What each call of a rollout's tool takes, in seconds."""
        draws = random.Random(rollout)
        calls = draws.randint(self.least_turns, self.most_turns) - 1
        return [self.delay * math.exp(draws.gauss(0.0, self.sigma)) for _ in range(calls)]

    @property
    def environment(self) -> str:
        """The id of its environment, of those of `rollout_environments`."""
        return "benchmarks/Blocking-v0" if self.blocking else "benchmarks/Waiting-v0"

    @property
    def turns(self) -> int:
        """How many turns all rollouts have together."""
        return sum(1 + len(self.delays(rollout)) for rollout in range(self.rollouts))

    @property
    def least_seconds(self) -> float:
        """What the turns would take if all slots were always busy."""
        return self.turns * self.tokens / self.tokens_per_second / self.slots


def undelayed(plan: Plan, take: Callable[[int, float], float]) -> None:
    """Plays the rollouts in a time of their own, in which nothing but completions and tools takes any.

    Args:
        plan: What is played.
        take: Asks for a completion: given its tokens and the time, returns its end.
    """
    asked = [(0.0, rollout, iter([*plan.delays(rollout), None])) for rollout in range(plan.rollouts)]
    while asked:
        now, rollout, delays = heapq.heappop(asked)
        end = take(plan.tokens, now)
        if (delay := next(delays)) is not None:
            heapq.heappush(asked, (end + delay, rollout, delays))


def prompt(rollout: int) -> str:
    """What the user says first."""
    return f"Work, until you are told that it was enough. This is task {rollout}."


def answers(delays: Sequence[float]) -> "itertools.chain[tuple[float, str]]":
    """What the tool answers, each with what that takes."""
    return itertools.chain(((delay, MORE) for delay in delays[:-1]), ((delay, LAST) for delay in delays[-1:]))


def report(plan: Plan, turns: Sequence[int], seconds: float, **more: float | None) -> None:
    """Prints what came of a plan that was played.

    Args:
        plan: What was played.
        turns: How many turns each rollout had.
        seconds: How long it took.
        **more: More figures.

    Raises:
        RuntimeError: Not every rollout had its turns.
    """
    wanted = [1 + len(plan.delays(rollout)) for rollout in range(plan.rollouts)]
    if turns != wanted:
        raise RuntimeError(f"the rollouts had {turns} turns, not {wanted}")
    said = {"turns": plan.turns, "seconds": seconds, "turns_per_second": plan.turns / seconds}
    print(json.dumps(said | more), flush=True)


class Model:
    """The simulated model.

    Args:
        plan: What is played.
        encode: Makes ids of a text, spellings of control tokens being control tokens.
    """

    def __init__(self, plan: Plan, encode: Callable[[str], list[int]]) -> None:
        [self._last] = encode(LAST)
        self._call = _padded(encode, _CALL, plan.tokens)
        self._text = _padded(encode, "<|im_end|>", plan.tokens)

    def answer(self, prompt_ids: Sequence[int]) -> list[int]:
        """What it samples after a prompt."""
        return self._text if self._last in prompt_ids[-_TAIL:] else self._call


def _padded(encode: Callable[[str], list[int]], text: str, tokens: int) -> list[int]:
    ids = encode(text)
    if len(ids) >= tokens:
        raise ValueError(f"a turn has {len(ids) + 1} tokens at least, not {tokens}")
    return [*encode("ab") * (tokens - len(ids)), *ids]


TOOL: dict[str, Any] = {
    "name": "work",
    "description": "Works for a while.",
    "parameters": {"type": "object", "properties": {}},
}
