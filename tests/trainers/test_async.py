"""`RolloutWorker` against the code of TRL's asynchronous trainer that takes its samples."""

import asyncio
import copy
import inspect
import itertools
import queue
import re
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from renderers import Qwen3RendererConfig

from gymhost.envs.shelf.guess_number import GuessNumber
from gymhost.rollout import Chat, Limits, RolloutRequest
from gymhost.rollout.generators import GeneratorPool, TransformersGenerator, VllmServerGenerator
from gymhost.rollout.groups import Grouping
from gymhost.rollout.loop_thread import LoopThread
from gymhost.trainers.trl_async import RolloutWorker
from support.completions_server import CompletionsServer, choice
from support.local_source import LocalSource
from support.models import player, save
from support.talk import Talk, end
from support.tokenizers import call, decode, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

REQUESTS = [RolloutRequest("gymhost/GuessNumber-v0", task=task) for task in range(5)]


@pytest.fixture(scope="module", autouse=True)
def trl() -> None:
    """What TRL and torch warn of is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from trl.experimental.async_grpo import async_grpo_trainer

        assert async_grpo_trainer
    torch.set_num_threads(1)


class Servers:
    """vLLM servers on a thread of their own, as theirs would be."""

    def __init__(self) -> None:
        self.thread = LoopThread("vllm")
        self.all: list[CompletionsServer] = []

    def start(self, answer: Callable[[dict[str, Any]], Any] | None = None) -> CompletionsServer:
        server = CompletionsServer(answer or plays)
        server.max_model_len = 2048
        self.thread.run(server.start(0))
        self.all.append(server)
        return server

    def kill(self, server: CompletionsServer) -> None:
        self.thread.run(server.stop())

    def close(self) -> None:
        for server in self.all:
            self.kill(server)
        self.thread.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture
def make_worker(servers: Servers) -> Iterator[Callable[..., RolloutWorker]]:
    """Makes workers with groups of four and two of these between updates; afterwards nothing may be left of them."""
    made: list[tuple[RolloutWorker, LocalSource]] = []
    threads = set(threading.enumerate())

    def make(source: LocalSource | None = None, generator: Any = None, **settings: Any) -> RolloutWorker:
        source = source or LocalSource(GuessNumber)
        chat = Chat(qwen3_tokenizer(), Qwen3RendererConfig())
        generator = generator or VllmServerGenerator(servers.start().url)
        settings = {"requests": REQUESTS, "update_groups": 2, "grouping": Grouping(4), "max_staleness": 2} | settings
        worker = RolloutWorker(settings.pop("requests"), chat, generator, server=source, **settings)
        made.append((worker, source))
        return worker

    yield make
    for worker, source in made:
        worker.stop()
        worker.stop()
        assert source.open == 0
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not [name for name in left if name.startswith("gymhost")]


def plays(body: dict[str, Any]) -> dict[str, Any]:
    """Guesses the middle of the range, but sometimes the lowest number; says hello where there is none."""
    ranges = re.findall(r"from (\d+) to (\d+)", decode(body["prompt"]))
    if not ranges:
        return choice(encode("Hello.<|im_end|>"))
    low, high = (int(number) for number in ranges[-1])
    number = low if next(_turns) % 5 == 0 else (low + high) // 2
    return choice(encode(call("guess", f'{{"number": {number}}}')))


_turns = itertools.count()


class Trainer:
    """What of TRL's trainer takes the samples, its own code: it counts versions, and drops what is stale."""

    def __init__(self, worker: RolloutWorker, *, max_staleness: int = 2, stale_after: float = 30.0) -> None:
        from trl.experimental.async_grpo.async_grpo_trainer import RolloutQueueDataset

        self.worker = worker
        self.version = 0
        self.metrics: dict[str, list[Any]] = defaultdict(list)
        self.dataset = RolloutQueueDataset(
            rollout_queue=worker.rollout_buffer,
            model_version_fn=lambda: self.version,
            check_health_fn=worker.check_health,
            stale_after_s=stale_after,
            metrics=self.metrics,
            max_staleness=max_staleness,
            poll_interval_s=0.2,
        )
        self.samples = iter(self.dataset)

    def update(self) -> None:
        self.version += 1
        self.worker.update_model_version(self.version)

    def take(self, count: int) -> list[dict[str, Any]]:
        return list(itertools.islice(self.samples, count))

    def take_groups(self, count: int) -> list[list[dict[str, Any]]]:
        return [self.take(4) for _ in range(count)]


def raises(_env: Talk, _message: Any) -> Any:
    raise ZeroDivisionError("this was to be")


