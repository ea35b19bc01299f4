"""OpenAI's language as gymhost's and back: what is taken, what is refused, and what says the same."""

import contextlib
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymhost.wire import openai_chat, openai_responses
from gymhost.wire.openai import Ask, Refused, Reply, models, sse
from gymhost.wire.openai_messages import same_message

ECHO = {"name": "echo", "description": "Says it.", "parameters": {"type": "object", "properties": {}}}
USER = {"role": "user", "content": "Go."}
CALL = {"id": "call_0", "type": "function", "function": {"name": "echo", "arguments": {"text": "ä", "n": [1]}}}
BROKEN: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "", "arguments": '{"name": "echo", "argu'},
}
SAID: dict[str, Any] = {"role": "assistant", "content": "Now.", "reasoning_content": "Hm.", "tool_calls": [CALL]}


def chat(**fields: Any) -> Ask:
    return openai_chat.parse({"model": "m", "messages": [USER]} | fields)


def responses(**fields: Any) -> Ask:
    return openai_responses.parse({"model": "m", "input": "Go."} | fields)


def told(stream: list[str]) -> list[dict[str, Any]]:
    """The data of events."""
    return [json.loads(event.split("data: ", 1)[1]) for event in stream if "[DONE]" not in event]


def test_a_chat_request_is_what_a_rollout_understands() -> None:
    text = {"type": "text", "text": "Go"}
    sent = '{ "text":"\\u00e4", "n":[1] }'
    ask = openai_chat.parse(
        {
            "model": "gpt-9",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [text, text]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning": "Hm.",
                    "tool_calls": [CALL | {"function": {"name": "echo", "arguments": sent}}],
                },
                {"role": "tool", "tool_call_id": "call_0", "content": "ä"},
            ],
            "tools": [
                {"type": "function", "function": ECHO | {"strict": True}},
                {"type": "function", "function": {"name": "x"}},
            ],
            "temperature": 0,
            "top_p": 0.5,
            "top_k": -1,
            "seed": 7,
            "max_tokens": 100,
            "max_completion_tokens": 50,
            "stop": "END",
            "stream": True,
            "stream_options": {"include_usage": True},
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "n": 1,
            "user": "me",
            "nobody_knows": {"this": 1},
        }
    )
    assert ask == Ask(
        model="gpt-9",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Go\nGo"},
            {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_0", "name": "echo", "content": "ä"},
        ],
        tools=[ECHO, {"name": "x", "description": "", "parameters": {"type": "object", "properties": {}}}],
        sampling={"temperature": 0.0, "top_p": 0.5, "top_k": 0, "seed": 7},
        max_tokens=50,
        stop=("END",),
        stream=True,
        include_usage=True,
    )


def test_a_responses_request_is_the_same_conversation() -> None:
    ask = openai_responses.parse(
        {
            "model": "gpt-9",
            "instructions": "Be brief.",
            "input": [
                USER,
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Now."}]},
                {"type": "function_call", "call_id": "call_0", "name": "echo", "arguments": '{"text": "ä", "n": [1]}'},
                {"type": "function_call_output", "call_id": "call_0", "output": [{"type": "input_text", "text": "ä"}]},
                {"role": "user", "content": [{"type": "input_text", "text": "More."}]},
            ],
            "tools": [{"type": "function", **ECHO, "strict": False}],
            "max_output_tokens": 9,
            "temperature": 1,
            "previous_response_id": "resp_1",
            "reasoning": {"effort": "high"},
            "include": ["reasoning.encrypted_content"],
            "store": False,
        }
    )
    assert ask.messages == [
        {"role": "system", "content": "Be brief."},
        USER,
        SAID,
        {"role": "tool", "tool_call_id": "call_0", "name": "echo", "content": "ä"},
        {"role": "user", "content": "More."},
    ]
    assert (ask.tools, ask.max_tokens, ask.sampling) == ([ECHO], 9, {"temperature": 1.0})
    assert (ask.previous, ask.stream) == ("resp_1", False)
    assert responses().messages == [USER]


def test_tools_are_not_offered_where_calls_are_forbidden() -> None:
    assert chat(tools=[{"type": "function", "function": ECHO}], tool_choice="none").tools == []
    assert responses(tools=[{"type": "function", **ECHO}], tool_choice="none").tools == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"functions": [ECHO]}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "echo"}}}, "tool_choice"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": {}}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": ["Go."]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls[0]"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_what_a_chat_request_can_not_have_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        chat(**fields)
    error = refused.value.body()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["Go."]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "echo"}]}, "input[0].call_id"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_tokens": -5}, "max_output_tokens"),
    ],
)
def test_what_a_responses_request_can_not_have_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        responses(**fields)
    assert refused.value.param == param


KEYS = ("messages", "input", "role", "content", "type", "tools", "function", "tool_calls", "name", "text", "arguments")
LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(("user", "assistant", "function"))
BODIES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(KEYS), inner))


@pytest.mark.parametrize("parse", [openai_chat.parse, openai_responses.parse])
@given(body=BODIES)
def test_whatever_is_sent_is_understood_or_refused(parse: Any, body: Any) -> None:
    for sent in (body, {"messages": body, "input": body}, {"messages": [USER], "input": "x", "tools": body}):
        with contextlib.suppress(Refused):
            parse(sent)


