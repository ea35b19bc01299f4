"""Keeps what the libraries say about themselves out of the story."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Generator
from pathlib import Path

LIBRARIES = {
    # On shared cores threads that wait for each other cost more than they bring.
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "MASTER_PORT": "0",
}
"""Environment variables that the libraries read when they are imported; what the user has set goes first."""


@contextlib.contextmanager
def stderr_to(path: Path) -> Generator[None]:
    """Sends standard error to a file, that of native code too."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


def be_quiet() -> None:
    """Has the libraries report errors alone, once they are imported."""
    from transformers.utils import logging as transformers_logging

    warnings.filterwarnings("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("vllm", "trl", "accelerate", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
