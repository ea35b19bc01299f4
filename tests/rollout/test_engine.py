"""The engine over environments in this process and scripted generators."""

import asyncio
import json
import signal
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from renderers import Qwen3RendererConfig

from gymhost.rollout import (
    Chat,
    Concurrency,
    Generation,
    GeneratorError,
    Limits,
    PromptTooLong,
    RolloutEngine,
    RolloutRequest,
    Sampling,
    Trajectory,
    group_advantages,
    grouped,
)
from gymhost.rollout.generators import Reply, ScriptedGenerator
from gymhost.wire import errors
from support.local_source import LocalSource
from support.talk import Answer, Talk, end, go_on, tool, user
from support.tokenizers import call, decode, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

CHAT = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
SAY = encode("abab<|im_end|>")
ECHO = encode(call("echo", '{"text": "abab"}'))


def engine(source: LocalSource, script: Any, **settings: Any) -> RolloutEngine:
    generator = script if hasattr(script, "generate") else ScriptedGenerator(script)
    return RolloutEngine(source, settings.pop("chat", CHAT), generator, **settings)


def requests(count: int, **kwargs: Any) -> list[RolloutRequest]:
    return [RolloutRequest("Talk-v0", task=task, kwargs=kwargs) for task in range(count)]


def turns_of(env: Talk, count: int, *, last: Answer | None = None) -> Answer:
    """Goes on until the model has spoken `count` times."""
    return go_on(tool(f"turn {len(env.said)}")) if len(env.said) < count else last or end(tool("done"))


def whole(trajectory: Trajectory) -> None:
    for row in trajectory.token_rows:
        assert len(row.completion_ids) == len(row.mask) == len(row.logprobs) == len(row.policy_versions)


