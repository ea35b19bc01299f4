"""What is left of a server that was killed: nothing, once another one has started."""

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from gymhost.client import connect
from gymhost.wire.folders import HeldFolder, abandoned
from support.server import ServerProcess, alive, children, running, until

StartServer = Callable[..., ServerProcess]

MODULES = ["support.lifecycle_environments", "support.sandbox_environments"]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives the processes of a test a folder for temporary files of their own: other servers clear the usual one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def folders(temporary: Path) -> list[str]:
    return [path.name for path in temporary.glob("gymhost-*") if path.is_dir()]


def groups() -> set[str]:
    return {
        f"{where}/{name}"
        for where, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith("gymhost-sandboxes-")
    }


def mounted() -> str:
    return Path("/proc/mounts").read_text()


def below(pid: int) -> list[int]:
    """A process and all below it, the lowest last."""
    return [pid, *(each for child in children(pid) for each in below(child))]


@contextlib.contextmanager
def killed_at_the_end(pids: list[int]) -> Generator[None]:
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_the_next_server_clears_away_what_a_killed_one_left(start_server: StartServer, temporary: Path) -> None:
    before, mounts = groups(), mounted()
    killed = start_server(workers=1, modules=MODULES)
    living = start_server(workers=1, modules=MODULES)
    async with connect(living.address) as other, other.session("test/Parent-v0") as unharmed:
        untouched, _ = await unharmed.reset()
        async with connect(killed.address, reconnect_timeout=0.5) as remote:
            sandboxed = await remote.session("test/Workbench-v0").open()
            await sandboxed.reset()
            said, *_ = await sandboxed.step({"role": "assistant", "tool_calls": [call("sleep 1000 & echo done")]})
            assert "done" in str(said)
            started, _ = await (await remote.session("test/Parent-v0").open()).reset()
            [worker] = killed.workers
            processes = below(killed.pid)
            assert started in processes
            assert len(processes) > 4  # the front, a worker, its child, and what its sandbox is made of
            made = groups() - before
            with killed_at_the_end(processes):
                # A worker that stands still can't see that its front is gone; and whatever makes sandboxes is killed
                # too, so that it clears nothing away itself.
                os.kill(worker, signal.SIGSTOP)
                for pid in processes:
                    if pid not in (worker, started):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                await asyncio.to_thread(killed.wait)
                assert alive(worker)
                assert alive(started)
                assert len(folders(temporary)) == 2
                after = start_server(workers=1, modules=MODULES)
                await until(lambda: not any(alive(pid) for pid in processes))
                await until(lambda: not made & groups())
                assert "cleared what a server left that was killed" in after.log
                assert len(folders(temporary)) == 2
                assert mounted() == mounts
        assert alive(untouched)
        assert (await unharmed.step(""))[0] == untouched
        assert (await (await other.session("test/Parent-v0").open()).reset())[0]


def call(command: str) -> dict[str, object]:
    return {"id": "1", "type": "function", "function": {"name": "shell", "arguments": {"command": command}}}


async def test_a_worker_whose_front_was_killed_ends_with_all_that_it_started(start_server: StartServer) -> None:
    server = start_server(workers=1, modules=MODULES)
    async with connect(server.address, reconnect_timeout=0.5) as remote:
        started, _ = await (await remote.session("test/Parent-v0").open()).reset()
        [worker] = server.workers
        with killed_at_the_end([worker, started]):
            server.signal(signal.SIGKILL)
            await until(lambda: not alive(worker) and not alive(started))


EMBEDS = """
    import time
    from gymhost.client import make

    env = make("CartPole-v1")
    env.reset(seed=0)
    print("there", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("together", [False, True], ids=["client", "client and server"])
async def test_the_folder_of_an_embedded_server_goes_with_its_client(
    start_server: StartServer, temporary: Path, together: bool
) -> None:
    with running([sys.executable, "-c", textwrap.dedent(EMBEDS)]) as client:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == "there\n"
        assert len(folders(temporary)) == 2
        processes = below(client.pid)
        with killed_at_the_end(processes):
            for pid in processes if together else (client.pid,):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            client.wait()
            if together:
                assert len(folders(temporary)) == 2
                start_server(workers=1)
                assert len(folders(temporary)) == 1
            else:
                await until(lambda: not folders(temporary))


def test_a_folder_that_is_held_is_never_taken_for_abandoned(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    held = HeldFolder("gymhost-test-")
    (temporary / "gymhost-test-of-another-kind").mkdir()
    assert list(abandoned("gymhost-test-")) == []
    holds = "import os; from gymhost.wire.folders import HeldFolder; HeldFolder('gymhost-test-'); os._exit(0)"
    with running([sys.executable, "-c", holds]) as process:
        process.wait()
    assert held.path not in (found := list(abandoned("gymhost-test-")))
    assert len(found) == 1
    held.remove()
    held.remove()
    assert not held.path.exists()
