"""Chat endpoints, of which a stand-in answers what a test lists."""

import asyncio
import email.utils
import json
import time
from typing import Any

import pytest

from gymhost.rollout import Limits, PromptTooLong, RolloutRequest, Sampling
from gymhost.rollout.generators import ChatEndpointGenerator, ChatGenerator, GeneratorError, GeneratorGone, Response
from support.chat_server import ChatServer
from support.local_source import LocalSource
from support.rollouts import engine
from support.talk import ECHO, Talk, end, go_on, tool, user

pytestmark = pytest.mark.heavy


def completion(message: dict[str, Any], finish_reason: str = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish_reason}], **more}


def calls(arguments: str, **more: Any) -> dict[str, Any]:
    return {
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "echo", "arguments": arguments}} | more],
    }


async def ask(server: ChatServer, *messages: Any, sampling: Sampling | None = None, **settings: Any) -> Response:
    generator = ChatEndpointGenerator(server.url, model="m", **settings)
    try:
        asked = list(messages) or [user("Go.")]
        return await generator.respond(asked, [ECHO], sampling or Sampling(), request_id="a/1")
    finally:
        await generator.aclose()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymhost.rollout.generators.chat_endpoint._FIRST_WAIT", 0.001)


async def test_what_is_asked_and_what_comes_back() -> None:
    message = {"content": "Hm.", "reasoning_content": "I think.", **calls('{"text": "a"}', id="x")} | {"content": "Hm."}
    answer = completion(message, "tool_calls", usage={"prompt_tokens": 12, "completion_tokens": 3})
    async with ChatServer([answer]) as server:
        sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=7, seed=3, stop_token_ids=(1,))
        response = await ask(server, sampling=sampling, api_key="k", extra={"reasoning_effort": "low"})
    assert response == Response(
        {
            "role": "assistant",
            "content": "Hm.",
            "reasoning_content": "I think.",
            "tool_calls": [{"id": "x", "type": "function", "function": {"name": "echo", "arguments": {"text": "a"}}}],
        },
        "stop",
        12,
        3,
    )
    assert server.bodies == [
        {
            "model": "m",
            "messages": [user("Go.")],
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 7,
            "seed": 3,
            "reasoning_effort": "low",
            "tools": [{"type": "function", "function": ECHO}],
        }
    ]
    assert server.headers[0]["authorization"] == "Bearer k"


async def test_a_setting_can_be_left_out_and_others_are_sent_where_they_say_something() -> None:
    async with ChatServer(["Yes."]) as server:
        extra = {"max_tokens": None, "max_completion_tokens": 9}
        await ask(server, sampling=Sampling(top_k=5, min_p=0.1), extra=extra)
    [body] = server.bodies
    assert (body["top_k"], body["min_p"], body["max_completion_tokens"]) == (5, 0.1, 9)
    assert "max_tokens" not in body
    assert "seed" not in body


@pytest.mark.parametrize("raw", ['{"text": "a', "[1]", '"a"', "[" * 100_000])
async def test_malformed_arguments_stay_the_text_that_they_are(raw: str) -> None:
    async with ChatServer([completion(calls(raw))]) as server:
        response = await ask(server)
    [call] = response.message["tool_calls"]
    assert call == {"id": "call_0", "type": "function", "function": {"name": "echo", "arguments": raw}}
    assert response.message["content"] == ""


async def test_a_call_without_arguments_has_none() -> None:
    async with ChatServer([completion(calls(""))]) as server:
        [call] = (await ask(server)).message["tool_calls"]
    assert call["function"]["arguments"] == {}


async def test_a_conversation_is_sent_as_endpoints_take_it() -> None:
    from PIL import Image

    picture = Image.new("RGB", (2, 2))
    made = {"id": "c", "type": "function", "function": {"name": "echo", "arguments": {"text": "a"}}}
    broken = {"id": "d", "type": "function", "function": {"name": "", "arguments": '{"text'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "image", "image": picture}]},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [made, broken]},
        {"role": "tool", "tool_call_id": "c", "name": "echo", "content": "a"},
        {"role": "tool", "tool_call_id": "d", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
    ]
    async with ChatServer([completion(calls("{}"))]) as server:
        response = await ask(server, *messages)
    asked, said, *answers = server.bodies[0]["messages"]
    assert asked["content"][0] == {"type": "text", "text": "Look."}
    assert asked["content"][1]["type"] == "image_url"
    assert asked["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert (said["content"], "reasoning_content" in said) == ("", False)
    functions = [call["function"] for call in said["tool_calls"]]
    assert [function["name"] for function in functions] == ["echo", "unknown"]
    assert [json.loads(function["arguments"]) for function in functions] == [{"text": "a"}, {"malformed": '{"text'}]
    assert answers[0] == {"role": "tool", "tool_call_id": "c", "content": "a"}
    assert answers[1]["content"] == [{"type": "image_url", "image_url": {"url": "data:x"}}]
    assert response.message["tool_calls"][0]["id"] == "call_2"


async def test_an_answer_that_was_cut_off_says_so() -> None:
    async with ChatServer([completion({"content": "Well, th"}, "length")]) as server:
        assert (await ask(server)).finish_reason == "length"


@pytest.mark.parametrize("reason", ["content_filter", "abort", "error"])
async def test_calls_in_an_answer_that_was_broken_off_are_not_run(reason: str) -> None:
    source = LocalSource(lambda: Talk(lambda _env, _message: end()))
    async with ChatServer(lambda _body: completion(calls('{"text": "a"}'), reason)) as server:
        generator = ChatEndpointGenerator(server.url, model="m")
        async with engine(source, generator, chat=None, limits=Limits(retries=1)) as rollouts:
            [trajectory] = await rollouts.collect([RolloutRequest("Talk-v0", task=0)])
        await generator.aclose()
    assert (trajectory.outcome.kind, trajectory.outcome.fault, trajectory.attempts) == ("failed", "generator", 2)
    assert f"broke its answer off: {reason}" in trajectory.outcome.message
    assert (trajectory.reward, [message["role"] for message in trajectory.messages]) == (None, ["user"])


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "eos_token", "", None])
async def test_an_answer_may_end_by_several_names(reason: Any) -> None:
    async with ChatServer([completion(calls("{}"), reason)]) as server:
        assert (await ask(server)).finish_reason == "stop"


