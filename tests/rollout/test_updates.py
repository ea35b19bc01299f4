"""Weights that change while rollouts are in flight, and completions that must not go astray."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gymhost.rollout import Limits, RolloutEngine, RolloutRequest, Trajectory
from gymhost.rollout.generators import (
    DiskWeights,
    Generation,
    Generator,
    GeneratorError,
    GeneratorPool,
    Sampling,
    ScriptedGenerator,
    TransferWeights,
    TransformersGenerator,
    VllmServerGenerator,
)
from support.completions_server import CompletionsServer, PrefixCache, weights
from support.local_source import LocalSource
from support.models import logprobs_of, tiny_qwen3
from support.rollouts import CHAT, SAY, engine, requests, turns_of
from support.talk import Answer, Talk, end, go_on, tool
from support.tokenizers import decode, encode

pytestmark = pytest.mark.heavy


class TestCachesOfOlderWeights:
    """S09: a server whose prefix cache tells which version filled it."""

    @pytest.fixture
    async def server(self) -> AsyncIterator[CompletionsServer]:
        async with CompletionsServer() as server:
            server.version = 1
            server.max_model_len = 100_000
            server.answer = PrefixCache(server, lambda _body: SAY)
            yield server

    @pytest.fixture
    async def generator(self, server: CompletionsServer, tmp_path: Path) -> AsyncIterator[VllmServerGenerator]:
        made = VllmServerGenerator(server.url, policy_version=1, sync=DiskWeights(tmp_path))
        yield made
        await made.aclose()

    @pytest.mark.parametrize("pooled", [False, True])
    async def test_an_update_between_two_turns(
        self, server: CompletionsServer, generator: VllmServerGenerator, *, pooled: bool
    ) -> None:
        chosen = GeneratorPool([generator]) if pooled else generator
        long, new = await play_across(3, lambda: chosen.update(weights(2), 2), chosen)
        assert [turn.policy_version for turn in long.turns] == [1, 1, 1, 2, 2, 2]
        assert long.mixed_versions
        assert not any(turn.mixed_versions for turn in long.turns)
        check(long, new)

    async def test_an_update_in_the_middle_of_a_turn_that_is_cut(
        self, server: CompletionsServer, generator: VllmServerGenerator
    ) -> None:
        cache = PrefixCache(server, lambda body: SAY[2:] if body["prompt"][-2:] == SAY[:2] else SAY)
        server.answer = cache
        server.partial = lambda body: cache(body, "abort", SAY[:2])

        async def update() -> None:
            server.hold.clear()
            before = len(server.bodies)
            gate.set()
            async with asyncio.timeout(5):
                while len(server.bodies) == before:
                    server.changed.clear()
                    await server.changed.wait()
            await generator.update(weights(2), 2, in_flight="cut")
            server.hold.set()

        gate = asyncio.Event()
        long, new = await play_across(3, update, generator, gate)
        assert [turn.policy_version for turn in long.turns] == [1, 1, 1, 1, 2, 2]
        assert [turn.mixed_versions for turn in long.turns] == [False, False, False, True, False, False]
        check(long, new)


async def play_across(
    turns: int, update: Callable[[], Awaitable[None]], generator: Any, gate: asyncio.Event | None = None
) -> tuple[Trajectory, list[Trajectory]]:
    """Updates once a rollout of six turns has taken some, and then starts others with the same system prompt."""
    reached, release = asyncio.Event(), gate or asyncio.Event()

    class Long(Talk):
        async def astep(self, action: Any) -> Any:
            answer = self.step(action)
            if self.options["task"] == 0 and len(self.said) == turns:
                reached.set()
                await release.wait()
            return answer

    source = LocalSource(lambda: Long(lambda env, _message: turns_of(env, 6 if env.options["task"] == 0 else 2)))
    async with engine(source, generator) as rollouts:
        long = asyncio.create_task(rollouts.collect(requests(1)))
        await asyncio.wait_for(reached.wait(), 5)
        await update()
        release.set()
        new = await rollouts.collect([RolloutRequest("Talk-v0", task=task) for task in range(1, 5)])
        [trajectory] = await long
    return trajectory, new


def check(long: Trajectory, new: list[Trajectory]) -> None:
    assert {turn.policy_version for item in new for turn in item.turns} == {2}
    assert not any(item.mixed_versions for item in new)
    for item in (long, *new):
        assert item.outcome.kind == "terminated"
        for row in item.token_rows:
            sampled = [-version for version, mask in zip(row.policy_versions, row.mask, strict=True) if mask]
            filled = [logprob for logprob, mask in zip(row.logprobs, row.mask, strict=True) if mask]
            assert filled == sampled, "a block that older weights filled was used"


class TestGroupsWhosePromptsDiverge:
    """S03: two prompts with four rollouts each; two rollouts end after the first turn."""

    @pytest.mark.parametrize("kind", ["one generator", "a pool of two", "two engines"])
    async def test_each_rollout_gets_its_own_completions(self, kind: str) -> None:
        numbers = itertools.count()
        asked: list[str] = []

        class Marked(Talk):
            def reset(self, **kwargs: Any) -> Any:
                self.marker = f"R{next(numbers)}"
                return super().reset(**kwargs)

        def answer(env: Talk, _message: Any) -> Answer:
            marker: str = env.marker  # type: ignore[attr-defined]
            over = len(env.said) == 3 or marker in ("R2", "R5")
            return end(tool(marker), marker=marker) if over else go_on(tool(marker), reward=0.0)

        async def script(prompt_ids: Sequence[int], request_id: str) -> list[int]:
            asked.append(request_id)
            seen = re.findall(r"R\d", decode(list(prompt_ids)))
            for _ in range(len(asked) % 5):  # they are answered out of order
                await asyncio.sleep(0)
            assert len(set(seen)) <= 1
            return encode(f"{seen[-1] if seen else 'nothing'}<|im_end|>")

        def generator() -> Generator:
            if kind == "a pool of two":
                return GeneratorPool([ScriptedGenerator(script, name=name) for name in "ab"])
            return ScriptedGenerator(script)

        groups = [[RolloutRequest("Talk-v0", task=task, group=str(task), index=i) for i in range(4)] for task in (0, 1)]
        batches = groups if kind == "two engines" else [groups[0] + groups[1]]
        source = LocalSource(lambda: Marked(answer))
        engines = [RolloutEngine(source, CHAT, generator()) for _ in batches]
        results = await asyncio.gather(
            *(rollouts.collect(batch) for rollouts, batch in zip(engines, batches, strict=True))
        )
        for rollouts in engines:
            await rollouts.aclose()
        assert [len(result) for result in results] == [len(batch) for batch in batches]
        trajectories = [item for result in results for item in result]
        assert [item.index for item in trajectories] == [0, 1, 2, 3] * 2
        assert {item.info["marker"] for item in trajectories} == {f"R{n}" for n in range(8)}
        for item in trajectories:
            marker = item.info["marker"]
            said = [message["content"] for message in item.messages if message["role"] == "assistant"]
            assert said == ["nothing"] + ([] if marker in ("R2", "R5") else [marker] * 2)
        assert len(asked) == len(set(asked)) == 6 * 3 + 2


class TestTransformers:
    @pytest.fixture(autouse=True)
    def one_thread(self) -> Iterator[None]:
        """A tiny model is slowed down by threads that must wait for one another."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    @pytest.mark.parametrize("in_flight", ["keep", "cut", "wait"])
    async def test_what_is_in_flight(self, in_flight: Any) -> None:
        old, new, own = tiny_qwen3(), tiny_qwen3(seed=1), tiny_qwen3()
        loop, steps, begun = asyncio.get_running_loop(), itertools.count(), asyncio.Event()

        def note(*_: Any) -> None:
            if next(steps) == 10:
                loop.call_soon_threadsafe(begun.set)

        own.register_forward_hook(note)
        generator = TransformersGenerator(own, policy_version=1, seed=0)
        prompt = [20, 30, 40]
        long = asyncio.create_task(generator.generate(prompt, Sampling(max_tokens=150), request_id="a/1"))
        await asyncio.wait_for(begun.wait(), 10)
        await generator.update(new, 2, in_flight=in_flight)
        fresh = await generator.generate(prompt, Sampling(max_tokens=5), request_id="c/1")
        done = await long
        await generator.aclose()

        ids, versions = list(done.token_ids), list(done.versions)
        changed = versions.index(2) if 2 in versions else len(versions)
        assert versions == [1] * changed + [2] * (len(ids) - changed)
        before, after = (logprobs_of(model, prompt, ids) for model in (old, new))
        assert done.logprobs == pytest.approx(before[:changed] + after[changed:], abs=1e-3)
        assert done.mixed_versions == (in_flight == "keep")
        assert done.finish_reason == ("cut" if in_flight == "cut" else "length")
        assert (len(ids) == 150) == (in_flight != "cut")
        assert changed >= 10
        assert (changed == len(ids)) == (in_flight != "keep")
        assert (fresh.policy_version, fresh.mixed_versions) == (2, False)
        assert fresh.logprobs == pytest.approx(logprobs_of(new, prompt, list(fresh.token_ids)), abs=1e-3)

    async def test_weights_come_from_a_folder_too_and_wrong_ones_change_nothing(self, tmp_path: Path) -> None:
        new = tiny_qwen3(seed=1)
        generator = TransformersGenerator(tiny_qwen3(), policy_version=1)
        greedy = Sampling(temperature=0.0, max_tokens=8)

        async def says() -> tuple[int, Sequence[int]]:
            generation = await generator.generate([20, 30], greedy, request_id="a/1")
            return generation.policy_version, generation.token_ids

        before = await says()
        state = new.state_dict()
        for wrong, message in (
            (state | {"other": state["lm_head.weight"].clone()}, "no weights named other"),
            ({"lm_head.weight": state["lm_head.weight"]}, "the weights lack"),
            (state | {"lm_head.weight": state["lm_head.weight"][1:]}, r"lm_head.weight is \(\d+, 64\), the model's"),
        ):
            with pytest.raises(GeneratorError, match=message):
                await generator.update(wrong, 2)
            assert await says() == before
        await generator.update(await DiskWeights(tmp_path).prepare(new, 2), 2)
        version, ids = await says()
        other = TransformersGenerator(new)
        assert (version, ids) == (2, (await other.generate([20, 30], greedy, request_id="a/1")).token_ids)
        await other.aclose()
        await generator.aclose()


