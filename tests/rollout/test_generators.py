"""The scripted generator, and the one that samples with a transformers model."""

import asyncio
import math
from typing import Any

import pytest

from gymhost.rollout import Generation, GeneratorError, PromptTooLong, Sampling
from gymhost.rollout.extras import require
from gymhost.rollout.generators import Reply, ScriptedGenerator, TransformersGenerator
from support.models import logprobs_of, tiny_qwen3

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_qwen3()


async def test_a_script_is_cut_off_where_a_model_would_be() -> None:
    generator = ScriptedGenerator([[1, 2, 3], Reply([4], [-2.0])], policy_version=9)
    cut = await generator.generate([0], Sampling(max_tokens=2), request_id="a/1")
    assert (cut.token_ids, cut.logprobs, cut.finish_reason, cut.policy_version) == ([1, 2], [-1.0, -1.0], "length", 9)
    full = await generator.generate([0], Sampling(), request_id="a/2")
    assert (full.token_ids, full.logprobs, full.finish_reason) == ([4], [-2.0], "stop")
    with pytest.raises(GeneratorError, match="no more answers"):
        await generator.generate([0], Sampling(), request_id="a/3")


async def test_sampled_log_probs_are_those_of_the_model_whatever_the_batch(model: Any) -> None:
    generator = TransformersGenerator(model, max_batch=8, seed=0)
    prompts = [[20 + i, *range(30, 30 + 5 * i)] for i in range(12)]
    generations = await asyncio.gather(
        *(
            generator.generate(prompt, Sampling(max_tokens=4 + i), request_id=f"{i}/1")
            for i, prompt in enumerate(prompts)
        )
    )
    await generator.aclose()
    for i, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
        ids = list(generation.token_ids)
        assert (len(ids), generation.finish_reason) == (4 + i, "length")
        assert generation.logprobs == pytest.approx(logprobs_of(model, prompt, ids), abs=1e-4)


async def test_a_stop_token_ends_a_generation_and_is_part_of_it(model: Any) -> None:
    generator = TransformersGenerator(model)
    greedy = await generator.generate([20, 30], Sampling(temperature=0.0, max_tokens=8), request_id="a/1")
    stop = greedy.token_ids[3]
    first = list(greedy.token_ids).index(stop)
    stopped = await generator.generate(
        [20, 30], Sampling(temperature=0.0, max_tokens=8, stop_token_ids=(stop,)), request_id="a/2"
    )
    await generator.aclose()
    assert (stopped.token_ids, stopped.finish_reason) == (greedy.token_ids[: first + 1], "stop")
    assert stopped.logprobs == [0.0] * (first + 1)  # a greedy choice is certain


async def test_log_probs_are_of_the_distribution_that_was_sampled_from(model: Any) -> None:
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([[20, 30]])).logits[0, -1].float()
    cooled = (logits / 0.5).log_softmax(-1)
    best = set(cooled.topk(3).indices.tolist())
    generator = TransformersGenerator(model, seed=1)
    settings = {
        "cooled": Sampling(temperature=0.5, max_tokens=1),
        "top_k": Sampling(temperature=0.5, top_k=3, max_tokens=1),
        "top_p": Sampling(top_p=1e-6, max_tokens=1),
        "min_p": Sampling(min_p=1.0, max_tokens=1),
        "freezing": Sampling(temperature=1e-300, max_tokens=1),
    }
    results = await asyncio.gather(
        *(generator.generate([20, 30], sampling, request_id=f"{name}/1") for name, sampling in settings.items())
    )
    await generator.aclose()
    by_name = dict(zip(settings, results, strict=True))
    token = by_name["cooled"].token_ids[0]
    assert by_name["cooled"].logprobs[0] == pytest.approx(cooled[token].item(), abs=1e-4)
    token = by_name["top_k"].token_ids[0]
    share = math.log(sum(math.exp(cooled[i].item()) for i in best))
    assert token in best
    assert by_name["top_k"].logprobs[0] == pytest.approx(cooled[token].item() - share, abs=1e-4)
    for name in ("top_p", "min_p", "freezing"):
        assert (by_name[name].token_ids[0], by_name[name].logprobs[0]) == (int(logits.argmax()), 0.0)


async def test_each_generator_has_luck_of_its_own_unless_seeds_say_otherwise(model: Any) -> None:
    said: list[tuple[int, ...]] = []
    for seed in (None, None, 3, 3):
        generator = TransformersGenerator(model, seed=seed)
        generation = await generator.generate([20], Sampling(max_tokens=16), request_id="a/1")
        said.append(tuple(generation.token_ids))
        await generator.aclose()
    assert len(set(said)) == 3
    assert said[2] == said[3]


async def test_a_prompt_that_fills_the_model_is_refused(model: Any) -> None:
    generator = TransformersGenerator(model)
    with pytest.raises(PromptTooLong, match="2048 prompt tokens fill a model of 2048 positions"):
        await generator.generate([20] * 2048, Sampling(), request_id="a/1")
    full = await generator.generate([20] * 2045, Sampling(max_tokens=50), request_id="a/2")
    await generator.aclose()
    assert (len(full.token_ids), full.finish_reason) == (3, "length")


async def test_a_cancelled_request_leaves_its_batch_and_the_next_one_is_served(model: Any) -> None:
    generator = TransformersGenerator(model)
    long = asyncio.create_task(generator.generate([20], Sampling(max_tokens=2000), request_id="a/1"))
    await asyncio.sleep(0)
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    short = await asyncio.wait_for(generator.generate([20], Sampling(max_tokens=2), request_id="b/1"), 5)
    assert len(short.token_ids) == 2
    await generator.aclose()
    with pytest.raises(GeneratorError, match="closed"):
        await generator.generate([20], Sampling(), request_id="c/1")


async def test_closing_ends_what_is_in_flight(model: Any) -> None:
    generator = TransformersGenerator(model, max_batch=1)
    tasks = [
        asyncio.create_task(generator.generate([20], Sampling(max_tokens=2000), request_id=f"{i}/1")) for i in range(3)
    ]
    await asyncio.sleep(0.05)
    await generator.aclose()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [GeneratorError] * 3


async def test_a_model_that_fails_is_a_generators_failure(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> Any:
        raise IndexError

    generator = TransformersGenerator(model)
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", fail)
        with pytest.raises(GeneratorError, match="the model failed: IndexError"):
            await generator.generate([20], Sampling(), request_id="a/1")
    assert (await generator.generate([20], Sampling(max_tokens=1), request_id="b/1")).finish_reason == "length"
    await generator.aclose()


@pytest.mark.parametrize(("prompt", "message"), [([10**6], "from 0 to 499"), ([-1], "from 0 to 499"), ([], "an id")])
async def test_what_a_model_can_not_take_fails_alone(model: Any, prompt: list[int], message: str) -> None:
    generator = TransformersGenerator(model)
    bad, good = await asyncio.gather(
        *(generator.generate(ids, Sampling(max_tokens=2), request_id=f"{ids}/1") for ids in (prompt, [20])),
        return_exceptions=True,
    )
    await generator.aclose()
    assert isinstance(bad, GeneratorError)
    assert message in str(bad)
    assert isinstance(good, Generation)


@pytest.mark.parametrize(
    "setting",
    [{"top_p": 0.0}, {"top_p": 1.1}, {"max_tokens": 0}, {"temperature": -1.0}, {"top_k": -1}, {"min_p": 2.0}],
)
def test_settings_that_nobody_can_sample_by_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="max_tokens 1 or more"):
        Sampling(**setting)


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(ImportError, match=r"pip install 'gymhost\[rollout\]'"):
        require("no_such_package", "rollout")