async def test_a_rollout_from_the_first_message_to_the_reward() -> None:
    source = LocalSource(lambda: Talk(lambda env, _: turns_of(env, 2, last=end(tool("done"), rewards={"won": 1.0}))))
    contexts: list[list[int]] = []

    def script(prompt_ids: Sequence[int], _name: str) -> list[int]:
        contexts.append(list(prompt_ids))
        return ECHO

    async with engine(source, script) as rollouts:
        [trajectory] = await rollouts.collect(
            [RolloutRequest("Talk-v0", task=4, seed=7, split="train", group="g", index=2)]
        )
    whole(trajectory)
    [row] = trajectory.rows()
    assert (row.prompt_ids, row.prompt_ids + row.completion_ids[: len(contexts[1]) - len(contexts[0])]) == tuple(
        contexts
    )
    assert row.completion_ids[-len(ECHO) :] == ECHO  # it ends with the last sampled token
    assert sum(row.mask) == trajectory.sampled_tokens == 2 * len(ECHO)
    assert [message["role"] for message in trajectory.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert (trajectory.reward, trajectory.rewards, str(trajectory.outcome)) == (1.0, {"won": 1.0}, "terminated")
    assert (trajectory.task, trajectory.seed, trajectory.group, trajectory.index) == (4, 7, "g", 2)
    assert trajectory.outcome.turn == len(trajectory.turns) == 2
    assert [(turn.row, turn.start, turn.tokens, turn.finish_reason) for turn in trajectory.turns] == [
        (0, 0, len(ECHO), "stop"),
        (0, len(row.completion_ids) - len(ECHO), len(ECHO), "stop"),
    ]
    assert trajectory.timings.run >= trajectory.timings.generation > 0
    assert source.open == 0


async def test_an_environment_that_speaks_plain_text_is_answered_in_plain_text() -> None:
    env = Talk(lambda env, action: ("again", 1.0, len(env.said) == 2, False, {}), opening="Go.")
    async with engine(LocalSource(lambda: env), [SAY, SAY]) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert env.said == ["abab", "abab"]
    assert trajectory.messages[0] == user("Go.")
    assert (trajectory.reward, trajectory.outcome.kind) == (2.0, "terminated")


async def test_each_rollout_is_continued_from_its_own_context() -> None:
    """Case S03: two groups of four; two rollouts end early; the generator says the marker that it sees."""

    def answer(env: Talk, _message: Any) -> Answer:
        marker = f"R{env.options['marker']}"
        early = env.options["marker"] in (2, 5)
        return end(tool(marker)) if len(env.said) == 3 or early else go_on(tool(marker))

    async def script(prompt_ids: Sequence[int], _name: str) -> list[int]:
        text = decode(list(prompt_ids))
        seen = text.rpartition("<tool_response>\nR")[2].partition("\n")[0] if "<tool_response>" in text else "none"
        await asyncio.sleep(0.001 * (hash(text) % 5))
        return encode(call("echo", json.dumps({"text": seen})))

    asked = [
        RolloutRequest("Talk-v0", task=i // 4, group=str(i // 4), index=i % 4, options={"marker": i}) for i in range(8)
    ]
    async with engine(LocalSource(lambda: Talk(answer)), script) as rollouts:
        trajectories = await rollouts.collect(asked)
    for marker, trajectory in enumerate(trajectories):
        assert (trajectory.group, trajectory.index) == (str(marker // 4), marker % 4)
        said = [
            m["tool_calls"][0]["function"]["arguments"]["text"] for m in trajectory.messages if m["role"] == "assistant"
        ]
        assert said == (["none"] if marker in (2, 5) else ["none", str(marker), str(marker)])


async def test_a_malformed_call_is_a_turn_that_the_environment_answers() -> None:
    """Case S05."""
    bodies = [
        "{}",
        '{"name": "echo", "arguments": [1]}',
        '{"name": "nosuch", "arguments": {}}',
        '{"name": "echo", "arguments": {}}',
    ]
    run: list[Any] = []

    def answer(env: Talk, message: Any) -> Answer:
        function = message["tool_calls"][0]["function"]
        if function["name"] != "echo" or not isinstance(function["arguments"], dict):
            return go_on(tool("Error: no such call.")) if len(env.said) == 1 else end(tool("Error"), reward=0.0)
        run.append(function)
        return end(tool("x"))

    def script(_prompt_ids: Sequence[int], name: str) -> list[int]:
        number = int(name.partition("/")[0].rpartition("-")[2])
        return encode(f"<tool_call>\n{bodies[number]}\n</tool_call><|im_end|>")

    async with engine(LocalSource(lambda: Talk(answer)), script) as rollouts:
        trajectories = await rollouts.collect(requests(4))
    assert [len(item.turns) for item in trajectories] == [2, 2, 2, 1]
    assert [item.outcome.kind for item in trajectories] == ["terminated"] * 4
    assert len(run) == 1
    assert trajectories[0].messages[2]["content"] == "Error: no such call."


async def test_a_call_that_the_limit_cut_off_is_never_run() -> None:
    env = Talk(lambda _env, _message: end(tool("x")))
    cut = ECHO[:-2]
    async with engine(
        LocalSource(lambda: env), [Reply(cut, finish_reason="length")], limits=Limits(turn_tokens=len(cut))
    ) as e:
        [trajectory] = await e.collect(requests(1))
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", "turn_tokens")
    assert env.said == []
    assert "tool_calls" not in trajectory.messages[-1]
    assert trajectory.rows()[0].completion_ids == cut
    assert trajectory.reward == 0.0


@pytest.mark.parametrize("limit", ["completion_tokens", "context_tokens"])
async def test_an_observation_that_is_too_long_is_left_out_whole(limit: str) -> None:
    """Case S06."""
    env = Talk(lambda _env, _message: go_on(tool("abab " * 200), reward=0.25))
    prompt = len(CHAT.prompt(env.opening, CHAT.offer(env.tools), {}))
    budget = 100 + (prompt if limit == "context_tokens" else 0)
    async with engine(LocalSource(lambda: env), [ECHO], limits=Limits(**{limit: budget})) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    whole(trajectory)
    [row] = trajectory.rows()
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", limit)
    assert (row.completion_ids, row.mask) == (ECHO, [1] * len(ECHO))
    assert trajectory.messages[-1]["role"] == "assistant"
    assert trajectory.reward == 0.25


@pytest.mark.parametrize(
    ("limits", "name", "turns"),
    [
        (Limits(turns=3), "turns", 3),
        (Limits(completion_tokens=len(SAY) + 1), "completion_tokens", 1),
        (Limits(turn_tokens=1), "turn_tokens", 1),
        (Limits(context_tokens=5), "context_tokens", 0),
        (Limits(episode_seconds=0.05), "episode_seconds", 1),
    ],
)
async def test_the_limit_that_ended_a_rollout_is_named(limits: Limits, name: str, turns: int) -> None:
    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        if limits.episode_seconds:
            await asyncio.Event().wait()
        return SAY

    source = LocalSource(lambda: Talk(lambda _env, _message: go_on(user("more"))))
    async with engine(source, script, limits=limits) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.kind, trajectory.outcome.limit, len(trajectory.turns)) == ("truncated", name, turns)
    assert str(trajectory.outcome) == f"truncated by {name}"
    assert all(row.mask[-1] == 1 for row in trajectory.rows())
    assert len(trajectory.rows()) == (0 if name in ("context_tokens", "episode_seconds") else 1)
    assert source.open == 0


async def test_the_environment_may_truncate_too() -> None:
    source = LocalSource(
        lambda: Talk(lambda _env, _message: ([user("over")], 0.5, False, True, {"limit": "max_calls"}))
    )
    async with engine(source, [SAY]) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.kind, trajectory.outcome.limit, trajectory.reward) == ("truncated", "max_calls", 0.5)


async def test_a_context_that_the_generator_refuses_ends_at_the_last_sampled_token() -> None:
    class Short:
        policy_version = 0

        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
            if request_id.endswith("/2"):
                raise PromptTooLong("too long")
            return Generation(SAY, [-1.0] * len(SAY))

        async def aclose(self) -> None: ...

    source = LocalSource(lambda: Talk(lambda _env, _message: go_on(user("more"))))
    async with engine(source, Short()) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", "context_tokens")
    assert trajectory.rows()[0].completion_ids == SAY
    assert (len(trajectory.turns), len(trajectory.messages), trajectory.attempts) == (1, 2, 1)


async def test_failures_are_places_in_a_batch_that_stays_whole() -> None:
    """Case S07: 16 rollouts; number 5 raises in its third step, number 9 is cut off from the network."""

    def answer(env: Talk, _message: Any) -> Answer:
        if env.options["task"] == 5 and len(env.said) == 3:
            raise errors.EnvironmentFault("ValueError: boom", exception="ValueError", traceback="Traceback: boom")
        if env.options["task"] == 9 and len(env.said) == 2:
            raise errors.ConnectionLost("the connection is gone")
        return turns_of(env, 4)

    source = LocalSource(lambda: Talk(answer))
    async with engine(source, lambda *_: SAY, limits=Limits(retries=1)) as rollouts:
        trajectories = await rollouts.collect(requests(16))
        assert [item.task for item in trajectories] == list(range(16))
        good = [item for place, item in enumerate(trajectories) if place not in (5, 9)]
        assert all((item.outcome.kind, item.reward, item.outcome.turn) == ("terminated", 1.0, 4) for item in good)
        fault, cut = trajectories[5].outcome, trajectories[9].outcome
        assert (fault.kind, fault.fault, fault.cause, fault.turn) == ("failed", "environment", "EnvironmentFault", 3)
        assert "boom" in fault.message
        assert (cut.kind, cut.fault, cut.cause, cut.turn) == ("failed", "infrastructure", "ConnectionLost", 2)
        assert (trajectories[5].attempts, trajectories[9].attempts) == (1, 2)
        assert trajectories[5].reward is None
        assert trajectories[9].reward is None
    assert source.open == 0


async def test_a_fault_that_passes_is_tried_again_from_scratch_with_task_and_seed() -> None:
    envs: list[Talk] = []

    def answer(env: Talk, _message: Any) -> Answer:
        if env is envs[0]:
            raise errors.SessionLost("its worker died")
        return turns_of(env, 2)

    def make() -> Talk:
        envs.append(Talk(answer))
        return envs[-1]

    async with engine(LocalSource(make), lambda *_: SAY) as rollouts:
        [trajectory] = await rollouts.collect([RolloutRequest("Talk-v0", task=3, seed=11)])
    assert (trajectory.outcome.kind, trajectory.attempts, len(trajectory.turns)) == ("terminated", 2, 2)
    assert [(env.seed, env.options["task"], env.closed) for env in envs] == [(11, 3, True), (11, 3, True)]


async def test_a_generator_that_fails_is_tried_again_so_often_and_no_more() -> None:
    def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        raise GeneratorError("out of order")

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, script, limits=Limits(retries=2)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.fault, trajectory.attempts, trajectory.outcome.turn) == ("generator", 3, 1)


async def test_whatever_a_generator_raises_is_the_generators_fault() -> None:
    def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        raise ValueError("no such setting")

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, script, limits=Limits(retries=0)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.fault, trajectory.outcome.message) == ("generator", "ValueError: no such setting")


