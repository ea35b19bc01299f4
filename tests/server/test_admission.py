"""Who gets a place on a full server, when, and what the others are told."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gymhost.client import CapacityExhausted, InvalidArgument, RemoteServer, Session, connect, make, make_vec
from gymhost.server.config import ServerConfig
from gymhost.server.front.admission import LONGEST, SHORTEST, Admission
from gymhost.server.front.memory import Memory
from gymhost.v1 import environments_pb2 as pb
from support.raw import RawStream, bearer, channel_to, command, create, stub_to, trailing
from support.server import ServerProcess, until, until_sessions

StartServer = Callable[..., ServerProcess]

ALICE, BOB = "token-of-alice", "token-of-bob"
TOKENS = {ALICE: "alice", BOB: "bob"}


class _Waiting:
    """Sessions that wait for the one place of a server; each closes itself at once, so that the next gets it."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, remote: RemoteServer, name: str, **how: Any) -> None:
        """Has another one wait, behind those that wait already."""
        self.tasks.append(asyncio.create_task(self._take(remote, name, how)))
        await asyncio.sleep(0.02)

    async def _take(self, remote: RemoteServer, name: str, how: dict[str, Any]) -> None:
        async with remote.session("test/Counter-v0", **how):
            self.came.append(name)

    async def end(self) -> list[str]:
        """Waits until all have had it; returns their names in the order in which they came."""
        await asyncio.wait_for(asyncio.gather(*self.tasks), 20)
        return self.came


async def test_higher_priorities_come_first(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=1, queue_length=10)
    waiting = _Waiting()
    async with connect(server.address) as remote:
        held = await remote.session("test/Counter-v0").open()
        for name, priority in (("a", 0), ("b", 5), ("c", -1000), ("d", 5), ("e", 0), ("f", 1000)):
            await waiting.begin(remote, name, priority=priority)
        await held.close()
        assert await waiting.end() == ["f", "b", "d", "a", "e", "c"]
        for priority in (1001, -1001, 0.5):
            with pytest.raises(InvalidArgument, match="priority must be a whole number from -1000 to 1000"):
                remote.session("test/Counter-v0", priority=priority)  # pyright: ignore[reportArgumentType]


async def test_identities_take_turns(start_server: StartServer) -> None:
    server = start_server(workers=1, capacity=1, tokens=TOKENS)
    waiting = _Waiting()
    async with connect(server.address, token=ALICE) as alice, connect(server.address, token=BOB) as bob:
        held = await alice.session("test/Counter-v0").open()
        for number in range(6):
            await waiting.begin(alice, f"a{number}")
        for number in range(2):
            await waiting.begin(bob, f"b{number}")
        await waiting.begin(bob, "first", priority=1)
        await held.close()
        assert await waiting.end() == ["first", "a0", "b0", "a1", "b1", "a2", "a3", "a4", "a5"]


async def test_a_create_beyond_the_queue_is_refused_at_once_and_told_when_to_ask_again(
    start_server: StartServer,
) -> None:
    server = start_server(workers=1, capacity=1, queue_length=2)
    waiting = _Waiting()
    async with connect(server.address) as remote, stub_to(server.address) as stub:
        held = await remote.session("test/Counter-v0").open()
        for name in "ab":
            await waiting.begin(remote, name)
        started = time.monotonic()
        with pytest.raises(
            CapacityExhausted, match=r"2 creates in the queue already.*--queue-length\); retry after about 60 s"
        ) as raised:
            await remote.session("test/Counter-v0").open()
        assert raised.value.retry_after == LONGEST
        assert time.monotonic() - started < 5
        with pytest.raises(CapacityExhausted, match="retry after about 60 s") as raised:
            await asyncio.to_thread(make, "test/Counter-v0", server=server.address)
        assert raised.value.retry_after == LONGEST
        # In the way of unary calls too.
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.CreateSession(create())
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert pb.Error.FromString(trailing(refused.value)["gymhost-error-bin"]).retry_after_ms == LONGEST * 1000
        await held.close()
        assert await waiting.end() == ["a", "b"]
        # Places came free by now, so that the estimate is another.
        async with remote.session("test/Counter-v0"):
            with pytest.raises(CapacityExhausted) as raised:
                await remote.session("test/Counter-v0", create_timeout=0.1).open()
            assert SHORTEST <= (raised.value.retry_after or 0) < 30


async def test_a_priority_is_for_all_who_make_environments(start_server: StartServer) -> None:
    server = start_server(workers=1, capacity=2)
    waiting = _Waiting()
    async with connect(server.address) as remote:
        held = [await remote.session("test/Counter-v0").open() for _ in range(2)]
        await waiting.begin(remote, "session")
        makes: list[asyncio.Task[Any]] = [
            asyncio.create_task(asyncio.to_thread(make, "test/Counter-v0", server=server.address, priority=1)),
            asyncio.create_task(
                asyncio.to_thread(make_vec, "test/Counter-v0", 1, server=server.address, shards=1, priority=1)
            ),
        ]
        await _until_waiting(remote, 3)
        for session in held:
            await session.close()
        for made in await asyncio.gather(*makes):
            assert waiting.came == []
            await asyncio.to_thread(made.close)
        assert await waiting.end() == ["session"]


