"""A trainer, a rollout service, an environment server and two vLLM servers, and somebody who kills them.

`PYTHONPATH=tests python -m support.five_processes --rounds 5` takes longer than the test does.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from gymhost.rollout.service import RolloutClient, ServiceStatus
from support.models import save_tiny_qwen3
from support.rollout_service import RolloutServiceProcess
from support.server import ServerProcess
from support.vllm_process import VllmProcess

__all__ = ["Seen", "run"]

TESTS = Path(__file__).parents[1]
PATIENCE = 240.0
TRAINER = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    "PYTHONWARNINGS": "ignore",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
VICTIMS = ("environments", "first vLLM", "second vLLM", "service", "trainer")
APART = 3
"""Steps from one death to the next."""


@dataclass
class Seen:
    """What came of a training.

    Args:
        batches: What the trainer was given, batch by batch.
        log: What it logged, step by step.
        jobs: What the service's file has of the jobs.
        kept: What it still keeps of rollouts.
        killed: Who was killed in the batch of which step.
        said: What the trainer said.
    """

    batches: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    log: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    jobs: list[Any] = field(default_factory=list[Any])
    kept: int = 0
    killed: dict[int, str] = field(default_factory=dict[int, str])
    said: str = ""

    @property
    def ids(self) -> list[str]:
        """The ids of all that the trainer was given, in the order in which it was."""
        return [id for batch in self.batches for id in batch["ids"]]

    @property
    def made(self) -> list[str]:
        """The ids of all rollouts of the service that have ended."""
        return [f"{job.id}/{n}" for job in self.jobs for n in range(job.terminated + job.truncated + job.failed)]

    def check(self, steps: int, batch: int) -> None:
        """Asserts that no trajectory was lost, none was seen twice, and that the training ended and learned."""
        assert [each["step"] for each in self.batches] == list(range(steps))
        assert [len(each["ids"]) for each in self.batches] == [batch] * steps
        assert [job.state for job in self.jobs] == [5] * steps, self.jobs
        assert len(set(self.ids)) == len(self.ids) == steps * batch, "a trajectory was seen twice"
        assert set(self.ids) == set(self.made), "a trajectory was lost"
        assert self.kept == 0, "not all results were acknowledged"
        outcomes = {outcome.split()[0] for each in self.batches for outcome in each["outcomes"]}
        assert outcomes <= {"terminated", "truncated"}, outcomes
        # Each batch was sampled by the weights of its step, by whichever server: what the trainer computes is the same.
        assert [each["versions"] for each in self.batches] == [[step + 1] for step in range(steps)]
        ratios = [entry[f"sampling/importance_sampling_ratio/{end}"] for entry in self.log for end in ("min", "max")]
        assert len(self.log) == steps
        assert all(abs(ratio - 1) < 0.01 for ratio in ratios), ratios
        assert "rewrote history" not in self.said  # a model that knows nothing has thoughts now and then
        rewards = [entry["reward"] for entry in self.log]
        assert fmean(rewards[-4:]) > fmean(rewards[:4]) + 0.2, rewards


class Processes:
    """All of them but the trainer.

    Args:
        folder: For model, weights and jobs.
        stack: Ends them.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.model = folder / "model"
        save_tiny_qwen3(self.model)
        self.vllm = [stack.enter_context(VllmProcess(self.model, length=256)) for _ in range(2)]
        self.environments = stack.enter_context(ServerProcess(workers=1, modules=["support.text_environments"]))
        urls = [option for vllm in self.vllm for option in ("--generator", vllm.url)]
        self.service = stack.enter_context(
            RolloutServiceProcess(
                self.environments.address, self.model, folder / "jobs.sqlite", "--renderer", "qwen3", *urls
            )
        )
        for vllm in self.vllm:
            vllm.wait()
        self.client = RolloutClient(self.service.address)
        stack.callback(self.client.close_sync)

    def status(self) -> ServiceStatus:
        """How the service fares; it may be away for a while."""
        return self.client.call_sync(self.client.status())

    def whole(self) -> bool:
        """Whether both vLLM servers are used."""
        return all(generator.healthy and generator.current for generator in self.status().generators)

    def kill(self, victim: str) -> None:
        """Kills one of them, and starts it again."""
        match victim:
            case "environments":
                self.environments.signal(signal.SIGKILL)
                self.environments.wait()
                self.environments.start()
            case "service":
                self.service.kill()
                self.service.start()
            case _:
                vllm = self.vllm[victim.startswith("second")]
                vllm.kill()
                vllm.start()


