"""Plays rollouts of which all has a heavy tail, in the time of an event loop whose clock jumps.

All that is drawn follows from the plan's seed and the rollout's place, so it is the same for whoever plays it. How long
a turn of the model is, is drawn from the seed that the engine gives each turn of each rollout. Nothing is rendered: a
text says how many tokens it stands for.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from tests.benchmarks.heavy_tails import MOST_TOKENS, Plan
from tests.support.local_source import LocalSource

from gymhost.rollout import Chat, Concurrency, Limits, RolloutEngine, RolloutRequest
from gymhost.rollout.generators import Generator, Sampling

__all__ = ["Model", "Work", "engine", "play", "requests"]

# Ids: those that tell texts from each other are below the first, and one follows that, and one ends a turn.
_OWN = 2**30
_WORD, _END = _OWN, _OWN + 1
# No rollout of a plan comes to these.
_LIMITS = Limits(turn_tokens=MOST_TOKENS + 16, init_seconds=1e6, generation_seconds=1e6, eval_seconds=1e6)


class Texts(Chat):
    """A chat whose texts are two numbers: a token that tells it from other texts, and how many tokens it stands for."""

    def __init__(self) -> None:
        self.stop_token_ids = (_END,)

    def offer(self, tools: Sequence[Any]) -> None:
        return None

    def prompt(self, messages: Sequence[Mapping[str, Any]], offer: Any, sampled: Any) -> list[int]:
        return list(itertools.chain.from_iterable(_ids(*map(int, message["content"].split())) for message in messages))

    def least_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        return 0

    def extension(
        self, history: Any, sampled: Any, context: Any, messages: Sequence[Mapping[str, Any]], offer: Any
    ) -> list[int]:
        return self.prompt(messages, offer, {})

    def parse(self, sampled_ids: Sequence[int], prompt_ids: Any, offer: Any, first_call: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": f"{sampled_ids[0]} {len(sampled_ids)}"}


class Work:
    """An environment that plays a rollout of a plan.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        plan, task, index = self._plan, (options or {})["task"], (options or {})["index"]
        self._draws = random.Random(f"{plan.seed} {task} {index}")
        await asyncio.sleep(plan.init.of(self._draws))
        self._turns = max(1, round(plan.turns.of(self._draws)))
        of_group = random.Random(f"{plan.seed} {task}")
        return f"{of_group.randrange(_OWN)} {round(plan.prompt.of(of_group))}", {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        await asyncio.sleep(self._plan.acting.of(self._draws))
        self._turns -= 1
        said = f"{self._draws.randrange(_OWN)} {round(self._plan.answered.of(self._draws))}"
        return said, 0.0, not self._turns, False, {"evaluation_due": True}

    async def aevaluate(self, limit: str | None) -> tuple[str, float, bool, bool, dict[str, Any]]:
        await asyncio.sleep(self._plan.eval.of(self._draws))
        return "0 1", 1.0, True, False, {}

    def close(self) -> None:
        pass


def requests(plan: Plan) -> Iterator[RolloutRequest]:
    """All rollouts of a plan, without end."""
    for task in itertools.count():
        for index in range(plan.group):
            options = {"index": index}
            yield RolloutRequest("Work-v0", task=task, seed=task, options=options, group=str(task), index=index)


def engine(plan: Plan, source: LocalSource, generator: Generator, concurrency: Concurrency) -> RolloutEngine:
    """gymhost's engine, with a new session for each rollout, as sandboxes have it."""
    sampling = Sampling(max_tokens=_LIMITS.turn_tokens, seed=plan.seed)
    settings: dict[str, Any] = {"sampling": sampling, "limits": _LIMITS, "concurrency": concurrency}
    return RolloutEngine(source, Texts(), generator, reuse_sessions=False, **settings)


async def play(
    engine: RolloutEngine, requests: Iterator[RolloutRequest] | AsyncIterable[RolloutRequest]
) -> AsyncGenerator[None]:
    """Plays rollouts, and tells of the end of each.

    Raises:
        RuntimeError: One did not end as it should.
    """
    async with aclosing(engine.run(requests)) as running:
        async for trajectory in running:
            if trajectory.outcome.kind != "terminated":
                raise RuntimeError(f"a rollout {trajectory.outcome}")
            yield


class Model:
    """What samples a plan's turns.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._said = plan.said

    def answer(self, prompt_ids: Sequence[int], sampling: Sampling) -> list[int]:
        """What it samples: of a length that follows from the seed, and unlike what others say."""
        draws = random.Random(sampling.seed)
        return [*_ids(draws.randrange(_OWN), round(self._said.of(draws))), _END]


def _ids(own: int, tokens: int) -> list[int]:
    return [own, *itertools.repeat(_WORD, max(0, tokens - 1))]