async def _until_waiting(remote: RemoteServer, wanted: int) -> None:
    """Waits until so many creates wait for places: one more is told how many there are."""
    while True:
        with pytest.raises(CapacityExhausted, match=r"creates? waiting") as raised:
            await remote.session("test/Counter-v0", create_timeout=0.05, priority=-1000).open()
        if f", {wanted + 1} creates waiting" in raised.value.message:
            return


async def test_the_estimate_is_how_fast_places_came_free(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    admission = Admission(ServerConfig(capacity=100))
    await admission.take("alice", 100, 1.0)
    assert admission.retry_after() == LONGEST  # nothing is known
    for _ in range(10):
        now += 2.0
        admission.free("alice", 1)
        await admission.take("alice", 1, 1.0)
    # Ten in 18 s: 1.8 s each.
    assert admission.retry_after() == pytest.approx(1.8)
    assert admission.retry_after(10) == pytest.approx(18.0)
    assert admission.retry_after(99) == LONGEST
    now += 70.0
    assert admission.retry_after() == LONGEST


async def test_memory_is_bounded_by_number_by_size_and_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    memory: Memory[int, str] = Memory(items=100, size=1000)
    for number in range(250):
        memory.put(number, "small", 1)
    assert (len(memory), memory.get(149), memory.get(150)) == (100, None, "small")
    memory.put(1000, "large", 990)
    assert len(memory) == 11
    memory.put(1001, "too large", 2000)
    assert len(memory) == 0
    memory.put(1002, "old", 1)
    later = loop.time() + 301
    monkeypatch.setattr(loop, "time", lambda: later)
    memory.forget_old()
    assert len(memory) == 0


# -- quotas ------------------------------------------------------------------------------------------------------------


async def test_an_identity_at_its_quota_of_sessions_waits_for_its_own(start_server: StartServer) -> None:
    server = start_server(workers=1, tokens=TOKENS, quota_sessions=2, quotas={"bob": {"sessions": 3}})
    waiting = _Waiting()
    async with connect(server.address, token=ALICE) as alice, connect(server.address, token=BOB) as bob:
        held = [await alice.session("test/Counter-v0").open() for _ in range(2)]
        with pytest.raises(CapacityExhausted, match=r"'alice' has 2 sessions of its quota of 2.*\(--quota-sessions\)"):
            await alice.session("test/Counter-v0", create_timeout=0.2).open()
        await waiting.begin(alice, "alice")
        # Those who wait for a place of their own keep nobody else from one.
        others = [await bob.session("test/Counter-v0").open() for _ in range(3)]
        with pytest.raises(CapacityExhausted, match="'bob' has 3 sessions of its quota of 3"):
            await bob.session("test/Counter-v0", create_timeout=0.2).open()
        assert waiting.came == []
        await held[0].close()
        assert await waiting.end() == ["alice"]
        # Copies count.
        with pytest.raises(CapacityExhausted, match="8 sessions are above the quota of 'alice', which is 2"):
            await asyncio.to_thread(make_vec, "test/Counter-v0", 8, server=server.address, token=ALICE, shards=1)
        for session in (*others, held[1]):
            await session.close()


async def test_the_creates_of_an_identity_that_wait_have_a_quota(start_server: StartServer) -> None:
    server = start_server(workers=1, capacity=1, tokens=TOKENS, quotas={"alice": {"queued": 1}})
    waiting = _Waiting()
    async with connect(server.address, token=ALICE) as alice, connect(server.address, token=BOB) as bob:
        held = await alice.session("test/Counter-v0").open()
        await waiting.begin(alice, "a")
        with pytest.raises(
            CapacityExhausted, match=r"1 create of 'alice' in the queue already.*quota \(--quota-queued\)"
        ):
            await alice.session("test/Counter-v0").open()
        for _ in range(3):
            await waiting.begin(bob, "b")
        await held.close()
        assert sorted(await waiting.end()) == ["a", "b", "b", "b"]


async def test_the_streams_of_an_identity_have_a_quota(start_server: StartServer) -> None:
    server = start_server(workers=1, tokens=TOKENS, quota_streams=2)
    async with stub_to(server.address) as stub:
        async with RawStream(stub, ALICE) as first, RawStream(stub, ALICE), RawStream(stub, BOB):
            with pytest.raises(CapacityExhausted, match=r"'alice' has 2 streams.*\(--quota-streams\)") as raised:
                await connect(server.address, token=ALICE, connect_timeout=1.0)
            assert raised.value.retry_after == 5.0
            # A bulk stream is part of its stream; a newer one takes its place.
            bulk = await _bulk(stub, first)
            newer = await _bulk(stub, first)
            with pytest.raises(grpc.aio.AioRpcError, match="another bulk stream has taken the place"):
                await bulk.read()
            newer.cancel()
        async with RawStream(stub, ALICE) as again:
            await again.create()


async def _bulk(stub: Any, main: RawStream) -> Any:
    call = stub.Interact(metadata=bearer(ALICE))
    hello = pb.Hello(bulk_of=main.welcome.stream_id).SerializeToString()
    await call.write(pb.InteractRequest(commands=[pb.Command(sequence=1, kind=pb.COMMAND_KIND_HELLO, payload=hello)]))
    assert (await call.read()).replies[0].code == 0
    return call


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"queue_length": 0}, "queue_length must be above 0"),
        ({"quota_sessions": -1}, "quota_sessions must not be negative"),
        ({"quotas": {"alice": {"session": 3}}}, "the quotas of 'alice' are sessions, queued, streams"),
        ({"quotas": {"alice": {"sessions": -3}}}, "sessions = -3"),
        ({"quotas": {"alice": {"sessions": "3"}}}, "quotas must be a table of numbers for each identity"),
        ({"quotas": {"alice": 3}}, "quotas must be a table of numbers for each identity"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ServerConfig.from_dict(settings)


# -- floods ------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _asking_for_health(address: str) -> AsyncGenerator[list[float]]:
    """Asks for the health of a server every 50 ms, on a connection of its own; yields how long each answer took."""
    took: list[float] = []

    async def ask() -> None:
        async with channel_to(address) as channel:
            any_channel: Any = channel
            health: Any = health_pb2_grpc.HealthStub(any_channel)
            while True:
                began = time.monotonic()
                answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=20)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
                took.append(time.monotonic() - began)
                await asyncio.sleep(0.05)

    asking = asyncio.create_task(ask())
    try:
        yield took
        assert not asking.done(), asking.result()
    finally:
        asking.cancel()