async def test_a_cancellation_that_nobody_asked_of_the_rollout_does_not_end_the_batch() -> None:
    class Cut(Talk):
        async def astep(self, action: Any) -> Answer:
            if self.options["task"] == 1:
                waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
                waiting.cancel()
                return await waiting
            return self.step(action)

    source = LocalSource(lambda: Cut(lambda env, _message: turns_of(env, 2)))
    async with engine(source, lambda *_: SAY, limits=Limits(retries=1)) as rollouts:
        trajectories = await rollouts.collect(requests(3))
    assert [item.outcome.kind for item in trajectories] == ["terminated", "failed", "terminated"]
    assert (trajectories[1].outcome.fault, trajectories[1].attempts) == ("infrastructure", 2)
    assert source.open == 0


@pytest.mark.parametrize(
    ("error", "fault", "attempts"),
    [
        (errors.CommandTimeout("a step", limit="step_timeout"), "environment", 1),
        (errors.CapacityExhausted("full"), "infrastructure", 2),
        (errors.UnknownEnvironment("no such"), "infrastructure", 1),
        (ZeroDivisionError("oops"), "environment", 1),
    ],
)
async def test_faults_before_the_first_turn(error: Exception, fault: str, attempts: int) -> None:
    def opening(_env: Talk) -> Any:
        raise error

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1), opening))
    async with engine(source, [SAY], limits=Limits(retries=1)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    outcome = trajectory.outcome
    assert (outcome.kind, outcome.fault, outcome.turn, trajectory.attempts) == ("failed", fault, 0, attempts)
    assert outcome.limit == (getattr(error, "limit", None) or None)
    assert trajectory.rows() == []
    assert source.open == 0


async def test_an_opening_that_never_comes_is_given_up() -> None:
    class Stuck(Talk):
        async def areset(self, **_: Any) -> Any:
            await asyncio.Event().wait()

    source = LocalSource(lambda: Stuck(lambda env, _message: turns_of(env, 1)))
    async with engine(source, [SAY], limits=Limits(init_seconds=0.05, retries=0)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.fault, trajectory.outcome.limit) == ("infrastructure", "init_seconds")
    assert "Limits.init_seconds" in trajectory.outcome.message
    assert source.open == 0


async def test_rewards_that_are_none_are_invalid_and_never_zero() -> None:
    """Case S08: 1.0, 0.0, a verifier that raised, one that returned NaN."""
    paid: list[tuple[float | None, dict[str, Any]]] = [
        (1.0, {}),
        (0.0, {}),
        (0.0, {"reward_invalid": True}),
        (float("nan"), {}),
    ]

    def answer(env: Talk, _message: Any) -> Answer:
        reward, info = paid[env.options["task"]]
        return end(reward=reward, **info, rewards={"verifier": None if info else reward})

    async with engine(LocalSource(lambda: Talk(answer)), lambda *_: SAY) as rollouts:
        trajectories = await rollouts.collect(
            [RolloutRequest("Talk-v0", task=task, group="g", index=task) for task in range(4)]
        )
    assert [item.reward for item in trajectories] == [1.0, 0.0, None, None]
    assert [item.valid for item in trajectories] == [True, True, False, False]
    assert [item.rewards["verifier"] for item in trajectories] == [1.0, 0.0, None, None]
    advantages = group_advantages(trajectories, scale=False)
    assert advantages[:2].tolist() == [0.5, -0.5]
    assert str(advantages[2:].tolist()) == "[nan, nan]"


async def test_tokens_know_the_policy_version_and_a_mixed_rollout_says_so() -> None:
    """Case S09: the weights change in the middle of a rollout."""
    generator = ScriptedGenerator(lambda *_: SAY, policy_version=1)

    def answer(env: Talk, _message: Any) -> Answer:
        generator.policy_version = 2
        return turns_of(env, 3)

    async with engine(LocalSource(lambda: Talk(answer)), generator) as rollouts:
        [mixed] = await rollouts.collect(requests(1))
        [fresh] = await rollouts.collect(requests(1))
    assert [turn.policy_version for turn in mixed.turns] == [1, 2, 2]
    assert [v for v, mask in zip(mask_of(mixed), mixed.mask, strict=True) if mask] == [1] * len(SAY) + [2] * 2 * len(
        SAY
    )
    assert (mixed.mixed_versions, fresh.mixed_versions) == (True, False)
    assert {turn.policy_version for turn in fresh.turns} == {2}


def mask_of(trajectory: Trajectory) -> list[int]:
    return trajectory.policy_versions


async def test_weights_that_change_while_a_turn_is_sampled_mark_it() -> None:
    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        generator.policy_version = 6
        return SAY

    generator = ScriptedGenerator(script, policy_version=5)
    async with engine(LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1))), generator) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert trajectory.mixed_versions


