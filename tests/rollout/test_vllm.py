"""Real vLLM on a CPU, as an engine in this process; and the transformers generator, which is held to the same."""

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from renderers import Qwen3RendererConfig

from gymhost.rollout import (
    Chat,
    Limits,
    PromptTooLong,
    RolloutEngine,
    RolloutRequest,
    Sampling,
    Trajectory,
    grouped,
)
from gymhost.rollout.generators import Generator, InFlight, TransformersGenerator, VllmEngineGenerator
from support.games import LENGTH, play_games, played
from support.local_source import LocalSource
from support.models import logprobs_of, player, save_tiny_qwen3, shifted, tiny_qwen3
from support.recompute import check_rows, check_update
from support.talk import Talk, end, go_on, tool
from support.tokenizers import qwen3_tokenizer
from support.vllm_process import ENVIRONMENT

pytestmark = pytest.mark.heavy

# vLLM warns of much that is not ours.
slow = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]

SAMPLINGS = {
    "as the model says": Sampling(),
    "cooled and cut": Sampling(temperature=0.7, top_p=0.8),
    "heated": Sampling(temperature=1.3),
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine with the random model `tiny_qwen3()`; who changes its weights puts them back."""
    folder = tmp_path_factory.mktemp("model")
    save_tiny_qwen3(folder)
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


@pytest.fixture
def playing(llm: Any) -> Iterator[Any]:
    """The engine with the model `player()`."""

    def load(model: Any) -> None:
        weights = iter([(name, value.clone()) for name, value in model.state_dict().items()])
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        assert llm.llm_engine.reset_prefix_cache()

    load(player())
    yield llm
    load(tiny_qwen3())


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


class TestGames:
    """Whole games on a server, every sampled token of which is checked."""

    pytestmark = slow

    @pytest.fixture(params=["vllm", "transformers"])
    async def generator(self, request: pytest.FixtureRequest) -> AsyncIterator[Generator]:
        if request.param == "vllm":
            generator = VllmEngineGenerator(request.getfixturevalue("playing"))
        else:
            # A copy, since its weights are changed in place.
            generator = TransformersGenerator(copy.deepcopy(player()), seed=0)
        yield generator
        await generator.aclose()

    @pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
    async def test_log_probs_are_those_of_the_distribution_that_was_sampled_from(
        self, generator: Generator, sampling: Sampling
    ) -> None:
        trajectories = await play_games(generator, 24, sampling=sampling)
        played(trajectories)
        assert len(check_rows(trajectories, {0: player()}, sampling)) > 300

    @pytest.mark.parametrize("in_flight", ["wait", "cut", "keep"])
    async def test_new_weights_in_the_middle_are_visible_and_nowhere_mixed_unmarked(
        self, generator: Any, in_flight: InFlight
    ) -> None:
        old, new = player(), shifted(player())
        await generator.update(old, 1)

        async def update() -> None:
            await generator.update(new, 2, in_flight=in_flight)

        trajectories = await play_games(generator, 32, after=24, act=update)
        assert generator.policy_version == 2
        played(trajectories)
        check_update(trajectories, {1: old, 2: new}, mixed=in_flight != "wait")
        await generator.update(old, 3)


class TestEngineInThisProcess:
    pytestmark = slow

    async def test_rollouts_share_batches_and_their_log_probs_are_right(self, llm: Any) -> None:
        generator = VllmEngineGenerator(llm, policy_version=3)
        trajectories = await play(generator, 32)
        await generator.aclose()
        assert {item.outcome.kind for item in trajectories} <= {"terminated", "truncated"}
        assert {item.outcome.limit for item in trajectories} <= {None, "turn_tokens"}
        assert max(len(item.turns) for item in trajectories) > 1
        check_rows(trajectories, {3: tiny_qwen3()})

    async def test_log_probs_of_a_choice_that_is_certain(self, llm: Any) -> None:
        generator = VllmEngineGenerator(llm)
        certain = await generator.generate([20, 30], Sampling(top_k=1, max_tokens=4), request_id="a/1")
        await generator.aclose()
        assert certain.logprobs == pytest.approx([0.0] * 4, abs=1e-6)

    async def test_a_stop_token_ends_a_generation_and_is_part_of_it(self, llm: Any) -> None:
        generator = VllmEngineGenerator(llm)
        greedy = await generator.generate([20, 30], Sampling(temperature=0.0, max_tokens=8), request_id="a/1")
        stop = greedy.token_ids[3]
        first = list(greedy.token_ids).index(stop)
        stopped = await generator.generate(
            [20, 30], Sampling(temperature=0.0, max_tokens=8, stop_token_ids=(stop,)), request_id="a/2"
        )
        await generator.aclose()
        assert (list(stopped.token_ids), stopped.finish_reason) == (list(greedy.token_ids[: first + 1]), "stop")
        assert len(stopped.logprobs) == first + 1

    async def test_a_seed_decides_what_is_sampled_and_without_one_samples_differ(self, llm: Any) -> None:
        generator = VllmEngineGenerator(llm)
        seeds = [7, 7, 8, None, None]
        results = [
            await generator.generate([20, 30], Sampling(max_tokens=16, seed=seed), request_id=f"{i}/1")
            for i, seed in enumerate(seeds)
        ]
        await generator.aclose()
        one, same, *others = [tuple(result.token_ids) for result in results]
        assert one == same
        assert len({one, *others}) == 4

    async def test_rollouts_of_a_group_differ_and_a_seed_brings_them_back(self, llm: Any) -> None:
        chat = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
        source = LocalSource(lambda: Talk(lambda env, _: end(tool("done")) if len(env.said) > 1 else go_on(tool("ab"))))
        generator = VllmEngineGenerator(llm)

        async def group(sampling: Sampling) -> list[tuple[int, ...]]:
            async with RolloutEngine(source, chat, generator, sampling=sampling) as engine:
                requests = grouped([RolloutRequest("Talk-v0", task=0)], 4)
                return [tuple(item.completion_ids) for item in await engine.collect(requests)]

        short = Sampling(max_tokens=16, stop_token_ids=tuple(range(100, 200)))
        assert len(set(await group(short))) == 4
        once, again = [await group(replace(short, seed=5)) for _ in range(2)]
        await generator.aclose()
        assert len(set(once)) == 4
        assert once == again

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
        for length in (LENGTH, LENGTH + 1):
            with pytest.raises(PromptTooLong):
                await generator.generate([20] * length, Sampling(), request_id="a/1")
        for room in (1, 3):
            full = await generator.generate([20] * (LENGTH - room), Sampling(max_tokens=50), request_id="b/1")
            assert (len(full.token_ids), full.finish_reason) == (room, "length")
        await generator.aclose()

    async def test_new_weights_in_the_middle_of_a_long_generation(self, llm: Any) -> None:
        old, new = tiny_qwen3(), tiny_qwen3(seed=1)
        generator = VllmEngineGenerator(llm, policy_version=1)
        prompt = [random.Random(0).randrange(100, 400) for _ in range(300)]  # long enough to be cached
        long = asyncio.create_task(generator.generate(prompt, Sampling(max_tokens=200), request_id="a/1"))
        await generator.generate(prompt, Sampling(max_tokens=20), request_id="b/1")
        await generator.update(new, 2, in_flight="keep")
        assert generator.policy_version == 2
        fresh = await generator.generate(prompt, Sampling(max_tokens=20), request_id="c/1")
        mixed = await long
        await generator.update(old, 3)
        await generator.aclose()

        versions, ids = list(mixed.versions), list(mixed.token_ids)
        changed = versions.index(2)
        assert mixed.mixed_versions
        assert changed >= 10
        assert versions == [1] * changed + [2] * (200 - changed)
        before, after = (logprobs_of(model, prompt, ids) for model in (old, new))
        assert mixed.logprobs == pytest.approx(before[:changed] + after[changed:], abs=1e-3)
        assert (fresh.policy_version, fresh.mixed_versions) == (2, False)
        assert fresh.logprobs == pytest.approx(logprobs_of(new, prompt, list(fresh.token_ids)), abs=1e-3)
