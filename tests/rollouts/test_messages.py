"""What travels between the rollout service and its clients comes out as it went in."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymhost.client import DecodeError, InvalidArgument
from gymhost.rollout import Limits, RolloutRequest, Sampling, Trajectory
from gymhost.rollout.service.messages import (
    from_limits,
    from_result,
    from_sampling,
    from_task,
    to_limits,
    to_result,
    to_sampling,
    to_task,
)
from gymhost.rollout.trajectory import SCHEMA
from gymhost.v1 import rollouts_pb2 as pb
from support.trajectories import row, trajectories, trajectory

any_text = st.text(st.characters(), max_size=6)  # with halves of surrogate pairs
plain_text = st.text(max_size=6)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | any_text | st.binary()
maps = st.dictionaries(
    any_text,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner), max_leaves=6),
    max_size=3,
)


def over_the_wire(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


@given(trajectories())
def test_any_trajectory_comes_out_as_a_store_would_have_it(made: Trajectory):
    found = from_result(over_the_wire(to_result(made)))
    assert found == Trajectory.model_validate_json(made.model_dump_json())
    assert [each.model_dump_json() for each in found.token_rows] == [each.model_dump_json() for each in made.token_rows]


def test_numbers_are_exact_and_texts_are_whatever_they_are():
    made = trajectory(
        token_rows=[row([1], [2, 3, 4, 5], [6], [7])],
        reward=None,
        group="\ud800",
        labels={"\udfff": "\ud83d"},
        messages=[{"role": "user", "content": "half a pair: \ud83d"}],
    )
    odd = [0.1 + 0.2, -math.inf, math.nextafter(-1.0, 0.0), -5e-324, 0.0, -0.0]
    made.token_rows[0].logprobs[:] = odd
    found = from_result(over_the_wire(to_result(made)))
    assert [each.hex() for each in found.logprobs] == [each.hex() for each in odd]
    assert (found.reward, found.turns[1].reward, found.rewards) == (None, None, {"won": 1.0, "style": None})
    assert {type(each) for each in found.mask} == {int}
    assert found.model_dump_json() == made.model_dump_json()  # a store, a viewer, a trainer sees no difference
    assert (found.group, found.labels) == ("\\ud800", {"\\udfff": "\\ud83d"})


def test_results_that_are_none_are_refused():
    good = to_result(trajectory())
    for change, word in (
        (pb.Result(schema=SCHEMA + 1), "update it"),
        (pb.Result(record=b"{"), "no trajectory"),
        (pb.Result(rows=[pb.TokenRow(completion_ids=[1])]), "different lengths"),
    ):
        result = over_the_wire(good)
        result.MergeFrom(change)
        with pytest.raises(DecodeError, match=word):
            from_result(result)


@given(
    st.builds(
        RolloutRequest,
        plain_text,
        task=st.none() | st.integers(0, 2**64 - 1),
        seed=st.none() | st.integers(-(2**63), 2**63 - 1),
        split=st.none() | plain_text.filter(bool),
        kwargs=maps,
        options=maps,
        labels=maps,
        group=st.none() | plain_text.filter(bool),
    ),
    st.integers(0, 2**31),
)
def test_any_request_comes_out_with_a_place(request: RolloutRequest, place: int):
    found = from_task(over_the_wire(to_task(request)), place, 3)
    assert (found.env_id, found.task, found.split, found.index) == (request.env_id, request.task, request.split, 3)
    assert repr((found.kwargs, found.options, found.labels)) == repr((request.kwargs, request.options, request.labels))
    assert found.group == (str(place) if request.group is None else request.group)
    assert found.seed == (place if request.seed is None else request.seed)


def test_tasks_that_are_none_are_refused():
    from gymhost.wire import values

    for value in (3, {4: 5}):
        with pytest.raises(InvalidArgument, match="kwargs must be a map"):
            from_task(pb.RolloutTask(environment_id="x", kwargs=values.encode(value)), 0, 0)


def test_settings_that_are_not_said_are_the_service_s():
    own = Sampling(temperature=0.3, top_k=7, stop_token_ids=(1,), seed=5)
    assert from_sampling(pb.RolloutSampling(), own) == own
    said = Sampling(temperature=0.0, top_p=0.5, top_k=0, min_p=0.25, max_tokens=3, stop_token_ids=(8, 9), seed=0)
    assert from_sampling(over_the_wire(to_sampling(said)), own) == said
    assert from_sampling(over_the_wire(to_sampling({"top_k": 0})), own) == Sampling(
        temperature=0.3, top_k=0, stop_token_ids=(1,), seed=5
    )
    limits = Limits(turns=4, step_seconds=2.0, retries=7)
    assert from_limits(pb.RolloutLimits(), limits) == limits
    assert from_limits(over_the_wire(to_limits({"retries": 0})), limits) == Limits(turns=4, step_seconds=2.0, retries=0)
    every = Limits(1, 2, 3, 4, 5, 6.0, 7.0, 8.0, 9.0, 10.0, 11)
    assert from_limits(over_the_wire(to_limits(every)), limits) == every


@pytest.mark.parametrize("message", [pb.RolloutLimits(attempts=0), pb.RolloutLimits(turns=0)])
def test_limits_that_make_no_sense(message: pb.RolloutLimits):
    with pytest.raises(InvalidArgument, match="must be"):
        from_limits(message, Limits())


def test_sampling_that_makes_no_sense():
    with pytest.raises(InvalidArgument, match="must be"):
        from_sampling(pb.RolloutSampling(top_p=2.0), Sampling())
