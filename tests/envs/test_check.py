"""`check`: finds what is wrong with an environment and lets good ones pass."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from gymhost.envs import Task, ToolEnv, checks, make, register, rubric, tool
from gymhost.envs.check import Report, check
from gymhost.envs.shelf.echo import Echo
from gymhost.wire import errors


class Walk(gymnasium.Env[Any, Any]):
    """A random walk of ten steps: good, but for what subclasses do."""

    observation_space = Discrete(1000)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.at = int(self.np_random.integers(100, 200))
        return self.at, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.at += int(self.np_random.integers(3)) + int(action)
        return self.at, float(self.at), self.steps == 10, False, {"steps": self.steps}


class Talk(ToolEnv):
    """Good, but for what subclasses do."""

    tasks = {"train": [{"n": 1}, {"n": 2}], "test": [{"n": 3}]}
    max_turns = 5

    def prompt(self, task: Task) -> str:
        return f"Say {task['n']}."

    @tool
    def say(self, number: int) -> str:
        """Says a number.

        Args:
            number: The number.
        """
        if number > 5:
            self.finish()
        return "ok"

    @rubric
    def good(self) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.fixture
def few_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has leaks looked for in few episodes, by tests of other things."""
    monkeypatch.setattr(checks, "_LEAK_EPISODES", 5)


def report_on(of: type[gymnasium.Env[Any, Any]], **how: Any) -> Report:
    gymnasium.registry.pop("mine/It-v0", None)
    register("mine/It-v0", of, **how)
    return check("mine/It-v0")


def found(report: Report, level: str, title: str) -> str:
    """Returns the detail of the finding of a level whose title has this in it."""
    details = [finding.detail for finding in report.findings if finding.level == level and title in finding.title]
    assert details, report.render()
    return details[0]


@pytest.mark.parametrize("id", ["gymhost/Echo-v0", "gymhost/GuessNumber-v0"])
def test_what_comes_with_gymhost_has_nothing_to_mend(id: str) -> None:
    report = check(id)
    assert report.ok
    assert report.count("advice") == 0, report.render()
    assert "Fit to be hosted; 0 pieces of advice." in report.render()


def test_a_good_environment_passes_with_its_expert_and_arguments() -> None:
    report = check("gymhost/GuessNumber-v0", {"high": 15, "guesses": 4})
    assert report.ok
    found(report, "ok", "The expert's mean reward over 20 episodes is 1")
    with pytest.raises(gymnasium.error.UnregisteredEnv):
        check("mine/NoSuch-v0")


def test_one_that_can_not_be_made_is_told_with_the_traceback() -> None:
    report = check("gymhost/Echo-v0", {"length": 0})
    assert not report.ok
    assert "ValueError: length is at least 1" in found(report, "error", "Making it: it raised")
    assert "Not fit to be hosted: 1 to mend" in report.render()


def test_gymnasiums_findings_are_passed_on() -> None:
    class Outside(Walk):
        observation_space = Discrete(100)

    class Infinite(Walk):
        observation_space = Box(-np.inf, np.inf, (1,), np.float32)

        def reset(self, **kwargs: Any) -> Any:
            observation, info = super().reset(**kwargs)
            return np.array([observation], np.float32), info

        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            return np.array([observation], np.float32), *rest

    report = report_on(Outside)
    assert "not within the observation space" in found(report, "error", "Gymnasium's checker refuses it")
    assert "minimum value is -infinity" in found(report_on(Infinite), "advice", "Gymnasium's checker warns")


def test_what_can_not_travel_is_told_with_its_path() -> None:
    class Odd(Walk):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, info | {"seen": {1, 2}}

    detail = found(report_on(Odd), "error", "An info does not travel")
    assert "['seen']" in detail
    assert "set" in detail


@pytest.mark.parametrize("source", ["python", "numpy", "instance"])
def test_chance_that_the_seed_does_not_govern_is_found(source: str) -> None:
    class Chancy(Walk):
        made: ClassVar[int] = 0

        def __init__(self) -> None:
            Chancy.made += 1
            self.number = Chancy.made

        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            chance = {"python": random.random, "numpy": np.random.random, "instance": lambda: self.number}
            return observation, reward + chance[source](), *rest

    detail = found(report_on(Chancy), "error", "Seed and actions do not decide episode 1")
    assert "step 1's reward" in detail
    assert "self.np_random" in detail
    found(report_on(Chancy, nondeterministic=True), "ok", "says that it is not deterministic")


