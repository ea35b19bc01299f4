"""ToolEnv's scoring apart from its last step, and of episodes that whoever plays them breaks off."""

from typing import Any

import pytest
from gymnasium.error import ResetNeeded

from gymhost.envs import ToolEnv, rubric, tool
from support.account import calls


class Digger(ToolEnv):
    """Pays each turn for digging, and at the end for what was found, if nothing is broken."""

    max_turns = 3

    def setup(self, task: Any) -> None:
        self.depth, self.broken, self.scored = 0, False, 0

    def prompt(self, task: Any) -> str:
        return "Dig."

    @tool
    def dig(self, by: int) -> str:
        """Digs deeper."""
        self.depth += by
        self.broken = by > 9
        if self.depth >= 5:
            self.finish(found="gold")
        return "Dug."

    @rubric(per_turn=True, weight=0.5)
    def effort(self) -> bool:
        return self.turn is not None and self.turn.valid

    @rubric(high=10.0)
    def treasure(self) -> float:
        self.scored += 1
        return self.depth

    @rubric(gate=True)
    def whole(self) -> bool:
        return not self.broken


def dig(by: int) -> Any:
    return calls(("dig", {"by": by}))


@pytest.mark.parametrize("digs", [[5], [1, 4], [1, 1, 1], [2, 10]])
def test_scored_apart_an_episode_pays_what_it_pays_at_once(digs: list[int]) -> None:
    together, apart = Digger(), Digger()
    together.reset()
    apart.reset(options={"evaluate_apart": True})
    for by in digs[:-1]:
        assert together.step(dig(by)) == apart.step(dig(by))
    _, at_once, terminated, truncated, info = together.step(dig(digs[-1]))
    _, reward, *ended, left_open = apart.step(dig(digs[-1]))
    assert ended == [terminated, truncated]
    assert (reward, apart.scored, left_open["evaluation_due"]) == (0.0, 0, True)
    assert "rewards" not in left_open
    observation, reward, *ended, scored = apart.evaluate()
    assert (observation, reward, ended, apart.scored) == ([], at_once, [terminated, truncated], 1)
    assert scored["rewards"] == info["rewards"]
    assert left_open.get("found") == info.get("found")


def test_an_episode_that_is_broken_off_is_scored_as_it_stands() -> None:
    env = Digger()
    env.reset()
    assert env.step(dig(3))[1] == 0.5
    observation, reward, terminated, truncated, info = env.evaluate("completion_tokens")
    # The turn's effort was paid with the turn.
    assert (observation, reward, terminated, truncated) == ([], 3.0, False, True)
    assert (info["limit"], info["rewards"]) == ("completion_tokens", {"treasure": 3.0, "whole": 1.0})


def test_only_an_episode_that_is_not_scored_can_be() -> None:
    env = Digger()
    with pytest.raises(ResetNeeded):
        env.evaluate()
    env.reset()
    env.evaluate()
    for again in (env.evaluate, lambda: env.step("more")):
        with pytest.raises(ResetNeeded, match="ended"):
            again()
    env.reset()
    env.step(dig(5))
    with pytest.raises(ResetNeeded):
        env.evaluate()
    # An episode that was left unscored does not go over into the next.
    env.reset(options={"evaluate_apart": True})
    env.step(dig(5))
    env.reset()
    env.step(dig(5))
    with pytest.raises(ResetNeeded):
        env.evaluate()


async def test_a_rubric_that_fails_makes_the_evaluation_invalid() -> None:
    class Torn(Digger):
        @rubric
        async def torn(self) -> float:
            raise RuntimeError("no scale")

    env = Torn()
    await env.areset(options={"evaluate_apart": True})
    await env.astep(dig(5))
    _, reward, _, _, info = await env.aevaluate()
    assert (reward, info["reward_invalid"], info["rewards"]["torn"]) == (0.0, True, None)
    assert "no scale" in info["rewards_errors"]["torn"]
