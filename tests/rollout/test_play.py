"""One rollout, over an environment in this process and a scripted generator."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from gymhost.rollout import (
    Generation,
    GeneratorError,
    Limits,
    PromptTooLong,
    RolloutRequest,
    Sampling,
    Trajectory,
    group_advantages,
)
from gymhost.rollout.conversation import Conversation
from gymhost.rollout.generators import Reply, ScriptedGenerator
from support.local_source import LocalSource
from support.rollouts import CHAT, ECHO, SAY, engine, requests, turns_of, whole
from support.talk import Answer, Talk, end, go_on, tool, user
from support.tokenizers import call, decode, encode

pytestmark = pytest.mark.heavy


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


@pytest.mark.parametrize("limit", ["completion_tokens", "context_tokens"])
async def test_an_observation_that_is_far_too_long_is_not_even_encoded(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Talk(lambda _env, _message: go_on(tool("abab " * 200_000)))
    async with engine(LocalSource(lambda: env), [ECHO], limits=Limits(**{limit: 500})) as rollouts:
        monkeypatch.setattr(Conversation, "extend", None)
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", limit)
    assert trajectory.messages[-1]["role"] == "assistant"


async def test_while_a_long_text_is_encoded_other_rollouts_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[bool] = []
    extend = Conversation.extend

    def noted(self: Conversation, messages: Any) -> Any:
        here.append(threading.current_thread() is threading.main_thread())
        return extend(self, messages)

    monkeypatch.setattr(Conversation, "extend", noted)
    texts = ["short", "abab " * 4_000]
    generator = Cutter(*[(SAY, "stop", 1)] * 3)
    trajectory, _ = await play(
        generator, lambda env, _: go_on(tool(texts[len(env.said) - 1])) if len(env.said) < 3 else end()
    )
    assert trajectory.outcome.kind == "terminated"
    assert here == [True, False]
    assert trajectory.completion_ids[: -len(SAY)] == generator.asked[-1][0][len(trajectory.prompt_ids) :]


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
    assert [v for v, mask in zip(versions_of(mixed), mixed.mask, strict=True) if mask] == [1] * len(SAY) + [
        2
    ] * 2 * len(SAY)
    assert (mixed.mixed_versions, fresh.mixed_versions) == (True, False)
    assert {turn.policy_version for turn in fresh.turns} == {2}


def versions_of(trajectory: Trajectory) -> list[int]:
    return trajectory.policy_versions


async def test_weights_that_change_while_a_turn_is_sampled_mark_it() -> None:
    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        generator.policy_version = 6
        return SAY

    generator = ScriptedGenerator(script, policy_version=5)
    async with engine(LocalSource(lambda: Talk(lambda env, _message: turns_of(env, 1))), generator) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert trajectory.mixed_versions


class Cutter:
    """Samples in pieces that a test says, and keeps what it was asked."""

    name = "cutter"

    def __init__(self, *pieces: Any) -> None:
        self.policy_version = 0
        self.pieces = list(pieces)
        self.asked: list[tuple[list[int], int, str]] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        await asyncio.sleep(0)
        self.asked.append((list(prompt_ids), sampling.max_tokens, request_id))
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        ids, reason, version = piece
        return Generation(ids, [-float(i) for i in ids], reason, version, generator=f"{self.name}{version}")

    async def aclose(self) -> None: ...


async def play(generator: Any, answer: Any = None, **limits: Any) -> tuple[Trajectory, Talk]:
    env = Talk(answer or (lambda env, _message: turns_of(env, 1)))
    async with engine(LocalSource(lambda: env), generator, limits=Limits(**{"retries": 0, **limits})) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    whole(trajectory)
    return trajectory, env


async def test_a_turn_that_is_cut_goes_on_from_its_ids_and_knows_the_version_of_each() -> None:
    """Case S09: the weights change twice while a turn is sampled."""
    generator = Cutter((ECHO[:3], "cut", 1), ([], "cut", 2), (ECHO[3:5], "cut", 2), (ECHO[5:], "stop", 3))
    trajectory, env = await play(generator, turn_tokens=100)
    [row] = trajectory.rows()
    assert row.completion_ids == ECHO
    assert row.logprobs == [-float(i) for i in ECHO]
    assert row.policy_versions == [1] * 3 + [2] * 2 + [3] * (len(ECHO) - 5)
    assert [(prompt[len(row.prompt_ids) :], room) for prompt, room, _ in generator.asked] == [
        ([], 100),
        (ECHO[:3], 97),
        (ECHO[:3], 97),
        (ECHO[:5], 95),
    ]
    assert len({name for _, _, name in generator.asked}) == 1
    [turn] = trajectory.turns
    assert (turn.tokens, turn.finish_reason, turn.policy_version, turn.mixed_versions) == (len(ECHO), "stop", 1, True)
    assert (turn.calls, turn.generator) == (1, "cutter3")
    assert 0 <= turn.begun < 60
    assert env.said[0]["tool_calls"][0]["function"]["name"] == "echo"
    assert trajectory.mixed_versions


@pytest.mark.parametrize(
    ("pieces", "limit", "ids"),
    [
        ([(SAY, "cut", 1)], None, SAY),  # cut as it ended
        ([(SAY[:1], "cut", 1), (SAY[1:], "stop", 1)], None, SAY),
        ([(SAY[:1], "cut", 1), (SAY[:1], "cut", 1)], "turn_tokens", [SAY[0], SAY[0]]),
        ([(SAY[:1], "cut", 1), PromptTooLong("full")], "context_tokens", SAY[:1]),
    ],
)
async def test_a_turn_that_is_cut_ends_like_any_other(pieces: list[Any], limit: str | None, ids: list[int]) -> None:
    room = 2 if limit == "turn_tokens" else 50
    trajectory, env = await play(Cutter(*pieces), turn_tokens=room)
    assert trajectory.rows()[0].completion_ids == ids
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated" if limit else "terminated", limit)
    assert len(env.said) == (0 if limit else 1)
    assert not trajectory.mixed_versions


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([([], "cut", i) for i in range(20)], "was cut 10 times in a row without a token"),
        ([(SAY[:1], "cut", 1), GeneratorError("gone")], "gone"),
        ([(SAY[:1], "cut", 1), RuntimeError("odd")], "RuntimeError: odd"),
    ],
)
async def test_a_turn_that_can_not_be_gone_on_with_is_the_generators_fault(pieces: list[Any], message: str) -> None:
    trajectory, _ = await play(Cutter(*pieces))
    assert (trajectory.outcome.kind, trajectory.outcome.fault) == ("failed", "generator")
    assert message in trajectory.outcome.message
    assert trajectory.reward is None


async def test_log_probs_that_are_missing_are_the_generators_fault() -> None:
    class Short(Cutter):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
            return Generation(SAY, [-1.0])

    trajectory, _ = await play(Short())
    assert trajectory.outcome.fault == "generator"
    assert f"{len(SAY)} sampled ids came with 1 log-probs" in trajectory.outcome.message
    assert not trajectory.trainable


async def test_history_that_is_rewritten_gives_separate_rows() -> None:
    """Case S02, played: Qwen3's template deletes thoughts from before the last user's message; three turns."""
    thinks = encode("<think>\nhm\n</think>\n\nabab<|im_end|>")
    generator = Cutter(*[(thinks, "stop", 1)] * 3)
    trajectory, _ = await play(generator, lambda env, _: go_on(user("more")) if len(env.said) < 3 else end())
    assert trajectory.rewritten
    assert [row.completion_ids for row in trajectory.rows()] == [thinks] * 3
    assert [row.prompt_ids for row in trajectory.rows()] == [prompt for prompt, _, _ in generator.asked]
    assert [(turn.row, turn.start) for turn in trajectory.turns] == [(0, 0), (1, 0), (2, 0)]


async def test_what_is_carried_over_is_what_was_sampled() -> None:
    """Case S01, played: `abab` was sampled as a, b, ab and would be encoded as ab, ab; then a tool call."""
    a, b, ab = (encode(text)[0] for text in ("a", "b", "ab"))
    turn = [a, b, ab, *ECHO]
    generator = Cutter((turn, "stop", 1), (SAY, "stop", 1))
    trajectory, env = await play(generator, lambda env, _: turns_of(env, 2))
    assert env.said[0]["content"] == "abab"
    [row] = trajectory.rows()
    (first, _, _), (second, _, _) = generator.asked
    assert second[: len(first) + len(turn)] == first + turn
    assert row.completion_ids[: len(turn)] == turn
    assert row.logprobs[: len(turn)] == [-float(i) for i in turn]
    assert [i for i, mask in zip(row.completion_ids, row.mask, strict=True) if mask] == turn + SAY