async def test_a_flooded_server_answers_health_checks_and_says_when_to_ask_again(start_server: StartServer) -> None:
    server = start_server(workers=1, capacity=1, queue_length=50)
    clients, creates = 20, 200
    async with contextlib.AsyncExitStack() as stack:
        stubs = [await stack.enter_async_context(stub_to(server.address)) for _ in range(clients)]
        stream = await stack.enter_async_context(RawStream(stubs[0]))
        made = await stream.create()
        assert not (await stream.ask(pb.COMMAND_KIND_RESET, lane=made.lanes[0], number=1)).code
        took = await stack.enter_async_context(_asking_for_health(server.address))
        await until(lambda: len(took) > 2)
        quiet = len(took)
        storm = [stub.CreateSession(create(), timeout=30) for stub in stubs for _ in range(creates)]
        refused = 0
        for done in asyncio.as_completed([call.code() for call in storm]):
            refused += await done == grpc.StatusCode.RESOURCE_EXHAUSTED
            if refused == clients * creates - 50:
                break
        assert refused == clients * creates - 50  # the others wait
        assert len(took) > quiet
        # Seconds, on a machine that does much else at once: what counts is that it answers, and goes on to.
        assert statistics.median(took[quiet:]) < 2.0
        assert max(took) < 10.0
        # Nor is the one session that is there kept from its steps.
        started = time.monotonic()
        assert not (await stream.ask(pb.COMMAND_KIND_RESET, lane=made.lanes[0], number=2)).code
        assert time.monotonic() - started < 5.0
        for call in storm:
            call.cancel()


async def test_creates_whose_callers_vanish_take_no_places(shared_server: StartServer) -> None:
    server = shared_server(workers=1, capacity=1, queue_length=10)
    async with connect(server.address) as remote:
        held = await remote.session("test/Counter-v0").open()
        async with stub_to(server.address) as stub, RawStream(stub) as stream:
            gone = [stub.CreateSession(create()) for _ in range(5)]
            for number in range(5):
                await stream.send(command(pb.COMMAND_KIND_CREATE, create().SerializeToString(), number=100 + number))
            await _until_full(stub)
            for call in gone:
                call.cancel()
        # Soon the queue is free, and the one place is for whoever waits.
        waiting = asyncio.create_task(_open_when_there_is_room(remote))
        await asyncio.sleep(0.5)
        await held.close()
        await (await asyncio.wait_for(waiting, 10)).close()
        await until_sessions(remote, 0)


async def _open_when_there_is_room(remote: RemoteServer) -> Session:
    """Opens a session, also where the queue is too long at first."""
    while True:
        try:
            return await remote.session("test/Counter-v0").open()
        except CapacityExhausted:
            await asyncio.sleep(0.02)


async def _until_full(stub: Any) -> None:
    """Waits until the queue of a server is full: a create is refused at once, not at the end of its time."""
    while True:
        try:
            await stub.CreateSession(create(), timeout=0.3)
        except grpc.aio.AioRpcError as error:
            if "in the queue already" in (error.details() or ""):
                return
