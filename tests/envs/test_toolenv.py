"""ToolEnv: episodes, calls, hooks, budgets, tasks and seeds, as an author and a caller see them."""

from typing import Any

import gymnasium
import pytest

from gymhost.envs import Task, Tasks, ToolEnv, Turn
from support.account import Account, calls


def test_an_episode_from_prompt_to_reward() -> None:
    env = Account()
    observation, info = env.reset(options={"task": 1})
    assert observation == [
        {"role": "system", "content": "You keep an account."},
        {"role": "user", "content": "The balance is 20."},
    ]
    assert info == {"task": 1, "split": "train"}
    observation, reward, terminated, truncated, info = env.step(calls(("add", {"amount": 5}), ("take", {"amount": 7})))
    assert observation == [
        {"role": "tool", "tool_call_id": "id_0", "name": "add", "content": "The balance is 25."},
        {"role": "tool", "tool_call_id": "id_1", "name": "take", "content": '{"balance":18}'},
    ]
    assert (reward, terminated, truncated, info) == (0.0, False, False, {})
    observation, reward, terminated, truncated, info = env.step(calls(("done", {})))
    assert observation[0]["content"] == "Goodbye."
    assert (reward, terminated, truncated) == (18.0, True, False)
    assert info == {"task": 1, "split": "train", "balance": 18, "rewards": {"money": 18.0}}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({}, "the call names no tool"),
        ({"function": {"name": "", "arguments": {}}}, "the call names no tool"),
        ({"function": {"name": None, "arguments": None}}, "the call names no tool"),
        ({"function": {"name": "add", "arguments": None}}, "must be a JSON object, not null"),
        ({"function": {"name": "add", "arguments": [1]}}, "must be a JSON object, not a list"),
        ({"function": {"name": "add", "arguments": '{"amount": 1'}}, "must be a JSON object, not a text"),
        ({"function": {"name": "add", "arguments": {}}}, "amount is missing"),
        ({"function": {"name": "add", "arguments": {"amount": "1"}}}, "amount: Input should be a valid integer"),
        ({"function": {"name": "add", "arguments": {"amount": 1, "to": "me"}}}, "there is no argument to"),
        ({"function": {"name": "add", "arguments": {"amount": {1, 2}}}}, "not JSON"),
        (
            {"function": {"name": "rob", "arguments": {}}},
            "there is no tool 'rob'; the tools are add, take,",
        ),
        ({"function": {"name": "close", "arguments": {}}}, "there is no tool 'close'"),
        ({"function": {"name": "setup", "arguments": {"task": {}}}}, "there is no tool 'setup'"),
        ({"function": 3}, "the call's function must be an object"),
        (None, "a tool call must be an object, not null"),
        ("add", "a tool call must be an object, not a text"),
    ],
)
def test_a_call_that_no_tool_can_take_is_told_and_changes_nothing(call: Any, says: str) -> None:
    env = Account()
    env.reset(options={"task": 0})
    observation, reward, terminated, truncated, _ = env.step({"role": "assistant", "content": "", "tool_calls": [call]})
    (message,) = observation
    assert message["role"] == "tool"
    assert message["content"].startswith("Error: ")
    assert says in message["content"]
    assert (env.balance, env.turns, reward, terminated, truncated) == (10, 1, 0.0, False, False)
    assert env.observation_space.contains(observation)


def test_tool_calls_that_are_no_list_are_told() -> None:
    env = Account()
    env.reset()
    observation, *_ = env.step({"role": "assistant", "content": "", "tool_calls": {"name": "add"}})
    assert "tool_calls must be a list" in observation[0]["content"]


def test_arguments_may_be_json_text_as_the_openai_api_has_them() -> None:
    env = Account()
    env.reset(options={"task": 0})
    env.step(calls(("add", '{"amount": 3}')))
    assert env.balance == 13


def test_a_tool_error_is_an_answer_and_another_exception_a_fault() -> None:
    env = Account()
    env.reset(options={"task": 0})
    observation, *_ = env.step(calls(("take", {"amount": 11})))
    assert observation[0]["content"] == "Error: there is not as much"
    assert env.turn is not None
    assert env.turn.valid
    with pytest.raises(RuntimeError, match="a bug in the tool"):
        env.step(calls(("crash", {})))
    with pytest.raises(gymnasium.error.ResetNeeded, match="broke the episode off"):
        env.step(calls(("done", {})))
    env.reset()
    assert env.step(calls(("done", {})))[2]


def test_calls_after_the_end_are_not_run() -> None:
    env = Account()
    env.reset(options={"task": 0})
    observation, *_ = env.step(calls(("done", {}), ("add", {"amount": 1})))
    assert observation[1]["content"] == "Not run: the episode ended with the call before."
    assert env.balance == 10


def test_step_wants_a_reset_first_and_after_the_end() -> None:
    env = Account()
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset before step"):
        env.step("hello")
    env.reset()
    env.step(calls(("done", {})))
    with pytest.raises(gymnasium.error.ResetNeeded, match="has ended"):
        env.step("hello")
    env.reset()
    env.close()
    env.close()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("hello")


@pytest.mark.parametrize("action", [3, None, ["add"], {"role": "user", "content": "hello"}])
def test_what_is_no_assistant_message_is_refused_and_the_episode_goes_on(action: Any) -> None:
    env = Account()
    env.reset()
    with pytest.raises(gymnasium.error.InvalidAction):
        env.step(action)
    assert env.turns == 0
    env.step("still here")


