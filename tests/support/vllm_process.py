"""`vllm serve` in a process of its own, which a test starts, asks, kills and leaves nothing of."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Self

__all__ = ["ENVIRONMENT", "VllmProcess"]

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
"""What vLLM is to be started with in tests, in this process or another."""

START_SECONDS = 240.0
STOP_SECONDS = 20.0


class VllmProcess:
    """One server, started at once and ready after `wait`: several may so start beside each other.

    Args:
        model: The model's folder.
        length: The longest that prompt and completion may be together.
    """

    def __init__(self, model: Path, *, length: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.NamedTemporaryFile(prefix="vllm-", suffix=".log")  # noqa: SIM115 - ends with stop
        self._command = [str(Path(sys.executable).parent / "vllm"), "serve", str(model)]
        self._command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(length)]
        self._command += ["--dtype", "float32", "--enforce-eager", "--logprobs-mode", "processed_logprobs"]
        self._command += ["--disable-uvicorn-access-log"]
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Starts it, with the model's first weights; again at the same address after it was killed."""
        self._process = subprocess.Popen(
            self._command,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # so that one signal reaches all that it starts
        )

    def wait(self) -> Self:
        """Waits until it answers.

        Raises:
            RuntimeError: It ended, or took more than `START_SECONDS`; what it said is in the message.
        """
        give_up = time.monotonic() + START_SECONDS
        while not self.healthy():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"vllm serve did not start:\n{Path(self._log.name).read_text()[-5000:]}")
            time.sleep(0.2)
        return self

    def healthy(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as response:
                return response.status == 200
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """Returns a number that the server tells of itself, such as `num_requests_running`."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:
            text = response.read().decode()
        values = re.findall(rf"^vllm:{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        assert values, f"no metric {name}"
        return sum(map(float, values))

    def kill(self) -> None:
        """Ends all of it at once, as a machine that fails does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """Ends it, and kills what is left of it."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
