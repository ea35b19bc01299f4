"""How a vLLM server is used; it is a stand-in here, and test_vllm.py runs the real one."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gymhost.rollout import GeneratorError, PromptTooLong, Sampling
from gymhost.rollout.generators import DiskWeights, Generation, GeneratorGone, VllmServerGenerator
from support.completions_server import CompletionsServer, choice, weights

pytestmark = pytest.mark.heavy


@pytest.fixture
async def server() -> AsyncIterator[CompletionsServer]:
    async with CompletionsServer() as made:
        yield made


@pytest.fixture
async def generator(server: CompletionsServer, tmp_path: Path) -> AsyncIterator[VllmServerGenerator]:
    made = VllmServerGenerator(server.url, policy_version=4, sync=DiskWeights(tmp_path))
    yield made
    await made.aclose()


async def until(changed: asyncio.Event, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            changed.clear()
            await changed.wait()


async def test_token_ids_go_in_and_come_out(server: CompletionsServer, generator: VllmServerGenerator) -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, max_tokens=500, stop_token_ids=(3,), seed=1)
    generation = await generator.generate([1, 2, 3], sampling, request_id="a/1")
    assert (generation.token_ids, generation.logprobs, generation.finish_reason) == ([4], [-0.5], "stop")
    assert (generation.policy_version, generation.generator, generation.mixed_versions) == (4, server.url, False)
    [body] = server.bodies
    assert body["prompt"] == [1, 2, 3]
    assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"], body["seed"]) == (0.5, 0.9, 7, 0.1, 1)
    assert (body["stop_token_ids"], body["max_tokens"]) == ([3], 97)  # what the model's 100 positions leave


async def test_cancelling_drops_the_connection(server: CompletionsServer, generator: VllmServerGenerator) -> None:
    server.hold.clear()
    task = asyncio.create_task(generator.generate([1], Sampling(), request_id="a/1"))
    await until(server.changed, lambda: bool(server.bodies))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(server.changed, lambda: server.dropped == 1)


async def test_a_server_that_is_not_there_is_gone(server: CompletionsServer, generator: VllmServerGenerator) -> None:
    assert await generator.healthy()
    await generator.generate([1], Sampling(), request_id="a/1")
    await server.stop()
    assert not await generator.healthy()
    with pytest.raises(GeneratorGone, match=f"{server.url} does not answer"):
        await generator.generate([1], Sampling(), request_id="a/2")


async def test_a_server_that_vanishes_under_a_request_is_gone(
    server: CompletionsServer, generator: VllmServerGenerator
) -> None:
    server.hold.clear()
    task = asyncio.create_task(generator.generate([1], Sampling(), request_id="a/1"))
    await until(server.changed, lambda: bool(server.bodies))
    await server.stop()
    with pytest.raises(GeneratorGone, match="does not answer"):
        await asyncio.wait_for(task, 5)


async def test_a_prompt_that_fills_the_model_is_refused(generator: VllmServerGenerator) -> None:
    with pytest.raises(PromptTooLong, match=r"100 prompt tokens fill a model of 100 \(max_model_len\)"):
        await generator.generate([1] * 100, Sampling(), request_id="a/1")


async def test_what_was_aborted_is_kept_as_cut(server: CompletionsServer, generator: VllmServerGenerator) -> None:
    server.answer = lambda _body: choice([7, 8], "abort")
    generation = await generator.generate([1], Sampling(), request_id="a/1")
    assert (generation.token_ids, generation.logprobs, generation.finish_reason) == ([7, 8], [-0.5, -0.5], "cut")
    server.answer = lambda _body: {"token_ids": None, "logprobs": None, "finish_reason": "abort"}
    generation = await generator.generate([1], Sampling(), request_id="a/2")
    assert (generation.token_ids, generation.logprobs, generation.finish_reason) == ([], [], "cut")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (500, "answered 500"),
        ({"token_ids": None, "logprobs": None, "finish_reason": "stop"}, "returns no token ids"),
        (choice([1], "repetition"), "ended a request: repetition"),
        ({"token_ids": [1, 2], "logprobs": {"token_logprobs": [-0.5, None]}, "finish_reason": "stop"}, "no log-probs"),
        ({"token_ids": [1, 2], "logprobs": None, "finish_reason": "stop"}, "no log-probs"),
        ({"token_ids": [1, 2], "logprobs": {}, "finish_reason": "stop"}, "no completion"),
        ({"text": "x"}, "no completion"),
        (None, "no completion"),
    ],
)
async def test_what_is_no_generation_is_an_error(answer: object, message: str) -> None:
    async with CompletionsServer(lambda _body: answer) as server:
        generator = VllmServerGenerator(server.url)
        with pytest.raises(GeneratorError, match=message) as raised:
            await generator.generate([1], Sampling(), request_id="a/1")
        assert not isinstance(raised.value, GeneratorGone)
        await generator.aclose()


async def test_a_model_that_is_not_served_is_named(server: CompletionsServer) -> None:
    generator = VllmServerGenerator(server.url, model="other")
    with pytest.raises(GeneratorError, match=r"serves \['model'\], not other"):
        await generator.generate([1], Sampling(), request_id="a/1")
    await generator.aclose()


async def test_weights_that_somebody_changes_meanwhile_mark_the_generation(
    server: CompletionsServer, generator: VllmServerGenerator
) -> None:
    server.hold.clear()
    task = asyncio.create_task(generator.generate([1], Sampling(), request_id="a/1"))
    await until(server.changed, lambda: bool(server.bodies))
    generator.policy_version = 5
    server.hold.set()
    assert (await task).mixed_versions
    assert not (await generator.generate([1], Sampling(), request_id="a/2")).mixed_versions


@pytest.mark.parametrize("processed", [True, False])
async def test_log_probs_of_another_distribution_are_noticed_once(
    server: CompletionsServer, generator: VllmServerGenerator, caplog: pytest.LogCaptureFixture, *, processed: bool
) -> None:
    server.processed_logprobs = processed
    for temperature in (1.0, 0.0, 0.7, 0.7):
        await generator.generate([1], Sampling(temperature=temperature), request_id="a/1")
    assert caplog.text.count("--logprobs-mode processed_logprobs") == (0 if processed else 1)
    assert len(server.bodies) == 4


class TestUpdates:
    @pytest.fixture
    async def long(
        self, server: CompletionsServer, generator: VllmServerGenerator
    ) -> AsyncIterator["asyncio.Task[Generation]"]:
        """A request that is in flight until `hold` is set."""
        server.hold.clear()
        task = asyncio.create_task(generator.generate([1, 2], Sampling(), request_id="long/1"))
        await until(server.changed, lambda: bool(server.bodies))
        yield task
        task.cancel()

    async def test_requests_in_flight_end_first_and_others_wait(
        self, server: CompletionsServer, generator: VllmServerGenerator, long: "asyncio.Task[Generation]"
    ) -> None:
        server.answer = lambda body: choice([server.version])
        folder = await generator.sync.prepare(weights(7), 7)
        update = asyncio.create_task(generator.update(folder, 7))
        await asyncio.sleep(0)
        new = asyncio.create_task(generator.generate([1], Sampling(), request_id="new/1"))
        await asyncio.sleep(0.05)
        assert not update.done()
        assert not new.done()
        assert len(server.bodies) == 1
        server.hold.set()
        await update
        for task, version, token in ((long, 4, 0), (new, 7, 7)):
            generation = await task
            assert (generation.policy_version, generation.token_ids) == (version, [token])
            assert not generation.mixed_versions
        assert generator.policy_version == 7
        assert [path.partition("?")[0] for path in server.controls] == [
            "/pause",
            "/server_info",
            "/collective_rpc",
            "/reset_prefix_cache",
            "/reset_encoder_cache",
            "/update_weight_version",
            "/resume",
        ]

    async def test_requests_in_flight_are_cut(
        self, server: CompletionsServer, generator: VllmServerGenerator, long: "asyncio.Task[Generation]"
    ) -> None:
        server.partial = lambda _body: choice([5, 6], "abort")
        await generator.update(weights(7), 7, in_flight="cut")
        cut = await long
        assert (cut.token_ids, cut.finish_reason) == ([5, 6], "cut")
        assert (cut.policy_version, cut.mixed_versions) == (4, False)
        assert server.version == 7

    async def test_those_that_do_not_end_in_time_are_cut(
        self, server: CompletionsServer, generator: VllmServerGenerator, long: "asyncio.Task[Generation]"
    ) -> None:
        await generator.update(weights(7), 7, in_flight="wait", patience=0.05)
        assert (await long).finish_reason == "cut"
        assert server.version == 7

    async def test_requests_in_flight_are_kept_and_marked(
        self, server: CompletionsServer, generator: VllmServerGenerator, long: "asyncio.Task[Generation]"
    ) -> None:
        await generator.update(weights(7), 7, in_flight="keep")
        server.hold.set()
        kept = await long
        assert (kept.finish_reason, kept.policy_version, kept.mixed_versions) == ("stop", 4, True)
        new = await generator.generate([1], Sampling(), request_id="new/1")
        assert (new.policy_version, new.mixed_versions) == (7, False)

    async def test_weights_that_fail_to_load_serve_nobody(
        self, server: CompletionsServer, generator: VllmServerGenerator
    ) -> None:
        server.refuses_weights = True
        with pytest.raises(GeneratorError, match="answered /collective_rpc with 500"):
            await generator.update(weights(7), 7)
        with pytest.raises(GeneratorGone, match="weights that nobody knows since version 7 failed to load"):
            await generator.generate([1], Sampling(), request_id="a/1")
        server.refuses_weights = False
        await generator.update(weights(8), 8)
        assert (await generator.generate([1], Sampling(), request_id="a/2")).policy_version == 8

    async def test_an_update_that_is_cancelled_while_it_waits_changes_nothing(
        self, server: CompletionsServer, generator: VllmServerGenerator, long: "asyncio.Task[Generation]"
    ) -> None:
        update = asyncio.create_task(generator.update(weights(7), 7))
        await asyncio.sleep(0.05)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        server.hold.set()
        await long
        generation = await asyncio.wait_for(generator.generate([1], Sampling(), request_id="a/1"), 5)
        assert (generation.policy_version, server.version) == (4, 0)

    async def test_a_server_without_control_endpoints_goes_on_as_before(self, tmp_path: Path) -> None:
        async with CompletionsServer(dev_mode=False) as server:
            generator = VllmServerGenerator(server.url, sync=DiskWeights(tmp_path))
            with pytest.raises(GeneratorError, match=r"has no /pause: start vLLM with .* VLLM_SERVER_DEV_MODE=1"):
                await generator.update(weights(7), 7)
            assert (await generator.generate([1], Sampling(), request_id="a/1")).policy_version == 0
            await generator.aclose()

    async def test_tied_embeddings_in_float32_on_a_cpu_are_refused(
        self, server: CompletionsServer, generator: VllmServerGenerator
    ) -> None:
        server.config |= {"device_config": {"device": "cpu"}, "model_config": {"dtype": "torch.float32"}}
        tied = weights(7)
        tied["lm_head.weight"] = tied["embed_tokens.weight"]
        with pytest.raises(GeneratorError, match="reloads tied embeddings without an error, and wrongly"):
            await generator.update(tied, 7)
        assert (await generator.generate([1], Sampling(), request_id="a/1")).policy_version == 4
        await generator.update(weights(7), 7)
        assert server.version == 7

    async def test_only_the_latest_weights_stay_on_the_disk(
        self, generator: VllmServerGenerator, tmp_path: Path
    ) -> None:
        for version in (5, 6):
            await generator.update(weights(version), version)
        assert os.listdir(tmp_path) == ["version-6"]

    async def test_weights_in_memory_need_a_folder_and_those_in_one_do_not(
        self, server: CompletionsServer, generator: VllmServerGenerator, tmp_path: Path
    ) -> None:
        await generator.update(weights(9), 9)
        other = VllmServerGenerator(server.url)
        with pytest.raises(GeneratorError, match=r"sync=DiskWeights\(folder\)"):
            await other.update(weights(5), 5)
        with pytest.raises(GeneratorError, match="holds no safetensors files"):
            await other.update(tmp_path, 5)
        await other.update(tmp_path / "version-9", 5)
        assert (other.policy_version, server.version) == (5, 9)
        await other.aclose()
