# pyright: reportMissingImports=false
"""RLlib trains on a server.

Ray pins Gymnasium, so these tests have a virtual environment of their own: `make test-rllib`.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig

from gymhost.client import connect
from gymhost.trainers.rllib import configure
from support.server import PATIENCE, ServerProcess, alive, children, until, until_sessions

pytestmark = [
    pytest.mark.timeout(240),
    # RLlib gives every environment that it makes one name.
    pytest.mark.filterwarnings("ignore:.*Overriding environment rllib-single-agent-env-v0:UserWarning"),
]

BOTH = pytest.mark.parametrize("vector", [True, False], ids=["vector", "single"])

Build = Callable[[PPOConfig], Algorithm]


@pytest.fixture
def build() -> Iterator[Build]:
    """Builds algorithms that are stopped at the end: to be named last, so that their servers still run then."""
    built: list[Algorithm] = []

    def build(config: PPOConfig) -> Algorithm:
        built.append(config.build_algo())
        return built[-1]

    yield build
    for algorithm in built:
        algorithm.stop()


def ppo(env_id: str, *, batch: int = 100, runners: int = 0, **how: Any) -> PPOConfig:
    """PPO with two copies of an environment in this process, or in each of some env runners."""
    config = configure(PPOConfig(), env_id, **how)
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=2)
    config.training(train_batch_size_per_learner=batch, minibatch_size=min(batch, 125), num_epochs=6, lr=5e-4)
    return config.debugging(seed=0)


def steps(result: dict[str, Any]) -> int:
    """How many steps were sampled in all."""
    return int(result["env_runners"]["num_env_steps_sampled_lifetime"])


def pids(algorithm: Algorithm) -> list[int]:
    """The processes of the env runners that are well."""
    return algorithm.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)


def sessions(server: ServerProcess, token: str | None = None) -> int:
    """How many sessions there are on a server."""

    async def count() -> int:
        async with connect(server.address, token=token) as remote:
            return len(await remote.sessions())

    return asyncio.run(count())


@pytest.mark.parametrize(("vector", "runners"), [(True, 1), (False, 0)], ids=["vector", "single"])
def test_ppo_learns(vector: bool, runners: int, server: ServerProcess, build: Build):
    algorithm = build(ppo("CartPole-v1", batch=1000, runners=runners, server=server.address, vector=vector))
    returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(8)]
    assert returns[0] < 30
    assert returns[-1] > 60
    algorithm.stop()
    assert sessions(server) == 0


@BOTH
def test_failed_environments_are_replaced_and_training_ends_normally(
    vector: bool, start_server: Callable[..., ServerProcess], tmp_path: Path, build: Build
):
    """S29."""
    server, made = start_server(), list[float]()
    config = ppo("test/Fateful-v0", server=server.address, vector=vector, folder=str(tmp_path))
    config.fault_tolerance(restart_failed_sub_environments=True)
    config.callbacks(on_environment_created=lambda **_: made.append(time.monotonic()))
    algorithm = build(config)
    for iteration in range(3):
        assert steps(algorithm.train()) >= 100 * (iteration + 1)
    assert sessions(server) == 2
    algorithm.stop()
    assert sessions(server) == 0

    hung, raised = np.fromfile(tmp_path / "resets")[3], np.fromfile(tmp_path / "steps")[49]
    assert len(made) == 3, "made once, and again after each failure"
    assert 2.0 <= min(moment for moment in made if moment > hung) - hung < 2.0 + PATIENCE / 2
    assert min(moment for moment in made if moment > raised) - raised < PATIENCE / 2


@BOTH
def test_scalars_of_numpy_train_without_a_word_about_types(
    vector: bool, server: ServerProcess, caplog: pytest.LogCaptureFixture, build: Build
):
    """S27; warnings are errors here."""
    algorithm = build(ppo("test/Types-v0", batch=250, server=server.address, vector=vector))
    algorithm.train()
    assert steps(algorithm.train()) >= 500
    assert [said for said in caplog.messages if re.search(r"\bd?types?\b", said)] == []


async def test_an_env_runner_that_died_is_replaced_and_its_sessions_end(
    start_server: Callable[..., ServerProcess], build: Build
):
    server = start_server(lease=10.0, heartbeat=1.0)
    algorithm = build(ppo("CartPole-v1", runners=1, server=server.address))
    algorithm.train()
    (pid,) = pids(algorithm)
    async with connect(server.address) as remote:
        number = len(await remote.sessions())
        os.kill(pid, signal.SIGKILL)
        await until(lambda: algorithm.train() and pids(algorithm) not in ([], [pid]))
        before = steps(algorithm.train())
        assert steps(algorithm.train()) >= before + 100
        await until_sessions(remote, number)
        algorithm.stop()
        await until_sessions(remote, 0)


def test_token_reaches_env_runners_and_no_file(
    start_server: Callable[..., ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Build
):
    token = "open-sesame"
    server = start_server(tokens={token: "trainer"})
    monkeypatch.setenv("GYMHOST_TOKEN", token)  # Ray runs already, without it
    config = ppo("CartPole-v1", runners=1, server=server.address)
    algorithm = build(config)
    result = algorithm.train()
    assert sessions(server, token) > 0
    algorithm.save_to_path(str(tmp_path))
    files = [path for folder in (tmp_path, Path(algorithm.logdir)) for path in folder.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if token.encode() in path.read_bytes()] == []
    assert token not in f"{config.to_dict()} {result}"


async def test_without_an_address_an_env_runner_has_a_server_of_its_own(build: Build):
    algorithm = build(ppo("CartPole-v1", runners=1))
    algorithm.train()
    (pid,) = pids(algorithm)
    (server,) = children(pid)
    algorithm.stop()
    await until(lambda: not alive(server))


def test_a_vector_environment_that_resets_at_another_time_is_refused(server: ServerProcess):
    config = ppo("CartPole-v1", server=server.address, vectorization_mode="sync", autoreset_mode="SameStep")
    with pytest.raises(ValueError, match="leave out autoreset_mode"):
        config.build_algo()
    assert sessions(server) == 0
