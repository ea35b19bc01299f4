"""Real vLLM servers on a CPU: whole games, new weights in the middle of them, and a server that is killed."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout import PromptTooLong, Sampling
from gymhost.rollout.generators import DiskWeights, GeneratorPool, InFlight, VllmServerGenerator
from support.games import LENGTH, play_games, played
from support.models import logprobs_of, player, shifted, tiny_qwen3
from support.recompute import check_rows, check_update
from support.server import until
from support.tokenizers import qwen3_tokenizer
from support.vllm_process import VllmProcess

pytestmark = pytest.mark.heavy

# vLLM warns of much that is not ours, and two servers take their time to start.
slow = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SAMPLINGS = {
    "as the model says": Sampling(),
    "cooled and cut": Sampling(temperature=0.7, top_p=0.8),
    "heated": Sampling(temperature=1.3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model `player()`, whose maker recommends a way of sampling: that must not change what is asked for."""
    path = tmp_path_factory.mktemp("player")
    player().save_pretrained(path)
    qwen3_tokenizer().save_pretrained(path)
    recommended = {"temperature": 0.3, "top_k": 3, "top_p": 0.5, "repetition_penalty": 1.5, "max_new_tokens": 5}
    eos = player().config.eos_token_id
    (path / "generation_config.json").write_text(json.dumps({"do_sample": True, "eos_token_id": eos, **recommended}))
    return path


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[list[VllmProcess]]:
    """Two servers with the model `player()`; who changes their weights puts them back. The second is to be killed."""
    with VllmProcess(folder, length=LENGTH) as first, VllmProcess(folder, length=LENGTH) as second:
        yield [first.wait(), second.wait()]


@pytest.fixture
async def generator(servers: list[VllmProcess], tmp_path: Path) -> AsyncIterator[VllmServerGenerator]:
    generator = VllmServerGenerator(servers[0].url, sync=DiskWeights(tmp_path))
    yield generator
    await generator.aclose()


@pytest.fixture
async def pool(servers: list[VllmProcess], tmp_path: Path) -> AsyncIterator[GeneratorPool]:
    sync = DiskWeights(tmp_path)
    pool = GeneratorPool(
        [VllmServerGenerator(server.url, name=name, sync=sync) for name, server in zip("ab", servers, strict=True)]
    )
    yield pool
    await pool.aclose()


