"""Generators of the service: they come and go, load weights, and are remembered with the policy version."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from safetensors.torch import save_file

from gymhost.rollout import Sampling
from gymhost.rollout.generators.members import Member
from gymhost.server.rollouts.generators import Generators
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire.errors import InvalidArgument, ServerUnavailable
from support.completions_server import CompletionsServer, choice, weights
from support.rollouts_process import guessing, rollouts_stub, service, submission
from support.server import ServerProcess, until

pytestmark = pytest.mark.heavy


class Memory:
    """What a store keeps, without one."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def remember(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.kept.pop(name, None)
        else:
            self.kept[name] = value

    def recall(self, name: str) -> bytes | None:
        return self.kept.get(name)


@contextlib.asynccontextmanager
async def running(memory: Memory, *urls: str) -> AsyncGenerator[Generators]:
    """The generators of a service, as after its start."""
    generators = Generators(memory, urls, patience=5.0)
    generators.pool._probe_seconds = 0.4
    try:
        yield generators
    finally:
        await generators.aclose()


@pytest.fixture
async def one() -> AsyncIterator[CompletionsServer]:
    async with CompletionsServer() as server:
        yield server


@pytest.fixture
async def other() -> AsyncIterator[CompletionsServer]:
    async with CompletionsServer() as server:
        yield server


def folder(tmp_path: Path, version: int) -> str:
    """A folder with the weights of a version."""
    made = tmp_path / f"weights-{version}"
    made.mkdir()
    save_file(weights(version), made / "model.safetensors")
    return str(made)


def announcement(version: int, weights: str = "", **fields: Any) -> pb.AnnouncePolicyRequest:
    return pb.AnnouncePolicyRequest(version=version, weights=weights, **fields)


async def usable(generators: Generators, *names: str) -> None:
    """Waits until these generators can be used, and no others."""

    def well() -> bool:
        return {member.name for member in generators.pool.members() if not member.why} == set(names)

    await until(well)


def member(generators: Generators, name: str) -> Member:
    return next(each for each in generators.pool.members() if each.name == name)


async def sample(generators: Generators) -> int:
    """Samples one token, and returns by which version."""
    generation = await generators.pool.generate([1, 2, 3], Sampling(max_tokens=4), request_id="rollout/1")
    return generation.policy_version


# -- coming and going --------------------------------------------------------------------------------------------------


async def test_jobs_wait_for_a_generator_and_go_on_with_the_first_that_comes(
    tmp_path: Path, server: ServerProcess
) -> None:
    said = guessing(4)
    async with (
        service(tmp_path, server.address) as serving,
        rollouts_stub(serving.address) as stub,
        CompletionsServer(lambda _body: choice(said)) as vllm,
    ):
        vllm.max_model_len = 4096
        job = (await stub.SubmitJob(submission("early", 2))).job
        assert job.waits_for == "a generator: there is none (gymhost serve --generator URL, or AddGenerator)"
        added = (await stub.AddGenerator(pb.AddGeneratorRequest(name="first", url=vllm.url))).generator
        assert (added.name, added.url) == ("first", vllm.url)
        assert added.healthy or added.why == "it has not answered yet"
        stream = stub.StreamResults(pb.StreamResultsRequest(job_ids=[job.id]))
        results = [result async for response in stream for result in response.results]
        assert len(results) == 2
        listed = await stub.ListGenerators(pb.ListGeneratorsRequest())
        [generator] = listed.generators
        assert (generator.healthy, generator.current, generator.why, generator.load) == (True, True, "", 0)
        sampled = sum(sum(row.mask) for result in results for row in result.rows)
        assert generator.sampled_tokens == sampled > 0
        assert not (await stub.GetJob(pb.GetJobRequest(job_id=job.id))).job.waits_for
        drained = (await stub.DrainGenerator(pb.DrainGeneratorRequest(name="first"))).generator
        assert (drained.draining, drained.why) == (True, "draining")
        later = (await stub.SubmitJob(submission("late"))).job
        assert later.waits_for == "a generator: first: draining"
        for _ in range(2):
            await stub.RemoveGenerator(pb.RemoveGeneratorRequest(name="first"))
        assert not (await stub.ListGenerators(pb.ListGeneratorsRequest())).generators
        with pytest.raises(grpc.aio.AioRpcError, match="no generator is named 'first'; there are: none"):
            await stub.DrainGenerator(pb.DrainGeneratorRequest(name="first"))