def wait_for(holds: Callable[[], Any], seconds: float = 20.0) -> None:
    give_up = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def drain(metrics: "queue.Queue[dict[str, Any]]") -> list[dict[str, Any]]:
    return [metrics.get_nowait() for _ in range(metrics.qsize())]


class TestProtocol:
    def test_is_that_of_the_trainer(self, make_worker: Callable[..., RolloutWorker]) -> None:
        from trl.experimental.async_grpo.async_grpo_trainer import RolloutWorkerProtocol

        worker: RolloutWorkerProtocol = make_worker()
        for name, method in inspect.getmembers(RolloutWorkerProtocol, inspect.isfunction):
            if not name.startswith("_"):
                ours = inspect.signature(getattr(RolloutWorker, name))
                assert list(ours.parameters) == list(inspect.signature(method).parameters), name
        for name in RolloutWorkerProtocol.__annotations__:
            assert isinstance(getattr(worker, name), queue.Queue), name


class TestSamples:
    def test_are_what_was_sampled(self, make_worker: Callable[..., RolloutWorker]) -> None:
        worker = make_worker()
        trainer = Trainer(worker)
        trainer.update()  # TRL brings the weights to the server before it starts the worker
        worker.start()
        for group in trainer.take_groups(6):
            assert len({sample["group_id"] for sample in group}) == 1
            rewards = np.array([sample["metrics"]["reward"] for sample in group])
            advantages = np.array([sample["advantage"] for sample in group])
            assert advantages == pytest.approx((rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4))
            for sample in group:
                assert sample["metrics"].keys() == {"reward", "reward_std", "rewards/win", "rewards/format"}
                mask = sample["completion_mask"].astype(bool)
                said = decode(sample["input_ids"][mask].tolist())
                assert said.startswith("<tool_call>")
                assert said.endswith("<|im_end|>")
                assert "Too" not in said
                assert set(sample["old_log_probs"][mask].tolist()) == {-0.5}
                assert not sample["old_log_probs"][~mask].any()
                assert decode(sample["input_ids"][~mask].tolist()).count("<|im_start|>system") == 1
        assert trainer.metrics["sample/dropped_stale_total"] == []

    def test_of_a_group_have_its_task(self, make_worker: Callable[..., RolloutWorker]) -> None:
        """The requests are played again from the first, each time with another seed for what has none."""
        seen: list[tuple[Any, Any]] = []

        def make() -> Talk:
            def opening(env: Talk) -> Any:
                seen.append((env.options["task"], env.seed))
                return [{"role": "user", "content": "Go."}]

            return Talk(lambda _env, _message: end(), opening)

        worker = make_worker(LocalSource(make), requests=[RolloutRequest("Talk-v0", task=task) for task in (7, 8)])
        worker.start()
        Trainer(worker).take_groups(4)
        assert seen[:16] == [(7, 0)] * 4 + [(8, 1)] * 4 + [(7, 2)] * 4 + [(8, 3)] * 4

    def test_are_never_too_old(self, make_worker: Callable[..., RolloutWorker]) -> None:
        worker = make_worker()
        trainer = Trainer(worker)
        trainer.update()
        worker.start()
        for _ in range(6):
            trainer.take(8)
            trainer.update()
        assert trainer.metrics["sample/dropped_stale_total"] == []
        staleness = trainer.metrics["sample/staleness_max"]
        assert len(staleness) == 48
        assert staleness[:8] == [0.0] * 8
        assert 1.0 <= max(staleness) <= 2.0  # batches are begun ahead, but only so many

    def test_what_the_log_is_told(self, make_worker: Callable[..., RolloutWorker]) -> None:
        worker = make_worker(limits=Limits(turns=2))
        worker.start()
        Trainer(worker).take_groups(4)
        logged = drain(worker.metrics_queue)
        sums = defaultdict[str, float](float)
        for item in logged:
            for name, value in item.items():
                sums[name] += value[1] if isinstance(value, tuple) else 0.0
        assert sums["rollout/turns_mean"] >= 16
        assert sums["rollout/failed_frac"] == sums["rollout/turns_mean"]
        turns = [item["rollout/turns_mean"][0] / 4 for item in logged if "rollout/turns_mean" in item]
        assert all(1 <= value <= 2 for value in turns)
        assert not any("failed_by" in name for name in sums)