class TestTransfer:
    """What a machine without a GPU can see of `TransferWeights`."""

    async def test_tensors_must_be_on_a_gpu(self, tmp_path: Path) -> None:
        sync = TransferWeights()
        with pytest.raises(GeneratorError, match=r"CUDA devices only: on a CPU give sync=DiskWeights\(folder\)"):
            await sync.prepare(weights(2), 2)
        folder = await DiskWeights(tmp_path).prepare(weights(2), 2)
        with pytest.raises(GeneratorError, match=r"not transferred but reloaded: give sync=DiskWeights\(\)"):
            await sync.prepare(folder, 2)

    async def test_a_server_without_an_engine_for_it_is_told_how_to_start(self) -> None:
        async with CompletionsServer() as server:
            generator = VllmServerGenerator(server.url, sync=TransferWeights())
            with pytest.raises(GeneratorError, match="start it with --weight-transfer-config"):
                await generator.sync.load(generator, {}, 2)
            assert not await generator.sync.again(generator, 2)
            await generator.aclose()


async def test_a_script_that_is_cut_is_asked_again_under_the_new_version() -> None:
    thinking = asyncio.Event()

    async def script(_prompt: Sequence[int], _request: str) -> list[int]:
        if generator.policy_version == 0:
            thinking.set()
            await asyncio.Event().wait()
        return SAY

    generator = ScriptedGenerator(script)
    source = LocalSource(lambda: Talk(lambda _env, _message: end()))
    async with engine(source, generator, limits=Limits()) as rollouts:
        playing = asyncio.create_task(rollouts.collect(requests(4)))
        await asyncio.wait_for(thinking.wait(), 5)
        await generator.update(None, 1, in_flight="cut")
        trajectories = await asyncio.wait_for(playing, 5)
    assert {turn.policy_version for item in trajectories for turn in item.turns} == {1}
    assert not any(item.mixed_versions for item in trajectories)


async def test_pauses_may_overlap() -> None:
    generator = ScriptedGenerator(lambda *_: SAY)
    pool = GeneratorPool([generator])
    await pool.pause()
    await pool.update(None, 1)
    waiting: asyncio.Task[Generation] = asyncio.create_task(pool.generate([1], Sampling(), request_id="a/1"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await pool.resume()
    assert (await asyncio.wait_for(waiting, 5)).policy_version == 1
    await pool.aclose()
