import copy
import pickle
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import Space
from gymnasium import spaces as gs
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, concatenate, create_empty_array, iterate

from gymhost.wire.chat_spaces import FreeText, Message, Messages

CALL: dict[str, Any] = {"id": "call_0", "type": "function", "function": {"name": "guess", "arguments": {"number": 4}}}
SPACES = [FreeText(), FreeText(5), Message(), Message(["tool"]), Messages(), Messages(("assistant", "user"))]


def assistant(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", **more}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": "Guess."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "image", "image": np.zeros(3)}]},
        {"role": "user", "content": [], "name": "Ada"},
        {"role": "tool", "content": "Too low", "tool_call_id": "call_0", "name": "guess"},
        assistant(),
        assistant(reasoning_content="Halve it.", tool_calls=[CALL, CALL]),
        assistant(tool_calls=[]),
        assistant(tool_calls=[CALL | {"function": {"name": "", "arguments": '{"number": '}}]),
        assistant(tool_calls=[CALL | {"function": {"name": "guess", "arguments": [4]}}]),
    ],
)
def test_valid_messages_are_contained(message: dict[str, Any]):
    assert message in Message()
    assert message in Message([message["role"]])
    assert [message, message] in Messages()


@pytest.mark.parametrize(
    "message",
    [
        "text",
        None,
        {},
        {"role": "user"},
        {"content": "no role"},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": "user", "content": ["text"]},
        {"role": "user", "content": [{"text": "no type"}]},
        {"role": "wizard", "content": ""},
        {"role": None, "content": ""},
        {"role": ["user"], "content": ""},
        {"role": "user", "content": "", "extra": 1},
        {"role": "user", "content": "", 5: "a"},
        {"role": "user", "content": "", "name": None},
        {"role": "user", "content": "", "tool_calls": [CALL]},
        {"role": "user", "content": "", "tool_call_id": "call_0"},
        {"role": "system", "content": "", "reasoning_content": ""},
        assistant(tool_call_id="call_0"),
        assistant(tool_calls=CALL),
        assistant(tool_calls=["guess(4)"]),
        assistant(tool_calls=[CALL | {"id": 0}]),
        assistant(tool_calls=[CALL | {"type": "code"}]),
        assistant(tool_calls=[CALL | {"index": 0}]),
        assistant(tool_calls=[CALL | {"function": "guess"}]),
        assistant(tool_calls=[CALL | {"function": {"name": "guess"}}]),
        assistant(tool_calls=[CALL | {"function": {"name": None, "arguments": {}}}]),
    ],
)
def test_other_things_are_no_messages(message: Any):
    assert message not in Message()
    assert [message] not in Messages()


def test_roles_limit_what_is_contained():
    user, tool = {"role": "user", "content": ""}, {"role": "tool", "content": ""}
    assert user not in Message(["tool"])
    assert [tool, user] not in Messages(["tool"])
    assert [tool, tool] in Messages(["tool"])


def test_messages_are_a_list_that_may_be_empty():
    assert [] in Messages()
    assert () not in Messages()
    assert {"role": "user", "content": ""} not in Messages()


def test_free_text_is_any_text_up_to_its_length():
    for text in ("", "a" * 10**6, "😀\x00\ud800", np.str_("a")):
        assert text in FreeText()
    assert "😀" * 5 in FreeText(5)
    assert "😀" * 6 not in FreeText(5)
    for other in (None, b"a", 5, ["a"]):
        assert other not in FreeText()


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_samples_are_members_and_follow_the_seed(space: Space[Any]):
    space.seed(3)
    samples = [space.sample() for _ in range(50)]
    assert all(sample in space for sample in samples)
    space.seed(3)
    assert [space.sample() for _ in range(50)] == samples
    assert any(sample != samples[0] for sample in samples)


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_samples_take_no_mask(space: Space[Any]):
    with pytest.raises(gymnasium.error.Error, match="takes no mask"):
        space.sample(mask=np.ones(3, np.int8))
    with pytest.raises(gymnasium.error.Error, match="takes no mask and no probability"):
        space.sample(probability=np.ones(3))
    assert gs.Tuple([space]).sample(mask=(None,))[0] in space


