"""Whose turn it is when a place is free."""

import asyncio
from pathlib import Path

import pytest

from gymhost.rollout import Concurrency
from gymhost.v1 import rollouts_pb2 as pb
from support.jobs import Service, World, job, numbers, served

pytestmark = pytest.mark.heavy

ONE = Concurrency(init=1, run=1, eval=1, ahead=0)


async def full(service: Service) -> pb.Job:
    """A job that has all places until task 999 is released, so that others come to wait together."""
    service.world.held.add(999)
    told = await service.submit(job("full", [999] * service.concurrency.in_flight, priority=100), "nobody")
    await service.until(told, lambda now: now.queued == 0)
    return told


async def test_callers_take_turns_and_so_do_jobs_of_a_caller(tmp_path: Path) -> None:
    async with served(tmp_path, concurrency=ONE) as service:
        await full(service)
        many = [await service.submit(job(key, range(start, start + 8)), "many") for key, start in (("a", 0), ("b", 20))]
        few = await service.submit(job("a", range(40, 44)), "few")
        urgent = await service.submit(job("u", range(60, 62), priority=1), "few")
        late = await service.submit(job("l", range(70, 72), priority=-1), "few")
        service.world.order.clear()
        service.world.release()
        for told in (*many, few, urgent, late):
            await service.results(told)
        order = [task for task in service.world.order if task != 999]
        assert order[:2] == [60, 61]
        assert order[2:10] == [0, 40, 20, 41, 1, 42, 21, 43]
        assert order[10:14] == [2, 22, 3, 23]
        assert order[-2:] == [70, 71]
        assert [task for task in order if task < 20] == list(range(8))


async def test_nobody_is_held_up_by_those_who_can_not_go_on(tmp_path: Path) -> None:
    world = World(fault=lambda task, play: ConnectionError("gone") if task == 30 and play == 1 else None)
    async with served(tmp_path, world, concurrency=ONE, max_unacknowledged=1) as service:
        await full(service)
        paused = await service.submit(job("paused", range(5), priority=9))
        await service.jobs.pause("me", paused.id, False)
        unread = await service.submit(job("unread", range(10, 25), priority=8))
        pausing = await service.submit(job("pausing", [30, 31], samples=2, priority=7))
        open_ = await service.submit(job("open", [], open=True, priority=6))
        last = await service.submit(job("last", [40]))
        world.release()
        assert numbers(await service.results(last)) == [0]
        assert service.look(paused).queued == 5
        assert service.look(unread).queued > 5
        assert service.look(open_).state == pb.JOB_STATE_WAITING
        assert service.look(pausing).retries == 1


async def test_tasks_begin_in_their_order_and_those_that_had_begun_first(tmp_path: Path) -> None:
    world = World()
    async with served(tmp_path, world) as service:
        world.held = {1, 3}
        told = await service.submit(job("a", range(60)))
        await service.until(told, lambda now: now.terminated >= 8)
        begun = world.order.copy()
        assert begun == sorted(begun)
        await service.stop()
        world.order.clear()
        await service.start()
        await asyncio.sleep(0)
        world.release()
        assert len(set(numbers(await service.results(told)))) == 60
        left = [task for task in world.order if task in (1, 3)]
        assert world.order[: len(left)] == left
        rest = world.order[len(left) :]
        assert rest == sorted(rest)
