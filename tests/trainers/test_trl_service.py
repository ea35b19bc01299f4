"""`Environments(service=)` in TRL's own trainer: what it submits, which weights it announces, and what outlives it."""

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from gymhost.rollout import Concurrency, Limits, RolloutRequest, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.rollout.service import JobStatus, RolloutClient
from gymhost.trainers.trl import Env, Environments
from support.completions_server import choice
from support.ranks import run_ranks
from support.rollout_service import RolloutServiceProcess
from support.sampler import Sampler
from support.server import PATIENCE, ServerProcess
from support.tokenizers import encode, qwen3_tokenizer
from support.trl_trainers import RENDERER, grpo_trainer, log_of

# What TRL and torch warn of is not ours to mend.
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SAYS = ("abab", "1212", "ab12", "a212")


class World(NamedTuple):
    """A service and what it needs, with a stand-in for vLLM that says one thing after the other."""

    service: RolloutServiceProcess
    sampler: Sampler
    client: RolloutClient

    def jobs(self) -> list[JobStatus]:
        """All jobs, the first one first."""
        return self.client.call_sync(self.client.jobs(limit=1000))[::-1]

    @property
    def version(self) -> int:
        """The version of the weights that the service has."""
        return self.client.call_sync(self.client.status()).policy_version


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("service")
    qwen3_tokenizer().save_pretrained(folder / "tokenizer")
    number = itertools.count()
    with Sampler() as sampler, ServerProcess(workers=1, modules=["support.text_environments"]) as environments:
        sampler.server.answer = lambda _body: choice(encode(f"{SAYS[next(number) % len(SAYS)]}<|im_end|>"))
        options = ("--renderer", "qwen3", "--generator", sampler.url, "--rollout-limit", "turns=1")
        at = environments.address, folder / "tokenizer", folder / "jobs.sqlite"
        with RolloutServiceProcess(*at, *options) as service, RolloutClient(service.address) as client:
            yield World(service, sampler, client)


class Training(NamedTuple):
    """A trainer, and what it was given, batch by batch."""

    trainer: Any
    environments: Environments
    batches: list[list[Trajectory]]


@pytest.fixture
def training(world: World, tmp_path: Path) -> Callable[..., Training]:
    """Makes a trainer of two tasks a step, four rollouts of each, that goes on for three steps and keeps each of them.

    `then` is called with the number of each batch once that is there.
    """

    def make(
        envs: Any = "test/Letters-v0",
        *,
        limits: Limits | None = Limits(turns=2),  # noqa: B008 - it is frozen
        then: Callable[[int], object] = lambda _number: None,
        **settings: Any,
    ) -> Training:
        batches: list[list[Trajectory]] = []

        def played(batch: list[Trajectory]) -> None:
            batches.append(batch)
            then(len(batches))

        environments = Environments(
            envs, service=world.service.address, limits=limits, on_rollouts=played, weights=tmp_path / "weights"
        )
        # TRL shuffles the rows of later epochs otherwise once it was started again.
        defaults = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "shuffle_dataset": False}
        return Training(grpo_trainer(environments, tmp_path / "out", **defaults | settings), environments, batches)

    return make


def versions(batches: list[list[Trajectory]]) -> list[set[int]]:
    return [{turn.policy_version for trajectory in batch for turn in trajectory.turns} for batch in batches]


