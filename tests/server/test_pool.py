"""The workers of a server, as their pool sees them."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncGenerator

import pytest

from gymhost.server.config import ServerConfig
from gymhost.server.front import pool as pools
from gymhost.server.front import workers
from gymhost.server.front.pool import WorkerPool
from gymhost.server.front.workers import Worker
from gymhost.v1 import environments_pb2 as pb
from gymhost.v1 import operations_pb2
from gymhost.wire import errors
from support.server import PATIENCE, TESTS, until

KILLERS = [pb.EnvironmentInfo(environment_id=name) for name in ("test/Counter-v0", "test/Slow-v0")]


class Events:
    """What a server does when it is told of its workers, as far as the pool has to do with it."""

    def __init__(self, config: ServerConfig) -> None:
        self.pool = WorkerPool(config, self)

    def worker_died(self, worker: Worker) -> None:
        self.pool.forget(worker)

    def worker_tainted(self, worker: Worker) -> None:
        self.pool.replace(worker)

    def session_ended(self, worker: Worker, lane: int, error: errors.Error) -> None:
        pass

    def owner_of(self, lane: int) -> str | None:
        return None

    def environment_failed(self, worker: Worker, lane: int, failure: operations_pb2.Failure) -> None:
        pass


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[WorkerPool]:
    """A pool with room for one worker for environments in quarantine, of which there are two."""
    monkeypatch.setattr(pools, "APART", 1)
    config = ServerConfig(workers=1, modules=("support.environments",), paths=(str(TESTS),), quarantine_deaths=1)
    pool = Events(config).pool
    for info in KILLERS:
        pool.quarantine.died({info.environment_id}, "it is a test", apart=False)
    yield pool
    await pool.stop(PATIENCE)


async def test_one_in_quarantine_gets_the_room_that_another_leaves(pool: WorkerPool) -> None:
    one, other = KILLERS
    first = await pool.pick(one)
    waiting = asyncio.create_task(pool.pick(other))
    # Its own go on beside it, and share what they have.
    assert await pool.pick(one) is first
    pool.release(first)
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    pool.release(first)
    second = await asyncio.wait_for(waiting, PATIENCE)
    assert second.environment_id == other.environment_id
    assert first.dead


async def test_a_worker_that_can_not_be_killed_holds_the_end_of_its_server_up_for_a_while_only(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await pool.pick(KILLERS[0])
    os.kill(worker.pid, signal.SIGSTOP)
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        # As with a disk that does not answer: the signal is there, and the process does not end.
        patched.setattr(os, "killpg", lambda *_: None)
        patched.setattr(workers, "KILL_LIMIT", 0.2)
        began = time.monotonic()
        await worker.stop(0.2)
        assert time.monotonic() - began < 5
    assert f"process {worker.pid}, does not end though it was killed" in caplog.text
    worker.kill("it is over")
    await until(lambda: worker.dead)
