"""Loops of one's own: what an agent may do at its seat, how its rollouts end, and whose fault it is."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from renderers import Qwen3RendererConfig

from gymhost.rollout import Chat, LimitReached, Limits, RolloutRequest, Sampling, Seat, load_agent
from gymhost.rollout.faults import RolloutOver
from gymhost.rollout.generators import Reply
from gymhost.rollout.generators.base import GeneratorError
from gymhost.wire import errors
from support.agents import Doing, play
from support.local_source import LocalSource
from support.rollouts import ECHO, SAY, engine, requests
from support.talk import Answer, Talk, end, go_on, tool, user
from support.tokenizers import decode, encode, qwen3_tokenizer
from support.virtual_time import now, simulated

pytestmark = pytest.mark.heavy


class Scored(Talk):
    """Scores an episode apart from its steps: by what was said."""

    async def aevaluate(self, limit: str | None = None) -> Answer:
        return [], 10.0 * len(self.said), False, True, {"limit": limit, "rewards": {"said": len(self.said)}}


def third_is_last(env: Talk, _message: Any) -> Answer:
    return go_on(tool("x"), reward=1.0) if len(env.said) < 3 else end(reward=1.0)


class PlanThenAct:
    """Plans in a conversation of its own, and then acts."""

    async def run(self, seat: Seat) -> None:
        plan = await seat.say([user("Plan.")], tools=())
        messages = [*seat.observation, user(f"Your plan: {plan['content']}")]
        while True:
            said = await seat.say(messages)
            observation, _, terminated, truncated, _ = await seat.step(said)
            if terminated or truncated:
                return
            messages = [*messages, said, *observation]


async def test_an_agent_plays_beside_the_built_in_loop() -> None:
    def script(prompt_ids: Sequence[int], _name: str) -> list[int]:
        return SAY if "Plan." in decode(list(prompt_ids)) else ECHO

    source = LocalSource(lambda: Talk(lambda env, _: go_on(tool("x"), reward=0.5) if len(env.said) < 2 else end()))
    async with engine(source, script, agents={"planner": PlanThenAct}) as rollouts:
        mine, usual = await rollouts.collect([RolloutRequest("Talk-v0", agent="planner"), *requests(1)])
    assert [(str(item.outcome), item.reward) for item in (mine, usual)] == [("terminated", 1.5)] * 2
    assert [(turn.row, turn.calls, turn.reward) for turn in mine.turns] == [(0, 0, 0.0), (1, 1, 0.5), (1, 1, 1.0)]
    assert [message["content"] for message in mine.messages] == ["Plan.", "abab"]
    assert mine.asides[0][0] == user("Go.")
    assert (len(usual.token_rows), usual.asides) == (1, [])
    # The row of the acting is what the built-in loop makes of the same.
    assert mine.token_rows[1].mask == usual.token_rows[0].mask
    assert [tool["name"] for tool in usual.tools] == ["echo"]


async def test_what_a_seat_has_to_tell() -> None:
    seen: dict[str, Any] = {}

    async def what(seat: Seat) -> None:
        seen.update(options=seat.options, info=seat.info, tools=[tool["name"] for tool in seat.tools])
        seen["left"] = (seat.turns_left, seat.tokens_left, seat.seconds_left)
        await seat.say(seat.observation, sampling=Sampling(max_tokens=2))
        seen["then"] = (seat.turns_left, seat.tokens_left)
        assert seat.trajectory.turns[0].finish_reason == "length"
        seen["step"] = await seat.step("plain text")

    limits = Limits(turns=4, sampled_tokens=100, episode_seconds=50.0)
    trajectory = await play(what, lambda *_: SAY, limits=limits, options={"depth": 3})
    assert (seen["options"], seen["info"], seen["tools"]) == ({"depth": 3}, {"task": None}, ["echo"])
    turns, tokens, seconds = seen["left"]
    assert (turns, tokens, 40.0 < seconds <= 50.0) == (4, 100, True)
    assert seen["then"] == (3, 98)
    assert seen["step"] == ([tool("done")], 1.0, True, False, {})
    # That it asked for less than it might have had was no limit of the rollout.
    assert str(trajectory.outcome) == "terminated"


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_an_agent_that_returns_is_scored_whatever_it_did(steps: int) -> None:
    async def what(seat: Seat) -> None:
        for _ in range(steps):
            await seat.step("x")  # none of the model's, and paid for all the same
        await seat.say(seat.observation)

    trajectory = await play(what, lambda *_: SAY, third_is_last, env=Scored)
    assert (str(trajectory.outcome), trajectory.reward) == ("terminated", (0.0, 11.0, 3.0)[min(steps, 2)])
    assert trajectory.turns[-1].reward == trajectory.reward


async def test_an_agent_that_played_nothing_has_failed() -> None:
    async def what(seat: Seat) -> None:
        pass

    trajectory = await play(what, lambda *_: SAY, third_is_last, env=Scored)
    assert (trajectory.outcome.fault, trajectory.reward) == ("agent", None)
    assert "played nothing" in trajectory.outcome.message


@pytest.mark.parametrize("passes", ["raises", "wraps", "groups", "returns"])
@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(turns=2), "turns"),
        (Limits(sampled_tokens=6), "sampled_tokens"),
        (Limits(sampled_tokens=7), "sampled_tokens"),
        (Limits(completion_tokens=8), "completion_tokens"),
        (Limits(context_tokens=20), "context_tokens"),
    ],
)
async def test_a_limit_truncates_whatever_an_agent_makes_of_it(limits: Limits, name: str, passes: str) -> None:
    told: list[str] = []

    async def talk(seat: Seat) -> None:
        messages = [user("Go.")]
        for _ in range(10):
            messages += [await seat.say(messages, tools=()), user("more")]

    async def what(seat: Seat) -> None:
        if passes == "groups":
            async with asyncio.TaskGroup() as group:
                group.create_task(talk(seat))
        try:
            await talk(seat)
        except LimitReached as reached:
            told.append(str(reached))
            if passes == "raises":
                raise
            if passes == "wraps":
                raise ValueError("no more") from reached

    trajectory = await play(what, lambda *_: SAY, limits=limits, env=Scored)
    assert str(trajectory.outcome) == f"truncated by {name}"
    assert told == [] if passes == "groups" else f"Limits.{name} leaves no room" in told[0]
    assert trajectory.info["limit"] == name  # it was scored, and told why
    assert trajectory.reward == 0.0
    assert trajectory.sampled_tokens <= (limits.sampled_tokens or 100)
    assert all(row.mask[-1] == 1 for row in trajectory.token_rows)  # nothing is left that nobody answered


async def test_turns_at_once_take_no_more_than_there_is() -> None:
    refused: list[str] = []

    async def what(seat: Seat) -> None:
        said = await asyncio.gather(*(seat.say([user(str(i))]) for i in range(6)), return_exceptions=True)
        refused.extend(error.limit for error in said if isinstance(error, LimitReached))

    trajectory = await play(what, lambda *_: SAY, limits=Limits(turn_tokens=4, sampled_tokens=10))
    assert (refused, len(trajectory.turns), trajectory.sampled_tokens) == (["sampled_tokens"] * 3, 3, 8)
    refused.clear()
    trajectory = await play(what, lambda *_: SAY, limits=Limits(turns=2))
    assert (refused, len(trajectory.turns)) == (["turns"] * 4, 2)


async def test_a_conversation_that_is_full_need_not_be_the_end() -> None:
    async def what(seat: Seat) -> None:
        with pytest.raises(LimitReached):
            await seat.say([user("long " * 50)], tools=())
        await seat.step(await seat.say([user("short")], tools=()))

    trajectory = await play(what, lambda *_: SAY, limits=Limits(context_tokens=50))
    assert (str(trajectory.outcome), trajectory.reward) == ("terminated", 1.0)


def test_an_agent_that_goes_on_in_spite_of_a_limit_is_stopped() -> None:
    async def what(seat: Seat) -> None:
        while True:
            try:
                await seat.say(seat.observation)
            except LimitReached:
                await asyncio.sleep(1.0)

    async def main() -> None:
        trajectory = await play(what, lambda *_: SAY, limits=Limits(turns=1), env=Scored)
        assert str(trajectory.outcome) == "truncated by turns"
        assert trajectory.reward == 0.0
        assert now() == pytest.approx(30.0, abs=1.1)

    simulated(main())


def test_time_ends_an_agent_and_so_does_a_pause_not() -> None:
    async def what(seat: Seat) -> None:
        await seat.say(seat.observation)
        await asyncio.Event().wait()

    async def main() -> None:
        trajectory = await play(what, lambda *_: SAY, limits=Limits(episode_seconds=5.0), env=Scored)
        assert (str(trajectory.outcome), trajectory.reward) == ("truncated by episode_seconds", 0.0)
        assert len(trajectory.turns) == 1

    simulated(main())


def test_an_agent_that_does_not_end_when_it_is_cancelled_is_left() -> None:
    ended = asyncio.Event()

    async def what(seat: Seat) -> None:
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue
        with pytest.raises(RolloutOver):
            await seat.say(seat.observation)

    async def main() -> None:
        trajectory = await play(what, lambda *_: SAY, limits=Limits(episode_seconds=5.0))
        assert str(trajectory.outcome) == "truncated by episode_seconds"
        ended.set()
        await asyncio.sleep(0.1)

    simulated(main())


async def test_a_fault_of_an_agent_is_its_own_and_final() -> None:
    async def what(seat: Seat) -> None:
        await seat.say(seat.observation)
        raise KeyError("my mistake")

    trajectory = await play(what, lambda *_: SAY)
    outcome = trajectory.outcome
    assert (outcome.kind, outcome.fault, outcome.cause, outcome.final) == ("failed", "agent", "KeyError", True)
    assert (trajectory.reward, trajectory.attempts, outcome.turn) == (None, 1, 1)
    assert "my mistake" in str(outcome)
    assert 'raise KeyError("my mistake")' in outcome.message  # where it was

    source = LocalSource(lambda: Talk(lambda *_: end()))
    async with engine(source, lambda *_: SAY, agents={"doing": Doing(what)}) as rollouts:
        [unknown] = await rollouts.collect([RolloutRequest("Talk-v0", agent="doign")])
        counts = rollouts.status().faults
    assert "no agent 'doign'; it has doing" in unknown.outcome.message
    assert counts == {"agent": 1}


@pytest.mark.parametrize("swallows", [False, True])
async def test_faults_of_others_stay_theirs(swallows: bool) -> None:
    def answer(_env: Talk, _message: Any) -> Answer:
        raise errors.SessionLost("gone")

    tries = 0

    def script(*_: Any) -> list[int]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise GeneratorError("out of order")
        return SAY

    async def what(seat: Seat) -> None:
        try:
            await seat.step(await seat.say(seat.observation))
        except Exception as error:
            if not swallows:
                raise ValueError("something went wrong") from error

    trajectory = await play(what, script, answer, limits=Limits(retries=1))
    assert (trajectory.outcome.fault, trajectory.outcome.cause) == ("infrastructure", "SessionLost")
    assert (trajectory.reward, trajectory.attempts) == (None, 2)  # the generator's fault was tried again


async def test_what_somebody_else_cancels_is_no_fault_of_the_agent() -> None:
    answers = iter([asyncio.CancelledError(), SAY])

    def script(*_: Any) -> list[int]:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def what(seat: Seat) -> None:
        await seat.step(await seat.say(seat.observation))

    trajectory = await play(what, script)
    assert (str(trajectory.outcome), trajectory.attempts) == ("terminated", 2)

    async def cancelled(seat: Seat) -> None:
        await seat.say(seat.observation)
        raise asyncio.CancelledError

    trajectory = await play(cancelled, lambda *_: SAY)
    assert (trajectory.outcome.fault, trajectory.attempts) == ("agent", 1)


async def test_an_agent_that_gets_over_a_fault_has_none() -> None:
    answers = iter([GeneratorError("out of order"), SAY])

    def script(*_: Any) -> list[int]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def what(seat: Seat) -> None:
        with pytest.raises(GeneratorError):
            await seat.say(seat.observation)
        await seat.step(await seat.say(seat.observation))

    trajectory = await play(what, script)
    assert (str(trajectory.outcome), trajectory.reward, len(trajectory.token_rows)) == ("terminated", 1.0, 1)


async def test_cancelling_ends_an_agent_and_what_it_has_begun() -> None:
    begun, ended = asyncio.Event(), []

    async def script(*_: Any) -> list[int]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("generation")
        raise AssertionError

    async def what(seat: Seat) -> None:
        try:
            await asyncio.gather(seat.say([user("a")]), seat.say([user("b")]))
        finally:
            ended.append("agent")

    source = LocalSource(lambda: Talk(lambda *_: end()))
    async with engine(source, script, agents={"doing": Doing(what)}) as rollouts:
        results = asyncio.ensure_future(rollouts.collect([RolloutRequest("Talk-v0", agent="doing")]))
        await begun.wait()
        assert rollouts.cancel() == 1
        [trajectory] = await results
    assert (str(trajectory.outcome), trajectory.reward) == ("cancelled", None)
    assert sorted(ended) == ["agent", "generation", "generation"]
    assert source.open == 0


async def test_what_an_agent_leaves_running_ends_with_the_rollout() -> None:
    aborted = asyncio.Event()
    waiting: list[asyncio.Task[Any]] = []

    async def script(prompt_ids: Sequence[int], _name: str) -> list[int]:
        if "forever" in decode(list(prompt_ids)):
            try:
                await asyncio.Event().wait()
            finally:
                aborted.set()
        return SAY

    async def what(seat: Seat) -> None:
        said = await seat.say(seat.observation)
        waiting.append(asyncio.create_task(seat.say([user("forever")])))
        await asyncio.sleep(0.01)
        await seat.step(said)

    trajectory = await play(what, script)
    assert aborted.is_set()
    assert waiting[0].cancelled()
    assert (str(trajectory.outcome), len(trajectory.turns), len(trajectory.token_rows)) == ("terminated", 1, 1)


async def test_steps_are_taken_one_at_a_time_and_none_after_the_end() -> None:
    inside = 0

    class Slow(Talk):
        async def astep(self, action: Any) -> Answer:
            nonlocal inside
            inside += 1
            assert inside == 1
            await asyncio.sleep(0.001)
            inside -= 1
            return self.step(action)

    async def what(seat: Seat) -> None:
        await asyncio.gather(*(seat.step("x") for _ in range(3)))
        with pytest.raises(RuntimeError, match="the episode has ended"):
            await seat.step("x")
        await seat.say([user("And in hindsight?")])

    trajectory = await play(what, lambda *_: SAY, third_is_last, env=Slow)
    assert (str(trajectory.outcome), trajectory.reward) == ("terminated", 3.0)


async def test_a_step_that_was_never_answered_is_worth_what_nobody_knows() -> None:
    class Stuck(Talk):
        async def astep(self, action: Any) -> Answer:
            if action["content"] == "stuck":
                await asyncio.Event().wait()
            return self.step(action)

    async def what(seat: Seat) -> None:
        await seat.say(seat.observation)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(seat.step("stuck"), 0.01)
        await seat.step("x")

    trajectory = await play(what, lambda *_: SAY, env=Stuck)
    assert (str(trajectory.outcome), trajectory.reward) == ("terminated", None)


async def test_texts_end_a_turn_where_they_are_asked_for() -> None:
    async def what(seat: Seat) -> None:
        said, _ = await seat._play.say([user("a")], (), stop=("STOP", "never"))  # pyright: ignore[reportPrivateUsage]
        assert (said.message["content"], said.turn.finish_reason) == ("abab ", "stop")
        await seat.say([user("a"), said.message, user("b")], tools=())

    ids = encode("abab STOP and so on<|im_end|>")
    chat = Chat(qwen3_tokenizer(), Qwen3RendererConfig(thinking_retention="all"))
    trajectory = await play(what, lambda *_: Reply(ids, [-0.1 * i for i in range(len(ids))]), chat=chat)
    [row] = trajectory.token_rows
    first = slice(trajectory.turns[0].start, trajectory.turns[0].start + trajectory.turns[0].tokens)
    assert decode(row.completion_ids[first]) == "abab STOP"
    assert row.logprobs[first] == [-0.1 * i for i in range(trajectory.turns[0].tokens)]
    assert decode(row.completion_ids).startswith("abab STOP<|im_end|>\n<|im_start|>user\nb")


async def test_what_can_not_be_answered_is_refused() -> None:
    async def what(seat: Seat) -> None:
        for messages in ([], ["Go."], [user("a"), {"role": "assistant", "content": "b"}], [{"content": "b"}]):
            with pytest.raises(ValueError, match="a list of messages"):
                await seat.say(messages)  # pyright: ignore[reportArgumentType]
        await seat.say([{"role": "user", "content": [{"type": "image", "url": "x"}]}])

    trajectory = await play(what, lambda *_: SAY)
    assert (trajectory.outcome.fault, trajectory.outcome.cause) == ("agent", "CannotRender")


async def test_agents_are_loaded_by_name() -> None:
    assert load_agent("support.agents:Doing") is Doing
    for name, problem in (
        ("support.agents", "is named 'module:Class'"),
        ("support.nothing:Doing", "can't be loaded"),
        ("support.agents:Nothing", "can't be loaded"),
        ("support.agents:play", "has no method run"),
    ):
        with pytest.raises(ValueError, match=problem):
            load_agent(name)
    with pytest.raises(ValueError, match="has no method run"):
        engine(LocalSource(Talk), lambda *_: SAY, agents={"x": object()})
