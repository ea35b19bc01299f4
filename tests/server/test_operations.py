"""What whoever runs a server sees of it, and does about it."""

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gymhost.client import (
    CommandTimeout,
    EnvironmentFault,
    InvalidArgument,
    PermissionDenied,
    ServerUnavailable,
    Session,
    SessionClosed,
    SessionLost,
    Unauthenticated,
    UnknownSession,
    connect,
    make_vec,
)
from gymhost.client.operations import Operations
from gymhost.server import link
from gymhost.server.config import ServerConfig
from gymhost.server.front.crews import crews
from gymhost.server.front.workers import Worker
from gymhost.server.tokens import Owner, Role, add_to_file, hash_of
from gymhost.v1 import environments_pb2 as environments_pb
from gymhost.v1 import operations_pb2 as pb
from gymhost.wire import values
from support.raw import channel_to, command, create, step
from support.server import PATIENCE, TESTS, ServerProcess, until

StartServer = Callable[..., ServerProcess]

TOKENS = {"use": "user", "other": "other", "read": "reader read-only", "rule": "ruler admin"}


@pytest.fixture
def server(shared_server: StartServer) -> ServerProcess:
    return shared_server(workers=2, tokens=TOKENS)


def name_of(session: Session) -> str:
    """What operators call a session."""
    assert session._lane is not None
    return f"{session._lane.number >> 32}-{session._lane.number & 0xFFFFFFFF}"


class Follower:
    """Follows a session, and keeps what comes."""

    def __init__(self, operations: Operations, name: str) -> None:
        self.live = pb.LiveSession()
        self.turns: list[pb.FollowedTurn] = []
        self.missed = 0
        self.ended = ""
        self.began = asyncio.Event()
        self._changed = asyncio.Event()
        self.task = asyncio.ensure_future(self._follow(operations, name))

    async def _follow(self, operations: Operations, name: str) -> None:
        async for response in operations.follow(name):
            if response.HasField("session"):
                self.live = response.session
                self.began.set()
            self.turns += response.turns
            self.missed += response.missed
            self.ended = response.ended
            self._changed.set()

    async def until(self, turns: int) -> None:
        """Waits until there were so many turns."""
        async with asyncio.timeout(20):
            while len(self.turns) + self.missed < turns:
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def following(operations: Operations, name: str) -> AsyncGenerator[Follower]:
    """Follows a session while something is done."""
    follower = Follower(operations, name)
    try:
        async with asyncio.timeout(20):
            began = asyncio.ensure_future(follower.began.wait())
            await asyncio.wait([began, follower.task], return_when=asyncio.FIRST_COMPLETED)
            began.cancel()
        if follower.task.done():
            await follower.task
        yield follower
    finally:
        follower.task.cancel()


# -- following ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
@pytest.mark.parametrize("environment", ["Counter", "Picture", "Async"])
async def test_a_session_is_followed_turn_by_turn(server: ServerProcess, environment: str, direct: bool) -> None:
    async with (
        connect(server.address, token="use", direct=direct) as remote,
        Operations(server.address, token="use") as operations,
    ):
        session = await remote.session(f"test/{environment}-v0").open()
        await session.reset(label="rollout 7")
        await session.step(0)
        began = time.time()
        async with following(operations, name_of(session)) as follower, following(operations, name_of(session)) as twin:
            assert (follower.live.label, follower.live.state, follower.live.commands) == ("rollout 7", "waiting", 2)
            observation, *_ = await session.step(0)
            observed = await session.reset(seed=3, options={"knob": 1})
            await follower.until(2)
            await twin.until(2)
            assert follower.turns == twin.turns
            step, reset = follower.turns
            assert [(turn.command, turn.code, turn.sequence) for turn in (step, reset)] == [
                ("step", "OK", 3),
                ("reset", "OK", 4),
            ]
            assert values.decode(step.action) == 0
            np.testing.assert_array_equal(values.decode(step.observation), observation)
            assert (step.reward, step.terminated, step.truncated) == (1.0, False, False)
            assert began <= step.time <= time.time()
            assert 0 < step.seconds < 5
            assert values.decode(reset.action) == {"knob": 1}
            np.testing.assert_array_equal(values.decode(reset.observation), observed[0])
            assert not reset.HasField("reward")
            # The last turns come too, and then why there are no more.
            await session.step(0)
            await session.close()
            await asyncio.wait_for(follower.task, 10)
            assert (len(follower.turns), follower.ended) == (3, "the session was closed")