def test_each_batch_is_a_job_sampled_by_the_weights_of_its_step(
    world: World, training: Callable[..., Training], tmp_path: Path
) -> None:
    before, known = world.version, len(world.jobs())
    envs = [Env("test/Letters-v0"), Env("test/Letters-v0", name="held out", split="test")]
    trainer, environments, batches = training(envs, learning_rate=1e-2)
    # What it plays is as the service describes it.
    rows = [(row["environment"], row["task"]) for row in environments.dataset("train")]
    mixed = [(name, task % size) for task in range(4) for name, size in (("test/Letters-v0", 4), ("held out", 2))]
    assert rows == mixed[:-1]
    trainer.train()
    assert versions(batches) == [{before + step + 1} for step in range(3)]
    jobs = world.jobs()[known:]
    assert [(job.terminated, job.state, job.unacknowledged) for job in jobs] == [(8, "finished", 0)] * 3
    assert [job.label for job in jobs] == [f"{tmp_path / 'out'}, step {step}" for step in range(3)]
    for step, batch in enumerate(batches):
        assert [t.index for t in batch] == [0, 1, 2, 3] * 2
        assert len({t.group for t in batch}) == 2
        assert all(
            t.labels == {"environment": batch[i // 4 * 4].labels["environment"], "step": step}
            for i, t in enumerate(batch)
        )
    rewards = [[t.reward for t in batch if t.reward is not None] for batch in batches]
    assert len({reward for batch in rewards for reward in batch}) > 1
    assert [entry["reward"] for entry in log_of(trainer)] == [pytest.approx(sum(batch) / 8) for batch in rewards]
    # vLLM samples, so TRL is to correct for what it computes in another way.
    assert "sampling/importance_sampling_ratio/mean" in log_of(trainer)[0]

    # What a script plays when the training is over is played with what was learned last.
    evaluated = environments.rollout(trainer, environments.dataset("test", num_tasks=2))
    assert versions([evaluated]) == [{before + 4}]
    [folder] = (tmp_path / "weights").iterdir()
    assert folder.name == f"version-{before + 4}"
    written, learned = load_file(folder / "model.safetensors"), trainer.model.state_dict()
    assert written.keys() == learned.keys()
    assert all(torch.equal(written[name], learned[name]) for name in learned)


def test_failures_are_no_zeros_and_what_nobody_says_is_as_the_service_is_set_up(
    world: World, training: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = itertools.count()

    def shout_now_and_then(_body: Any) -> Any:
        return choice(encode(f"{'ab!' if next(number) % 8 == 0 else 'abab'}<|im_end|>"))

    monkeypatch.setattr(world.sampler.server, "answer", shout_now_and_then)
    told = training("test/BrittleLetters-v0", max_steps=1, temperature=0.5, top_k=9)
    told.trainer.train()
    [batch] = told.batches
    failed = [t for t in batch if t.outcome.kind == "failed"]
    assert {(t.reward, t.outcome.fault) for t in failed} == {(None, "environment")}
    assert {t.reward for t in batch} == {None, 1.0}
    [entry] = log_of(told.trainer)
    assert entry["rollouts/failed"] == len(failed) / 8
    assert entry["reward"] == 1.0
    body = world.sampler.server.bodies[-1]
    assert (body["temperature"], body["top_k"]) == (0.5, 9)
    assert body["max_tokens"] <= 64

    silent = training(max_steps=1, limits=None)
    silent.trainer.train()
    assert {str(t.outcome) for t in silent.batches[0]} == {"truncated by turns"}


@pytest.mark.parametrize("ends", ["by Ctrl-C", "once the batch is there"])
def test_a_trainer_that_is_started_again_goes_on_from_its_checkpoint(
    world: World, training: Callable[..., Training], ends: str
) -> None:
    before, known = world.version, len(world.jobs())
    interrupts = ends == "by Ctrl-C"

    def then(number: int) -> None:
        if number == 2 and interrupts:
            world.sampler.hold(True)
            threading.Thread(target=interrupt_when, args=(lambda: world.jobs()[-1].in_flight == 8,)).start()
        if number == 3:
            raise RuntimeError("it dies before it has learned from the batch")

    first = training(then=then)
    try:
        with pytest.raises(KeyboardInterrupt if interrupts else RuntimeError):
            first.trainer.train()
    finally:
        world.sampler.hold(False)
    assert world.jobs()[-1].state == ("cancelled" if interrupts else "finished")

    second = training()
    second.trainer.train(resume_from_checkpoint=True)
    assert versions(first.batches + second.batches) == [{before + n} for n in ((1, 2) if interrupts else (1, 2, 3))] + [
        {before + 3}  # the same weights: they were announced already
    ]
    assert [t.outcome.kind for t in second.batches[0]] == ["terminated"] * 8
    keys = [job.key for job in world.jobs()[known:]]
    assert len(keys) == 4
    # The same batch by the same name, of which nothing was left but the name.
    assert [key.rpartition("/")[0] for key in keys[2:]] == [keys[2].rpartition("/")[0]] * 2
    assert [key[-1] for key in keys] == ["0", "0", "0", "1"]
    assert world.version == before + 3


def interrupt_when(condition: Callable[[], bool]) -> None:
    """Interrupts the main thread, as Ctrl-C does, once something is true."""
    give_up = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.02)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_one_that_goes_further_back_leaves_what_it_had_behind(
    world: World, training: Callable[..., Training], tmp_path: Path
) -> None:
    before = world.version
    training().trainer.train()
    checkpoint = tmp_path / "out" / "checkpoint-1"
    kept = json.loads((checkpoint / "trainer_state.json").read_text())["stateful_callbacks"]["GymhostService"]
    run = kept["attributes"]["run"]
    waiting = world.client.call_sync(
        world.client.submit([RolloutRequest("test/Letters-v0")], open=True, key=f"{run}/x")
    )

    again = training()
    again.trainer.train(resume_from_checkpoint=str(checkpoint))
    assert versions(again.batches) == [{before + 4}, {before + 5}]
    assert world.client.call_sync(waiting.status()).state == "cancelled"
    assert all(job.key.startswith(f"{run}/") for job in world.jobs()[-2:])


def test_ranks_have_jobs_of_their_own_and_the_same_weights(world: World, tmp_path: Path) -> None:
    before, known = world.version, len(world.jobs())
    seen = run_ranks(tmp_path, "--service", world.service.address)
    assert [own["versions"] for own in seen] == [[[before + 1], [before + 2], [before + 3]]] * 2
    for batches in zip(*(own["places"] for own in seen), strict=True):
        assert sorted(index for batch in batches for _, _, index in batch) == list(range(8))
    jobs = world.jobs()[known:]
    assert sorted(job.key.split("/")[2] for job in jobs) == ["0"] * 3 + ["1"] * 3
    assert [(job.done, job.unacknowledged) for job in jobs] == [(4, 0)] * 6
    assert [entry["step"] for entry in seen[0]["log"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"server": "cpu7:50051"}, "server"),
        ({"renderer": RENDERER}, "renderer"),
        ({"concurrency": Concurrency()}, "concurrency"),
        ({"generator": ScriptedGenerator(lambda _prompt, _request: [1])}, "generator"),
    ],
)
def test_what_is_the_service_s_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=rf"Environments\({why}=...\): with service= that is the service's"):
        Environments("test/Letters-v0", service="cpu7:50052", **settings)


def test_weights_without_a_service_and_a_vllm_of_the_trainer_s_with_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Environments\(weights=...\): it needs a service="):
        Environments("test/Letters-v0", weights=tmp_path)
    from trl.trainer.grpo_config import GRPOConfig

    config = GRPOConfig(output_dir=str(tmp_path), use_vllm=True, bf16=False, use_cpu=True)
    with pytest.raises(ValueError, match="leave use_vllm out of the GRPOConfig"):
        Environments("test/Letters-v0", service="cpu7:50052").trainer_kwargs(config)
