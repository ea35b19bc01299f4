"""ToolEnv with coroutines: on a loop of its own in plain use, on the caller's where they are awaited."""

import asyncio
import threading
from typing import Any

import gymnasium
import pytest

from gymhost.envs import Task, rubric, tool
from support.account import Account, calls


class AsyncAccount(Account):
    """The same with coroutines everywhere."""

    loops: list[int]

    async def setup(self, task: Task) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        self.loops = [id(asyncio.get_running_loop())]
        Account.setup(self, task)

    async def teardown(self) -> None:
        await asyncio.sleep(0)
        self.loops.append(0)

    @tool
    async def slowly(self, amount: int) -> str:
        """Adds after a while."""
        await asyncio.sleep(0)
        self.loops.append(id(asyncio.get_running_loop()))
        self.balance += amount
        return "added"

    @rubric(weight=0.0)
    async def thought_about(self) -> bool:
        await asyncio.sleep(0)
        return True


def test_coroutines_run_to_completion_in_plain_use() -> None:
    env = AsyncAccount()
    assert env.is_async
    env.reset(options={"task": 0})
    env.step(calls(("slowly", {"amount": 1})))
    *_, info = env.step(calls(("slowly", {"amount": 1}), ("done", {})))
    assert info["rewards"] == {"money": 12.0, "thought_about": 1.0}
    assert len(set(env.loops)) == 1, "what coroutines open on a loop must be usable in the next call"
    env.close()
    env.close()
    assert env.loops[-1] == 0
    assert env.loops.count(0) == 1


async def test_plain_use_works_inside_a_running_loop_and_leaves_no_thread() -> None:
    before = threading.active_count()
    env = AsyncAccount()
    env.reset(options={"task": 0})
    observation, *_ = env.step(calls(("slowly", {"amount": 5})))
    assert (observation[0]["content"], env.balance) == ("added", 15)
    env.close()
    assert threading.active_count() == before


async def test_coroutines_are_awaited_on_the_callers_loop() -> None:
    env = AsyncAccount()
    await env.areset(options={"task": 0})
    await env.astep(calls(("slowly", {"amount": 5})))
    assert set(env.loops) == {id(asyncio.get_running_loop())}
    await env.aclose()
    assert env.loops[-1] == 0


async def test_a_cancelled_step_breaks_the_episode_off() -> None:
    entered = asyncio.Event()

    class Waits(Account):
        @tool
        async def wait(self) -> str:
            """Waits for ever."""
            entered.set()
            await asyncio.Event().wait()
            return ""

    env = Waits()
    await env.areset()
    task = asyncio.ensure_future(env.astep(calls(("wait", {}))))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(gymnasium.error.ResetNeeded, match="cancellation"):
        await env.astep("hello")


def test_environments_of_plain_code_need_no_loop() -> None:
    env = Account()
    assert not env.is_async
    env.reset()
    assert env.splits is Account().splits, "tasks are kept once for all instances"


def test_plain_code_that_hides_a_coroutine_is_told_how_to_mend_it() -> None:
    class Hides(Account):
        @tool
        def hidden(self) -> Any:
            """Returns a coroutine."""
            return asyncio.sleep(0)

    env = Hides()
    env.reset()
    with pytest.raises(RuntimeError, match="mark it `async def`"):
        env.step(calls(("hidden", {})))


def test_what_a_coroutine_raises_has_no_fault_of_gymhosts_in_its_chain() -> None:
    class Fails(AsyncAccount):
        async def setup(self, task: Task) -> None:
            raise LookupError("no account")

    with pytest.raises(LookupError, match="no account") as raised:
        Fails().reset(options={"task": 0})
    assert raised.value.__context__ is None