class TestOneServer:
    pytestmark = slow

    @pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
    async def test_log_probs_are_those_of_the_distribution_that_was_sampled_from(
        self, generator: VllmServerGenerator, sampling: Sampling
    ) -> None:
        trajectories = await play_games(generator, 24, sampling=sampling)
        played(trajectories)
        assert len(check_rows(trajectories, {0: player()}, sampling)) > 300

    async def test_log_probs_of_a_choice_that_is_certain(self, generator: VllmServerGenerator) -> None:
        certain = await generator.generate([20, 30], Sampling(top_k=1, max_tokens=4), request_id="a/1")
        assert certain.logprobs == pytest.approx([0.0] * len(certain.token_ids), abs=1e-6)

    async def test_a_prompt_that_fills_the_model_is_refused_and_others_end_at_its_length(
        self, generator: VllmServerGenerator
    ) -> None:
        for length in (LENGTH, LENGTH + 1):
            with pytest.raises(PromptTooLong):
                await generator.generate([20] * length, Sampling(), request_id="a/1")
        for room in (1, 3):
            hot = Sampling(max_tokens=50, temperature=2.0, seed=1)
            full = await generator.generate([20] * (LENGTH - room), hot, request_id="b/1")
            assert (len(full.token_ids), full.finish_reason) == (room, "length")

    async def test_a_seed_decides_what_is_sampled_and_without_one_samples_differ(
        self, generator: VllmServerGenerator
    ) -> None:
        results = [
            await generator.generate([20, 30], Sampling(max_tokens=16, temperature=2.0, seed=seed), request_id=f"{i}/1")
            for i, seed in enumerate([7, 7, 8, None, None])
        ]
        one, same, *others = [tuple(result.token_ids) for result in results]
        assert one == same
        assert len({one, *others}) == 4

    async def test_a_cancelled_request_is_aborted(
        self, generator: VllmServerGenerator, servers: list[VllmProcess]
    ) -> None:
        server = servers[0]
        count = 40
        await generator.update(tiny_qwen3(), 1)  # a model that hardly ever ends by itself
        before = server.metric("generation_tokens_total")
        requests = [
            asyncio.create_task(
                generator.generate([20 + i] * 10, Sampling(max_tokens=LENGTH - 20), request_id=f"{i}/1")
            )
            for i in range(count)
        ]
        await until(lambda: server.metric("num_requests_running") > 0)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await until(lambda: server.metric("num_requests_running") + server.metric("num_requests_waiting") == 0)
        assert sum(request.cancelled() for request in requests) > count / 2
        assert server.metric("generation_tokens_total") - before < count * 100
        await generator.update(player(), 2)

    async def test_it_tells_what_it_had_in_its_prefix_cache(self, generator: VllmServerGenerator) -> None:
        before = await generator.prefix_cache()
        assert before is not None
        prompt = [20 + at % 7 for at in range(LENGTH - 20)]
        for turn in range(3):
            await generator.generate(prompt, Sampling(max_tokens=1), request_id=f"cached/{turn}")
        after = await generator.prefix_cache()
        assert after is not None
        assert after.prompt_tokens - before.prompt_tokens == 3 * len(prompt)
        found = after.cached_tokens - before.cached_tokens
        # The second and the third find all blocks of the first, but for the last, which is not full.
        assert found % 2 == 0
        assert len(prompt) // 2 < found // 2 <= len(prompt)

    @pytest.mark.parametrize("in_flight", ["wait", "cut", "keep"])
    async def test_new_weights_in_the_middle_are_visible_and_nowhere_mixed_unmarked(
        self, generator: VllmServerGenerator, in_flight: InFlight
    ) -> None:
        old, new = player(), shifted(player())
        await generator.update(old, 1)

        async def update() -> None:
            await generator.update(new, 2, in_flight=in_flight)

        trajectories = await play_games(generator, 32, after=24, act=update)
        assert generator.policy_version == 2
        played(trajectories)
        check_update(trajectories, {1: old, 2: new}, mixed=in_flight != "wait", exact=in_flight != "keep")
        await generator.update(old, 3)

    async def test_a_prefix_that_older_weights_have_cached_serves_no_newer_ones(
        self, generator: VllmServerGenerator
    ) -> None:
        old, new = player(), shifted(player())
        prompt = [100 + i % 200 for i in range(300)]
        await generator.update(old, 1)
        await generator.generate(prompt, Sampling(max_tokens=8), request_id="a/1")
        await generator.update(new, 2)
        fresh = await generator.generate(prompt, Sampling(max_tokens=8), request_id="a/2")
        await generator.update(old, 3)
        ids = list(fresh.token_ids)
        assert fresh.logprobs == pytest.approx(logprobs_of(new, prompt, ids), abs=1e-3)
        assert fresh.logprobs != pytest.approx(logprobs_of(old, prompt, ids), abs=1e-3)


class TestTwoServers:
    pytestmark = slow

    async def test_new_weights_reach_both_as_one_act(self, pool: GeneratorPool) -> None:
        old, new = player(), shifted(player())
        await pool.update(old, 1)

        async def update() -> None:
            await pool.update(new, 2, in_flight="cut")

        trajectories = await play_games(pool, 32, after=24, act=update)
        assert pool.policy_version == 2
        played(trajectories)
        check_update(trajectories, {1: old, 2: new}, mixed=True)
        assert {turn.generator for item in trajectories for turn in item.turns} == {"a", "b"}
        for item in trajectories:
            assert len({turn.generator for turn in item.turns}) == 1  # where its prefix is cached
        await pool.update(old, 3)

    async def test_a_server_is_killed_and_every_rollout_finishes(
        self, pool: GeneratorPool, servers: list[VllmProcess]
    ) -> None:
        begun_at_second: list[Any] = []

        async def kill() -> None:
            begun_at_second.extend(member for member in pool.members() if member.name == "b" and member.requests)
            servers[1].kill()

        trajectories = await play_games(pool, 32, after=40, act=kill)
        assert begun_at_second
        played(trajectories)
        check_rows(trajectories, {0: player()})
        ways = [[turn.generator for turn in item.turns] for item in trajectories]
        moved = [way for way in ways if "a" in way and "b" in way]
        assert moved
        for way in moved:
            assert way == sorted(way, reverse=True)  # first at the one that was killed, then at the other
        assert {item.attempts for item in trajectories} == {1}  # from their ids, and not from the beginning
        assert {member.name: member.healthy for member in pool.members()} == {"a": True, "b": False}
