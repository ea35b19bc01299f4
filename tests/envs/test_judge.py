"""A language model as judge: asked over HTTP, read strictly."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gymhost.envs import Task, ToolEnv, rubric
from gymhost.envs.judge import Judge, JudgeError
from support.chat_server import ChatServer


async def ask(server: ChatServer, **settings: Any) -> float:
    judge = Judge(server.url, "judge", prompt="Right?\n{question}\n{answer}", **settings)
    return await judge.score(question="1 + 1?", answer="{two}")


async def test_the_last_line_is_the_score() -> None:
    async with ChatServer(["It is right.\n\nSCORE: 0.75\n"]) as server:
        assert await ask(server, system="Be strict.", max_tokens=64) == 0.75
    (body,) = server.bodies
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][1]["content"].startswith("Right?\n1 + 1?\n{two}\n")
    assert "from 0 to 1" in body["messages"][1]["content"]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("judge", 0.0, 64)


@pytest.mark.parametrize(
    "answer", ["SCORE: 1 or so", "SCORE: 1.5", "SCORE: nan", "SCORE: 0.5\nDone.", "0.5", "", None, "SCORE: -0.1"]
)
async def test_what_is_no_score_is_asked_for_again(answer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymhost.envs.judge._FIRST_WAIT", 0.001)
    async with ChatServer([answer, "SCORE: .5"]) as server:
        assert await ask(server) == 0.5
    assert len(server.bodies) == 2
    async with ChatServer([answer] * 3) as server:
        with pytest.raises(JudgeError, match="in 3 attempts"):
            await ask(server, attempts=3)


async def test_passing_failures_are_tried_again_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymhost.envs.judge._FIRST_WAIT", 0.001)
    async with ChatServer([429, 503, "SCORE: 1"]) as server:
        assert await ask(server) == 1.0
    async with ChatServer([401, "SCORE: 1"]) as server:
        with pytest.raises(JudgeError, match="HTTP 401"):
            await ask(server)
    with pytest.raises(JudgeError, match="ConnectError"):
        await ask(server, attempts=2)


async def test_a_judge_that_hangs_is_given_up() -> None:
    async with ChatServer([ChatServer.HANG]) as server:
        with pytest.raises(JudgeError, match=r"more than 0.1 s \(timeout\)"):
            await ask(server, timeout=0.1)


async def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ChatServer(["SCORE: 1"]) as server:
        with pytest.raises(JudgeError, match="JUDGE_KEY"):
            await ask(server, api_key="JUDGE_KEY")
        monkeypatch.setenv("JUDGE_KEY", "secret")
        await ask(server, api_key="JUDGE_KEY")
    assert server.headers[-1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize("settings", [{"low": 1.0}, {"timeout": 0}, {"attempts": 0}])
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="judge's"):
        Judge("http://localhost", "judge", prompt="", **settings)


class Judged(ToolEnv):
    """Ends at once; a judge scores it."""

    judge: Judge

    def prompt(self, task: Task) -> str:
        return "Go."

    def on_text(self, text: str) -> None:
        self.finish()

    @rubric
    async def good(self) -> float:
        assert self.turn is not None
        return await self.judge.score(text=self.turn.text)


@pytest.mark.parametrize(("answer", "valid"), [("SCORE: 1", True), (400, False)])
def test_a_rubric_without_a_verdict_makes_the_reward_invalid(
    answer: Any, valid: bool, run_beside: Callable[[ChatServer], ChatServer]
) -> None:
    server = run_beside(ChatServer([answer]))
    env = Judged()
    env.judge = Judge(server.url, "judge", prompt="Good?\n{text}")
    env.reset()
    _, reward, terminated, _, info = env.step("Well.")
    env.close()
    assert terminated
    assert (reward, info.get("reward_invalid", False)) == (float(valid), not valid)
    assert "Well." in json.dumps(server.bodies)
