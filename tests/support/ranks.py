"""A training script on two ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["run_ranks"]

_TESTS = Path(__file__).parents[1]
_SCRIPT = _TESTS / "trainers" / "ranks.py"
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(_TESTS),
    "PYTHONWARNINGS": "ignore",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_RUN_SECONDS = 250.0
_STOP_SECONDS = 30.0


def run_ranks(folder: Path, *options: str) -> list[dict[str, Any]]:
    """Runs the script on two ranks, as `accelerate launch` does, and returns what each of them saw.

    Args:
        folder: One of their own.
        *options: Of the script.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [*command, str(_SCRIPT), str(folder), *options],
            env=os.environ | _ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            process.wait(_RUN_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its ranks
                process.wait(_STOP_SECONDS)
        log.seek(0)
        assert process.returncode == 0, log.read()[-5000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]
