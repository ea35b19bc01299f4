"""How several vLLM servers are used; they are stand-ins here, and test_vllm.py runs the real one."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from gymhost.rollout import GeneratorError, PromptTooLong, Sampling
from gymhost.rollout.generators import VllmServerGenerator, vllm_server
from support.completions_server import CompletionsServer, choice

pytestmark = pytest.mark.heavy


@pytest.fixture
async def changed() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def servers(changed: asyncio.Event) -> AsyncIterator[list[CompletionsServer]]:
    async with CompletionsServer(changed=changed) as one, CompletionsServer(changed=changed) as two:
        yield [one, two]


@pytest.fixture
async def generator(servers: list[CompletionsServer]) -> AsyncIterator[VllmServerGenerator]:
    made = VllmServerGenerator([server.url for server in servers], policy_version=4)
    yield made
    await made.aclose()


async def until(changed: asyncio.Event, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            changed.clear()
            await changed.wait()


async def test_token_ids_go_in_and_come_out(servers: list[CompletionsServer], generator: VllmServerGenerator) -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, max_tokens=500, stop_token_ids=(3,), seed=1)
    generation = await generator.generate([1, 2, 3], sampling, request_id="a/1")
    assert (generation.token_ids, generation.logprobs, generation.finish_reason) == ([4], [-0.5], "stop")
    assert generation.policy_version == 4
    [body] = servers[0].bodies + servers[1].bodies
    assert body["prompt"] == [1, 2, 3]
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"], body["seed"]) == (0.5, 0.9, 7, 0.1, 1)
    assert (body["stop_token_ids"], body["max_tokens"]) == ([3], 97)  # what the model's 100 positions leave


async def test_a_rollout_stays_where_it_began_and_others_go_where_there_is_room(
    servers: list[CompletionsServer], generator: VllmServerGenerator
) -> None:
    for server in servers:
        server.hold.clear()
    tasks = [
        asyncio.create_task(generator.generate([9, n], Sampling(max_tokens=5), request_id=f"{n}/1")) for n in range(6)
    ]
    await until(servers[0].changed, lambda: sum(len(server.bodies) for server in servers) == 6)
    assert [len(server.bodies) for server in servers] == [3, 3]
    for server in servers:
        server.hold.set()
    await asyncio.gather(*tasks)
    for turn in (2, 3):
        for n in range(6):
            await generator.generate([9, n], Sampling(max_tokens=5), request_id=f"{n}/{turn}")
    for server in servers:
        assert len({body["prompt"][1] for body in server.bodies}) == 3


async def test_a_server_that_dies_is_left_at_once_and_its_requests_go_on_elsewhere(
    servers: list[CompletionsServer], generator: VllmServerGenerator, caplog: pytest.LogCaptureFixture
) -> None:
    for server in servers:
        server.hold.clear()
    tasks = [
        asyncio.create_task(generator.generate([9, n], Sampling(max_tokens=5), request_id=f"{n}/1")) for n in range(6)
    ]
    await until(servers[0].changed, lambda: all(len(server.bodies) == 3 for server in servers))
    await servers[0].stop()
    servers[1].hold.set()
    generations = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert [generation.token_ids for generation in generations] == [[n + 1] for n in range(6)]
    assert len(servers[1].bodies) == 6
    assert f"{servers[0].url} does not answer" in caplog.text


async def test_a_server_that_hangs_is_left_after_missed_health_checks_and_used_again_when_it_is_well(
    servers: list[CompletionsServer], generator: VllmServerGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "_PROBE_SECONDS", 0.05)
    servers[0].hold.clear()
    servers[0].healthy = False
    tasks = [
        asyncio.create_task(generator.generate([9, n], Sampling(max_tokens=5), request_id=f"{n}/1")) for n in range(4)
    ]
    generations = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert [generation.token_ids for generation in generations] == [[n + 1] for n in range(4)]
    assert len(servers[0].bodies) > 0
    servers[0].hold.set()
    servers[0].healthy = True
    before = len(servers[0].bodies)
    async with asyncio.timeout(5):
        for n in range(1000):
            await asyncio.gather(
                *(generator.generate([9], Sampling(max_tokens=5), request_id=f"new{n}.{i}/1") for i in range(2))
            )
            if len(servers[0].bodies) > before:
                break


async def test_when_none_answers_the_error_names_them(
    servers: list[CompletionsServer], generator: VllmServerGenerator
) -> None:
    for server in servers:
        await server.stop()
    for _ in range(2):
        with pytest.raises(GeneratorError, match=f"no vLLM server .*{servers[0].url}, {servers[1].url}"):
            await generator.generate([1], Sampling(), request_id="a/1")


async def test_cancelling_drops_the_connection(
    servers: list[CompletionsServer], generator: VllmServerGenerator
) -> None:
    for server in servers:
        server.hold.clear()
    task = asyncio.create_task(generator.generate([1], Sampling(), request_id="a/1"))
    await until(servers[0].changed, lambda: any(server.bodies for server in servers))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(servers[0].changed, lambda: servers[0].dropped + servers[1].dropped == 1)


async def test_a_prompt_that_fills_the_model_is_refused(generator: VllmServerGenerator) -> None:
    with pytest.raises(PromptTooLong, match=r"100 prompt tokens fill a model of 100 \(max_model_len\)"):
        await generator.generate([1] * 100, Sampling(), request_id="a/1")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (500, "answered 500"),
        ({"logprobs": None, "finish_reason": "stop"}, "returns no token ids"),
        (choice([1], "abort"), "ended a request: abort"),
    ],
)
async def test_what_is_no_generation_is_an_error(answer: object, message: str) -> None:
    async with CompletionsServer(lambda _body: answer) as server:
        generator = VllmServerGenerator(server.url)
        with pytest.raises(GeneratorError, match=message):
            await generator.generate([1], Sampling(), request_id="a/1")
        await generator.aclose()


async def test_a_model_that_is_not_served_is_named() -> None:
    async with CompletionsServer() as server:
        generator = VllmServerGenerator(server.url, model="other")
        with pytest.raises(GeneratorError, match=r"serves \['model'\], not other"):
            await generator.generate([1], Sampling(), request_id="a/1")
        await generator.aclose()


async def test_weights_that_change_meanwhile_mark_the_generation(
    servers: list[CompletionsServer], generator: VllmServerGenerator
) -> None:
    for server in servers:
        server.hold.clear()
    task = asyncio.create_task(generator.generate([1], Sampling(), request_id="a/1"))
    await until(servers[0].changed, lambda: any(server.bodies for server in servers))
    generator.policy_version = 5
    for server in servers:
        server.hold.set()
    assert (await task).mixed_versions
