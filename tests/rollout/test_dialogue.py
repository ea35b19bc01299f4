"""Rollouts over a chat endpoint, which gives messages and no token ids."""

from typing import Any

import pytest

from gymhost.rollout import Limits, PromptTooLong, Trajectory
from gymhost.rollout.generators.base import GeneratorError, Response
from support.local_source import LocalSource
from support.rollouts import CHAT, Endpoint, engine, requests, turns_of
from support.talk import Talk, end, go_on, tool, user

pytestmark = pytest.mark.heavy

CALL: dict[str, Any] = {
    "id": "given",
    "type": "function",
    "function": {"name": "echo", "arguments": {"text": "x"}},
}


def response(content: str = "", *, calls: Any = (), reason: str = "stop", prompt: int = 0, tokens: int = 0) -> Response:
    return Response({"role": "assistant", "content": content, "tool_calls": list(calls)}, reason, prompt, tokens)


async def play(script: Any, answer: Any, opening: Any = None, **limits: Any) -> tuple[Trajectory, Talk, Endpoint]:
    env, endpoint = Talk(answer, opening), Endpoint(script)
    source = LocalSource(lambda: env)
    async with engine(source, endpoint, chat=None, limits=Limits(**{"retries": 0, **limits})) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert source.open == 0
    return trajectory, env, endpoint


async def test_an_endpoint_plays_from_the_first_message_to_the_reward() -> None:
    trajectory, env, endpoint = await play(
        lambda messages: response(calls=[CALL], prompt=10 * len(messages), tokens=4),
        lambda env, _: turns_of(env, 2),
    )
    said = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert env.said == [said, said]
    assert endpoint.asked == [[user("Go.")], [user("Go."), said, tool("turn 1")]]
    assert [item["name"] for item in endpoint.tools] == ["echo"]
    assert trajectory.messages == [user("Go."), said, tool("turn 1"), said, tool("done")]
    assert (trajectory.reward, trajectory.outcome.kind) == (1.0, "terminated")
    assert (trajectory.trainable, trajectory.rows(), trajectory.prompt_ids, trajectory.rewritten) == (
        False,
        [],
        [],
        False,
    )
    assert [(turn.tokens, turn.calls, turn.generator, turn.finish_reason) for turn in trajectory.turns] == [
        (4, 1, "endpoint", "stop")
    ] * 2
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


async def test_an_environment_that_speaks_plain_text_is_answered_in_plain_text() -> None:
    _, env, _ = await play(
        lambda _: response("hi"), lambda env, _: ("again", 1.0, len(env.said) == 2, False, {}), "Go."
    )
    assert env.said == ["hi", "hi"]


def test_an_endpoint_goes_without_a_chat_and_nothing_else_does() -> None:
    for script, chat in ((Endpoint(lambda _: response()), CHAT), ([[1]], None)):
        with pytest.raises(TypeError, match="a chat endpoint goes with chat=None"):
            engine(LocalSource(Talk), script, chat=chat)


async def test_what_an_endpoint_thinks_and_malforms_is_kept() -> None:
    broken = {**CALL, "function": {"name": "echo", "arguments": "{nonsense\ud800"}}

    def script(_messages: Any) -> Response:
        return Response({"content": None, "reasoning_content": "hm", "tool_calls": [broken]})

    _, env, _ = await play(script, lambda env, _: turns_of(env, 1))
    said = {**CALL, "function": {"name": "echo", "arguments": "{nonsense\ufffd"}}
    assert env.said == [{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [said]}]


@pytest.mark.parametrize(
    ("limits", "name", "turns"),
    [
        ({"turns": 3}, "turns", 3),
        ({"completion_tokens": 90}, "completion_tokens", 2),
        ({"context_tokens": 110}, "context_tokens", 2),
        ({"sampled_tokens": 60}, "sampled_tokens", 2),
    ],
)
async def test_the_limit_that_ended_a_rollout_is_named(limits: Any, name: str, turns: int) -> None:
    """By what the endpoint tells: the first prompt has 20 tokens, and 30 more are said before each turn and in it."""

    def script(messages: Any) -> Response:
        before = sum(message["role"] == "user" for message in messages) - 1
        return response("x", prompt=20 + 60 * before, tokens=30)

    trajectory, _, endpoint = await play(script, lambda _env, _message: go_on(user("more"), reward=0.25), **limits)
    assert (trajectory.outcome.kind, trajectory.outcome.limit, len(trajectory.turns)) == ("truncated", name, turns)
    assert trajectory.reward == 0.25 * turns
    if name != "turns":
        assert trajectory.messages[-1]["role"] == "assistant"  # what nobody answered is taken back
    if name == "completion_tokens":
        assert [sampling.max_tokens for sampling in endpoint.samplings] == [90, 60]


async def test_a_call_that_the_limit_cut_off_is_never_run() -> None:
    trajectory, env, _ = await play(
        lambda _: response("so", calls=[CALL], reason="length", tokens=512), lambda _env, _message: end()
    )
    assert (env.said, trajectory.outcome.limit) == ([], "turn_tokens")
    assert trajectory.messages[-1] == {"role": "assistant", "content": "so\necho {'text': 'x'}"}


async def test_a_conversation_that_the_endpoint_refuses_ends_at_the_models_last_words() -> None:
    def script(messages: Any) -> Response:
        if len(messages) > 1:
            raise PromptTooLong("too long")
        return response("x")

    trajectory, _, _ = await play(script, lambda _env, _message: go_on(user("more"), reward=0.5))
    assert (trajectory.outcome.limit, trajectory.reward, len(trajectory.turns)) == ("context_tokens", 0.5, 1)
    assert trajectory.messages[-1]["role"] == "assistant"


@pytest.mark.parametrize("error", [GeneratorError("gone"), RuntimeError("odd")])
async def test_an_endpoint_that_fails_is_the_generators_fault(error: Exception) -> None:
    def script(_messages: Any) -> Response:
        raise error

    trajectory, _, _ = await play(script, lambda _env, _message: end())
    assert (trajectory.outcome.kind, trajectory.outcome.fault, trajectory.reward) == ("failed", "generator", None)
