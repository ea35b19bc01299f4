import inspect
from typing import Any

import numpy as np
import pytest
from gymnasium import Space
from gymnasium import spaces as gs
from hypothesis import given
from hypothesis import strategies as st

from gymhost.wire import spaces, values
from gymhost.wire.chat_spaces import FreeText, Message, Messages
from gymhost.wire.errors import EncodeError
from support import strategies
from support.compare import assert_same, assert_same_space

HAS_DTYPES = "dtype" in inspect.signature(gs.Discrete).parameters


@given(strategies.spaces())
def test_whatever_space_comes_back_as_it_was(space: Space[Any]):
    assert_same_space(spaces.loads(spaces.dumps(space)), space)


@pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")  # Gymnasium's, for boxes without dimensions
@given(strategies.spaces(), st.integers(0, 1000))
def test_samples_agree_travel_and_are_contained(space: Space[Any], seed: int):
    decoded = spaces.loads(spaces.dumps(space))
    space.seed(seed)
    decoded.seed(seed)
    for _ in range(2):
        sample: Any = space.sample()
        assert_same(decoded.sample(), sample)
        received = values.loads(values.dumps(sample))
        assert_same(received, sample)
        assert space.contains(received) == decoded.contains(received) == space.contains(sample)
        assert decoded.contains(received)


EXTREMES = [
    gs.Box(0, 255, (210, 160, 3), np.uint8),
    gs.Box(-np.inf, np.inf, (2,), np.int64),
    gs.Box(np.array([-np.inf, 0]), np.array([1, 1]), dtype=np.int64),
    gs.Box(np.array([-np.inf, 0]), np.array([1, np.inf]), dtype=np.int32),
    gs.Box(0, np.iinfo(np.uint64).max, (2,), np.uint64),
    gs.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    gs.Box(np.array([0, 2**63 + 1], np.uint64), np.full(2, 2**64 - 1, np.uint64), dtype=np.uint64),
    gs.Box(np.array([0.0, -0.0], np.float32), np.array([0.0, 0.0], np.float32)),
    gs.Box(-65504, 65504, (), np.float16),
    gs.Box(0, 1, (0, 3)),
    gs.Box(np.array([0.1, 0.2]), np.array([0.3, np.inf]), dtype=np.float64),
    gs.Discrete(2**62, start=-(2**62)),
    *([gs.Discrete(200, start=50, dtype=np.uint8)] if HAS_DTYPES else []),
    gs.MultiBinary(3),
    gs.MultiBinary((3,)),
    gs.MultiBinary(np.array([2, 3])),
    gs.MultiDiscrete(np.array(5)),
    gs.MultiDiscrete(np.array([[1, 2], [3, 4]]), start=np.array([[0, -1], [1, 1]])),
    gs.Text(2**40, min_length=0, charset="zaé😀\n"),
    gs.Tuple(()),
    gs.Dict(),
    gs.Dict([("b", gs.Discrete(2)), ("a", gs.Discrete(3))]),
    gs.Dict({1: gs.Discrete(2), "a": gs.Discrete(3), (2, None): gs.Discrete(4)}),  # type: ignore[dict-item]
    gs.Sequence(gs.Dict(a=gs.Box(0, 1, (2,)), b=gs.Discrete(2)), stack=True),
    gs.Graph(gs.Box(0, 1, (2,)), None),
    gs.Graph(gs.Discrete(2, start=1), gs.Box(0, 1, (2,))),
    gs.OneOf([gs.Discrete(2), gs.OneOf([FreeText(), Message(["user"])])]),
    gs.Tuple([FreeText(3), Messages()]),
]


@pytest.mark.parametrize("space", EXTREMES, ids=repr)
def test_hard_cases_come_back_as_they_were(space: Space[Any]):
    assert_same_space(spaces.loads(spaces.dumps(space)), space)


def test_the_bounds_of_an_image_travel_as_two_numbers():
    assert len(spaces.dumps(gs.Box(0, 255, (210, 160, 3), np.uint8))) < 64


def test_boxes_too_large_to_be_made_from_a_few_bytes_travel_with_every_bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spaces, "_MAX_COMPACT", 1000)
    space = gs.Tuple([gs.Box(0, 1, (150,), np.int8)] * 2)
    encoded = spaces.encode(space)
    assert [len(part.box.low.data) for part in encoded.tuple.spaces] == [1, 150]
    assert spaces.decode(encoded) == space


class Custom(Space[int]):
    pass


class Switches(gs.MultiBinary):
    pass


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Custom(), "space: a Custom can't travel; the spaces of Gymnasium and of gymhost can"),
        (
            gs.Tuple([gs.Discrete(2), Switches(3)]),
            "space[1]: a Switches can't travel, as it would come back as a plain Mult",
        ),
        (gs.Dict(a=gs.OneOf([Custom()])), "space['a'][0]: a Custom can't travel"),
        (gs.Sequence(gs.Tuple([Custom()])), "space.feature_space[0]: a Custom can't travel"),
        (gs.Box(0, 1, (2,), np.longdouble), "space: a Box of dtype float128 can't travel"),
        (gs.Text(3, charset="a\ud800"), "space: a Text whose charset has lone surrogates can't travel"),
        (gs.Text(2**64), "space: a Text of up to 18446744073709551616 characters can't travel"),
        (gs.Dict({frozenset(): gs.Discrete(2)}), "the key frozenset() can't travel"),  # type: ignore[dict-item]
        ("no space", "space: a str is no space"),
    ],
    ids=str,
)
def test_what_cannot_travel_is_refused_with_its_path(space: Any, message: str):
    with pytest.raises(EncodeError) as caught:
        spaces.encode(space)
    assert message.split(" dtype")[0] in str(caught.value)  # the name of a long double is the platform's


def test_nesting_is_bounded():
    space: Space[Any] = gs.Discrete(2)
    for _ in range(40):
        space = gs.Tuple([space])
    assert spaces.loads(spaces.dumps(space)) == space
    with pytest.raises(EncodeError, match="nested more than 40 deep"):
        spaces.encode(gs.Tuple([space]))


def test_stacking_is_bounded_since_its_work_doubles_with_each_level():
    space: Space[Any] = gs.Discrete(2)
    for _ in range(4):
        space = gs.Sequence(space, stack=True)
    assert spaces.loads(spaces.dumps(space)) == space
    with pytest.raises(EncodeError, match="stacked Sequence spaces nested more than 4 deep"):
        spaces.encode(gs.Sequence(space, stack=True))