class TestFailures:
    def test_of_an_environment_are_left_out_of_their_group(self, make_worker: Callable[..., RolloutWorker]) -> None:
        """S08: rewards 1.0 and 0.0, an environment that raises and one without a valid reward, in each group."""
        begun = itertools.count()
        answers: list[Callable[[], Any]] = [
            lambda: end(reward=1.0),
            lambda: end(reward=0.0),
            lambda: 1 / 0,
            lambda: end(reward=float("nan")),
        ]
        worker = make_worker(
            LocalSource(lambda: Talk(lambda _env, _message: answers[next(begun) % 4]())),
            requests=[RolloutRequest("Talk-v0")],
            update_groups=1,
            max_staleness=1,
        )
        worker.start()
        trainer = Trainer(worker)
        for _ in range(4):
            first, second = sorted(trainer.take(2), key=lambda sample: sample["advantage"])
            assert first["group_id"] == second["group_id"]
            assert (first["metrics"]["reward"], second["metrics"]["reward"]) == (0.0, 1.0)
            assert second["advantage"] == pytest.approx(-first["advantage"]) == pytest.approx(0.7070, abs=1e-3)
        logged = drain(worker.metrics_queue)
        assert sum(item.get("rollout/failed_by_environment_total", 0.0) for item in logged) >= 4

    def test_and_nothing_else_end_the_training(self, make_worker: Callable[..., RolloutWorker]) -> None:
        worker = make_worker(LocalSource(lambda: Talk(raises)), requests=[RolloutRequest("Talk-v0")])
        worker.start()
        with pytest.raises(RuntimeError, match=r"3 batches in a row.*ZeroDivisionError") as raised:
            Trainer(worker).take(1)
        assert raised.value.__cause__ is not None

    def test_of_one_generator_move_its_rollouts_to_another(
        self, make_worker: Callable[..., RolloutWorker], servers: Servers
    ) -> None:
        first, second = servers.start(), servers.start()
        pool = GeneratorPool([VllmServerGenerator(server.url) for server in (first, second)], probe_seconds=0.2)
        worker = make_worker(generator=pool)
        worker.start()
        trainer = Trainer(worker)
        trainer.take_groups(4)
        assert first.bodies
        assert second.bodies
        servers.kill(first)
        before = len(second.bodies)
        trainer.take_groups(8)
        assert len(second.bodies) > before
        assert not any("failed_by" in name for item in drain(worker.metrics_queue) for name in item)

    def test_of_the_only_generator_end_the_training(
        self, make_worker: Callable[..., RolloutWorker], servers: Servers
    ) -> None:
        vllm = servers.start()
        worker = make_worker(generator=VllmServerGenerator(vllm.url), limits=Limits(retries=0))
        worker.start()
        trainer = Trainer(worker)
        trainer.take_groups(2)
        servers.kill(vllm)
        with pytest.raises(RuntimeError, match=r"3 batches in a row.*generator"):
            trainer.take(200)

    def test_without_a_word_are_told_from_the_clock(
        self, make_worker: Callable[..., RolloutWorker], servers: Servers
    ) -> None:
        vllm = servers.start()
        servers.thread.call(vllm.hold.clear)
        worker = make_worker(generator=VllmServerGenerator(vllm.url))
        worker.start()
        worker.check_health(30.0)
        with pytest.raises(RuntimeError, match=r"no rollout has moved for \d+ s.*16 are sampling"):
            Trainer(worker, stale_after=2.5).take(1)
        servers.thread.call(vllm.hold.set)
        assert Trainer(worker).take(4)

    def test_no_requests_are_one(self, make_worker: Callable[..., RolloutWorker]) -> None:
        worker = make_worker(requests=[])
        worker.start()
        with pytest.raises(RuntimeError, match="no requests"):
            Trainer(worker).take(1)


