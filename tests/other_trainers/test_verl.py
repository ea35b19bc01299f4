# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""verl's own worker with the agent loop, on a server, a tiny model in place of verl's servers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import verl
from datasets import Dataset
from hydra import compose, initialize_config_dir
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.protocol import DataProto
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from gymhost.rollout import Sampling
from gymhost.trainers import verl as adapter
from gymhost.trainers.verl import rows
from gymhost.trainers.vocabulary import request_of
from support.models import logprobs_of, player, save
from support.server import ServerProcess
from support.tokenizers import decode, qwen3_tokenizer

PROMPT, RESPONSE = 600, 400


class Servers:
    """What verl's client of its servers does, by a model in this process."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.rollouts: list[str] = []
        self.cut = False

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.rollouts.append(request_id)
        known = {"temperature", "top_p", "top_k", "min_p", "max_tokens", "stop_token_ids", "logprobs"}
        assert set(sampling_params) == known
        most = 3 if self.cut else sampling_params["max_tokens"]
        stop = tuple(sampling_params["stop_token_ids"])
        sampling = Sampling(sampling_params["temperature"], max_tokens=most, stop_token_ids=stop)
        sampled = await self._sampler.generate(prompt_ids, sampling, request_id=request_id)
        cut = self.cut and sampled.finish_reason == "length"
        return TokenOutput(
            token_ids=list(sampled.token_ids),
            log_probs=list(sampled.logprobs),
            stop_reason="aborted" if cut else "completed",
            extra_fields={"global_steps": sampled.policy_version},
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(player(), tmp_path_factory.mktemp("model"))


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Loops of one test know no engine of another's."""
    adapter._ENGINES.clear()
    yield
    adapter._ENGINES.clear()


def worker(model: Path, tmp_path: Path, server: ServerProcess, servers: Servers, extra: str = "") -> Any:
    loops = tmp_path / "loops.yaml"
    loops.write_text(
        f"- name: gymhost\n  _target_: gymhost.trainers.verl.GymhostAgentLoop\n  server: {server.address}\n"
        f"  renderer: qwen3\n  limits: {{turn_tokens: 48}}\n{extra}"
    )
    folder = Path(verl.__path__[0]) / "trainer" / "config"
    settings = {
        "model.path": model,
        "rollout.name": "vllm",
        "rollout.prompt_length": PROMPT,
        "rollout.response_length": RESPONSE,
        "rollout.calculate_log_probs": True,
        "rollout.agent.agent_loop_config_path": loops,
    }
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", [f"actor_rollout_ref.{name}={value}" for name, value in settings.items()])
    return AgentLoopWorker(config, llm_client=servers)


def batch(*some: dict[str, Any]) -> Any:
    """Rows as verl's dataset hands them to a worker."""
    columns = {name: np.array([row[name] for row in some], dtype=object) for name in ("agent_name", "extra_info")}
    columns["raw_prompt"] = np.empty(len(some), dtype=object)
    columns["raw_prompt"][:] = [row["prompt"] for row in some]
    return DataProto.from_dict({"dummy_tensor": torch.zeros((len(some), 1))}, non_tensors=columns)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("cut", [False, True], ids=["whole turns", "turns that verl cuts"])
async def test_verl_gets_what_was_sampled(
    model: Path, tmp_path: Path, server: ServerProcess, sampler: Any, cut: bool
) -> None:
    servers = Servers(sampler)
    servers.cut = cut
    asked = rows("gymhost/GuessNumber-v0", [0, 1, 2, 0], kwargs={"guesses": 4})
    given = await worker(model, tmp_path, server, servers).generate_sequences(batch(*asked))

    assert given.batch["responses"].shape == (4, RESPONSE)
    for i in range(4):
        item = {name: given.batch[name][i] for name in given.batch.keys()}  # noqa: SIM118 - a TensorDict's own
        ids = item["input_ids"][item["attention_mask"].bool()].tolist()
        sampled = item["response_mask"].bool()
        start = int(item["attention_mask"][:PROMPT].sum())
        expected = logprobs_of(player(), ids[:start], ids[start:])
        count = len(ids) - start
        assert item["response_mask"][count:].sum() == 0
        close = torch.isclose(item["rollout_log_probs"][:count], torch.tensor(expected), atol=1e-3)
        assert close[sampled[:count]].all()
        assert "Guess the number from 1 to 7. You have 4 guesses." in decode(ids[:start])
        fields = given.non_tensor_batch
        if given.non_tensor_batch["__num_turns__"][i] > 3:
            answers = decode([id for id, own in zip(ids[start:], sampled[:count].tolist(), strict=True) if not own])
            assert "Too " in answers
        assert item["rm_scores"].sum() == pytest.approx(sum(fields["turn_scores"][i]))
        assert set(fields["rubrics"][i]) == {"win", "format"}
        assert fields["outcome"][i] in {"terminated", "truncated by turn_tokens", "truncated by completion_tokens"}
    assert len(set(servers.rollouts)) == 4  # a rollout stays where its prefix is cached
    assert len(servers.rollouts) > 8
    [shared] = adapter._ENGINES.values()
    assert len(shared) == 1


@pytest.mark.usefixtures("forgotten")
async def test_a_failure_is_no_reward_of_zero(model: Path, tmp_path: Path, server: ServerProcess, sampler: Any) -> None:
    loops = worker(model, tmp_path, server, Servers(sampler), "  tries: 2\n")
    with pytest.raises(RuntimeError, match=r"no reward in 2 tries: failed in turn 0"):
        await loops.generate_sequences(batch(*rows("test/NoSuch-v0", [0])))


@pytest.mark.usefixtures("forgotten")
async def test_a_row_of_another_kind_is_refused(
    model: Path, tmp_path: Path, server: ServerProcess, sampler: Any
) -> None:
    loops = worker(model, tmp_path, server, Servers(sampler))
    [row] = rows("gymhost/GuessNumber-v0", [0])
    with pytest.raises(ValueError, match=r"gymhost\.trainers\.verl\.rows"):
        await loops.generate_sequences(batch(row | {"extra_info": {"index": 0}}))


def test_rows_are_read_by_verls_dataset(tmp_path: Path) -> None:
    asked = rows("gymhost/GuessNumber-v0", [4, 5], split="test", kwargs={"guesses": 4})
    Dataset.from_list(asked).to_parquet(tmp_path / "train.parquet")
    with initialize_config_dir(str(Path(verl.__path__[0]) / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", [f"+data.cache_dir={tmp_path}"]).data
    read = RLHFDataset([str(tmp_path / "train.parquet")], qwen3_tokenizer(), config)
    assert len(read) == 2
    row = read[1]
    assert row["agent_name"] == "gymhost"
    assert row["index"] == 5
    request = request_of(row["extra_info"], row["extra_info"]["env_id"])
    assert (request.env_id, request.task, request.split) == ("gymhost/GuessNumber-v0", 5, "test")
    assert request.kwargs == {"guesses": 4}