async def test_a_refusal_is_what_was_said() -> None:
    async with ChatServer([completion({"content": None, "refusal": "I'd rather not."})]) as server:
        assert (await ask(server)).message["content"] == "I'd rather not."


async def test_the_last_status_is_told_where_patience_ends_first() -> None:
    source = LocalSource(lambda: Talk(lambda _env, _message: end()))
    async with ChatServer(lambda _body: (429, {"Retry-After": "60"}, "Busy.")) as server:
        generator = ChatEndpointGenerator(server.url, model="m")
        limits = Limits(retries=0, generation_seconds=0.3)
        async with engine(source, generator, chat=None, limits=limits) as rollouts:
            [trajectory] = await rollouts.collect([RolloutRequest("Talk-v0", task=0)])
        await generator.aclose()
    outcome = trajectory.outcome
    assert (outcome.kind, outcome.fault, outcome.limit) == ("failed", "generator", "generation_seconds")
    assert "see Limits.generation_seconds (last, " in outcome.message
    assert "answered 429" in outcome.message


async def test_passing_failures_are_tried_again_and_others_are_not() -> None:
    async with ChatServer([429, 503, 500, "Yes."]) as server:
        assert (await ask(server)).message["content"] == "Yes."
    async with ChatServer([429, 503, "Yes."]) as server:
        with pytest.raises(GeneratorError, match="answered 503"):
            await ask(server, attempts=2)
    async with ChatServer([401, "Yes."]) as server:
        with pytest.raises(GeneratorError, match="answered 401"):
            await ask(server)
    with pytest.raises(GeneratorGone, match="does not answer"):
        await ask(server, attempts=2)


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_an_endpoint_is_left_alone_as_long_as_it_wants(form: str) -> None:
    async with ChatServer([(429, {"Retry-After": "0.2"}, "Busy."), "Yes."]) as server:
        begun = time.monotonic()
        assert (await ask(server)).message["content"] == "Yes."
        assert time.monotonic() - begun >= 0.2
    later = "1000" if form == "seconds" else email.utils.formatdate(time.time() + 1000, usegmt=True)
    async with ChatServer([(429, {"Retry-After": later}, "Busy.")]) as server:
        begun = time.monotonic()
        with pytest.raises(GeneratorError, match=r"answered 429.*Busy"):
            await ask(server, timeout=100)
        assert time.monotonic() - begun < 50


async def test_one_that_hangs_is_given_up_and_a_request_can_be_cancelled() -> None:
    async with ChatServer([503, ChatServer.HANG, ChatServer.HANG]) as server:
        with pytest.raises(GeneratorError, match=r"more than 0.2 s \(timeout\); last, .*answered 503"):
            await ask(server, timeout=0.2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(server), 0.1)


async def test_a_conversation_that_is_too_long_is_no_fault_to_try_again() -> None:
    text = {"error": {"message": "This model's maximum context length is 100 tokens."}}
    async with ChatServer([(400, {}, text)]) as server:
        with pytest.raises(PromptTooLong, match="maximum context length"):
            await ask(server)


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": {"tool_calls": [1]}}]}])
async def test_what_is_no_completion_is_an_error(answer: Any) -> None:
    async with ChatServer([answer]) as server:
        with pytest.raises(GeneratorError, match="no chat completion"):
            await ask(server)


async def test_a_rollout_over_an_endpoint_has_messages_and_a_reward_and_nothing_to_train_on() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    answers = [completion(calls('{"text": "a"}', id="x"), usage=usage), completion({"content": "Done."}, usage=usage)]
    source = LocalSource(
        lambda: Talk(lambda env, _message: end(reward=0.5) if len(env.said) == 2 else go_on(tool("a"), reward=0.25))
    )
    async with ChatServer(answers) as server:
        generator = ChatEndpointGenerator(server.url, model="m")
        assert isinstance(generator, ChatGenerator)
        async with engine(source, generator, chat=None) as rollouts:
            [trajectory] = await rollouts.collect([RolloutRequest("Talk-v0", task=0)])
        await generator.aclose()
    assert (trajectory.outcome.kind, trajectory.reward) == ("terminated", 0.75)
    assert [turn.tokens for turn in trajectory.turns] == [4, 4]
    assert not trajectory.trainable
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert server.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"text": "a"}'