def test_equality_is_of_kind_and_limits():
    for i, space in enumerate(SPACES):
        assert [space == other for other in SPACES] == [i == j for j in range(len(SPACES))]
    assert FreeText(5) == FreeText(5)
    assert FreeText(5) != FreeText(6)
    assert Message(["user", "tool"]) == Message(("user", "tool", "user"))
    assert Message() != Messages()
    assert Message() != "Message()"


def test_spaces_print_as_they_are_made():
    assert [repr(space) for space in SPACES] == [
        "FreeText()",
        "FreeText(5)",
        "Message()",
        "Message(['tool'])",
        "Messages()",
        "Messages(['assistant', 'user'])",
    ]


@pytest.mark.parametrize(
    "make", [lambda: FreeText(0), lambda: FreeText(-1), lambda: Message([]), lambda: Messages(["wizard"])]
)
def test_limits_that_allow_nothing_are_refused(make: Callable[[], Any]):
    with pytest.raises(ValueError, match=r"max_length is the most characters|roles are some of system, user"):
        make()


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_spaces_can_be_copied(space: Space[Any]):
    space.seed(1)
    for made in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert made == space
    twin = copy.deepcopy(space)
    assert twin.sample() == space.sample()


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_they_batch_into_tuples(space: Space[Any]):
    batched = batch_space(space, 3)
    assert batched == gs.Tuple([space] * 3)
    samples = batched.sample()
    assert list(iterate(batched, samples)) == list(samples)
    assert concatenate(space, samples, create_empty_array(space, 3)) == samples
    assert batch_differing_spaces([space, space]) == gs.Tuple([space, space])
    empty = create_empty_array(space, n=2)
    assert isinstance(empty, tuple)
    assert len(empty) == 2
    assert empty in batch_space(space, 2)


def test_they_batch_within_a_dict():
    space = gs.Dict({"text": FreeText(), "number": gs.Discrete(5)})
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    together: Any = concatenate(space, samples, create_empty_array(space, 3))
    assert together["text"] == tuple(sample["text"] for sample in samples)
    assert together in batch_space(space, 3)
    assert [item["text"] for item in iterate(batch_space(space, 3), together)] == list(together["text"])


def test_they_stay_as_they_are_where_the_rest_is_flattened():
    space = gs.Dict({"text": FreeText(), "messages": Messages(), "number": gs.Discrete(3)})
    assert not FreeText().is_np_flattenable
    assert not space.is_np_flattenable
    flat: Any = flatten_space(space)
    assert flat["text"] == FreeText()
    sample = space.sample()
    flattened: Any = flatten(space, sample)
    assert flattened["text"] == sample["text"]
    assert flattened in flat
    assert unflatten(space, flattened) == sample


class Conversation(gymnasium.Env[list[dict[str, Any]], dict[str, Any]]):
    """Answers each message with what it said."""

    metadata = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space = Messages(["user"])
        self.action_space = Message(["assistant"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return [{"role": "user", "content": f"Say {self.np_random.integers(10)}."}], {}

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return [{"role": "user", "content": action["content"]}], 0.0, False, False, {}


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
def test_gymnasiums_checker_accepts_them():
    check_env(Conversation(), skip_render_check=True, skip_close_check=True)


def test_gymnasiums_vector_environment_steps_them():
    envs = SyncVectorEnv([Conversation] * 2)
    assert envs.observation_space == gs.Tuple([Messages(["user"])] * 2)
    observations, _ = envs.reset(seed=1)
    assert observations in envs.observation_space
    actions = envs.action_space.sample()
    observations, *_ = envs.step(actions)
    assert [messages[0]["content"] for messages in observations] == [action["content"] for action in actions]
    envs.close()