async def test_what_fails_is_followed(server: ServerProcess) -> None:
    async with (
        connect(server.address, token="use") as remote,
        Operations(server.address, token="rule") as operations,
        remote.session("test/Raises-v0") as raising,
        remote.session("test/Async-v0") as waiting,
    ):
        await raising.reset()
        await waiting.reset()
        async with following(operations, name_of(raising)) as follower:
            with pytest.raises(EnvironmentFault):
                await raising.step("raise")
            await raising.step("on")
            await follower.until(2)
            failed, well = follower.turns
            assert (failed.code, well.code) == ("ENVIRONMENT_FAULT", "OK")
            assert failed.message == "ValueError: this step was told to raise"
            assert "told to raise" in failed.traceback
            assert values.decode(failed.action) == "raise"
            assert not failed.HasField("observation")
        async with following(operations, name_of(waiting)) as follower:
            with pytest.raises(CommandTimeout):
                await waiting.step(60.0, timeout=0.1)
            await follower.until(1)
            assert follower.turns[0].code == "TIMEOUT"
            assert "the caller's timeout" in follower.turns[0].message


@pytest.mark.parametrize("environment", ["test/Picture-v0", "CartPole-v1"])
async def test_a_vector_session_is_followed(server: ServerProcess, environment: str) -> None:
    """Picture's copies have their arrays in memory that is shared with the client; CartPole has a form of its own."""
    async with Operations(server.address, token="use") as operations:
        envs = await asyncio.to_thread(make_vec, environment, 3, server=server.address, token="use", shards=1)
        try:
            observations, _ = await asyncio.to_thread(envs.reset, seed=1)
            rewards = np.zeros(3)
            live = (await operations.live(environment)).sessions[0]
            assert live.num_envs == 3
            async with following(operations, live.name) as follower:
                for _ in range(2):
                    observations, rewards, *_ = await asyncio.to_thread(envs.step, np.zeros(3, np.int64))
                await follower.until(2)
                turn = follower.turns[-1]
                np.testing.assert_array_equal(values.decode(turn.observation), observations)
                assert turn.reward == rewards.sum() == 3.0
                np.testing.assert_array_equal(values.decode(turn.action), np.zeros(3))
        finally:
            await asyncio.to_thread(envs.close)


async def test_a_worker_tells_of_a_session_for_as_long_as_somebody_follows_it(tmp_path: Path) -> None:
    config = ServerConfig(modules=("support.environments",), paths=(str(TESTS),))
    owner: Any = SimpleNamespace(worker_died=lambda _: None, owner_of=lambda _: None)
    worker = Worker(3, config, owner, tmp_path, crews(config)[0], dedicated=False)
    await worker.start()
    lane = worker.new_lane()
    frames: asyncio.Queue[bytes] = asyncio.Queue()
    channel: Any = SimpleNamespace(put_frame=frames.put_nowait)
    worker.channels[5] = channel
    await worker.request(link.CREATE, lane, create("test/Picture-v0").SerializeToString())

    async def run(number: int, kind: int, payload: bytes) -> None:
        worker.send(environments_pb.InteractRequest(commands=[command(kind, payload, lane=lane, number=number)]), 5)
        await asyncio.wait_for(frames.get(), 20)

    async def ask() -> list[pb.FollowedTurn]:
        answer = await asyncio.wait_for(worker.request(link.FOLLOW, lane, b"1"), 20)
        return list(pb.FollowSessionResponse.FromString(answer).turns)

    try:
        await run(1, environments_pb.COMMAND_KIND_RESET, b"")
        assert await ask() == []  # the first time, at once
        await run(2, environments_pb.COMMAND_KIND_STEP, step(0).SerializeToString())
        assert [turn.sequence for turn in await ask()] == [2]
        worker.tell(link.UNFOLLOW, lane, payload=b"1")
        await run(3, environments_pb.COMMAND_KIND_STEP, step(0).SerializeToString())
        assert await ask() == []  # the first time once more: nothing of what was before
        await run(4, environments_pb.COMMAND_KIND_STEP, step(0).SerializeToString())
        assert [turn.sequence for turn in await ask()] == [4]
    finally:
        await worker.stop(20)