class Trainer:
    """The trainer's process.

    Args:
        service: The address of the service.
        model: The model's folder.
        folder: What it writes to.
        *options: Of the script.
    """

    def __init__(self, service: str, model: Path, folder: Path, *options: str) -> None:
        self.folder = folder
        self._command = [sys.executable, str(TESTS / "rollouts" / "trainer.py"), service, str(model), str(folder)]
        self._command += options
        self._log = (folder / "trainer.log").open("ab")
        self._process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        """Starts it, from its last checkpoint if there is one."""
        self._process = subprocess.Popen(
            self._command, env=os.environ | TRAINER, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def running(self) -> bool:
        """Whether it runs; it must not have failed."""
        code = self._process.poll()
        assert code in (None, 0), (self.folder / "trainer.log").read_text()[-5000:]
        return code is None

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
        self._log.close()


def run(
    folder: Path, *, victims: Sequence[str] = VICTIMS, batch: int = 32, say: Callable[[str], object] = print
) -> Seen:
    """Trains, and kills one after the other while a batch is running.

    Args:
        folder: For all that is written.
        victims: Who is killed, in this order.
        batch: Rollouts of a step.
        say: Told what happens.
    """
    steps = APART * (len(victims) + 1) + 1
    deaths = {APART * (number + 1): victim for number, victim in enumerate(victims)}
    begun = time.monotonic()

    def tell(what: str) -> None:
        say(f"{time.monotonic() - begun:6.1f} s: {what}")

    with ExitStack() as stack:
        processes = Processes(folder, stack)
        tell("four processes are there")
        options = ["--steps", str(steps), "--batch", str(batch), "--hold", *map(str, deaths)]
        trainer = stack.enter_context(Trainer(processes.service.address, processes.model, folder, *options))
        for step, victim in deaths.items():
            until(lambda step=step: (folder / f"at-{step}").exists() or not trainer.running())
            until(processes.whole)
            tell(f"step {step}: all are there")
            (folder / f"go-{step}").touch()
            until(lambda: trainer.running() and processes.status().run > batch // 2)
            if victim == "trainer":
                trainer.kill()
                trainer.start()
            else:
                processes.kill(victim)
            tell(f"step {step}: killed {victim}, and started it again")
        until(lambda: not trainer.running())
        tell("the training has ended")
        seen = Seen(
            batches=[json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()],
            log=json.loads((folder / "log.json").read_text()),
            killed=deaths,
            said=(folder / "trainer.log").read_text(),
        )
        processes.client.close_sync()
        processes.service.stop()
        seen.jobs, seen.kept = processes.service.jobs(), processes.service.kept()
    return seen


def until(condition: Callable[[], object]) -> None:
    """Waits until something is true."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"not true after {PATIENCE:g} s"
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m support.five_processes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="how often each is killed (default: 4)")
    parser.add_argument("--batch", type=int, default=64, help="rollouts of a step (default: 64)")
    parser.add_argument("--seed", type=int, help="of the order in which they are killed")
    arguments = parser.parse_args()
    luck = random.Random(arguments.seed)
    victims = [victim for _ in range(arguments.rounds) for victim in luck.sample(VICTIMS, len(VICTIMS))]
    with tempfile.TemporaryDirectory(prefix="gymhost-") as folder:
        seen = run(Path(folder), victims=victims, batch=arguments.batch)
    seen.check(len(seen.batches), arguments.batch)
    rewards = [entry["reward"] for entry in seen.log]
    print(f"{len(seen.ids)} trajectories, none lost and none twice; rewards {rewards[0]:.2f} to {rewards[-1]:.2f}")


if __name__ == "__main__":
    main()