async def test_the_same_generator_again_is_no_error_and_another_of_its_name_is_one(one: CompletionsServer) -> None:
    async with running(Memory()) as generators:
        request = pb.AddGeneratorRequest(url=one.url)
        assert [(await generators.add(request)).name for _ in range(2)] == [one.url] * 2
        assert len(generators.infos()) == 1
        with pytest.raises(InvalidArgument, match=r"is at http.*: remove it first"):
            await generators.add(pb.AddGeneratorRequest(name=one.url, url="http://elsewhere:8000"))
        with pytest.raises(InvalidArgument, match=f"is there already, as '{one.url}'"):
            await generators.add(pb.AddGeneratorRequest(name="twin", url=one.url))
        with pytest.raises(InvalidArgument, match="url is that of a vLLM server"):
            await generators.add(pb.AddGeneratorRequest(url="elsewhere:8000"))
        with pytest.raises(InvalidArgument, match="is there with another model or api_key"):
            await generators.add(pb.AddGeneratorRequest(url=one.url, api_key="another"))


async def test_what_is_in_flight_goes_on_elsewhere_when_its_generator_is_removed(
    one: CompletionsServer, other: CompletionsServer
) -> None:
    one.hold.clear()
    async with running(Memory(), one.url) as generators:
        await usable(generators, one.url)
        sampling = asyncio.create_task(sample(generators))
        await until(lambda: len(one.bodies) == 1)
        assert generators.infos()[0].load == 7
        await generators.add(pb.AddGeneratorRequest(url=other.url))
        await usable(generators, one.url, other.url)
        await generators.remove(one.url)
        await sampling
        assert len(other.bodies) == 1
        assert generators.infos()[0].sampled_tokens == 1


# -- what is remembered ------------------------------------------------------------------------------------------------


async def test_generators_are_there_again_after_a_restart(one: CompletionsServer, other: CompletionsServer) -> None:
    memory = Memory()
    async with running(memory) as generators:
        for name, server in (("one", one), ("other", other)):
            await generators.add(pb.AddGeneratorRequest(name=name, url=server.url, api_key="secret"))
        await usable(generators, "one", "other")
        await generators.drain(pb.DrainGeneratorRequest(name="one"))
    async with running(memory, one.url, "http://of.settings:8000") as generators:
        await usable(generators, "other")
        assert member(generators, "one").draining
        assert [each.name for each in generators.infos()] == ["one", "other", "http://of.settings:8000"]
        await generators.remove("other")
    async with running(memory) as generators:
        assert [each.name for each in generators.infos()] == ["one"]


async def test_weights_are_loaded_by_all_and_by_those_that_come_later(
    tmp_path: Path, one: CompletionsServer, other: CompletionsServer
) -> None:
    memory, told = Memory(), list[int]()
    async with running(memory, one.url) as generators:
        generators.policy_changed = told.append
        await usable(generators, one.url)
        third = folder(tmp_path, 3)
        answer = await generators.announce(announcement(3, third))
        assert (answer.version, list(answer.generators)) == (3, [one.url])
        assert (one.version, await sample(generators)) == (3, 3)
        loads = len(one.controls)
        assert await generators.announce(announcement(3, third)) == answer
        assert len(one.controls) == loads
        for wrong, match in (
            (announcement(2, folder(tmp_path, 2)), "version 2 is older than that of the service, which is 3"),
            (announcement(3, str(tmp_path / "weights-2")), "version 3 has other weights already"),
            (announcement(4, str(tmp_path)), "weights: .* holds no safetensors files"),
        ):
            with pytest.raises(InvalidArgument, match=match):
                await generators.announce(wrong)
        await generators.add(pb.AddGeneratorRequest(url=other.url))
        await usable(generators, one.url, other.url)
        assert other.version == 3
        assert told == [3]


