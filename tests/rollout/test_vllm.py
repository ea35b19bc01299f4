"""Real vLLM on a CPU: an engine in this process, and `vllm serve`."""

import asyncio
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from renderers import Qwen3RendererConfig

from gymhost.rollout import Chat, Limits, PromptTooLong, RolloutEngine, RolloutRequest, Row, Sampling, Trajectory
from gymhost.rollout.generators import Generator, VllmEngineGenerator, VllmServerGenerator
from support.local_source import LocalSource
from support.models import logprobs_of, save_tiny_qwen3, tiny_qwen3
from support.talk import Talk, end, go_on, tool
from support.tokenizers import qwen3_tokenizer

pytestmark = pytest.mark.heavy

# vLLM warns of much that is not ours.
slow = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
LENGTH = 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny_qwen3(path)
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        import vllm

        yield vllm.LLM(
            str(folder),
            dtype="float32",
            enforce_eager=True,
            logprobs_mode="processed_logprobs",
            max_model_len=LENGTH,
            max_num_seqs=64,
        )


@pytest.fixture(scope="module")
def server_url(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(folder), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager", "--max-model-len", str(LENGTH)]
    command += ["--logprobs-mode", "processed_logprobs", "--disable-uvicorn-access-log"]
    log = (folder / "serve.log").open("wb")
    process = subprocess.Popen(
        command, env=os.environ | ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        give_up = time.monotonic() + 200
        while not _healthy(url):
            assert process.poll() is None, (folder / "serve.log").read_text()[-5000:]
            assert time.monotonic() < give_up, (folder / "serve.log").read_text()[-5000:]
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(20)
        log.close()


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


async def play(generator: Generator, count: int) -> list[Trajectory]:
    """Rollouts of one to four turns, whose tools take their time."""

    class Patient(Talk):
        async def astep(self, action: Any) -> Any:
            await asyncio.sleep(random.uniform(0, 0.02))
            return self.step(action)

    def answer(env: Talk, _message: Any) -> Any:
        return end(tool("done")) if len(env.said) > env.options["task"] % 4 else go_on(tool("abab"))

    chat = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
    sampling = Sampling(
        max_tokens=16, stop_token_ids=tuple(range(100, 140))
    )  # a random model rarely ends a turn itself
    async with RolloutEngine(
        LocalSource(lambda: Patient(answer)), chat, generator, sampling=sampling, limits=Limits(context_tokens=LENGTH)
    ) as engine:
        return await engine.collect([RolloutRequest("Talk-v0", task=task) for task in range(count)])


def check(trajectories: list[Trajectory], model: Any) -> None:
    """The log-probs of all rows are those that the model gives in one pass over the row."""
    assert {item.outcome.kind for item in trajectories} <= {"terminated", "truncated"}
    assert {item.outcome.limit for item in trajectories} <= {None, "turn_tokens"}
    assert max(len(item.turns) for item in trajectories) > 1
    for item in trajectories:
        for row in item.rows():
            assert differences(row, model) < 1e-3


def differences(row: Row, model: Any) -> float:
    expected = logprobs_of(model, row.prompt_ids, row.completion_ids)
    return max(abs(a - b) for a, b, sampled in zip(expected, row.logprobs, row.mask, strict=True) if sampled)


class TestEngineInThisProcess:
    pytestmark = slow

    async def test_rollouts_share_batches_and_their_log_probs_are_right(self, llm: Any) -> None:
        generator = VllmEngineGenerator(llm, policy_version=3)
        trajectories = await play(generator, 32)
        await generator.aclose()
        check(trajectories, tiny_qwen3())
        assert {turn.policy_version for item in trajectories for turn in item.turns} == {3}

    async def test_log_probs_are_of_the_distribution_that_was_sampled_from(self, llm: Any) -> None:
        generator = VllmEngineGenerator(llm)
        certain = await generator.generate([20, 30], Sampling(top_k=1, max_tokens=4), request_id="a/1")
        await generator.aclose()
        assert certain.logprobs == pytest.approx([0.0] * 4, abs=1e-6)

    async def test_a_cancelled_request_is_aborted(self, llm: Any) -> None:
        generator = VllmEngineGenerator(llm)
        long = asyncio.create_task(generator.generate([20], Sampling(max_tokens=400), request_id="a/1"))
        short = await generator.generate([20], Sampling(max_tokens=2), request_id="b/1")
        assert (len(short.token_ids), short.finish_reason) == (2, "length")
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        await generator.generate([20], Sampling(max_tokens=2), request_id="c/1")
        assert llm.llm_engine.get_num_unfinished_requests() == 0
        await generator.aclose()

    async def test_a_prompt_that_fills_the_model_is_refused_and_others_end_at_its_length(self, llm: Any) -> None:
        generator = VllmEngineGenerator(llm)
        with pytest.raises(PromptTooLong):
            await generator.generate([20] * LENGTH, Sampling(), request_id="a/1")
        full = await generator.generate([20] * (LENGTH - 3), Sampling(max_tokens=50), request_id="b/1")
        assert (len(full.token_ids), full.finish_reason) == (3, "length")
        await generator.aclose()

    async def test_new_weights_in_the_middle_are_visible_in_the_versions(self, llm: Any) -> None:
        old, new = tiny_qwen3(), tiny_qwen3(seed=1)
        generator = VllmEngineGenerator(llm, policy_version=1)

        def load(model: Any) -> None:
            weights = iter([(name, value.detach().clone()) for name, value in model.named_parameters()])
            llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})

        prompt = [random.Random(0).randrange(100, 400) for _ in range(300)]  # long enough to be cached
        long = asyncio.create_task(generator.generate(prompt, Sampling(max_tokens=200), request_id="a/1"))
        await generator.generate(prompt, Sampling(max_tokens=20), request_id="b/1")
        await generator.update_weights(2, lambda: load(new))
        assert generator.policy_version == 2
        fresh = await generator.generate(prompt, Sampling(max_tokens=20), request_id="c/1")
        mixed = await long
        await generator.update_weights(3, lambda: load(old))
        await generator.aclose()

        versions, ids = list(mixed.versions), list(mixed.token_ids)
        changed = versions.index(2)
        assert mixed.mixed_versions
        assert changed >= 20
        assert versions == [1] * changed + [2] * (200 - changed)
        before, after = (logprobs_of(model, prompt, ids) for model in (old, new))
        assert mixed.logprobs == pytest.approx(before[:changed] + after[changed:], abs=1e-3)
        assert (fresh.policy_version, fresh.mixed_versions) == (2, False)
        assert fresh.logprobs == pytest.approx(logprobs_of(new, prompt, list(fresh.token_ids)), abs=1e-3)


class TestServer:
    pytestmark = slow

    async def test_rollouts_over_http_have_the_right_log_probs(self, server_url: str) -> None:
        generator = VllmServerGenerator(server_url, policy_version=3)
        check(await play(generator, 32), tiny_qwen3())
        certain = await generator.generate([20, 30], Sampling(top_k=1, max_tokens=4), request_id="a/1")
        assert certain.logprobs == pytest.approx([0.0] * 4, abs=1e-6)
        full = await generator.generate([20] * (LENGTH - 3), Sampling(max_tokens=50), request_id="b/1")
        assert (len(full.token_ids), full.finish_reason) == (3, "length")
        with pytest.raises(PromptTooLong):
            await generator.generate([20] * LENGTH, Sampling(), request_id="c/1")
        await generator.aclose()
