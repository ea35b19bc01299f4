"""Conversations that are told anew each time: found again, and gone on with in the tokens that were sampled."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from renderers import Qwen3RendererConfig

from gymhost.rollout import Chat, LimitReached, Limits, Sampling, Seat, Trajectory, as_text, sft_rows
from gymhost.rollout.generators.base import Response
from support.agents import play
from support.rollouts import CHAT, Endpoint
from support.talk import ECHO, tool, user
from support.tokenizers import call, decode, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

Script = Callable[[Sequence[int], str], Any]


def numbered() -> Script:
    """Says another word each time."""
    words = iter(["one", "two", "three", "four", "five", "six", "seven"])
    return lambda *_: encode(f"{next(words)}<|im_end|>")


def texts(trajectory: Trajectory) -> list[list[str]]:
    """What was sampled, row by row, turn by turn."""
    rows: list[list[str]] = [[] for _ in trajectory.token_rows]
    for turn in trajectory.turns:
        row = trajectory.token_rows[turn.row]
        sampled = slice(turn.start, turn.start + turn.tokens)
        assert all(row.mask[sampled])
        rows[turn.row].append(decode(row.completion_ids[sampled]).removesuffix("<|im_end|>"))
    assert sum(sum(row.mask) for row in trajectory.token_rows) == trajectory.sampled_tokens
    return rows


async def test_what_goes_on_is_appended_and_what_does_not_gets_a_row() -> None:
    async def what(seat: Seat) -> None:
        first = await seat.say([user("a")])
        other = await seat.say([user("b")])
        more = await seat.say([user("a"), first, user("aa")])
        await seat.say([user("b"), other, user("bb")])
        await seat.say([user("a"), first, user("aa"), more, user("aaa")])
        await seat.say([user("so far: one, three"), user("on")])  # a history that was made shorter
        await seat.say([user("a"), first, user("aa"), more, user("aaa")], tools=())  # with other tools it is another

    trajectory = await play(what, numbered())
    assert texts(trajectory) == [["one", "three", "five"], ["two", "four"], ["six"], ["seven"]]
    assert [turn.row for turn in trajectory.turns] == [0, 1, 0, 1, 0, 2, 3]
    assert [message["content"] for message in trajectory.messages] == ["a", "one", "aa", "three", "aaa", "five"]
    assert [messages[-1]["content"] for messages in trajectory.asides] == ["four", "six", "seven"]
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    text = as_text(trajectory)
    assert "=== conversation 4\n\n--- user\na\n\n--- assistant, turn 1\none\n" in text
    assert "since there were 4 conversations" in text
    # Each row is what the model was given and said, which the template would write in the same way.
    row = trajectory.token_rows[0]
    assert row.prompt_ids == CHAT.prompt([user("a")], CHAT.offer([ECHO]), {})
    assert decode(row.ids).endswith(
        "user\na<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n<|im_start|>user\naa<|im_end|>\n<|im_start|>assistant\n"
        "three<|im_end|>\n<|im_start|>user\naaa<|im_end|>\n<|im_start|>assistant\nfive<|im_end|>"
    )


async def test_another_try_goes_on_from_the_tokens_that_it_shares() -> None:
    async def what(seat: Seat) -> None:
        first = await seat.say([user("a")])
        second = await seat.say([user("a"), first, user("b")])
        await seat.say([user("a"), first, user("b")])  # the same once more
        await seat.say([user("a"), first, user("c")])  # another way from there
        await seat.say([user("a"), first, user("b"), second, user("d")])  # the first way is still there
        await seat.say([user("a")])  # from the beginning

    trajectory = await play(what, numbered())
    assert texts(trajectory) == [["one", "two", "five"], ["three"], ["four"], ["six"]]
    first = trajectory.token_rows[0]
    upto = len(first.prompt_ids) + trajectory.turns[0].tokens
    for row in trajectory.token_rows[1:3]:
        assert row.prompt_ids == first.ids[:upto]  # as they were sampled, and not to be learned twice


async def test_sampled_ids_stay_though_no_tokenizer_would_encode_them_so() -> None:
    odd = [token for letter in "abab" for token in encode(letter)]  # which a tokenizer writes as "ab", "ab"
    assert odd != encode("abab")
    said: list[dict[str, Any]] = []

    async def what(seat: Seat) -> None:
        said.append(await seat.say([user("a")]))
        await seat.say([user("a"), said[0], user("b")])
        await seat.say([user("a"), said[0], user("c")])

    chat = Chat(qwen3_tokenizer(), Qwen3RendererConfig(thinking_retention="all"))
    trajectory = await play(what, lambda *_: [*odd, *encode("<|im_end|>")], chat=chat)
    assert said[0]["content"] == "abab"
    first, second = trajectory.token_rows
    assert first.completion_ids[: len(odd)] == odd
    assert second.prompt_ids[len(first.prompt_ids) :][: len(odd)] == odd


async def test_what_harnesses_change_in_history_makes_no_difference() -> None:
    thought = encode("<think>\nHm.\n</think>\n\n" + call("echo", '{"text": "ab", "n": 1}'))

    async def what(seat: Seat) -> None:
        said = await seat.say([user("a")])
        assert said["reasoning_content"] == "Hm."
        function = {"name": "echo", "arguments": json.dumps({"n": 1, "text": "ab"}, indent=2)}
        sent = {"role": "assistant", "content": None, "tool_calls": [said["tool_calls"][0] | {"function": function}]}
        sent["name"] = "me"
        said["content"] = "what the caller does to it is its own affair"
        await seat.say([user("a"), sent, tool("ab")])

    trajectory = await play(what, lambda *_: thought)
    assert texts(trajectory) == [[decode(thought).removesuffix("<|im_end|>")] * 2]
    assert trajectory.messages[1]["reasoning_content"] == "Hm."
    calls = [message["tool_calls"][0]["id"] for message in trajectory.messages if "tool_calls" in message]
    assert calls == ["call_0", "call_1"]


async def test_calls_have_ids_of_their_own_in_all_conversations() -> None:
    ids: list[str] = []

    async def what(seat: Seat) -> None:
        ids.extend([(await seat.say([user(name)]))["tool_calls"][0]["id"] for name in "abc"])

    await play(what, lambda *_: encode(call("echo", "{}")))
    assert ids == ["call_0", "call_1", "call_2"]


async def test_conversations_at_once_do_not_get_in_each_other_s_way() -> None:
    gates = {name: asyncio.Event() for name in "ab"}
    arrived = asyncio.Barrier(4)

    async def script(prompt_ids: Sequence[int], _name: str) -> list[int]:
        name = decode(list(prompt_ids)).rsplit("user\n", 1)[1][0]
        if name in gates:
            await arrived.wait()
            await gates[name].wait()
        return encode(f"{name}{name}<|im_end|>")

    async def what(seat: Seat) -> None:
        root = await seat.say([user("x")])
        begun = [user("x"), root]
        a, b, twin = (asyncio.create_task(seat.say([*begun, user(name)])) for name in "aba")
        await arrived.wait()
        gates["b"].set()
        assert (await b)["content"] == "bb"
        gates["a"].set()
        assert [(await task)["content"] for task in (a, twin)] == ["aa", "aa"]
        await seat.say([*begun, user("b"), await b, user("y")])

    trajectory = await play(what, script)
    assert texts(trajectory) == [["xx", "aa"], ["bb", "yy"], ["aa"]]


async def test_a_turn_that_is_called_off_leaves_its_conversation_as_it_was() -> None:
    begun = asyncio.Event()
    answers = iter([encode("one<|im_end|>"), None, None, encode("two<|im_end|>")])

    async def script(_prompt_ids: Sequence[int], _name: str) -> list[int]:
        answer = next(answers)
        if answer is None:
            begun.set()
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    async def what(seat: Seat) -> None:
        first = await seat.say([user("a")])
        for messages in ([user("a"), first, user("b")], [user("new")]):
            begun.clear()
            waiting = asyncio.create_task(seat.say(messages))
            await begun.wait()
            waiting.cancel()
            await asyncio.wait([waiting])
        assert len(seat.trajectory.token_rows) == 1
        await seat.say([user("a"), first, user("b")])

    trajectory = await play(what, script)
    assert texts(trajectory) == [["one", "two"]]
    assert (len(trajectory.turns), trajectory.asides) == (2, [])


async def test_what_a_limit_leaves_no_room_for_leaves_no_trace() -> None:
    limits = Limits(context_tokens=len(CHAT.prompt([user("a")], CHAT.offer([ECHO]), {})) + 30)
    refused: list[str] = []

    async def what(seat: Seat) -> None:
        first = await seat.say([user("a")])
        for messages in ([user("a"), first, user("b " * 100)], [user("c " * 100)], [user("d " * 20_000)]):
            try:
                await seat.say(messages)
            except LimitReached as reached:
                refused.append(reached.limit)
        await seat.say([user("a"), first, user("b")])

    trajectory = await play(what, numbered(), limits=limits)
    assert refused == ["context_tokens"] * 3
    assert texts(trajectory) == [["one", "two"]]
    assert str(trajectory.outcome) == "terminated"


async def test_what_was_cut_off_on_the_way_is_no_example_for_others() -> None:
    async def what(seat: Seat) -> None:
        messages = [user("a")]
        for place in range(3):
            sampling = Sampling(max_tokens=1) if place == 1 else None
            messages += [await seat.say(messages, sampling=sampling), user("more")]

    trajectory = await play(what, numbered())
    assert [turn.finish_reason for turn in trajectory.turns] == ["stop", "length", "stop"]
    [row] = sft_rows([trajectory])
    assert [message["content"] for message in row["messages"]] == ["a", "one"]


async def test_a_chat_endpoint_has_conversations_without_rows() -> None:
    words = iter(["one", "two", "three"])
    endpoint = Endpoint(lambda _: Response({"role": "assistant", "content": next(words)}, "stop", 10, 1))

    async def what(seat: Seat) -> None:
        first = await seat.say([user("a")])
        await seat.say([user("b")])
        await seat.say([user("a"), first, user("c")])

    trajectory = await play(what, endpoint, chat=None)
    assert [message["content"] for message in trajectory.messages] == ["a", "one", "c", "three"]
    assert [message["content"] for message in trajectory.asides[0]] == ["b", "two"]
    assert [len(asked) for asked in endpoint.asked] == [1, 1, 3]