def test_text_alone_asks_for_a_call_or_ends() -> None:
    class Ends(Account):
        without_call = "end"

    env = Account()
    env.reset()
    observation, _, terminated, *_ = env.step("I think.")
    assert observation == [{"role": "user", "content": "Call a tool: add, take, done, crash."}]
    assert not terminated
    env = Ends()
    env.reset()
    observation, reward, terminated, *_ = env.step({"role": "assistant", "content": [{"type": "text", "text": "Bye."}]})
    assert (observation, terminated) == ([], True)
    assert reward == env.balance


def test_hooks_see_the_text_and_the_turn() -> None:
    class Parrot(ToolEnv):
        seen: list[tuple[str, bool]]

        def setup(self, task: Task) -> None:
            self.seen = []

        def prompt(self, task: Task) -> list[dict[str, Any]]:
            return [{"role": "user", "content": "Speak."}]

        def on_text(self, text: str) -> str | None:
            return text.upper() if text else None

        def after_turn(self, turn: Turn) -> str | None:
            self.seen.append((turn.text, turn.valid))
            if len(self.seen) == 2:
                self.finish()
                return "Enough."
            return None

    env = Parrot()
    assert env.reset()[0] == [{"role": "user", "content": "Speak."}]
    assert env.step("polly")[0] == [{"role": "user", "content": "POLLY"}]
    observation, _, terminated, _, info = env.step("")
    assert (observation, terminated, info) == ([{"role": "user", "content": "Enough."}], True, {})
    assert env.seen == [("polly", False), ("", False)]


@pytest.mark.parametrize(
    ("limit", "value", "steps"), [("max_turns", 2, 2), ("max_calls", 3, 2), ("max_characters", 100, 2)]
)
def test_a_budget_truncates_and_is_named(limit: str, value: int, steps: int) -> None:
    env = Account()
    setattr(env, limit, value)
    env.reset(options={"task": 0})
    for _ in range(steps - 1):
        *_, truncated, info = env.step(calls(("add", {"amount": 1}), ("add", {"amount": 1})))
        assert not truncated
    observation, reward, terminated, truncated, info = env.step(calls(("add", {"amount": 1}), ("add", {"amount": 1})))
    assert (terminated, truncated, info["limit"]) == (False, True, limit)
    assert reward == env.balance == (13 if limit == "max_calls" else 14)
    if limit == "max_calls":
        assert observation[1]["content"] == "Not run: 3 calls were made already."


def test_an_episode_that_ends_in_its_last_turn_is_not_truncated() -> None:
    env = Account()
    env.max_turns = 1
    env.reset()
    _, _, terminated, truncated, info = env.step(calls(("done", {})))
    assert (terminated, truncated, "limit" in info) == (True, False, False)


def test_tasks_are_chosen_by_option_default_and_seed() -> None:
    env = Account(task=2)
    assert env.reset()[1] == {"task": 2, "split": "train"}
    assert env.reset(options={"task": 0})[1]["task"] == 0
    assert env.reset(options={"split": "test", "task": 0})[1] == {"task": 0, "split": "test"}
    assert Account(task=0, split="test").reset()[1] == {"task": 0, "split": "test"}
    drawn = {Account().reset(seed=seed)[1]["task"] for seed in range(50)}
    assert drawn == {0, 1, 2}


def test_a_seed_decides_the_episodes_that_follow_too() -> None:
    def played() -> list[int]:
        env = Account()
        return [env.reset(seed=seed)[1]["task"] for seed in (123, *[None] * 20)]

    assert played() == played()
    env = Account()
    for seed in (7, None):
        env.reset(seed=seed)
        assert env.reset_seed == seed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": 3}, "split 'train': there is no task 3: they are 0 to 2"),
        ({"task": -1}, "a task's index is 0 or more"),
        ({"task": "first"}, "index of a task, not 'first'"),
        ({"split": "validation"}, "there is no split 'validation': the splits are train, test"),
    ],
)
def test_a_task_that_is_not_there_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Account().reset(options=options)


def test_without_tasks_a_task_is_refused() -> None:
    class Plain(ToolEnv):
        def prompt(self, task: Task) -> str:
            assert task == {}
            return "Hello."

    assert Plain().reset() == ([{"role": "user", "content": "Hello."}], {})
    with pytest.raises(ValueError, match="no tasks to choose from"):
        Plain().reset(options={"task": 0})


def test_tasks_may_be_made_by_a_method() -> None:
    class Sized(Account):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def tasks(self) -> dict[str, Tasks]:
            return {"all": Tasks.generate(lambda index: {"start": index}, self.count)}

    assert [Sized(count).splits["all"].size for count in (1, 5)] == [1, 5]
    assert Sized(5).reset(options={"task": 4})[0][1]["content"] == "The balance is 4."


def test_each_reset_frees_what_the_episode_before_it_held() -> None:
    class Holds(Account):
        held = 0

        def setup(self, task: Task) -> None:
            super().setup(task)
            Holds.held += 1
            if task["start"] == 30:
                raise OSError("setup failed half-way")

        def teardown(self) -> None:
            Holds.held -= 1

    env = Holds()
    env.close()
    env.reset(options={"task": 0})
    env.reset(options={"task": 0})
    assert Holds.held == 1
    with pytest.raises(OSError, match="half-way"):
        env.reset(options={"task": 2})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("hello")
    env.close()
    env.close()
    assert Holds.held == 0


def test_messages_of_a_task_are_copied() -> None:
    class Quotes(ToolEnv):
        tasks = {"train": [{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello."}]}]}]}

        def prompt(self, task: Task) -> Any:
            return task["messages"]

    env = Quotes()
    env.reset()[0][0]["content"][0]["text"] = "Spoilt."
    assert env.reset()[0][0]["content"][0]["text"] == "Hello."


def test_a_prompt_is_asked_for_by_name() -> None:
    with pytest.raises(NotImplementedError, match=r"prompt\(task\)"):
        ToolEnv().reset()
