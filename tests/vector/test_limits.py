"""Limits of a vector environment's copies."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gymhost.client import SessionLost, make_vec
from support.server import PATIENCE, ServerProcess


@pytest.mark.parametrize("env_id", ["test/Fateful-v0", "test/FatefulInline-v0"])
@pytest.mark.parametrize("autoreset_mode", ["NextStep", "SameStep"])
def test_a_reset_within_a_step_has_the_limit_of_resets(
    env_id: str, autoreset_mode: str, start_server: Callable[..., ServerProcess], tmp_path: Path
):
    server = start_server(workers=1)
    env = make_vec(env_id, 2, server=server.address, autoreset_mode=autoreset_mode, folder=str(tmp_path))
    env.reset(seed=0)
    with pytest.raises(SessionLost, match=rf"reset of {env_id} ran past its limit \(reset_timeout=2.0 s\)"):  # noqa: PT012
        while True:  # the second reset of the second copy is the fourth
            env.step(np.array([0, 1]))
    hung = np.fromfile(tmp_path / "resets")[3]
    assert 2.0 <= time.monotonic() - hung < 2.0 + PATIENCE / 2
    env.close()


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
def test_the_limit_of_a_step_is_one_copys(start_server: Callable[..., ServerProcess], direct: bool):
    # Five copies in one shard take half a second each, which is longer than one step may take.
    server = start_server(workers=1)
    env = make_vec("test/SlowWithin-v0", 5, server=server.address, direct=direct)
    env.reset()
    observations, *_ = env.step(np.full(5, 0.5))
    assert observations.tolist() == [1] * 5
    with pytest.raises(SessionLost, match=r"step of test/SlowWithin-v0 ran past its limit \(step_timeout=2.0 s\)"):
        env.step(np.array([0.0, 0.0, 600.0, 0.0, 0.0]))
    env.close()