async def test_whoever_follows_too_slowly_misses_turns_and_the_session_waits_for_nobody(server: ServerProcess) -> None:
    steps = 1500
    async with (
        connect(server.address, token="use") as remote,
        Operations(server.address, token="use") as operations,
        remote.session("test/Counter-v0") as session,
        remote.session("test/Image-v0") as pictures,
    ):
        await session.reset()
        async with following(operations, name_of(session)) as follower:
            for _ in range(steps):
                await session.step(1)
            await follower.until(steps)
            assert follower.missed > 0
            assert len(follower.turns) + follower.missed == steps
            numbers = [turn.sequence for turn in follower.turns]
            assert numbers == sorted(set(numbers))
            assert numbers[-1] == steps + 1
        # What is large is left out.
        await pictures.reset(seed=1)
        async with following(operations, name_of(pictures)) as follower:
            await pictures.step(np.zeros(6 * 1024 * 1024, np.uint8))
            await follower.until(1)
            [turn] = follower.turns
            assert turn.left_out
            assert not turn.HasField("action")
            assert not turn.HasField("observation")
            assert turn.reward == 1.0
            assert "digest" in values.decode(turn.info)


async def test_a_failure_is_told_though_its_session_ends_at_once(server: ServerProcess) -> None:
    wanted = {f"short {number}" for number in range(3)}
    async with connect(server.address, token="use") as remote, Operations(server.address, token="use") as own:
        for label in sorted(wanted):
            async with remote.session("test/Raises-v0") as session:
                await session.reset(label=label)
                with pytest.raises(EnvironmentFault):
                    await session.step("raise")
            async with asyncio.timeout(PATIENCE):
                while label not in {failure.label for failure in await own.failures("test/Raises-v0")}:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


async def test_a_session_is_for_its_owner_and_for_admins(server: ServerProcess) -> None:
    async with (
        connect(server.address, token="use") as remote,
        Operations(server.address, token="use") as own,
        Operations(server.address, token="other") as other,
        Operations(server.address, token="read") as reader,
        Operations(server.address, token="rule") as ruler,
        remote.session("test/Raises-v0") as session,
    ):
        await session.reset(label="mine")
        name = name_of(session)
        with pytest.raises(EnvironmentFault):
            await session.step("raise")
        async with asyncio.timeout(PATIENCE):  # likes of other tests' are told once a second
            while "mine" not in {failure.label for failure in await own.failures("test/Raises-v0")}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for operations, sees in ((own, True), (ruler, True), (other, False), (reader, False)):
            assert [each.name for each in (await operations.live()).sessions] == ([name] if sees else [])
            labels = {failure.label for failure in await operations.failures("test/Raises-v0")}
            assert ("mine" in labels) is sees
        for operations in (other, reader):
            with pytest.raises(UnknownSession, match=f"no session '{name}'"):
                await anext(operations.follow(name))
        with pytest.raises(UnknownSession):
            await other.end(name)
        for operations in (own, other, reader):
            with pytest.raises(PermissionDenied, match="DrainServer is for the role 'admin'"):
                await operations.drain()
        with pytest.raises(PermissionDenied, match="EndSession is for the role 'user'"):
            await reader.end(name)
        assert (await reader.overview()).role == "read-only"
        async with Operations(server.address, token="guess") as nobody:
            with pytest.raises(Unauthenticated):
                await nobody.overview()
        for mistaken in ("", "1", "x-1", "99-1", f"{name}0", "9" * 60):
            with pytest.raises(UnknownSession):
                await ruler.end(mistaken)


