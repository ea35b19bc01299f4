"""`gymhost serve --rollouts` in a process of its own, which a test kills and starts again."""

import re
import signal
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from gymhost.v1 import rollouts_pb2 as pb
from support.command import COMMAND, environment
from support.server import PATIENCE

__all__ = ["RolloutServiceProcess"]

START_SECONDS = 120.0
"""It loads a tokenizer, perhaps while vLLM servers start beside."""


class RolloutServiceProcess:
    """A rollout service that plays on an environment server elsewhere.

    Args:
        environments: The address of that.
        tokenizer: The folder of the model's tokenizer.
        jobs_file: Where it keeps its jobs.
        *options: More options of the command.
    """

    def __init__(self, environments: str, tokenizer: Path, jobs_file: Path, *options: str) -> None:
        self.jobs_file = jobs_file
        self.address = "127.0.0.1:0"
        self._options = ["--environments", environments, "--tokenizer", str(tokenizer), "--jobs-file", str(jobs_file)]
        self._options += options
        self._log = tempfile.NamedTemporaryFile(prefix="gymhost-test-", suffix=".log")  # noqa: SIM115 - ends with stop
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it listens; again at the same address after it has ended."""
        begin = len(self.log)
        self._process = subprocess.Popen(
            [*COMMAND, "serve", "--rollouts", "--no-dashboard", "--rollouts-address", self.address, *self._options],
            env=environment(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        give_up = time.monotonic() + START_SECONDS
        said = re.compile(r"takes rollout jobs on (\S+);")
        while (match := said.search(self.log[begin:])) is None:
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.kill()
                raise RuntimeError(f"the service did not start:\n{self.log}")
            time.sleep(0.05)
        self.address = match[1]

    @property
    def log(self) -> str:
        """What it said so far."""
        return Path(self._log.name).read_text(errors="replace")

    def kill(self) -> None:
        """Ends it at once, as a machine that fails does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE)

    def jobs(self) -> list[pb.Job]:
        """The jobs that its file has, whether it runs or not."""
        return [pb.Job.FromString(info) for (info,) in self._select("SELECT info FROM jobs ORDER BY job")]

    def kept(self) -> int:
        """How many rollouts its file has that are not over, or whose results were not acknowledged."""
        return self._select("SELECT count(*) FROM rollouts")[0][0]

    def stop(self) -> None:
        """Ends it in order."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        finally:
            if self._process.poll() is None:
                self.kill()

    def __enter__(self) -> "RolloutServiceProcess":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._log.close()

    def _select(self, query: str) -> list[Any]:
        db = sqlite3.connect(f"file:{self.jobs_file}?mode=ro", uri=True)
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()
