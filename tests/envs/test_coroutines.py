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


class Meeting(Account):
    """Tools that wait for each other, or for ever."""

    arrived: int
    all_there: asyncio.Event
    stopped: bool

    async def setup(self, task: Task) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        Account.setup(self, task)
        self.arrived, self.stopped, self.all_there = 0, False, asyncio.Event()

    @tool(parallel=True)
    async def meet(self, number: int) -> int:
        """Waits until three are there."""
        self.arrived += 1
        if self.arrived == 3:
            self.all_there.set()
        await self.all_there.wait()
        return number

    @tool
    async def alone(self) -> int:
        """Is one that runs by itself."""
        return self.arrived

    @tool(parallel=True)
    async def break_down(self) -> None:
        """Raises, while others wait."""
        raise RuntimeError("broken")

    @tool(parallel=True, timeout=0.05)
    async def hang(self) -> str:
        """Waits for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped = True
        return "never"

    @tool(timeout=60)
    async def give_up(self) -> str:
        """Has a time-out of its own."""
        raise TimeoutError("its own")


async def test_parallel_tools_of_a_turn_run_at_the_same_time_and_answer_in_order() -> None:
    env = Meeting()
    await env.areset(options={"task": 0})
    together = [("meet", {"number": number}) for number in (1, 2, 3)]
    observation, *_ = await env.astep(calls(("alone", {}), *together, ("alone", {})))
    assert [message["content"] for message in observation] == ["0", "1", "2", "3", "3"]
    await env.aclose()


async def test_a_fault_of_one_parallel_tool_stops_the_others() -> None:
    env = Meeting()
    await env.areset(options={"task": 0})
    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match="broken"):
        await env.astep(calls(("meet", {"number": 1}), ("break_down", {})))
    assert asyncio.all_tasks() == before
    await env.aclose()


async def test_a_tool_that_takes_too_long_is_stopped_and_the_model_is_told() -> None:
    env = Meeting()
    await env.areset(options={"task": 0})
    observation, _, terminated, truncated, _ = await env.astep(calls(("hang", {}), ("alone", {})))
    assert [message["content"] for message in observation] == ["Error: hang took more than 0.05 s and was stopped", "0"]
    assert env.stopped
    assert not terminated
    assert not truncated
    with pytest.raises(TimeoutError, match="its own"):
        await env.astep(calls(("give_up", {})))
    await env.aclose()
