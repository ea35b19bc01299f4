"""Calls of some copies of a vector environment."""

import contextlib

import pytest

from gymhost.client import InvalidArgument, make_vec
from support import environments
from support.vectors import Remote


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_only_the_copies_that_are_named_are_called(direct: bool):
    with contextlib.closing(
        make_vec("test/Telling-v0", 5, shards=2, modules=[environments.__name__], direct=direct)
    ) as env:
        env.reset(seed=0)
        env.set_attr("length", [10, 20, 30, 40, 50])
        assert env.call_some([4, 0], "extend", 1, twice=True) == (52, 12)
        assert env.call_some([-2], "length") == (40,)
        assert env.call_some([], "extend", 1) == ()
        assert env.get_attr("length") == (12, 20, 30, 40, 52)
        with pytest.raises(IndexError):
            env.call_some([5], "length")
        with pytest.raises(AttributeError, match="breadth"):
            env.call_some([1], "breadth")


def test_a_vector_form_of_the_environment_s_own_is_called_as_a_whole(remote: Remote):
    with (
        contextlib.closing(remote.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point", shards=1)) as env,
        pytest.raises(InvalidArgument, match="vectorization_mode='sync'"),
    ):
        env.call_some([1], "gravity")