class TestBounds:
    def test_a_sample_has_to_be_allowed_to_wait(self, make_worker: Callable[..., RolloutWorker]) -> None:
        with pytest.raises(ValueError, match="max_staleness must be 1 or more"):
            make_worker(max_staleness=0)

    def test_nothing_is_lost_where_few_samples_find_room(self, make_worker: Callable[..., RolloutWorker]) -> None:
        worker = make_worker(queue_maxsize=3)
        worker.start()
        wait_for(worker.rollout_buffer.full)
        taken = Trainer(worker).take_groups(4)
        assert [[sample["group_id"] for sample in group] for group in taken] == [[0] * 4, [1] * 4, [2] * 4, [3] * 4]

    def test_no_more_is_begun_than_may_wait(self, make_worker: Callable[..., RolloutWorker]) -> None:
        worker = make_worker()
        worker.start()
        wait_for(lambda: worker.engine.status().done == 16)  # two groups, and as many for one update more
        wait_for(lambda: worker.rollout_buffer.qsize() == 8)
        worker.check_health(0.0001 + 2.0)
        Trainer(worker).take(8)
        wait_for(lambda: worker.engine.status().done == 24)
        assert worker.engine.status().in_flight == 0

    def test_stopping_with_a_full_queue_leaves_nothing(self, make_worker: Callable[..., RolloutWorker]) -> None:
        source = LocalSource(GuessNumber)
        worker = make_worker(source, queue_maxsize=1)
        worker.start()
        wait_for(worker.rollout_buffer.full)
        worker.stop()
        assert source.open == 0
        assert source.opened > 0
        with pytest.raises(RuntimeError, match="make another one"):
            worker.start()

    def test_stopping_in_the_middle_of_a_generation_leaves_nothing(
        self, make_worker: Callable[..., RolloutWorker], servers: Servers
    ) -> None:
        vllm = servers.start()
        servers.thread.call(vllm.hold.clear)
        source = LocalSource(GuessNumber)
        worker = make_worker(source, VllmServerGenerator(vllm.url))
        worker.start()
        wait_for(lambda: len(vllm.bodies) == 16)
        worker.stop()
        assert source.open == 0
        wait_for(lambda: vllm.dropped == 16)

    async def test_from_within_a_loop(self, make_worker: Callable[..., RolloutWorker]) -> None:
        worker = make_worker()
        worker.start()
        assert await asyncio.to_thread(Trainer(worker).take, 4)


class Transfer:
    """Brings weights nowhere."""

    def __init__(self) -> None:
        self.sent = 0

    def init_weight_transfer(self) -> None: ...

    def pause(self) -> None: ...

    def send_weights(self, iterator: Iterator[Any]) -> None:
        self.sent += len(dict(iterator)) > 0

    def resume(self) -> None: ...

    def destroy(self) -> None: ...


@pytest.mark.filterwarnings("ignore")
class TestTrainer:
    def test_trains_on_what_the_worker_plays(
        self, make_worker: Callable[..., RolloutWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """TRL's own trainer, all but its attention, which is for GPUs alone, with a model that has learned to play.

        The weights hardly move, so the trainer's log-probs are those of the sampler, if the rows are what was sampled.
        """
        from datasets import Dataset
        from trl.chat_template_utils import qwen3_chat_template
        from trl.experimental.async_grpo import async_grpo_trainer, packing
        from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig

        monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attention))
        monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: 1.0)
        save(player(), tmp_path)
        tokenizer = copy.deepcopy(qwen3_tokenizer())
        tokenizer.chat_template = qwen3_chat_template
        source, transfer = LocalSource(GuessNumber), Transfer()
        worker = make_worker(source, TransformersGenerator(player(), seed=0))
        config = AsyncGRPOConfig(
            output_dir=str(tmp_path / "out"),
            max_steps=4,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=1,
            num_generations=4,
            token_budget=0,
            max_staleness=2,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            bf16=False,
            gradient_checkpointing=False,
        )
        trainer = async_grpo_trainer.AsyncGRPOTrainer(
            str(tmp_path),
            args=config,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": ""}]}] * 5),
            processing_class=tokenizer,
            rollout_worker=worker,
            weight_transfer=transfer,
        )
        trainer.train()
        log = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert len(log) == 4
        assert transfer.sent == 5  # once before the first step, and after each
        assert all(entry["sample/staleness_max"] <= 2 for entry in log)
        assert not any("sample/dropped_stale_total" in entry for entry in log)
        assert all(-0.5 <= entry["reward"] <= 1.0 for entry in log)
        assert all(entry["ratio"] == pytest.approx(1.0, abs=0.01) for entry in log)
        assert any(entry["grad_norm"] > 0.0 for entry in log)
        told = {name for entry in log for name in entry}
        assert {"rollout/turns_mean", "rollout/environment_s", "rollout/failed_frac"} <= told
        assert source.open == 0  # the trainer has stopped the worker


def attention(
    query: Any, key: Any, value: Any, ends: Any, key_ends: Any, *_: Any, softmax_scale: float, **__: Any
) -> Any:
    """What FlashAttention computes for packed sequences, the last query of each at its last key."""
    import torch

    parts: list[Any] = []
    bounds = zip(itertools.pairwise(ends.tolist()), itertools.pairwise(key_ends.tolist()), strict=True)
    for (start, stop), (first, last) in bounds:
        mask = torch.ones(stop - start, last - first, dtype=torch.bool).tril((last - first) - (stop - start))
        each = (query[start:stop], key[first:last], value[first:last])
        out = torch.nn.functional.scaled_dot_product_attention(
            *(part.transpose(0, 1) for part in each), attn_mask=mask, scale=softmax_scale, enable_gqa=True
        )
        parts.append(out.transpose(0, 1))
    return torch.cat(parts)