async def test_a_revoked_token_follows_no_longer(start_server: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    for token, owner in (("use", Owner("user", Role.USER)), ("rule", Owner("ruler", Role.ADMIN))):
        add_to_file(file, owner, hash_of(token))
    server = start_server(workers=1, token_file=str(file))
    async with (
        connect(server.address, token="use") as remote,
        Operations(server.address, token="rule") as operations,
        remote.session("test/Counter-v0") as session,
    ):
        await session.reset()
        async with following(operations, name_of(session)) as follower:
            kept = [line for line in file.read_text().splitlines(keepends=True) if hash_of("rule") not in line]
            file.write_text("".join(kept))
            with pytest.raises(Unauthenticated, match="revoked"):
                await asyncio.wait_for(follower.task, 20)
        await session.step(1)


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_sessions_are_listed_by_what_they_do(server: ServerProcess) -> None:
    async with (
        connect(server.address, token="use") as remote,
        connect(server.address, token="other") as others,
        Operations(server.address, token="rule") as operations,
        remote.session("test/Async-v0") as running,
        remote.session("test/Counter-v0") as waiting,
        others.session("test/Counter-v0"),
    ):
        await running.reset(label="busy")
        await waiting.reset(label="idle")
        step = asyncio.ensure_future(running.step(60.0))
        async with asyncio.timeout(20):
            while not (found := (await operations.live(state="running")).sessions):  # noqa: ASYNC110 - it is asked
                await asyncio.sleep(0.02)
        [live] = found
        assert (live.environment_id, live.identity, live.label) == ("test/Async-v0", "user", "busy")
        assert (live.command, live.commands, live.name) == ("step", 2, name_of(running))
        assert 0 < live.state_seconds <= live.age_seconds < 60
        everybody = await operations.live()
        assert everybody.total == len(everybody.sessions) == 3
        counters = await operations.live("test/Counter-v0", "waiting")
        assert {(each.identity, each.label) for each in counters.sessions} == {("user", "idle"), ("other", "")}
        # Those whose state has lasted longest come first.
        first = await operations.live("test/Counter-v0", limit=1)
        assert (first.total, first.sessions[0].identity) == (2, "other")
        assert (await operations.live("no-such-v0")).total == 0
        with pytest.raises(InvalidArgument, match="a session is making, running, waiting, closing, not 'asleep'"):
            await operations.live(state="asleep")
        step.cancel()
        overview = await operations.overview()
        assert {each.environment_id for each in overview.environments} >= {"test/Async-v0", "test/Counter-v0"}
        assert overview.role == "admin"
        assert [worker.state for worker in overview.workers] == ["ready", "ready"]
        assert sum(worker.sessions for worker in overview.workers) == overview.taken == 3
        assert all(worker.memory_bytes > 10e6 and worker.cpu_seconds > 0.1 for worker in overview.workers)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
async def test_an_operator_ends_a_session_and_its_client_is_told_why(server: ServerProcess, direct: bool) -> None:
    async with (
        connect(server.address, token="use", direct=direct) as remote,
        Operations(server.address, token="rule") as operations,
    ):
        for reason, told in (("the disk is full", "the disk is full"), ("", "an operator ended it")):
            session = await remote.session("test/Picture-v0").open()
            await session.reset()
            async with following(operations, name_of(session)) as follower:
                await operations.end(name_of(session), reason)
                await asyncio.wait_for(follower.task, 10)
                assert follower.ended == f"the session was ended: {told}"
            with pytest.raises(SessionClosed, match=f"the session was ended: {told}"):
                await session.step(0)
        with pytest.raises(InvalidArgument, match="reason"):
            await operations.end("0-1", "x" * 1001)


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_failures_are_kept_with_their_tracebacks_and_those_that_are_alike_are_one(server: ServerProcess) -> None:
    began = time.time()
    async with (
        connect(server.address, token="other") as remote,
        Operations(server.address, token="other") as operations,
    ):
        with pytest.raises(EnvironmentFault):
            await remote.session("test/Raises-v0", nonsense=1).open()
        async with remote.session("test/Raises-v0") as session:
            with pytest.raises(EnvironmentFault):
                await session.reset(options={"raise": True}, label="r1")
            await session.reset(label="r2")
            for _ in range(200):
                with pytest.raises(EnvironmentFault):
                    await session.step("raise")
            # What is of its client's making is no failure of the environment.
            with pytest.raises(InvalidArgument):
                await session.reset(label="x" * 200)
            async with asyncio.timeout(20):
                while (found := await operations.failures("test/Raises-v0"))[0].repeated != 199:  # noqa: ASYNC110 - it is asked
                    await asyncio.sleep(0.05)
        assert [(each.command, each.exception, each.label) for each in found] == [
            ("step", "ValueError", "r2"),
            ("reset", "ValueError", "r1"),
            ("make", "TypeError", ""),
        ]
        step, reset, _ = found
        assert step.code == "ENVIRONMENT_FAULT"
        assert step.session == reset.session == name_of(session)
        assert step.message == "ValueError: this step was told to raise"
        assert step.traceback.rstrip().endswith("ValueError: this step was told to raise")
        assert reset.repeated == 0
        assert all(began <= each.time <= time.time() for each in found)


async def test_a_session_that_is_lost_with_its_worker_is_a_failure(server: ServerProcess) -> None:
    async with (
        connect(server.address, token="other", recovery_timeout=0) as remote,
        Operations(server.address, token="other") as operations,
        Operations(server.address, token="rule") as ruler,
    ):
        session = await remote.session("test/Exit-v0").open()
        await session.reset()
        deaths = (await ruler.overview()).worker_deaths
        async with following(operations, name_of(session)) as follower:
            with pytest.raises(SessionLost):
                await session.step("exit")
            await asyncio.wait_for(follower.task, 10)
            assert "is gone: it ended with status 3" in follower.ended
        [lost] = await operations.failures("test/Exit-v0")
        assert (lost.code, lost.session) == ("SESSION_LOST", name_of(session))
        assert "it ended with status 3" in lost.message
        assert (await ruler.overview()).worker_deaths == deaths + 1


# -- the server --------------------------------------------------------------------------------------------------------


async def test_a_server_is_drained_and_resumed(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=1)
    async with (
        connect(server.address) as remote,
        Operations(server.address) as operations,
        channel_to(server.address) as channel,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)

        async def is_serving() -> bool:
            answer = await health.Check(health_pb2.HealthCheckRequest())
            return answer.status == health_pb2.HealthCheckResponse.SERVING

        session = await remote.session("test/Counter-v0").open()
        await session.reset()
        waiting = asyncio.ensure_future(remote.session("test/Counter-v0").open())
        async with asyncio.timeout(20):
            while not (await operations.overview()).queued:  # noqa: ASYNC110 - it is asked
                await asyncio.sleep(0.02)
        assert await is_serving()
        for _ in range(2):
            assert await operations.drain() == 1
        with pytest.raises(ServerUnavailable, match="being drained and takes no new sessions until it is resumed"):
            await waiting
        assert (await operations.overview()).draining
        assert not await is_serving()
        await until(lambda: remote.draining)
        async with connect(server.address) as late:
            await until(lambda: late.draining)
        # What there is goes on.
        await session.step(1)
        await session.close()
        with pytest.raises(ServerUnavailable, match="being drained"):
            await remote.session("test/Counter-v0").open()
        for _ in range(2):
            assert await operations.drain(resume=True) == 0
        await until(lambda: not remote.draining)
        assert await is_serving()
        async with remote.session("test/Counter-v0") as session:
            await session.reset()
        # Without tokens and certificates whoever reaches the server runs it.
        assert (await operations.overview()).role == "admin"


async def test_there_is_a_history(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=1)
    async with (
        connect(server.address) as remote,
        Operations(server.address) as operations,
        remote.session("test/Counter-v0") as session,
    ):
        await session.reset()
        before = await operations.history()
        asked = before.points[-1].time if before.points else 0.0
        async with asyncio.timeout(20):
            while not (history := await operations.history(asked)).points:
                await session.step(1)
                await asyncio.sleep(0.05)
        assert history.interval == 5.0
        point = dict(zip(history.series, history.points[0].values, strict=True))
        assert history.points[0].time > asked
        assert (point["sessions"], point["queued"]) == (1.0, 0.0)
        assert point["memory_bytes"] > 10e6
        assert 0.0 < point["cpu"] < 64.0
        assert not math.isnan(point["running"])


async def test_a_server_that_is_not_there_is_said_to_be_so() -> None:
    async with Operations("127.0.0.1:9", timeout=5.0) as operations:
        with pytest.raises(ServerUnavailable, match=re.escape("127.0.0.1:9")):
            await operations.overview()
        with pytest.raises(ServerUnavailable):
            async with aclosing(operations.follow("0-1")) as turns:
                await anext(turns)
    with pytest.raises(ServerUnavailable, match="closed"):
        await operations.overview()
