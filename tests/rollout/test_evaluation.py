"""Episodes are scored in a stage of their own, and those that the engine broke off are scored too."""

import asyncio
from typing import Any

import pytest

from gymhost.envs import ToolEnv, rubric, tool
from gymhost.rollout import Concurrency, Limits, RolloutRequest, Trajectory
from support.local_source import LocalSource
from support.rollouts import engine, whole
from support.tokenizers import call, encode

pytestmark = pytest.mark.heavy

DIG = encode(call("dig", "{}"))


class Digger(ToolEnv):
    """Pays a tenth for each turn, and at the end for how deep it got; the third dig ends the episode."""

    scoring: asyncio.Event | None = None
    breaks = False
    hangs = False

    def setup(self, task: Any) -> None:
        self.depth = 0

    def prompt(self, task: Any) -> str:
        return "Dig."

    @tool
    async def dig(self) -> str:
        """Digs deeper."""
        if self.hangs:
            await asyncio.Event().wait()
        self.depth += 1
        if self.depth == 3:
            self.finish(found="gold")
        return "Dug."

    @rubric(per_turn=True, weight=0.1)
    def effort(self) -> float:
        return 1.0

    @rubric(high=3.0)
    async def depth_reached(self) -> float:
        if self.scoring is not None:
            await self.scoring.wait()
        if self.breaks:
            raise RuntimeError("the scale is broken")
        return self.depth


async def play(limits: Limits | None = None, said: Any = DIG, **traits: Any) -> Trajectory:
    def make() -> Digger:
        env = Digger()
        vars(env).update(traits)
        return env

    async with engine(LocalSource(make), lambda *_: said, limits=limits or Limits()) as rollouts:
        [trajectory] = await rollouts.collect([RolloutRequest("Digger-v0")])
    whole(trajectory)
    return trajectory


async def test_an_episode_that_ended_is_scored_and_nothing_of_it_is_lost() -> None:
    trajectory = await play()
    assert trajectory.outcome.kind == "terminated"
    assert trajectory.reward == pytest.approx(3.3)
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([0.1, 0.1, 3.1])
    assert trajectory.rewards == {"effort": 1.0, "depth_reached": 3.0}
    assert trajectory.info["found"] == "gold"
    assert "evaluation_due" not in trajectory.info


@pytest.mark.parametrize(
    ("limits", "said", "limit", "reward"),
    [
        (Limits(turns=2), DIG, "turns", 2.2),
        (Limits(turn_tokens=len(DIG) - 1), DIG, "turn_tokens", 0.0),  # the call was cut off, and never run
        (Limits(sampled_tokens=2 * len(DIG)), DIG, "sampled_tokens", 2.2),
    ],
)
async def test_an_episode_that_a_limit_of_the_engine_ended_is_scored_as_it_stands(
    limits: Limits, said: Any, limit: str, reward: float
) -> None:
    trajectory = await play(limits, said)
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", limit)
    assert trajectory.reward == pytest.approx(reward)
    assert trajectory.rewards["depth_reached"] == round(reward)
    assert trajectory.info["limit"] == limit


async def test_scoring_holds_no_place_in_run() -> None:
    scoring = asyncio.Event()
    episodes = 0

    class Slow(Digger):
        def setup(self, task: Any) -> None:
            nonlocal episodes
            super().setup(task)
            episodes += 1
            self.scoring = scoring
            if episodes == 3:  # with one place in RUN, two others have played to their end, and wait to be scored
                scoring.set()

    places = Concurrency(init=1, run=1, eval=2, ahead=0)
    async with engine(LocalSource(Slow), lambda *_: DIG, concurrency=places) as rollouts:
        trajectories = await rollouts.collect([RolloutRequest("Digger-v0")] * 3)
    assert [trajectory.reward for trajectory in trajectories] == pytest.approx([3.3] * 3)
    assert all(trajectory.timings.eval > 0 for trajectory in trajectories)


async def test_a_rubric_that_fails_makes_the_reward_unknown() -> None:
    trajectory = await play(breaks=True)
    assert trajectory.outcome.kind == "terminated"
    assert (trajectory.reward, trajectory.valid, trajectory.rewards["depth_reached"]) == (None, False, None)


async def test_scoring_that_takes_too_long_is_stopped_and_named() -> None:
    trajectory = await play(Limits(eval_seconds=0.05), scoring=asyncio.Event())
    outcome = trajectory.outcome
    assert (outcome.kind, outcome.limit, outcome.fault) == ("failed", "eval_seconds", "environment")
    assert trajectory.reward is None


async def test_what_nobody_can_score_is_unknown() -> None:
    trajectory = await play(Limits(episode_seconds=0.2), hangs=True)
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", "episode_seconds")
    assert trajectory.reward is None
