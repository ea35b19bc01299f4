"""`gymhost serve --rollouts`: the service beside environments and alone, how it ends, and what brings it back."""

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import grpc
import pytest

from gymhost.v1 import rollouts_pb2 as pb
from support.command import COMMAND, Serving, environment, gymhost, serving
from support.completions_server import CompletionsServer, choice
from support.rollouts_process import guessing, rollouts_stub, submission, tokenizer_folder
from support.server import ServerProcess, alive, children, running, until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]

# Imports of what tokenizers need take seconds on a machine that is busy.
PATIENCE = 120.0


class Sampler:
    """A generator that guesses 4, on a loop of its own: it is there while the test waits for processes."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        said = guessing(4)
        self.server = self._run(self._started(lambda _body: choice(said)))
        self.url = self.server.url

    async def _started(self, answer: object) -> CompletionsServer:
        server = CompletionsServer(answer)  # pyright: ignore[reportArgumentType]
        server.max_model_len = 4096
        await server.start(0)
        return server

    def hold(self, held: bool) -> None:
        """Keeps completions from ending, or lets them go on."""
        self._loop.call_soon_threadsafe(self.server.hold.clear if held else self.server.hold.set)

    def _run(self, work: object) -> CompletionsServer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)  # pyright: ignore[reportArgumentType]

    def close(self) -> None:
        self._run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    made = Sampler()
    yield made
    made.close()


@contextmanager
def with_rollouts(
    sampler: Sampler, folder: Path, *arguments: str, address: str = "127.0.0.1:0", **variables: str
) -> Generator[tuple[Serving, str]]:
    """A `gymhost serve` with a rollout service; yields it and the service's address."""
    options = ("--rollouts", "--tokenizer", tokenizer_folder(), "--renderer", "qwen3", "--generator", sampler.url)
    with serving(*options, *arguments, cwd=folder, address=address, **variables) as both:
        assert both.process.stdout is not None
        line = both.process.stdout.readline()
        match = re.search(r"takes rollout jobs on (\S+);", line)
        assert match is not None, line
        yield both, match[1]


@contextmanager
def alone(sampler: Sampler, folder: Path, *arguments: str) -> Generator[tuple["subprocess.Popen[str]", str]]:
    """A `gymhost serve` that runs a rollout service alone; yields it and its address."""
    options = ("--rollouts", "--tokenizer", tokenizer_folder(), "--renderer", "qwen3", "--generator", sampler.url)
    command = [*COMMAND, "serve", "--no-dashboard", *options, *arguments]
    with running(command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        match = re.search(r"takes rollout jobs on (\S+);", process.stdout.readline())
        assert match is not None, process.stderr
        yield process, match[1]


def service_of(pid: int) -> int:
    """The process of the service beside a server."""
    [found] = [
        child for child in children(pid) if b"gymhost.server.rollouts" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return found


async def played(address: str, key: str, tasks: int = 2) -> list[pb.Result]:
    """Submits a job, or finds it, and returns its results when it has ended."""
    async with rollouts_stub(address) as stub:
        job = (await stub.SubmitJob(submission(key, tasks), wait_for_ready=True, timeout=PATIENCE)).job
        call = stub.StreamResults(pb.StreamResultsRequest(job_ids=[job.id]))
        return [result async for response in call for result in response.results]


async def test_it_plays_beside_the_environments_and_is_started_again_when_it_dies(
    sampler: Sampler, tmp_path: Path
) -> None:
    with with_rollouts(sampler, tmp_path) as (both, address):
        service = service_of(both.process.pid)
        first = await played(address, "first")
        os.kill(service, signal.SIGKILL)
        assert await played(address, "first") == first
        again = service_of(both.process.pid)
        assert again != service
        assert len(await played(address, "second")) == 2
        assert both.end(signal.SIGTERM) == 0
        assert not alive(again)
        said = both.stderr.read()
        assert "the rollout service ended (status -9), and is started again" in said
        assert "Traceback" not in said
    assert (tmp_path / "rollouts.sqlite").stat().st_mode & 0o077 == 0


async def test_alone_it_lets_rollouts_end_that_are_in_flight_when_it_is_told_to_stop(
    sampler: Sampler, tmp_path: Path, server: ServerProcess
) -> None:
    sampler.hold(True)
    with ExitStack() as stack:
        stack.callback(sampler.hold, False)
        options = ("--environments", server.address, "--rollouts-address", "127.0.0.1:0", "--drain", "60")
        process, address = stack.enter_context(alone(sampler, tmp_path, *options))
        async with rollouts_stub(address) as stub:
            job = (await stub.SubmitJob(submission("cut", 4))).job
            sampled = len(sampler.server.bodies)
            await until(lambda: len(sampler.server.bodies) >= sampled + 4, PATIENCE)
        process.send_signal(signal.SIGTERM)
        sampler.hold(False)
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0
        process, address = stack.enter_context(alone(sampler, tmp_path, *options))
        async with rollouts_stub(address) as stub:
            found = (await stub.GetJob(pb.GetJobRequest(job_id=job.id))).job
            assert (found.terminated, found.queued, found.unacknowledged) == (4, 0, 4)
            # What can never be written ends it, and nothing is told that is not kept.
            with closing(sqlite3.connect(tmp_path / "rollouts.sqlite")) as db:
                db.execute("DROP TABLE requests")
            with pytest.raises(grpc.aio.AioRpcError, match="no such table"):
                await stub.SubmitJob(submission("lost"))
        begun = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(process.wait, PATIENCE) == 1
        assert asyncio.get_running_loop().time() - begun < 30


def test_what_keeps_it_from_starting_is_said(tmp_path: Path) -> None:
    command = ("serve", "--rollouts", "--environments", "127.0.0.1:1", "--rollouts-address", "127.0.0.1:0")
    result = gymhost(*command, cwd=tmp_path, limit=PATIENCE)
    assert result.returncode == 1
    assert "name the model's tokenizer, a folder (--tokenizer)" in result.stderr
    result = gymhost(*command, "--tokenizer", "./model", cwd=tmp_path, limit=PATIENCE)
    assert result.returncode == 1
    assert "there is no folder ./model (--tokenizer)" in result.stderr