def test_a_seed_that_governs_the_first_episode_only_is_found() -> None:
    class Forgets(Walk):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            observation, info = super().reset(seed=random.randrange(2**31) if seed is None else seed, options=options)
            return observation, info

    found(report_on(Forgets), "error", "Seed and actions do not decide episode 2")


def test_leaks_are_found() -> None:
    stop = threading.Event()

    class Leaky(Walk):
        kept: ClassVar[list[Any]] = []

        def reset(self, **kwargs: Any) -> Any:
            Leaky.kept.append((bytearray(100_000), os.pipe()))
            thread = threading.Thread(target=stop.wait, daemon=True)
            thread.start()
            return super().reset(**kwargs)

    try:
        report = report_on(Leaky)
    finally:
        stop.set()
        for _, pipe in Leaky.kept:
            os.close(pipe[0])
            os.close(pipe[1])
    left = [finding.title for finding in report.findings if "episodes left" in finding.title]
    assert left == ["100 episodes left 100 threads and 200 file descriptors"]
    found(report, "error", "Its memory grows by")
    found(report, "error", "close() left")


def test_what_an_episode_frees_is_no_leak() -> None:
    class Tidy(Walk):
        file: int | None = None

        def reset(self, **kwargs: Any) -> Any:
            self.close()
            self.file = os.open(os.devnull, os.O_RDONLY)
            return super().reset(**kwargs)

        def close(self) -> None:
            if self.file is not None:
                os.close(self.file)
                self.file = None

    found(report_on(Tidy), "ok", "Nothing leaks over 100 episodes")


@pytest.mark.usefixtures("few_episodes")
def test_the_way_it_runs_is_advised() -> None:
    class Blocking(Walk):
        def step(self, action: Any) -> Any:
            time.sleep(0.002)
            return super().step(action)

    assert 'mode="thread"' in found(report_on(Blocking, mode="inline"), "advice", 'registered with mode="inline", yet')
    found(report_on(Blocking, mode="thread"), "ok", 'well run with mode="thread"')
    found(report_on(Walk, mode="thread"), "advice", 'could run with mode="inline"')
    found(report_on(Walk, mode="async"), "error", "has no coroutines")


@pytest.mark.usefixtures("few_episodes")
def test_coroutines_are_advised_to_run_as_such() -> None:
    class Waits(Talk):
        @tool
        async def wait(self) -> str:
            """Waits."""
            await asyncio.sleep(0)
            return "waited"

    assert "async def" in found(report_on(Waits), "advice", 'could run with mode="async"')
    found(report_on(Waits, mode="async"), "ok", 'well run with mode="async"')
    found(report_on(Waits, mode="inline"), "advice", 'registered with mode="inline", yet')


