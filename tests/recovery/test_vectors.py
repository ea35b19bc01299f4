"""Vector environments whose lost copies are replaced, and say so."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from gymhost.client import InvalidArgument, RemoteVectorEnv, SessionLost, make_vec
from support.killing import kill
from support.server import PATIENCE, ServerProcess

GO, DIE = 0, 1
LOST = [False, False, True, True]

MakeEnvs = Callable[..., RemoteVectorEnv]


@pytest.fixture(params=[True, False], ids=["direct", "grpc"])
def make_envs(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[MakeEnvs]:
    """Makes four copies in shards, the last on another worker than the first."""
    made: list[RemoteVectorEnv] = []

    def begin(mode: AutoresetMode, **how: Any) -> RemoteVectorEnv:
        how = {"shards": 2, "on_lost": "truncate", "direct": request.param, **how}
        deadline = time.monotonic() + PATIENCE
        while True:
            envs = make_vec("test/Episodes-v0", 4, server=server.address, autoreset_mode=mode, **how)
            made.append(envs)
            processes = envs.reset()[1]["process"]
            if how["shards"] == 1 or processes[0] != processes[3]:
                return envs
            # The worker that the test before has killed is not replaced yet.
            assert time.monotonic() < deadline
            made.pop().close()
            time.sleep(0.05)

    yield begin
    for envs in made:
        envs.close()


def counts(observations: Any) -> list[int]:
    return observations[:, 0].astype(int).tolist()


def lose(envs: RemoteVectorEnv, processes: Any, *, meanwhile: bool) -> Any:
    """Takes a step in which the second shard is lost: by what it does, or before it."""
    if meanwhile:
        return envs.step([GO, GO, GO, DIE])
    kill(int(processes[3]))
    return envs.step([GO] * 4)


@pytest.mark.parametrize("meanwhile", [True, False])
def test_lost_copies_are_truncated_and_reset_in_the_next_step(make_envs: MakeEnvs, meanwhile: bool) -> None:
    envs = make_envs(AutoresetMode.NEXT_STEP)
    envs.reset(seed=1)
    before, *_, infos = envs.step([GO] * 4)
    assert "lost" not in infos
    observations, rewards, terminations, truncations, infos = lose(envs, infos["process"], meanwhile=meanwhile)
    assert counts(observations) == [2, 2, 1, 1]
    assert np.array_equal(observations[2:], before[2:])
    assert rewards.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert terminations.tolist() == [False] * 4
    assert truncations.tolist() == infos["lost"].tolist() == infos["_lost"].tolist() == LOST
    assert infos["_process"].tolist() == [True, True, False, False]
    observations, rewards, terminations, truncations, infos = envs.step([GO] * 4)
    assert counts(observations) == [3, 3, 0, 0]
    assert rewards.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert truncations.tolist() == terminations.tolist() == [False] * 4
    assert "lost" not in infos
    observations, rewards, terminations, truncations, _ = envs.step([GO] * 4)
    assert counts(observations) == [4, 4, 1, 1]
    assert rewards.tolist() == [1.0] * 4
    assert terminations.tolist() == [True, True, False, False]
    assert counts(envs.step([GO] * 4)[0]) == [0, 0, 2, 2]


@pytest.mark.parametrize("meanwhile", [True, False])
def test_lost_copies_are_truncated_and_reset_in_the_same_step(make_envs: MakeEnvs, meanwhile: bool) -> None:
    envs = make_envs(AutoresetMode.SAME_STEP)
    envs.reset(seed=1)
    before, *_, infos = envs.step([GO] * 4)
    observations, rewards, terminations, truncations, infos = lose(envs, infos["process"], meanwhile=meanwhile)
    assert counts(observations) == [2, 2, 0, 0]
    assert rewards.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert terminations.tolist() == [False] * 4
    assert truncations.tolist() == infos["lost"].tolist() == infos["_final_obs"].tolist() == LOST
    assert infos["final_obs"][0] is None
    assert np.array_equal(np.stack(infos["final_obs"][2:]), before[2:])
    assert infos["final_info"]["lost"].tolist() == infos["final_info"]["_lost"].tolist() == LOST
    assert infos["_process"].tolist() == [True] * 4
    observations, rewards, _, truncations, infos = envs.step([GO] * 4)
    assert counts(observations) == [3, 3, 1, 1]
    assert rewards.tolist() == [1.0] * 4
    assert truncations.tolist() == [False] * 4
    assert "lost" not in infos


@pytest.mark.parametrize("meanwhile", [True, False])
def test_lost_copies_are_truncated_and_left_to_their_owner_to_reset(make_envs: MakeEnvs, meanwhile: bool) -> None:
    envs = make_envs(AutoresetMode.DISABLED)
    envs.reset(seed=1)
    before, *_, infos = envs.step([GO] * 4)
    observations, rewards, terminations, truncations, infos = lose(envs, infos["process"], meanwhile=meanwhile)
    assert np.array_equal(observations[2:], before[2:])
    assert rewards.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert truncations.tolist() == infos["lost"].tolist() == LOST
    observations, _ = envs.reset(options={"reset_mask": truncations | terminations})
    assert counts(observations) == [2, 2, 0, 0]
    assert counts(envs.step([GO] * 4)[0]) == [3, 3, 1, 1]


def test_a_reset_begins_anew_whatever_was_lost(make_envs: MakeEnvs) -> None:
    envs = make_envs(AutoresetMode.NEXT_STEP)
    first, infos = envs.reset(seed=1)
    kill(int(infos["process"][3]))
    again, infos = envs.reset(seed=1)
    assert np.array_equal(first, again)
    assert "lost" not in infos
    assert counts(envs.step([GO] * 4)[0]) == [1] * 4


def test_the_first_to_finish_are_replaced_too(make_envs: MakeEnvs) -> None:
    envs = make_envs(AutoresetMode.NEXT_STEP, shards=4, batch_size=2)
    envs.async_reset(seed=1)
    received = np.concatenate([envs.recv()[4]["env_id"], envs.recv()[4]["env_id"]])
    assert sorted(received.tolist()) == [0, 1, 2, 3]
    envs.send([GO, DIE], [0, 3])
    # The other one of the same worker is lost, too, and found to be so when it is sent something.
    observations, _, _, truncations, infos = envs.recv()
    died = infos["env_id"].tolist().index(3)
    assert bool(truncations[died])
    assert bool(infos["lost"][died])
    assert counts(observations)[died] == 0
    for _ in range(3):
        envs.send([GO, GO], [0, 1])
        envs.recv()
        envs.send([GO, GO], [2, 3])
        envs.recv()


def test_copies_that_are_lost_again_and_again_are_given_up(make_envs: MakeEnvs) -> None:
    envs = make_envs(AutoresetMode.DISABLED, shards=1)
    envs.reset(seed=1)
    for _ in range(3):
        *_, truncations, _ = envs.step([GO, GO, GO, DIE])
        assert truncations.tolist() == [True] * 4
        envs.reset(options={"reset_mask": truncations})
    with pytest.raises(SessionLost, match="killed by SIGKILL"):
        envs.step([GO, GO, GO, DIE])


def test_by_default_a_loss_is_raised(make_envs: MakeEnvs) -> None:
    envs = make_envs(AutoresetMode.NEXT_STEP, on_lost="raise")
    envs.reset(seed=1)
    with pytest.raises(SessionLost, match="killed by SIGKILL"):
        envs.step([GO, GO, GO, DIE])
    with pytest.raises(InvalidArgument, match="on_lost is 'raise' or 'truncate', not 'ignore'"):
        make_envs(AutoresetMode.NEXT_STEP, on_lost="ignore")
