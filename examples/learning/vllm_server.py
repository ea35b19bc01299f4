"""A vLLM server for TRL's server mode: `vllm serve` as a process of its own, with endpoints that load new weights."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

START_SECONDS = 240.0
STOP_SECONDS = 20.0


@contextlib.contextmanager
def vllm_server(model: str, log: Path, *, length: int) -> Generator[str]:
    """Runs a vLLM server on a free port, and stops it on leaving.

    Args:
        model: The folder of the model.
        log: Where it logs.
        length: The longest that prompt and completion may be together, in tokens.

    Yields:
        Its URL.

    Raises:
        RuntimeError: It did not start; the message has what it said.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("vllm")), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(length), "--dtype", "float32", "--enforce-eager"]
    command += ["--logprobs-mode", "processed_logprobs", "--disable-uvicorn-access-log"]
    with log.open("w") as said:
        process = subprocess.Popen(
            command,
            env=os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # so that one signal reaches all that it starts
        )
    try:
        _wait(process, url, log)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while not _healthy(url):
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"the vLLM server did not start; it said:\n{log.read_text()[-5000:]}")
        time.sleep(0.5)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False
