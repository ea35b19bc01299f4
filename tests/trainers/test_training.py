"""Training as users run it: TRL's trainer in one process, `gymhost serve` in another, real models."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gymhost.client import RemoteServer, connect
from support.models import save_tiny_qwen3
from support.tokenizers import qwen3_tokenizer

pytestmark = pytest.mark.heavy

TOKEN = "a token of this test"
SCRIPT = Path(__file__).with_name("training.py")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "MASTER_PORT": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
# A start of vLLM is in it.
patient = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trl.chat_template_utils import qwen3_chat_template

    folder = tmp_path_factory.mktemp("model")
    save_tiny_qwen3(folder)
    (folder / "chat_template.jinja").write_text(qwen3_chat_template)
    assert qwen3_tokenizer().chat_template is None
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[RemoteServer]:
    """A server with one token: this connection and the scripts are the same identity, so it tells of their sessions."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gymhost.cli", "serve", "--no-dashboard", "--address", "127.0.0.1:0", "--workers", "1"],
        env=os.environ | {"GYMHOST_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        (address,) = re.findall(r"127\.0\.0\.1:\d+", process.stdout.readline())[:1]
        with connect(address, token=TOKEN) as server:
            yield server
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def start(server: RemoteServer, model: Path, *options: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), server.address, str(model), *options],
        env=os.environ | ENVIRONMENT | {"GYMHOST_TOKEN": TOKEN},
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


def run(server: RemoteServer, model: Path, *options: str) -> dict[str, Any]:
    process = start(server, model, *options)
    try:
        output, errors = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-5000:]
    return json.loads(output.splitlines()[-1])


def sessions_after(server: RemoteServer, seconds: float) -> int:
    """How many sessions there are once there are none, or after a time."""
    give_up = time.monotonic() + seconds
    while (count := len(asyncio.run(server.sessions()))) and time.monotonic() < give_up:
        time.sleep(0.1)
    return count


def check(seen: dict[str, Any], steps: int) -> None:
    assert len(seen["log"]) == steps
    assert seen["versions"] == [[step] for step in range(steps)]
    outcomes = {outcome for batch in seen["outcomes"] for outcome in batch}
    assert not any(outcome.startswith("failed") for outcome in outcomes), outcomes


class TestRealModels:
    pytestmark = patient

    @pytest.mark.parametrize("lora", [[], ["--lora"]], ids=["whole", "lora"])
    def test_colocated_vllm_samples_from_the_model_that_is_trained(
        self, server: RemoteServer, model: Path, lora: list[str]
    ) -> None:
        seen = run(server, model, "--vllm", "--steps", "4", *lora)
        check(seen, 4)
        for entry in seen["log"]:
            for name in ("min", "mean", "max"):
                assert entry[f"sampling/importance_sampling_ratio/{name}"] == pytest.approx(1.0, abs=0.01)
        assert sessions_after(server, 10) == 0

    def test_the_trained_model_itself_can_generate(self, server: RemoteServer, model: Path) -> None:
        check(run(server, model, "--steps", "3"), 3)
        assert sessions_after(server, 10) == 0


class TestNothingIsLeft:
    """S11: nobody calls close."""

    pytestmark = patient

    def test_by_a_script_that_dies_half_way(self, server: RemoteServer, model: Path) -> None:
        process = start(server, model, "--die-in-step", "2")
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 1
        assert "told to die" in errors
        assert sessions_after(server, 10) == 0

    def test_by_a_script_that_is_interrupted_in_a_rollout(self, server: RemoteServer, model: Path) -> None:
        process = start(server, model, "--steps", "1000")
        give_up = time.monotonic() + 150
        while not asyncio.run(server.sessions()):  # until it plays
            assert process.poll() is None, process.communicate()[1][-5000:]
            assert time.monotonic() < give_up
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "KeyboardInterrupt" in errors
        assert sessions_after(server, 10) == 0
