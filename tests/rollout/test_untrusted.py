"""Generators and environments that return, swallow and raise what they should not."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout import Concurrency, Generation, Limits, RolloutRequest, Sampling, Trajectory
from gymhost.rollout.generators.base import Response
from gymhost.rollout.store import Store
from support.local_source import LocalSource
from support.rollouts import ECHO, SAY, Endpoint, engine, requests, turns_of, whole
from support.talk import Answer, Talk, end, go_on, tool, user
from support.virtual_time import now, simulated

pytestmark = pytest.mark.heavy

N = len(SAY)
LOGPROBS = [-1.0] * N


class Returning:
    """A generator that returns what a test says, asked with how many tokens and for the how manieth time."""

    name = "returning"
    policy_version = 0

    def __init__(self, answer: Callable[[int, int], Any]) -> None:
        self.answer = answer
        self.asked = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        self.asked += 1
        answer = self.answer(sampling.max_tokens, self.asked)
        return await answer if isinstance(answer, Awaitable) else answer

    async def aclose(self) -> None: ...


async def play(
    generator: Any, answer: Callable[[Talk, Any], Any] | None = None, opening: Any = None, **limits: Any
) -> Trajectory:
    source = LocalSource(lambda: Talk(answer or (lambda env, _: turns_of(env, 1)), opening))
    async with engine(source, generator, limits=Limits(**{"retries": 0, **limits})) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    whole(trajectory)
    assert source.open == 0
    return trajectory


BAD: dict[str, Callable[[int], Any]] = {
    "nothing": lambda _: None,
    "no log-probs": lambda _: Generation(SAY, None),  # pyright: ignore[reportArgumentType]
    "too few log-probs": lambda _: Generation(SAY, [-1.0]),
    "a log-prob that is None": lambda _: Generation(SAY, [None, *LOGPROBS[1:]]),  # pyright: ignore[reportArgumentType]
    "a log-prob that is no number": lambda _: Generation(SAY, [math.nan, *LOGPROBS[1:]]),
    "an infinite log-prob": lambda _: Generation(SAY, [-math.inf, *LOGPROBS[1:]]),
    "a log-prob above 0": lambda _: Generation(SAY, [0.5, *LOGPROBS[1:]]),
    "negative ids": lambda _: Generation([-5, *SAY[1:]], LOGPROBS),
    "huge ids": lambda _: Generation([2**31, *SAY[1:]], LOGPROBS),
    "ids beyond 64 bits": lambda _: Generation([2**70, *SAY[1:]], LOGPROBS),
    "ids that are floats": lambda _: Generation([1.0, *SAY[1:]], LOGPROBS),  # pyright: ignore[reportArgumentType]
    "ids that are text": lambda _: Generation("abc", [-1.0] * 3),  # pyright: ignore[reportArgumentType]
    "an unknown end": lambda _: Generation(SAY, LOGPROBS, "abort"),
    "no end": lambda _: Generation(SAY, LOGPROBS, None),  # pyright: ignore[reportArgumentType]
    "too few versions": lambda _: Generation(SAY, LOGPROBS, token_versions=[1]),
    "a version that is None": lambda _: Generation(SAY, LOGPROBS, policy_version=None),  # pyright: ignore[reportArgumentType]
    "the version of no policy": lambda _: Generation(SAY, LOGPROBS, token_versions=[-1] * N),
    "more than was asked for": lambda room: Generation([SAY[0]] * (room + 1), [-1.0] * (room + 1)),
    "more than was asked for, cut": lambda room: Generation([SAY[0]] * (room + 1), [-1.0] * (room + 1), "cut"),
}


@pytest.mark.parametrize("what", BAD)
async def test_what_is_no_generation_is_the_generators_fault_and_asked_for_again(what: str, tmp_path: Path) -> None:
    def first_bad(room: int, number: int) -> Any:
        return BAD[what](room) if number == 1 else Generation(SAY, LOGPROBS)

    trajectory = await play(Returning(lambda room, _: BAD[what](room)), retries=1)
    outcome = trajectory.outcome
    assert (outcome.kind, outcome.fault, outcome.cause, trajectory.attempts) == (
        "failed",
        "generator",
        "GeneratorError",
        2,
    )
    assert not outcome.final
    assert (trajectory.reward, trajectory.trainable) == (None, False)
    with Store.create(tmp_path / "store") as store:
        store.append(trajectory)
        assert [kept.outcome for kept in store] == [outcome]
    again = await play(Returning(first_bad), retries=1)
    assert (again.outcome.kind, again.attempts) == ("terminated", 2)


async def test_a_piece_after_a_cut_is_checked_like_any_other() -> None:
    pieces = [Generation(SAY[:1], [-1.0], "cut"), Generation(SAY[1:], [math.nan] * (N - 1))]
    trajectory = await play(Returning(lambda _, number: pieces[number - 1]))
    assert trajectory.outcome.fault == "generator"
    assert "a log-prob is nan" in trajectory.outcome.message


async def test_arrays_are_taken_as_the_numbers_that_they_hold(tmp_path: Path) -> None:
    import numpy as np

    said = Generation(np.array(SAY), np.array(LOGPROBS, dtype=np.float32), policy_version=np.int64(3))  # pyright: ignore[reportArgumentType]
    trajectory = await play(Returning(lambda *_: said))
    assert (trajectory.completion_ids, trajectory.logprobs) == (SAY, LOGPROBS)
    with Store.create(tmp_path / "store") as store:
        store.append(trajectory)
        assert list(store) == [trajectory]


async def test_log_probs_a_rounding_above_0_are_taken() -> None:
    trajectory = await play(Returning(lambda *_: Generation(SAY, [1e-6] * N)))
    assert trajectory.outcome.kind == "terminated"


async def test_versions_that_differ_mark_the_turn() -> None:
    said = Generation(SAY, LOGPROBS, token_versions=[0] * (N - 1) + [1])
    trajectory = await play(Returning(lambda *_: said))
    assert trajectory.turns[0].mixed_versions
    assert trajectory.mixed_versions
    assert not said.mixed_versions  # what the generator keeps is left as it is


@pytest.mark.parametrize(
    "response",
    [
        None,
        Response(None),  # pyright: ignore[reportArgumentType]
        Response({"content": "x"}, "abort"),
        Response({"content": "x"}, prompt_tokens=None),  # pyright: ignore[reportArgumentType]
        Response({"content": "x"}, completion_tokens=-1),
        Response({"content": "x", "tool_calls": [{"name": "echo"}]}),
        Response({"content": "x", "tool_calls": 3}),
    ],
)
async def test_what_is_no_response_is_the_endpoints_fault(response: Any) -> None:
    source = LocalSource(lambda: Talk(lambda env, _: turns_of(env, 1)))
    async with engine(source, Endpoint(lambda _: response), chat=None, limits=Limits(retries=0)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.kind, trajectory.outcome.fault) == ("failed", "generator")
    assert "no response" in trajectory.outcome.message


# -- time --------------------------------------------------------------------------------------------------------------


async def stubborn(seconds: float, result: Any, error: Exception | None = None) -> Any:
    """Takes its time, whoever cancels it; then returns, or raises."""
    task = asyncio.ensure_future(asyncio.sleep(seconds))
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and error is not None:
        raise error
    return result


def stepping(_env: Talk, _message: Any) -> Any:
    return go_on(tool("again"))


@pytest.mark.parametrize("error", [None, RuntimeError("it was cancelled")])
@pytest.mark.parametrize("reason", ["stop", "cut"])
def test_a_generator_that_swallows_the_end_of_the_episodes_time_ends_it(error: Exception | None, reason: str) -> None:
    async def main() -> None:
        generator = Returning(lambda *_: stubborn(5, Generation(SAY[:1], LOGPROBS[:1], reason), error))
        trajectory = await play(generator, stepping, episode_seconds=12, retries=1)
        assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", "episode_seconds")
        assert trajectory.attempts == 1
        assert now() == pytest.approx(15, abs=1)
        assert len(trajectory.completion_ids) >= 2

    simulated(main())


@pytest.mark.parametrize("error", [None, RuntimeError("it was cancelled")])
def test_a_generator_that_swallows_the_end_of_its_own_time_is_at_fault(error: Exception | None) -> None:
    async def main() -> None:
        generator = Returning(lambda *_: stubborn(5, Generation(SAY, LOGPROBS), error))
        trajectory = await play(generator, stepping, generation_seconds=2)
        outcome = trajectory.outcome
        assert (outcome.kind, outcome.fault, outcome.limit) == ("failed", "generator", "generation_seconds")
        assert now() == pytest.approx(5, abs=1)

    simulated(main())


@pytest.mark.parametrize("error", [None, RuntimeError("it was cancelled")])
def test_an_environment_that_swallows_the_end_of_the_episodes_time_ends_it(error: Exception | None) -> None:
    class Stubborn(Talk):
        async def astep(self, action: Any) -> Answer:
            return await stubborn(5, self.step(action), error)

    async def main() -> None:
        source = LocalSource(lambda: Stubborn(stepping))
        async with engine(source, lambda *_: SAY, limits=Limits(episode_seconds=12)) as rollouts:
            [trajectory] = await rollouts.collect(requests(1))
        assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", "episode_seconds")
        assert (len(trajectory.turns), trajectory.messages[-1]["role"]) == (3, "assistant")
        assert now() == pytest.approx(15, abs=1)
        assert (source.open, source.opened) == (0, 1)

    simulated(main())


def test_who_swallows_a_cancellation_writes_nothing_more_and_is_asked_for_nothing_more() -> None:
    async def main() -> None:
        generator = Returning(lambda *_: stubborn(5, Generation(SAY, LOGPROBS)))
        source = LocalSource(lambda: Talk(stepping))
        async with engine(source, generator) as rollouts:
            batch = asyncio.create_task(rollouts.collect(requests(1)))
            await asyncio.sleep(7)
            rollouts.cancel()
            [trajectory] = await batch
            kept = trajectory.model_copy(deep=True)
        assert trajectory.outcome.kind == "cancelled"
        assert (trajectory.token_rows, trajectory.messages) == (kept.token_rows, kept.messages)
        assert (generator.asked, source.open) == (2, 0)
        assert now() == pytest.approx(10, abs=1)

    simulated(main())


@pytest.mark.parametrize("how", ["time", "cancel"])
def test_what_was_sampled_of_a_turn_that_was_cut_is_kept_when_the_rollout_ends_in_it(how: str) -> None:
    """Three turns; the third is cut twice, and then the end comes."""

    def answer(_room: int, number: int) -> Any:
        match number:
            case 1 | 2:
                return Generation(ECHO, [-1.0] * len(ECHO))
            case 3:
                return Generation(ECHO[:3], [-1.0] * 3, "cut", 1)
            case 4:
                return Generation(ECHO[3:5], [-1.0] * 2, "cut", 2)
            case _:
                return asyncio.sleep(1e6)

    async def main() -> None:
        source = LocalSource(lambda: Talk(stepping))
        limits = Limits(episode_seconds=10 if how == "time" else None, generation_seconds=1e9)
        async with engine(source, Returning(answer), limits=limits) as rollouts:
            batch = asyncio.create_task(rollouts.collect(requests(1)))
            await asyncio.sleep(5)
            if how == "cancel":
                rollouts.cancel()
            [trajectory] = await batch
            tokens = rollouts.status().tokens
        whole(trajectory)
        expected = ("truncated", "episode_seconds") if how == "time" else ("cancelled", None)
        assert (trajectory.outcome.kind, trajectory.outcome.limit) == expected
        [row] = trajectory.rows()
        assert row.completion_ids[-5:] == ECHO[:5]
        assert (row.mask[-6:], row.policy_versions[-5:]) == ([0, 1, 1, 1, 1, 1], [1, 1, 1, 2, 2])
        turn = trajectory.turns[-1]
        assert (turn.tokens, turn.finish_reason, turn.mixed_versions, turn.calls) == (5, "cut", True, 0)
        assert sum(row.mask) == trajectory.sampled_tokens == tokens == 2 * len(ECHO) + 5
        assert [message["role"] for message in trajectory.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
        assert "tool_calls" not in trajectory.messages[-1]

    simulated(main())


def test_a_step_that_is_never_answered_pays_nobody_knows_what() -> None:
    class Stuck(Talk):
        async def astep(self, action: Any) -> Answer:
            if len(self.said) == 2:
                await asyncio.Event().wait()
            return self.step(action)

    async def main(limit: str) -> Trajectory:
        source = LocalSource(lambda: Stuck(lambda env, _: go_on(tool("again"), reward=0.5)))
        async with engine(source, lambda *_: SAY, limits=Limits(**{limit: 20})) as rollouts:
            [trajectory] = await rollouts.collect(requests(1))
        assert (trajectory.reward, trajectory.valid, source.open) == (None, False, 0)
        assert [turn.reward for turn in trajectory.turns[:2]] == [0.5, 0.5]
        assert now() == pytest.approx(20, abs=6)
        return trajectory

    outcome = simulated(main("episode_seconds")).outcome
    assert (outcome.kind, outcome.limit) == ("truncated", "episode_seconds")
    outcome = simulated(main("step_seconds")).outcome  # which this session knows nothing of
    assert (outcome.kind, outcome.fault, outcome.limit) == ("failed", "environment", "step_seconds")
    assert "not done after 20 s" in outcome.message


# -- environments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ({1: 0.5}, {"1": 0.5}),
        ({"a": "x", "b": {"c": 1}, "d": None, "e": 1}, {"a": None, "b": None, "d": None, "e": 1.0}),
        ([1.0, 2.0], {}),
        (3.0, {}),
    ],
)
async def test_an_info_may_hold_anything_under_the_name_of_rewards(rewards: Any, kept: Any, tmp_path: Path) -> None:
    trajectory = await play([SAY], lambda _env, _: end(rewards=rewards))
    assert (trajectory.outcome.kind, trajectory.reward, trajectory.rewards) == ("terminated", 1.0, kept)
    with Store.create(tmp_path / "store") as store:
        store.append(trajectory)
        assert [item.rewards for item in store] == [kept]


@pytest.mark.parametrize("last", [None, 3, [1, 2], [{"content": "no role"}]])
async def test_a_last_observation_that_is_no_conversation_costs_no_reward(last: Any) -> None:
    trajectory = await play([SAY], lambda _env, _: (last, 1.0, True, False, {}))
    assert (trajectory.outcome.kind, trajectory.reward) == ("terminated", 1.0)
    assert [message["role"] for message in trajectory.messages] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((None, 1.0, False, False, {}), "needs messages or text to observe"),
        (([], 1.0, True, False, None), "an info that is no dict: None"),
        (([], "much", True, False, {}), "a reward that is no number: 'much'"),
        (([], 10**400, True, False, {}), "a reward that is no number: 1000"),
        (([user("x") | {"content": ["abc"]}], 0.0, False, False, {}), "holds a value of the type str"),
        (([user("x") | {"content": [{"type": "text", "text": None}]}], 0.0, False, False, {}), "a text without text"),
        (([user("x") | {"content": {"a": 1}}], 0.0, False, False, {}), "holds a value of the type dict"),
        (([tool("x") | {"content": 5}], 0.0, False, False, {}), "holds a value of the type int"),
        (([user("x") | {"role": "developer"}], 0.0, False, False, {}), "no messages of the role 'developer'"),
    ],
)
async def test_an_answer_that_is_none_is_named(answer: Any, message: str) -> None:
    trajectory = await play([SAY, SAY], lambda _env, _: answer)
    assert (trajectory.outcome.kind, trajectory.outcome.fault) == ("failed", "environment")
    assert message in trajectory.outcome.message


async def test_an_info_that_is_filled_anew_each_time_leaves_earlier_trajectories_alone() -> None:
    info: dict[str, Any] = {}

    def answer(env: Talk, _message: Any) -> Any:
        info["episode"] = env.options["task"]
        return [], 1.0, True, False, info

    source = LocalSource(lambda: Talk(answer))
    async with engine(source, lambda *_: SAY, concurrency=Concurrency(run=1)) as rollouts:
        trajectories = await rollouts.collect([RolloutRequest("Talk-v0", task=task) for task in range(3)])
    assert [item.info["episode"] for item in trajectories] == [0, 1, 2]
