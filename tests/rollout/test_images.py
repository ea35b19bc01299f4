"""Pictures in messages: for endpoints that are given messages; refused, by name, where token ids are all."""

from typing import Any

import pytest

from gymhost.rollout import Limits
from gymhost.rollout.content import CannotRender, text_only
from gymhost.rollout.generators.base import Response
from support.local_source import LocalSource
from support.rollouts import ECHO, Endpoint, engine, requests, whole
from support.talk import Talk, end, go_on, user
from support.tokenizers import decode

pytestmark = pytest.mark.heavy

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def seen(*blocks: Any, role: str = "tool") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]}


async def test_a_picture_that_tokens_can_not_show_fails_the_rollout_and_says_why() -> None:
    env = Talk(lambda _env, _message: go_on(seen("The board:", PICTURE)))
    source = LocalSource(lambda: env)
    async with engine(source, lambda *_: ECHO) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    whole(trajectory)
    outcome = trajectory.outcome
    assert (outcome.kind, outcome.fault, outcome.cause, outcome.turn) == ("failed", "environment", "CannotRender", 1)
    assert "'tool' holds image_url" in outcome.message
    assert "chat endpoint" in outcome.message
    assert (trajectory.attempts, trajectory.reward, source.open) == (1, None, 0)
    assert trajectory.rows()[0].completion_ids == ECHO  # it ends before what could not be shown
    assert trajectory.messages[-1]["role"] == "assistant"


async def test_a_picture_in_the_opening_fails_the_rollout_before_its_first_turn() -> None:
    env = Talk(lambda _env, _message: end(), [seen(PICTURE, role="user")])
    async with engine(LocalSource(lambda: env), lambda *_: ECHO) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.cause, trajectory.outcome.turn, trajectory.attempts) == ("CannotRender", 0, 1)
    assert env.said == []


async def test_blocks_of_text_are_text() -> None:
    env = Talk(lambda env, _: go_on(seen("one", "two<|im_end|>")) if len(env.said) == 1 else end())
    async with engine(LocalSource(lambda: env), lambda *_: ECHO) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert "<tool_response>\none\ntwo<|im_end|>\n</tool_response>" in decode(trajectory.rows()[0].ids)
    assert trajectory.messages[2] == seen("one", "two<|im_end|>")  # as the environment said it
    assert text_only(user("x")) == user("x")
    with pytest.raises(CannotRender, match="'user' holds image_url, input_audio"):
        text_only(seen("x", PICTURE, {"type": "input_audio"}, role="user"))


async def test_an_endpoint_is_shown_pictures_as_they_are() -> None:
    def answer(env: Talk, _message: Any) -> Any:
        return go_on(seen("The board:", PICTURE)) if len(env.said) == 1 else end()

    endpoint = Endpoint(lambda _messages: Response({"content": "x"}))
    env = Talk(answer, [seen("Look:", PICTURE, role="user")])
    async with engine(LocalSource(lambda: env), endpoint, chat=None) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert endpoint.asked[-1] == [
        seen("Look:", PICTURE, role="user"),
        {"role": "assistant", "content": "x"},
        seen("The board:", PICTURE),
    ]
    assert trajectory.outcome.kind == "terminated"


async def test_a_picture_for_which_there_is_no_room_is_left_out_with_its_message() -> None:
    """Case S06, with pictures: messages and pictures end at the same earlier point, and the reward is known."""
    endpoint = Endpoint(lambda messages: Response({"content": "x"}, "stop", 60 if len(messages) < 3 else 999, 40))
    env = Talk(lambda _env, _message: go_on(seen("The board:", PICTURE), seen(PICTURE), reward=0.25))
    async with engine(LocalSource(lambda: env), endpoint, chat=None, limits=Limits(context_tokens=100)) as rollouts:
        [trajectory] = await rollouts.collect(requests(1))
    assert (trajectory.outcome.kind, trajectory.outcome.limit) == ("truncated", "context_tokens")
    assert trajectory.messages == [user("Go."), {"role": "assistant", "content": "x"}]
    assert trajectory.reward == 0.25