def test_what_was_answered_comes_back_as_what_was_said() -> None:
    said = SAID | {"tool_calls": [CALL, BROKEN]}
    reply = Reply(said, prompt_tokens=10, completion_tokens=5, model="m")
    body = openai_chat.completion(reply)
    [choice] = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == f"Now.\n{BROKEN['function']['arguments']}"  # no harness could run it
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"text": "ä", "n": [1]}
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    [_, again] = chat(messages=[USER, choice["message"]]).messages
    assert same_message(said, again)

    answer = openai_responses.response(reply, responses(instructions="Be brief."))
    assert (answer["status"], answer["instructions"]) == ("completed", "Be brief.")
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    [_, again] = responses(input=[USER, *answer["output"]]).messages
    assert same_message(said, again)


def test_an_answer_that_was_cut_off_says_so() -> None:
    reply = Reply(SAID, finish_reason="length")
    assert openai_chat.completion(reply)["choices"][0]["finish_reason"] == "length"
    answer = openai_responses.response(reply, responses())
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert told(list(openai_responses.events(reply, responses())))[-1]["type"] == "response.incomplete"
    assert openai_chat.completion(Reply({"role": "assistant", "content": "x"}))["choices"][0]["finish_reason"] == "stop"


def test_the_chunks_of_a_stream_add_up_to_the_answer() -> None:
    said = SAID | {"content": "long " * 1000, "tool_calls": [CALL, CALL | {"id": "call_2"}]}
    reply = Reply(said, prompt_tokens=10, completion_tokens=5)
    whole = openai_chat.completion(reply)
    stream = list(openai_chat.chunks(reply, include_usage=True))
    assert stream[-1] == "data: [DONE]\n\n"
    *chunks, usage = told(stream)
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    added: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        assert (chunk["id"], chunk["object"], chunk["usage"]) == (whole["id"], "chat.completion.chunk", None)
        delta = chunk["choices"][0]["delta"]
        for key in ("content", "reasoning_content"):
            added[key] += delta.get(key) or ""
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(added["tool_calls"]):
                added["tool_calls"].append(copy.deepcopy({key: part[key] for key in ("id", "type", "function")}))
            else:
                added["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert added.items() <= whole["choices"][0]["message"].items()
    assert told(list(openai_chat.chunks(reply)))[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_events_of_a_stream_end_in_the_answer() -> None:
    reply = Reply(SAID)
    stream = list(openai_responses.events(reply, responses()))
    data = told(stream)
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    assert all(event.startswith(f"event: {item['type']}\n") for event, item in zip(stream, data, strict=True))
    assert data[-1]["response"] == openai_responses.response(reply, responses())
    items = [event["item"] for event in data if event["type"] == "response.output_item.done"]
    assert items == data[-1]["response"]["output"]
    texts = dict.fromkeys(("reasoning_text", "output_text", "function_call_arguments"), "")
    for event in data:
        kind = event["type"].removeprefix("response.").removesuffix(".delta")
        if event["type"].endswith(".delta"):
            texts[kind] += event["delta"]
    assert texts == {
        "reasoning_text": "Hm.",
        "output_text": "Now.",
        "function_call_arguments": items[-1]["arguments"],
    }


def test_messages_say_the_same_whatever_harnesses_do_to_them() -> None:
    raw = CALL | {"function": {"name": "echo", "arguments": '{"n":[1],  "text":"\\u00e4"}'}}
    bare = {key: value for key, value in SAID.items() if key != "reasoning_content"}
    tool = {"role": "tool", "tool_call_id": "call_0", "content": "x"}
    for one, other in (
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": None, "tool_calls": None}),
        (SAID, SAID | {"tool_calls": [raw]}),
        (SAID, bare),
        (SAID, SAID | {"refusal": None, "annotations": []}),
        (SAID, SAID | {"tool_calls": [CALL | {"id": ""}]}),
        (USER, USER | {"content": [{"type": "text", "text": "Go."}]}),
        (tool, tool | {"name": "echo"}),
        (
            {"role": "assistant", "content": "", "tool_calls": [BROKEN]},
            {"role": "assistant", "content": BROKEN["function"]["arguments"]},
        ),
    ):
        assert same_message(one, other)
        assert same_message(other, one)
    other_call = CALL | {"function": {"name": "echo", "arguments": {"text": "b", "n": [1]}}}
    for one, other in (
        (USER, USER | {"content": "Go. "}),
        (USER, USER | {"role": "system"}),
        (SAID, SAID | {"reasoning_content": "No."}),
        (SAID, SAID | {"tool_calls": []}),
        (SAID, SAID | {"tool_calls": [CALL, CALL]}),
        (SAID, SAID | {"tool_calls": [other_call]}),
        (SAID, SAID | {"tool_calls": [CALL | {"id": "call_9"}]}),
        (tool, tool | {"tool_call_id": "call_9"}),
    ):
        assert not same_message(one, other)
        assert not same_message(other, one)


def test_small_things() -> None:
    assert models("m")["data"][0]["id"] == "m"
    assert sse("x", "e") == "event: e\ndata: x\n\n"
    sse({"half": "\ud800"}).encode()  # what no UTF-8 can hold is escaped