def test_a_change_of_the_process_is_advised_against(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Moves(Walk):
        def step(self, action: Any) -> Any:
            os.chdir(tmp_path)
            return super().step(action)

    monkeypatch.chdir("/")
    report = report_on(Moves)
    assert 'isolation="process"' in found(report, "advice", "changes the working directory")


@pytest.mark.usefixtures("few_episodes")
def test_a_conversation_is_looked_through() -> None:
    class Poor(ToolEnv):
        tasks = {"train": [{"n": 1}], "test": [{"n": 1}], "empty": []}

        def prompt(self, task: Task) -> str:
            return ""

        @tool
        def say(self, number: int) -> str:
            return "ok"

    report = report_on(Poor)
    found(report, "error", "The prompt has no text")
    found(report, "error", "The split 'empty' has no tasks")
    found(report, "advice", "The splits 'train' and 'test' share tasks")
    found(report, "advice", "Tool 'say' has no description")
    assert "number" in found(report, "advice", "arguments without a description")
    found(report, "advice", "It has no rubric")
    found(report, "advice", "may go on for ever")


def test_a_rubric_that_fails_is_an_error() -> None:
    class Unsure(Talk):
        @rubric
        def broken(self) -> float:
            raise LookupError("no verdict")

    assert "no verdict" in found(report_on(Unsure), "error", "Rubric 'broken' gave no valid score")


def test_one_that_raises_at_a_malformed_call_is_found() -> None:
    class Fragile(Talk):
        def after_turn(self, turn: Any) -> None:
            assert turn.calls[0].arguments["number"] is not None

    assert "TypeError" in found(report_on(Fragile), "error", "Conversation")


def test_a_fault_that_ends_several_checks_is_told_once() -> None:
    class Raises(Walk):
        def step(self, action: Any) -> Any:
            raise LookupError("no such step")

    class ElsewhereRaises(Raises):
        def step(self, action: Any) -> Any:
            try:
                return super().step(action)
            except LookupError as error:
                raise errors.from_wire(*errors.to_wire(error)) from None

    register("mine/It-v0", Raises)
    report = check("mine/It-v0", remote_factory=lambda id, kwargs: ElsewhereRaises())
    detail = found(report, "error", "it raised")
    text = report.render()
    assert text.count("Traceback (most recent call last)") == 1, text
    assert text.count("raise LookupError") == 1
    line = Raises.step.__code__.co_firstlineno + 1
    assert detail.startswith(f"LookupError: no such step\nRaised at {__file__}, line {line}\n")
    found(report, "error", "What travels, Determinism, Forks, Leaks, How it runs, Over the wire, Replay: it raised")


def test_faults_that_differ_are_all_told() -> None:
    class Raises(Walk):
        count = 0

        def step(self, action: Any) -> Any:
            Raises.count += 1
            raise LookupError(f"number {Raises.count}")

    text = report_on(Raises).render()
    assert text.count("Traceback (most recent call last)") == Raises.count > 1


class Elsewhere(gymnasium.Wrapper[Any, Any, Any, Any]):
    """What plays for the environment behind a server."""

    closed: ClassVar[int] = 0

    def close(self) -> None:
        Elsewhere.closed += 1
        super().close()


def test_local_and_remote_play_are_compared() -> None:
    class Different(Elsewhere):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation + "!", reward, *rest

    def remote(id: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
        assert (id, kwargs) == ("gymhost/Echo-v0", {"length": 4})
        return Elsewhere(Echo(**kwargs))

    report = check("gymhost/Echo-v0", {"length": 4}, remote_factory=remote)
    found(report, "ok", "It plays the same over the wire")
    assert Elsewhere.closed == 2  # one for each check that plays there
    report = check("gymhost/Echo-v0", {"length": 4}, remote_factory=lambda id, kwargs: Different(Echo(**kwargs)))
    assert "step 1's observation" in found(report, "error", "It plays differently over the wire")


def test_numpy_rewards_are_the_same_as_what_they_become_over_the_wire() -> None:
    class Typed(Walk):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, np.float32(reward), *rest

    class Untyped(Elsewhere):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, float(reward), *rest

    register("mine/It-v0", Typed, mode="inline")
    report = check("mine/It-v0", remote_factory=lambda id, kwargs: Untyped(make(id, **kwargs)))
    found(report, "ok", "It plays the same over the wire")


class Paid(Talk):
    """Pays for numbers above five."""

    expert = f"{__name__}:say_six"
    cheats = (f"{__name__}:say_minus_one",)

    def setup(self, task: Task) -> None:
        self.said = 0

    @tool
    def say(self, number: int) -> str:
        """Says a number.

        Args:
            number: The number.
        """
        self.said = number
        self.finish()
        return "ok"

    @rubric
    def good(self) -> float:
        return self.said > 5


def saying(number: int) -> dict[str, Any]:
    call = {"id": "call_0", "type": "function", "function": {"name": "say", "arguments": {"number": number}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def say_six(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return saying(6)


def say_minus_one(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return saying(-1)


def test_experts_win_idlers_and_cheats_do_not() -> None:
    report = report_on(Paid, mode="inline")
    assert report.ok, report.render()
    found(report, "ok", "The expert's mean reward over 1 episodes is 1")
    found(report, "ok", "One that only talks gets 0")
    found(report, "ok", "say_minus_one gets 0")


def test_a_cheat_that_is_paid_is_told() -> None:
    class Gullible(Paid):
        @rubric
        def good(self) -> float:
            return self.said != 0

    report = report_on(Gullible, mode="inline")
    assert "No rubric may pay" in found(report, "error", "say_minus_one is paid 1")


def test_pay_for_talk_alone_is_told() -> None:
    class Generous(Paid):
        @rubric
        def good(self) -> float:
            return 1.0

    found(report_on(Generous, mode="inline"), "error", "One that only talks gets 1, no less than the expert")


def test_an_expert_that_does_not_win_is_told() -> None:
    class Hard(Paid):
        @rubric
        def good(self) -> float:
            return 0.5 if self.said > 5 else 0.0

    detail = found(report_on(Hard, mode="inline"), "advice", "The expert's mean reward over 1 episodes is 0.5")
    assert "gets 1" in detail
