"""Copies of environments, without a server: what they share, what they do not, and what can't be copied."""

import contextvars
import copy
import json
import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

import gymnasium
import pytest
from gymnasium.spaces import Discrete
from gymnasium.utils import EzPickle
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics, TimeLimit

from gymhost.envs import Task, Tasks, ToolEnv, register, rubric, tool
from gymhost.envs.check import Report, check
from gymhost.envs.forking import afork, fork
from gymhost.wire.errors import Unimplemented
from support.account import Account, calls
from support.mcp_environments import Remote

Env = gymnasium.Env[Any, Any]


def forked(env: Env, number: int = 1) -> list[Any]:
    return fork(env, [contextvars.copy_context() for _ in range(number)])


class Holder(gymnasium.Env[Any, Any]):
    """Holds whatever it is given; observes random numbers of two kinds."""

    observation_space = Discrete(2**31)
    action_space = Discrete(2)

    def __init__(self, held: Any = None) -> None:
        self.held = held
        self.python = random.Random(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.python.seed(seed)
        self.steps = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return int(self.np_random.integers(2**30)), self.python.random(), self.steps == 10, False, {"steps": self.steps}


class Pickled(Holder, EzPickle):
    """A pickle of it is made anew."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        super().__init__()


@pytest.fixture
def registry() -> Iterator[None]:
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def report_on(of: type[Env]) -> Report:
    gymnasium.registry.pop("mine/It-v0", None)
    register("mine/It-v0", of)
    return check("mine/It-v0")


def titles(report: Report, level: str) -> list[str]:
    return [finding.title for finding in report.findings if finding.level == level]


@pytest.mark.parametrize("made", [Holder, Pickled])
def test_generators_and_wrappers_are_copied_in_the_state_that_they_are_in(made: type[Env]) -> None:
    env = RecordEpisodeStatistics(FrameStackObservation(TimeLimit(made(), 5), 3))
    env.reset(seed=1)
    env.step(0)
    one, other = forked(env, 2)
    assert type(one) is RecordEpisodeStatistics
    assert one.unwrapped is not env.unwrapped
    for _ in range(3):
        one.step(0)
    expected = [env.step(0) for _ in range(4)]
    got = [other.step(0) for _ in range(4)]
    assert [str(step[:4]) for step in got] == [str(step[:4]) for step in expected]
    assert expected[-1][3]
    assert one.step(0)[3]


def test_what_it_holds_is_its_own_and_modules_are_everybodys() -> None:
    shared = [1, 2]
    env = Holder({"a": shared, "b": shared, "module": json, "part": partial(max, shared)})
    env.held["self"] = env
    (copied,) = forked(env)
    assert copied.held["a"] is copied.held["b"] is not shared
    assert copied.held["module"] is json
    assert copied.held["self"] is copied
    copied.held["a"].append(3)
    assert shared == [1, 2]


def test_each_is_made_in_its_context() -> None:
    whose: contextvars.ContextVar[int] = contextvars.ContextVar("whose")
    told: list[int] = []

    class Told(Holder):
        def __deepcopy__(self, memo: dict[int, Any]) -> Self:
            told.append(whose.get())
            return self

    contexts = [contextvars.copy_context() for _ in range(3)]
    for number, context in enumerate(contexts):
        context.run(whose.set, number)
    fork(Told(), contexts)
    assert told == [0, 1, 2]


class Slotted:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("held", "path"),
    [
        (threading.Lock(), "Holder.held is a _thread.lock"),
        ({"a": [0, {"b": threading.Lock()}]}, "Holder.held['a'][1]['b'] is a _thread.lock"),
        (Holder(threading.Lock()), "Holder.held.held is a _thread.lock"),
        (Slotted(), "Holder.held.lock is a _thread.lock"),
        ((number for number in ()), "Holder.held is a generator"),
        (Holder(threading.Lock()).reset, "Holder.held.__self__.held is a _thread.lock"),
    ],
    ids=str,
)
def test_what_can_not_be_copied_is_named(held: Any, path: str) -> None:
    for env in (Holder(held), TimeLimit(Holder(held), 5)):
        with pytest.raises(Unimplemented) as raised:
            forked(env)
        assert f"can't be forked: {path}, which can't be copied (TypeError" in raised.value.message
        assert "Define `__deepcopy__(self, memo)` for Holder" in raised.value.message


def test_what_a_wrapper_holds_is_the_wrappers() -> None:
    class Locked(gymnasium.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: Env) -> None:
            super().__init__(env)
            self.lock = threading.Lock()

    with pytest.raises(Unimplemented, match=r"Locked\.lock is a _thread\.lock"):
        forked(TimeLimit(Locked(Holder()), 5))


def test_what_is_too_deep_and_what_says_no() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(Unimplemented, match="RecursionError"):
        forked(Holder(deep))

    class Refuses(Holder):
        def __deepcopy__(self, memo: dict[int, Any]) -> Self:
            raise TypeError("not me")

    with pytest.raises(Unimplemented, match=r"Refuses can't be copied \(TypeError: not me\)"):
        forked(Refuses())


def test_one_that_fails_has_those_before_it_closed() -> None:
    made: list[Any] = []

    class Third(Holder):
        closed = False

        def __deepcopy__(self, memo: dict[int, Any]) -> Self:
            if len(made) == 2:
                raise LookupError("the third")
            made.append(copy.copy(self))
            return made[-1]

        def close(self) -> None:
            self.closed = True

    env = Third()
    with pytest.raises(LookupError):
        forked(env, 4)
    assert [one.closed for one in made] == [True, True]
    assert not env.closed


async def test_a_conversation_goes_on_in_each() -> None:
    env = Account(task=1)
    env.reset()
    env.step(calls(("add", {"amount": 5})))
    one, other = await afork(env, [contextvars.copy_context() for _ in range(2)])
    one.step(calls(("add", {"amount": 100})))
    assert one.turns == 2
    assert one.calls == 2
    for each, balance in ((env, 25), (other, 25), (one, 125)):
        *_, reward, terminated, _, info = each.step(calls(("done", {})))
        assert terminated
        assert (reward, info["balance"], info["task"]) == (balance, balance, 1)


def test_the_loop_of_one_with_coroutines_is_not_the_copies() -> None:
    class Waits(ToolEnv):
        def prompt(self, task: Task) -> str:
            return "Go."

        @tool
        async def act(self) -> str:
            """Acts."""
            self.finish()
            return "done"

        @rubric
        async def right(self) -> float:
            return 1.0

    env = Waits()
    env.reset()
    (copied,) = forked(env)
    env.close()
    assert copied.step(calls(("act", {})))[1] == 1.0
    copied.close()


def test_tasks_are_not_copied() -> None:
    listed = [{"start": number} for number in range(1000)]
    env = Account()
    env.tasks = {"train": listed, "more": Tasks(listed)}
    env.reset()
    (copied,) = forked(env)
    assert copied.tasks is env.tasks
    assert copied.splits["more"] is env.splits["more"]


def test_an_mcp_server_is_named() -> None:
    env = Remote()
    (before,) = forked(env)  # there is no connection yet
    env.reset()
    try:
        with pytest.raises(Unimplemented, match=r"the MCP server .*mcp_server\.py knows of the episode"):
            forked(env)
        assert env.step(calls(("add", {"a": 1, "b": 2})))[0][0]["content"] == "3"
        before.reset()
        before.close()
    finally:
        env.close()


# -- gymhost check -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registry")
def test_check_says_whether_it_can_be_forked() -> None:
    assert "It can be forked: forks go on as it would have, and apart from it" in titles(report_on(Holder), "ok")

    class Locked(Holder):
        def __init__(self) -> None:
            super().__init__(threading.Lock())

    report = report_on(Locked)
    assert "It can't be forked" in titles(report, "ok")
    assert report.ok
    assert check("gymhost/GuessNumber-v0").ok


@pytest.mark.usefixtures("registry")
def test_check_finds_copies_that_are_tied_to_each_other() -> None:
    class Tied(Holder):
        def reset(self, **kwargs: Any) -> Any:
            reset = super().reset(**kwargs)
            self.place = [0]

            def move() -> int:
                self.place[0] += 1
                return self.place[0]

            self.move = move
            return reset

        def step(self, action: Any) -> Any:
            _, reward, terminated, truncated, info = super().step(action)
            return self.move(), reward, terminated, truncated, info

    # A fork moves the place of the environment that it was forked from.
    report = report_on(Tied)
    assert "After a step of a fork the environment itself goes on in another way than it would have" in titles(
        report, "error"
    )

    class Forgets(Holder):
        def __deepcopy__(self, memo: dict[int, Any]) -> Self:
            twin = type(self)()
            twin.reset(seed=5)
            return twin

    assert "A fork goes on in another way than it would have" in titles(report_on(Forgets), "error")
