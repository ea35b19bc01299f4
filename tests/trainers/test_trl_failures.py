"""What goes wrong in the middle of a training, on real servers: it goes on, the log says so, and no zero is learned."""

import asyncio
import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gymhost.client import connect
from gymhost.rollout import Limits, Trajectory
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.rollout.servers import Servers
from gymhost.trainers.trl import Environments
from gymhost.wire import errors
from support.server import ServerProcess, until, until_sessions
from support.tokenizers import call, decode, encode
from support.trl_trainers import RENDERER, grpo_trainer

# What TRL and torch warn of is not ours to mend.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore")]

SHOP = "test/Shop-v0"
BUY_AND_LEAVE = (
    encode(call("buy", '{"items": [{"name": "tea"}, {"name": "milk"}]}')),
    encode(call("leave", "{}")),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Several wait for one another more than they compute, in models as small as these."""
    torch.set_num_threads(1)


def server_process(**settings: Any) -> ServerProcess:
    return ServerProcess(modules=["support.factory_environments"], workers=1, **settings)


@pytest.fixture
def servers() -> Iterator[list[ServerProcess]]:
    with server_process() as one, server_process() as other:
        yield [one, other]


def shopper(on_generate: Any = None) -> ScriptedGenerator:
    """The model that buys two things and leaves.

    Args:
        on_generate: Called before each turn with how many there were.
    """
    turns = 0

    async def script(prompt_ids: Any, _request_id: str) -> list[int]:
        nonlocal turns
        turns += 1
        if on_generate is not None:
            await asyncio.to_thread(on_generate, turns)
        return BUY_AND_LEAVE["You have" in decode(list(prompt_ids))]

    return ScriptedGenerator(script)


def shop(server: Any, **settings: Any) -> tuple[Environments, list[list[Trajectory]]]:
    batches: list[list[Trajectory]] = []
    settings = {"renderer": RENDERER, "generator": shopper(), "num_tasks": 64} | settings
    return Environments(SHOP, server=server, on_rollouts=batches.append, **settings), batches


def train(environments: Environments, folder: Path, steps: int, **settings: Any) -> Any:
    settings = {"max_completion_length": 256, "shuffle_dataset": False} | settings
    trainer = grpo_trainer(environments, folder, max_steps=steps, **settings)
    trainer.train()
    return trainer


def logged(trainer: Any, step: int) -> dict[str, float]:
    return next(entry for entry in trainer.state.log_history if entry["step"] == step and "reward" in entry)


class TestServer:
    def test_that_is_killed_and_comes_back_costs_no_rollout(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with server_process() as server:

            def die(turn: int) -> None:
                if turn == 20:  # of 16 a batch
                    server.signal(signal.SIGKILL)
                    server.wait()
                    server.stop()
                    server.start()

            environments, batches = shop(server.address, generator=shopper(die))
            trainer = train(environments, tmp_path, 3)
        assert [[t.reward for t in batch] for batch in batches] == [[2.0] * 8] * 3
        assert logged(trainer, 2)["rollouts/begun_again"] > 0
        assert logged(trainer, 3)["rollouts/begun_again"] == 0
        assert re.search(r"\d of 8 rollouts were begun again after a fault", caplog.text)

    def test_that_stays_away_costs_the_batch_and_is_no_zero(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with server_process() as server:
            begins, dead = threading.Lock(), threading.Event()

            def die(turn: int) -> None:
                with begins:  # no rollout of the second batch takes a turn before that
                    if turn > 16 and not dead.is_set():
                        server.signal(signal.SIGKILL)
                        server.wait()
                        server.stop()
                        dead.set()

            environments, batches = shop([server.address], generator=shopper(die), limits=Limits(retries=0))
            trainer = grpo_trainer(environments, tmp_path, max_steps=3, max_completion_length=256)
            play, weights = trainer.rollout_func, list[list[torch.Tensor]]()

            def look(prompts: Any, trainer: Any) -> Any:
                weights.append([weight.detach().clone() for weight in trainer.model.parameters()])
                given = play(prompts, trainer)
                if len(batches) == 2:
                    server.start()
                return given

            trainer.rollout_func = look
            trainer.train()
        assert [[t.reward for t in batch] for batch in batches] == [[2.0] * 8, [None] * 8, [2.0] * 8]
        assert all(before.equal(after) for before, after in zip(*weights[1:], strict=True))
        log = logged(trainer, 2)
        assert log["rollouts/failed"] == log["rollouts/failed/infrastructure"] == 1.0
        assert log["reward"] is None
        assert logged(trainer, 3)["reward"] == 2.0
        told = re.findall(r"(\d) of 8 rollouts, of test/Shop-v0, failed in turn \d \(infrastructure: ", caplog.text)
        assert sum(map(int, told)) == 8
        assert f"{server.address} is left for 30 s at least" in caplog.text
        assert f"{server.address} is used again" in caplog.text

    def test_of_several_that_is_killed_is_left_to_the_others(
        self, tmp_path: Path, servers: list[ServerProcess], caplog: pytest.LogCaptureFixture
    ) -> None:
        one, other = servers

        source = Servers([one.address, other.address])
        seen: list[list[int]] = []

        def die(turn: int) -> None:
            seen.append(list(source.sessions.values()))
            if turn == 20:
                one.signal(signal.SIGKILL)
                one.wait()

        environments, batches = shop(source, generator=shopper(die))
        try:
            train(environments, tmp_path, 3)
        finally:
            source.close()
        assert [[t.reward for t in batch] for batch in batches] == [[2.0] * 8] * 3
        assert f"{one.address} is left for 30 s at least" in caplog.text
        assert seen[15] == [4, 4]
        assert seen[-1] == [0, 8]
        assert list(source.sessions.values()) == [0, 0]

    def test_leaves_no_session_behind_when_the_training_breaks_off(
        self, tmp_path: Path, servers: list[ServerProcess]
    ) -> None:
        """S11."""

        def break_off(turn: int) -> None:
            if turn == 20:
                raise KeyboardInterrupt

        async def left(address: str) -> None:
            async with connect(address) as remote:
                await until_sessions(remote, 0)

        environments, batches = shop([server.address for server in servers], generator=shopper(break_off))
        with pytest.raises(KeyboardInterrupt):
            train(environments, tmp_path, 3)
        assert len(batches) == 1
        for server in servers:
            asyncio.run(left(server.address))


class TestNothingIsLeft:
    """S11: nobody calls close, and each rollout has a sandbox with a process in it."""

    @pytest.mark.parametrize("breaks_off", [False, True])
    def test_of_sandboxes_once_the_trainer_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, breaks_off: bool
    ) -> None:
        temporary = tmp_path / "temporary"
        temporary.mkdir()
        monkeypatch.setenv("TMPDIR", str(temporary))
        seconds = f"{9000 + os.getpid()}.5"  # tells these processes from those of others
        work = encode(call("shell", json.dumps({"command": f"sleep {seconds} &"})))
        seen: list[tuple[int, int]] = []
        rollouts = 0

        def folders() -> list[Path]:
            return list(temporary.glob("gymhost-*/sandboxes/*"))

        async def script(prompt_ids: Any, _request_id: str) -> list[int]:
            nonlocal rollouts
            if "exit_status" not in decode(list(prompt_ids)):
                rollouts += 1
                return work
            seen.append((len(sleeping(seconds)), len(folders())))
            if breaks_off and rollouts > 8:
                raise KeyboardInterrupt
            return encode("Done.<|im_end|>")

        with (
            ServerProcess(modules=["support.sandbox_environments"], workers=1) as server,
            connect(server.address) as remote,
        ):
            environments = Environments(
                "test/Workbench-v0",
                server=remote,
                num_tasks=8,
                renderer=RENDERER,
                generator=ScriptedGenerator(script),
            )
            trainer = grpo_trainer(environments, tmp_path, max_steps=2, max_completion_length=400)
            with pytest.raises(KeyboardInterrupt) if breaks_off else contextlib.nullcontext():
                trainer.train()
            asyncio.run(until(lambda: not sleeping(seconds)))
            assert asyncio.run(remote.sessions()) == []
        assert folders() == []
        processes, places = (max(counts) for counts in zip(*seen, strict=True))
        assert processes > 1
        assert places >= 8
        assert rollouts > 8


def sleeping(seconds: str) -> list[str]:
    """The processes of this machine that sleep for so long."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                found.append(path.parent.name)
    return found


class TestEnvironment:
    """Task 1 is the one in trouble, task 0 goes well: in each batch four rollouts of both."""

    @pytest.mark.parametrize(
        ("trouble", "fault", "log"),
        [
            (
                {"hang": "reset"},
                "infrastructure",
                r"4 of 8 .*StageTimeout: not done after 1 s: see Limits\.init_seconds",
            ),
            ({"hang": "tool"}, "environment", r"4 of 8 .*CommandTimeout: .*\(the caller's timeout\)"),
            ({"fail": "reset"}, "environment", r"4 of 8 .*EnvironmentFault: .*this was to be"),
        ],
    )
    def test_that_hangs_or_raises_is_not_learned_from(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: dict[str, str], fault: str, log: str
    ) -> None:
        limits = Limits(init_seconds=1.0, step_seconds=1.0, retries=0)
        with server_process() as server:
            environments, batches = shop(server.address, limits=limits, num_tasks=2, **trouble)
            trainer = train(environments, tmp_path, 2)
        for batch in batches:
            assert [(t.task, t.reward) for t in batch] == [(0, 2.0)] * 4 + [(1, None)] * 4
        for step in (1, 2):
            entry = logged(trainer, step)
            assert (entry["reward"], entry["rollouts/failed"], entry[f"rollouts/failed/{fault}"]) == (2.0, 0.5, 0.5)
        assert re.search(log, caplog.text)

    @pytest.mark.parametrize(
        ("trouble", "log"),
        [
            ("fail", r"4 of 8 rollouts were played and have no reward"),
            ("hang", r"4 of 8 rollouts, of test/Shop-v0, failed .*StageTimeout: .*Limits\.eval_seconds"),
        ],
    )
    def test_whose_scorer_raises_or_hangs_is_not_learned_from(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: str, log: str
    ) -> None:
        limits = Limits(eval_seconds=1.0, step_seconds=1.0, retries=0)
        with server_process() as server:
            environments, batches = shop(server.address, num_tasks=2, **{trouble: "score"}, limits=limits)
            trainer = train(environments, tmp_path, 2)
        assert [[t.reward for t in batch] for batch in batches] == [[2.0] * 4 + [None] * 4] * 2
        assert list(trainer._logs["advantages"]) == [0.0] * 8
        assert [logged(trainer, step)["reward"] for step in (1, 2)] == [2.0, 2.0]
        assert re.search(log, caplog.text)


class TestServers:
    async def test_share_sessions_and_leave_the_one_that_is_gone_for_a_while(
        self, servers: list[ServerProcess], caplog: pytest.LogCaptureFixture
    ) -> None:
        one, other = servers
        source = Servers([one.address, other.address], pause=0.5)
        async with asyncio.timeout(50):
            all_open = asyncio.Barrier(6)
            await asyncio.gather(*(_play(source, all_open) for _ in range(6)))
            one.signal(signal.SIGKILL)
            one.wait()
            await asyncio.gather(*(_play(source) for _ in range(4)))
            assert "is left for 0.5 s" in caplog.text
            one.stop()
            one.start()
            while "is used again" not in caplog.text:
                await _play(source)
        assert source.sessions == {one.address: 0, other.address: 0}
        await asyncio.to_thread(source.close)

    async def test_that_are_all_gone_say_so(self) -> None:
        with server_process() as server:
            address = server.address
        source = Servers([address, address.replace("127.0.0.1", "localhost")])
        with pytest.raises(errors.ServerUnavailable, match=rf"no server can be reached: .*{address}"):
            await _play(source)

    async def test_that_died_are_not_taken_for_a_fault_of_the_environment(self) -> None:
        with server_process() as server:
            remote = connect(server.address, reconnect_timeout=1.0)
            async with asyncio.timeout(50), remote, remote.session(SHOP) as session:
                await session.reset(seed=0)
                await session.step("Good day.")
                server.signal(signal.SIGKILL)
                server.wait()
                with pytest.raises((errors.ServerUnavailable, errors.SessionError)):
                    await _until_it_fails(session)  # its worker goes on until it notices

    def test_are_each_another_one(self) -> None:
        with pytest.raises(ValueError, match="each another one"):
            Servers(["a:1", "a:1"])
        with pytest.raises(ValueError, match="at least one"):
            Servers([])


async def _until_it_fails(session: Any) -> None:
    while True:
        await session.step("Is anybody here?")


async def _play(source: Servers, barrier: asyncio.Barrier | None = None) -> None:
    async with source.session(SHOP) as session:
        if barrier is not None:
            await barrier.wait()
            assert set(source.sessions.values()) == {3}
            await barrier.wait()
        await session.reset(seed=0)
