"""Two minutes of faults: what can be repeated is not lost, no step runs twice, no reply is wrong, nothing is left."""

import pytest

from chaos import history, scenario
from chaos.history import Event


@pytest.mark.timeout(420)
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_and_nothing_is_left(seed: int) -> None:
    report = scenario.run(seed, 60.0)
    assert not report.problems, "\n".join(report.problems)
    assert report.verdict.steps > 500
    assert report.recoveries > 0


class TestTheModelChecker:
    """What it is to find it does find."""

    EPISODE = "e" * 32

    def played(self, *steps: list[int], environment: str = "chaos/Fragile-v0") -> list[Event]:
        reset = Event(environment, self.EPISODE, "reset", 0, 7, [0, 0, 0])
        return [reset, *(Event(environment, self.EPISODE, "step", n, 5, s) for n, s in enumerate(steps, 1))]

    def ran(self, *counts: int, instance: str = "i") -> list[str]:
        return [f"{self.EPISODE} {count} 5 {instance}" for count in counts]

    def check(self, events: list[Event], ran: list[str]) -> list[str]:
        return history.check(events, ran, replayable=["chaos/Counter-v0"]).problems

    @pytest.fixture
    def right(self) -> list[list[int]]:
        """What seed 7 makes of three steps with the action 5."""
        from gymnasium.utils.seeding import np_random

        from chaos.environments import draw

        generator, _ = np_random(7)
        sums = [draw(generator) for _ in range(3)]
        return [[n, 5, sum(sums[:n])] for n in (1, 2, 3)]

    def test_what_is_right(self, right: list[list[int]]) -> None:
        assert not self.check(self.played(*right), self.ran(1, 2, 3))

    def test_a_step_that_ran_and_was_not_answered_is_allowed(self, right: list[list[int]]) -> None:
        assert not self.check(self.played(*right[:2]), self.ran(1, 2, 3))

    def test_a_step_that_ran_twice(self, right: list[list[int]]) -> None:
        (problem,) = self.check(self.played(*right), self.ran(1, 2, 2, 3))
        assert "ran the steps [1, 2, 2, 3]" in problem

    def test_a_reply_to_another_step(self, right: list[list[int]]) -> None:
        (problem,) = self.check(self.played(right[0], right[0]), self.ran(1, 2))
        assert "can only be" in problem

    def test_a_step_that_was_answered_and_did_not_run(self, right: list[list[int]]) -> None:
        (problem,) = self.check(self.played(*right), self.ran(1, 2))
        assert "3 steps were answered, 2 were run" in problem

    def test_an_episode_that_was_repeated_and_must_not_be(self, right: list[list[int]]) -> None:
        ran = self.ran(1) + self.ran(1, 2, 3, instance="j")
        (problem,) = self.check(self.played(*right), ran)
        assert "can't be repeated" in problem
        assert not self.check(self.played(*right, environment="chaos/Counter-v0"), ran)

    def test_an_episode_that_can_be_repeated_and_was_lost(self, right: list[list[int]]) -> None:
        lost = Event("chaos/Counter-v0", self.EPISODE, "step", 4, 5, None, "SessionLost: gone")
        (problem,) = self.check([*self.played(*right, environment="chaos/Counter-v0"), lost], self.ran(1, 2, 3))
        assert "SessionLost" in problem