async def test_trajectories_come_as_they_finish_and_a_slow_one_holds_nobody() -> None:
    release = asyncio.Event()

    class Slow(Talk):
        async def astep(self, action: Any) -> Answer:
            if self.options["task"] == 0:
                await release.wait()
            return end()

    source = LocalSource(lambda: Slow(lambda _env, _message: end()))
    async with engine(source, lambda *_: SAY, concurrency=Concurrency(init=1, run=2, eval=1, ahead=1)) as rollouts:
        order: list[int | None] = []
        async for trajectory in rollouts.run(requests(20)):
            order.append(trajectory.task)
            if len(order) == 19:
                release.set()
    assert order[-1] == 0
    assert sorted(order, key=lambda task: task or 0) == list(range(20))


async def test_no_more_are_in_a_stage_than_may_be() -> None:
    resetting, running, most = 0, 0, [0, 0]

    class Counted(Talk):
        async def areset(self, **kwargs: Any) -> Any:
            nonlocal resetting
            resetting += 1
            most[0] = max(most[0], resetting)
            await asyncio.sleep(0.001)
            resetting -= 1
            return self.reset(**kwargs)

    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        nonlocal running
        running += 1
        most[1] = max(most[1], running)
        await asyncio.sleep(0.001)
        running -= 1
        return SAY

    source = LocalSource(lambda: Counted(lambda env, _message: turns_of(env, 2)))
    async with engine(source, script, concurrency=Concurrency(init=3, run=4, eval=2, ahead=2)) as rollouts:
        trajectories = await rollouts.collect(requests(40))
    assert most == [3, 4]
    assert source.most <= 8
    assert all(item.timings.queue > 0 for item in trajectories[8:])


