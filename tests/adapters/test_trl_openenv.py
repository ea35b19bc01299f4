"""TRL's documented way with OpenEnv, on a gymhost server: the client of `openenv init`, and GRPOTrainer, unchanged."""

# OpenEnv is not installed where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

import copy
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from support.gateways import GatewayProcess
from support.models import tiny_qwen3
from support.server import TESTS, ServerProcess
from support.tokenizers import call, decode, encode, qwen3_tokenizer

# What TRL and torch warn of is not ours to mend.
pytestmark = [pytest.mark.adapter("trl-openenv"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def trl() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import trl

        assert trl.GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]
        return trl


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `openenv init` writes: an environment with a client, which are to be installed."""
    folder = tmp_path_factory.mktemp("scaffold")
    command = [str(Path(sys.executable).with_name("openenv")), "init", "echo_env"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=50)
    return folder


@pytest.fixture(scope="module")
def gateway(scaffold: Path) -> Iterator[GatewayProcess]:
    paths = [str(TESTS), str(scaffold)]
    with (
        ServerProcess(workers=1, modules=["openenv:echo"], paths=paths) as server,
        GatewayProcess("openenv", server, environment="openenv/echo") as process,
    ):
        yield process


def test_trls_example_trains_on_a_gymhost_server(
    trl: Any, gateway: GatewayProcess, scaffold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(scaffold))
    from echo_env import EchoAction, EchoEnv
    from trl.chat_template_utils import qwen3_chat_template

    env_url = gateway.url()
    echoed: list[str] = []

    # From here on as TRL's guide to OpenEnv has it, but for the model, and what it says.
    class EchoToolEnv:
        def __init__(self) -> None:
            self.env = EchoEnv(base_url=env_url)
            self.reward = 0.0

        def reset(self, **kwargs: Any) -> str | None:
            self.reward = 0.0
            return None

        def echo(self, message: str) -> str:
            """
            Echo the message back from the environment.

            Args:
                message: The message to echo

            Returns:
                The echoed message.
            """
            observation = self.env.step(EchoAction(message=message))
            self.reward = observation.observation.reward
            echoed.append(observation.observation.echoed_message)
            return observation.observation.echoed_message

    def reward_func(environments: list[Any], **kwargs: Any) -> list[float]:
        return [env.reward for env in environments]

    dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": "Try to echo 'Hello World!'."}]] * 8})
    tokenizer = copy.deepcopy(qwen3_tokenizer())
    tokenizer.chat_template = qwen3_chat_template
    trainer = trl.GRPOTrainer(
        model=tiny_qwen3(),
        processing_class=tokenizer,
        train_dataset=dataset,
        reward_funcs=reward_func,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=400,
            max_steps=2,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        ),
        environment_factory=EchoToolEnv,
    )
    lengths = iter(range(1, 100))

    def says(text: str) -> str:
        if "<tool_response>" in text:
            return "Done.<|im_end|>"
        return call("echo", json.dumps({"message": "a" * next(lengths)}))

    def generate(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        return [encode(says(decode(ids))) for ids in prompt_ids], None

    trainer._generate_single_turn = generate
    trainer.train()
    assert echoed == ["a" * length for length in range(1, 9)]
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert rewards == pytest.approx([0.25, 0.65])