async def test_weights_that_nobody_can_load_change_nothing(tmp_path: Path, one: CompletionsServer) -> None:
    memory = Memory()
    async with running(memory, one.url) as generators:
        await usable(generators, one.url)
        await generators.announce(announcement(1, folder(tmp_path, 1)))
        one.refuses_weights = True
        with pytest.raises(ServerUnavailable, match="no generator has loaded version 2"):
            await generators.announce(announcement(2, folder(tmp_path, 2)))
        one.refuses_weights = False
        assert generators.pool.policy_version == 1
        await usable(generators, one.url)  # it has loaded the old ones again
        assert (one.version, await sample(generators)) == (1, 1)
        await generators.announce(announcement(2, str(tmp_path / "weights-2")))
        assert one.version == 2


async def test_weights_are_remembered_where_no_generator_is_there_to_load_them(
    tmp_path: Path, one: CompletionsServer
) -> None:
    memory = Memory()
    async with running(memory) as generators:
        answer = await generators.announce(announcement(5, folder(tmp_path, 5)))
        assert (answer.version, list(answer.generators)) == (5, [])
    async with running(memory, one.url) as generators:
        await usable(generators, one.url)
        assert (one.version, generators.pool.policy_version) == (5, 5)


async def test_after_a_restart_a_generator_is_asked_what_weights_it_has(tmp_path: Path, one: CompletionsServer) -> None:
    memory = Memory()
    async with running(memory, one.url) as generators:
        await usable(generators, one.url)
        await generators.announce(announcement(7, folder(tmp_path, 7)))
    loads = one.controls.count("/collective_rpc")
    async with running(memory, one.url) as generators:
        await usable(generators, one.url)
        assert await sample(generators) == 7
        assert one.controls.count("/collective_rpc") == loads, "it had them, and said so"
    await one.stop()
    await one.start(one.port)  # as a process that was killed: with the weights that it is started with
    assert one.version == 0
    async with running(memory, one.url) as generators:
        await usable(generators, one.url)
        assert (one.version, await sample(generators)) == (7, 7)


async def test_a_generator_that_has_lost_what_somebody_else_gave_it_is_not_used(
    one: CompletionsServer, other: CompletionsServer
) -> None:
    memory = Memory()
    async with running(memory, one.url, other.url) as generators:
        await usable(generators, one.url, other.url)
        one.version = other.version = 4
        answer = await generators.announce(announcement(4))
        assert list(answer.generators) == [one.url, other.url]
    await one.stop()
    await one.start(one.port)
    async with running(memory, one.url, other.url) as generators:
        await usable(generators, other.url)
        await until(lambda: "waits for the next update" in member(generators, one.url).why)
        one.version = 4
        answer = await generators.announce(announcement(4))
        assert list(answer.generators) == [one.url, other.url]
        await usable(generators, one.url, other.url)


async def test_an_announcement_goes_on_though_its_caller_is_gone(tmp_path: Path, one: CompletionsServer) -> None:
    memory = Memory()
    async with running(memory, one.url) as generators:
        await usable(generators, one.url)
        one.loads.clear()
        first = asyncio.create_task(generators.announce(announcement(1, folder(tmp_path, 1))))
        await until(lambda: "/collective_rpc" in one.controls)
        first.cancel()
        await asyncio.wait([first])
        again = asyncio.create_task(generators.announce(announcement(1, str(tmp_path / "weights-1"))))
        one.loads.set()
        assert (await again).version == one.version == 1
        assert one.controls.count("/collective_rpc") == 1