async def test_sessions_are_reused_and_failed_ones_thrown_away() -> None:
    def answer(env: Talk, _message: Any) -> Answer:
        if env.options["task"] == 3:
            raise ValueError("boom")
        return end()

    source = LocalSource(lambda: Talk(answer))
    async with engine(source, lambda *_: SAY, concurrency=Concurrency(init=1, run=1, eval=1, ahead=0)) as rollouts:
        await rollouts.collect(requests(3))
        assert (source.opened, source.open) == (2, 2)
        await rollouts.collect([RolloutRequest("Talk-v0", task=3)])
        assert (source.opened, source.open) == (2, 1)
    assert source.open == 0


async def test_a_kept_session_that_was_lost_meanwhile_is_replaced_without_a_retry() -> None:
    lost = False

    def opening(env: Talk) -> Any:
        if lost and env in first:
            raise errors.SessionExpired("its lease ran out")
        first.append(env)
        return [user("Go.")]

    first: list[Talk] = []
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1), opening))
    async with engine(source, lambda *_: SAY, limits=Limits(retries=0)) as rollouts:
        await rollouts.collect(requests(4))
        lost = True
        trajectories = await rollouts.collect(requests(4))
    assert [item.outcome.kind for item in trajectories] == ["terminated"] * 4
    assert source.open == 0


