"""`send` and `recv`: working on the copies that have finished while others have not."""

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from numpy.typing import NDArray

from gymhost.client import EnvironmentFault, InvalidArgument, RemoteVectorEnv
from support.compare import assert_same
from support.vectors import Remote

COPIES = 4
GO, WAIT = 0, 1


class Gates:
    """The named pipes that copies of `test/Gated-v0` wait for.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for number in range(COPIES):
            os.mkfifo(folder / str(number))

    @contextlib.contextmanager
    def opened(self, *numbers: int) -> Generator[None]:
        """Lets copies go on whose step waits, or will."""
        with contextlib.ExitStack() as stack:
            for number in numbers:
                pipe = os.open(self._folder / str(number), os.O_RDWR)
                stack.callback(os.close, pipe)
                os.write(pipe, b".")
            yield


@pytest.fixture
def gates(tmp_path: Path) -> Gates:
    return Gates(tmp_path)


@pytest.fixture(params=[1, 2])
def batch_size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def env(remote: Remote, gates: Gates, tmp_path: Path, batch_size: int) -> Iterator[RemoteVectorEnv]:
    env = remote.make_vec("test/Gated-v0", COPIES, shards=None, batch_size=batch_size, folder=str(tmp_path))
    env.reset(seed=0)
    yield env
    with gates.opened(*range(COPIES)):
        env.close()


def everybody(action: int) -> NDArray[np.int64]:
    return np.full(COPIES, action)


@pytest.mark.parametrize("batch_size", [1], indirect=True)
def test_the_first_to_finish_come_first(env: RemoteVectorEnv, gates: Gates):
    env.send(everybody(WAIT), np.arange(COPIES))
    for number in (2, 0, 3):
        with gates.opened(number):
            observations, rewards, terminations, truncations, infos = env.recv()
        assert_same(infos["env_id"], np.array([number]))
        assert_same(observations, np.array([1]))
        assert_same(rewards, np.array([1.0]))
        assert_same(terminations, np.array([False]))
        assert_same(truncations, np.array([False]))


@pytest.mark.parametrize("batch_size", [2], indirect=True)
def test_others_go_on_while_some_wait(env: RemoteVectorEnv, gates: Gates):
    env.send(everybody(WAIT), np.arange(COPIES))
    with gates.opened(1, 3):
        first = env.recv()
    assert sorted(first[4]["env_id"]) == [1, 3]
    for number in range(2, 6):
        env.send(np.full(2, GO))  # to those that were received last
        observations, *_, infos = env.recv()
        assert sorted(infos["env_id"]) == [1, 3]
        assert_same(observations, np.full(2, number))
    with gates.opened(0, 2):
        observations, *_, infos = env.recv()
    assert sorted(infos["env_id"]) == [0, 2]
    assert_same(observations, np.full(2, 1))


def test_a_reset_that_is_received(env: RemoteVectorEnv, batch_size: int):
    env.async_reset(seed=0)
    seen: list[int] = []
    while len(seen) < COPIES:
        observations, rewards, terminations, truncations, infos = env.recv()
        assert_same(observations, np.zeros(batch_size, np.int64))
        assert_same(rewards, np.zeros(batch_size))
        assert_same(terminations, np.zeros(batch_size, np.bool_))
        assert_same(truncations, np.zeros(batch_size, np.bool_))
        seen.extend(infos["env_id"])
    assert sorted(seen) == list(range(COPIES))


def test_all_at_once_is_what_step_does(env: RemoteVectorEnv, batch_size: int):
    assert_same(env.step(everybody(GO))[0], np.ones(COPIES, np.int64))
    env.send(everybody(GO), np.arange(COPIES))
    received = [env.recv() for _ in range(COPIES // batch_size)]
    assert_same(np.concatenate([batch[0] for batch in received]), np.full(COPIES, 2))
    assert sorted(np.concatenate([batch[4]["env_id"] for batch in received])) == list(range(COPIES))
    assert_same(env.step(everybody(GO))[0], np.full(COPIES, 3))


def test_what_is_out_of_turn(env: RemoteVectorEnv, gates: Gates, batch_size: int):
    with pytest.raises(NoAsyncCallError, match="send"):
        env.recv()
    env.send(everybody(WAIT), np.arange(COPIES))
    for act in (
        env.reset,
        env.async_reset,
        env.render,
        lambda: env.step(everybody(GO)),
        lambda: env.send(np.array([GO]), [0]),
        lambda: env.call("spec"),
    ):
        with pytest.raises(AlreadyPendingCallError):
            act()
    with gates.opened(*range(COPIES)):
        for _ in range(COPIES // batch_size):
            env.recv()
    env.reset(seed=0)


@pytest.mark.parametrize("env_ids", [[COPIES], [-1], [1.5], [[0]], [0, 0]], ids=str)
def test_copies_that_are_none(env: RemoteVectorEnv, env_ids: list[Any]):
    with pytest.raises((InvalidArgument, AlreadyPendingCallError)):
        env.send(np.full(len(env_ids), GO), env_ids)
    env.reset(seed=0)


@pytest.mark.parametrize("copy", range(COPIES))
def test_a_fault_comes_with_the_copy_that_it_is_of(remote: Remote, copy: int):
    env = remote.make_vec("test/Fragile-v0", COPIES, shards=None, batch_size=1)
    actions = everybody(0)
    actions[copy] = 1
    for _ in range(5):  # In which order they finish is another each time.
        env.reset(seed=0)
        env.send(actions, np.arange(COPIES))
        received: list[int] = []
        faults: list[str] = []
        for _ in range(COPIES):
            try:
                received.extend(env.recv()[4]["env_id"])
            except EnvironmentFault as fault:
                faults.append(str(fault))
        assert sorted([*received, copy]) == list(range(COPIES))
        assert len(faults) == 1
        assert "this step was told to raise" in faults[0]
    env.close()


@pytest.mark.parametrize("batch_size", [0, 5, -1], indirect=True)
def test_batches_that_cannot_be(remote: Remote, batch_size: int, tmp_path: Path):
    with pytest.raises(InvalidArgument, match="batch_size"):
        remote.make_vec("test/Gated-v0", COPIES, shards=None, batch_size=batch_size, folder=str(tmp_path))
