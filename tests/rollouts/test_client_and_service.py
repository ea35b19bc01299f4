"""The client and the service, each in a process of its own."""

import asyncio
import itertools

import pytest
from renderers import Qwen3RendererConfig

from gymhost.client import PermissionDenied, Unauthenticated, connect
from gymhost.rollout import Chat, Limits, RolloutEngine, RolloutRequest, Sampling, Trajectory, grouped
from gymhost.rollout.generators import VllmServerGenerator
from gymhost.rollout.service import GroupRules, JobSettings, RolloutClient
from gymhost.wire.errors import UnknownJob
from support.served_rollouts import ServedRollouts
from support.tokenizers import qwen3_tokenizer

pytestmark = pytest.mark.heavy

ENV = "gymhost/GuessNumber-v0"
REQUESTS = [RolloutRequest(ENV, task=task, labels={"place": task}) for task in range(6)]


def told(trajectory: Trajectory) -> object:
    """What there is to learn from a trajectory, and what it says of itself but for times."""
    said = trajectory.model_dump(exclude={"id", "created", "timings", "turns", "group", "seed"})
    return said, trajectory.group, trajectory.seed, [(turn.tokens, turn.reward) for turn in trajectory.turns]


async def test_what_is_collected_is_what_an_engine_would_have_made(served: ServedRollouts):
    async with RolloutClient(served.address, "one") as rollouts:
        version = (await rollouts.status()).policy_version  # other tests announce some
    generator = VllmServerGenerator(served.sampler.url, policy_version=version)
    chat = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
    async with (
        connect(served.environments.address) as server,
        RolloutEngine(server, chat, generator, sampling=Sampling(seed=5), limits=Limits(turns=1)) as engine,
    ):
        expected = await engine.collect(grouped(REQUESTS, size=4))
    await generator.aclose()
    async with RolloutClient(served.address, "one") as rollouts:
        how: JobSettings = {"samples": 4, "sampling": {"seed": 5}, "limits": {"turns": 1}}
        found = await rollouts.collect(REQUESTS, **how)
        assert [told(each) for each in found] == [told(each) for each in expected]
        how["grouping"] = GroupRules(keep="variance")
        varied = [group.request.group async for group in rollouts.groups(REQUESTS, **how)]
    rewards = {place: {each.reward for each in expected if each.group == place} for place in map(str, range(6))}
    learnable = [place for place, of in rewards.items() if len(of) > 1]
    assert sorted(filter(None, varied)) == learnable
    assert 0 < len(learnable) < len(REQUESTS)


async def test_a_service_that_is_killed_loses_and_repeats_nothing(served: ServedRollouts):
    requests = [RolloutRequest(ENV, task=task) for task in range(100)]
    async with RolloutClient(served.address, "two") as rollouts:
        found: list[Trajectory] = []
        starting: asyncio.Future[None] | None = None
        async for trajectory in rollouts.run(requests, samples=2):
            found.append(trajectory)
            if len(found) == 40:
                served.service.kill()
                starting = asyncio.ensure_future(asyncio.to_thread(served.service.start))
        assert starting is not None
        await starting
        assert sorted((each.task, each.index) for each in found) == list(itertools.product(range(100), range(2)))
        assert len({each.id for each in found}) == 200
        assert {each.outcome.kind for each in found} == {"terminated"}
        [job] = await rollouts.jobs()
        assert (job.state, job.done, job.unacknowledged) == ("finished", 200, 0)


async def test_what_is_to_be_played_is_known_through_the_service(served: ServedRollouts):
    async with RolloutClient(served.address, "look") as rollouts:
        assert [each.id for each in await rollouts.environments("gymhost/Guess")] == [ENV]
        described = await rollouts.describe(ENV)
        assert (described.tools[0]["name"], described.splits["test"]) == ("guess", 500)
        assert list((await rollouts.tasks(ENV, split="test", start=7, limit=2)).tasks) == [7, 8]
        status = await rollouts.status()
        assert [each.url for each in status.generators] == [served.sampler.url]
        assert [(each.address, each.reachable) for each in status.servers] == [(served.environments.address, True)]


async def test_everyone_sees_and_does_what_the_role_allows(served: ServedRollouts):
    async with (
        RolloutClient(served.address, "boss") as boss,
        RolloutClient(served.address, "one") as one,
        RolloutClient(served.address, "two") as two,
    ):
        served.sampler.hold(True)
        job = await one.submit(REQUESTS[:1], open=True, key="mine")
        for work in (two.job(key="mine"), two.job(id=job.id)):
            with pytest.raises(UnknownJob):
                await work
        for denied in (one.jobs(everyone=True), one.announce(1), one.add_generator("http://x:1")):
            with pytest.raises(PermissionDenied):
                await denied
        assert ("bob", "mine") in {(each.identity, each.key) for each in await boss.jobs(everyone=True)}
        waiting = asyncio.ensure_future(job.collect())
        assert await (await boss.job(id=job.id)).cancel() == 1
        [ended] = await waiting
        assert (ended.outcome.kind, ended.reward) == ("cancelled", None)
        assert (await job.status()).state == "cancelled"
        served.sampler.hold(False)
    async with RolloutClient(served.address, "nobody") as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.jobs()
        with pytest.raises(Unauthenticated):
            await stranger.collect(REQUESTS)


async def test_polling_does_as_well(served: ServedRollouts):
    async with RolloutClient(served.address, "one") as rollouts:
        job = await rollouts.submit(REQUESTS, samples=2)
        found: list[Trajectory] = []
        ended = False
        while not ended:
            trajectories, ended = await job.fetch(limit=5, wait=10.0)
            await job.acknowledge(trajectories)
            found += trajectories
        assert sorted((each.task, each.index) for each in found) == list(itertools.product(range(6), range(2)))
        assert (await job.status()).unacknowledged == 0