async def test_without_reuse_each_rollout_has_a_session_of_its_own() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, lambda *_: SAY, reuse_sessions=False) as rollouts:
        await rollouts.collect(requests(5))
        assert (source.opened, source.open) == (5, 0)


async def test_cancelling_a_batch_leaves_no_session() -> None:
    begun = asyncio.Semaphore(0)

    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        begun.release()
        await asyncio.Event().wait()
        return SAY

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, script) as rollouts:
        batch = asyncio.create_task(rollouts.collect(requests(6)))
        for _ in range(6):
            await begun.acquire()
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert source.open == 0


async def test_leaving_the_iterator_cancels_the_rest() -> None:
    async def script(_prompt_ids: Sequence[int], name: str) -> list[int]:
        if not name.partition("/")[0].endswith("-0"):
            await asyncio.Event().wait()
        return SAY

    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    async with engine(source, script, reuse_sessions=False) as rollouts:
        running = rollouts.run(requests(6))
        async for _ in running:
            break
        assert source.open == 5
        await running.aclose()
        assert source.open == 0


def test_callers_without_an_event_loop() -> None:
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 2)))
    rollouts = engine(source, lambda *_: SAY)
    assert [item.task for item in rollouts.collect_sync(requests(5))] == list(range(5))
    assert sorted(item.task or 0 for item in rollouts.run_sync(requests(5))) == list(range(5))
    first = next(iter(rollouts.run_sync(requests(5))))
    assert first.outcome.kind == "terminated"
    rollouts.call_sync(rollouts.generator.aclose())
    rollouts.close_sync()
    assert source.open == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "gymhost-rollout"]


def test_ctrl_c_in_a_caller_without_an_event_loop_cancels_the_rollouts() -> None:
    """Case S07: a keyboard interrupt passes through."""

    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        if not begun.is_set():
            begun.set()
            signal.pthread_kill(main, signal.SIGINT)
        await asyncio.Event().wait()
        return SAY

    begun = threading.Event()
    main = threading.get_ident()
    source = LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1)))
    rollouts = engine(source, script)
    with pytest.raises(KeyboardInterrupt):
        rollouts.collect_sync(requests(3))
    assert source.open == 0
    rollouts.close_sync()


def test_groups_share_task_and_seed() -> None:
    made = grouped([RolloutRequest("Talk-v0", task=7), RolloutRequest("Talk-v0", task=8, seed=40, group="x")], 3)
    assert [(item.task, item.seed, item.group, item.index) for item in made] == [
        (7, 0, "0", 0),
        (7, 0, "0", 1),
        (7, 0, "0", 2),
        (8, 40, "x", 0),
        (8, 40, "x", 1),
        (8, 40, "x", 2),
    ]


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="the limit turn_tokens must be above 0, not 0"):
        Limits(turn_tokens=0)
