"""Who may do what, and how many at once."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from gymhost.client import CapacityExhausted, Unauthenticated, connect, make
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire.frames import FrameReader, pack
from support.ordinary_user import ordinary_user
from support.raw import RawStream, bearer, command, create, step, stub_to
from support.server import ServerProcess, until

StartServer = Callable[..., ServerProcess]

ALICE, BOB = "token-of-alice", "token-of-bob"
TOKENS = {ALICE: "alice", BOB: "bob"}


async def test_without_a_valid_token_nobody_gets_in(shared_server: StartServer) -> None:
    server = shared_server(workers=1, tokens=TOKENS)
    started = time.monotonic()
    for token, words in ((None, "wants a token"), ("guess", "not valid"), ("", "wants a token")):
        with pytest.raises(Unauthenticated, match=words):
            await connect(server.address, token=token)
        with pytest.raises(Unauthenticated, match=words):
            await asyncio.to_thread(make, "test/Counter-v0", server=server.address, token=token)
    assert time.monotonic() - started < 5
    async with stub_to(server.address) as stub:
        for scheme in ("Basic", "Bearer "):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.ListEnvironments(
                    pb.ListEnvironmentsRequest(), metadata=(("authorization", f"{scheme} {ALICE}"),)
                )
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
    async with connect(server.address, token=ALICE) as remote, remote.session("test/Counter-v0") as session:
        await session.reset()
    assert ALICE not in server.log


async def test_sessions_of_another_identity_are_as_if_they_never_existed(shared_server: StartServer) -> None:
    """S35."""
    server = shared_server(workers=1, tokens=TOKENS)
    async with stub_to(server.address) as stub, RawStream(stub, ALICE) as alice, RawStream(stub, BOB) as bob:
        made = await alice.create("test/Counter-v0")
        own = [(await bob.create("test/Counter-v0")).session_id for _ in range(10)]
        hers = made.session_id
        number, _, secret = hers.partition("-")
        forged = [
            hers,
            hers.upper() if hers.upper() != hers else hers[::-1],
            f"{number}-{secret[:-1]}{'0' if secret[-1] != '0' else '1'}",
            f"{number}-{int(secret, 16) + 1:x}",
            f"{int(number, 16) + 1:x}-{secret}",
            secret,
            f"{number}-{secrets.token_hex(16)}",
            f"{own[0].partition('-')[0]}-{secret}",
            hers + " ",
            "",
        ]

        async def answer(call: Any, request: Any) -> tuple[Any, str]:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(request, metadata=bearer(BOB))
            return raised.value.code(), raised.value.details() or ""

        answers = set()
        for session_id in forged:
            for call, request in (
                (stub.Step, pb.StepRequest(session_id=session_id, sequence=1, command=step(1))),
                (stub.Reset, pb.ResetRequest(session_id=session_id, sequence=1)),
                (stub.GetSession, pb.GetSessionRequest(session_id=session_id)),
                (stub.CloseSession, pb.CloseSessionRequest(session_id=session_id)),
            ):
                answers.add(await answer(call, request))
            attached = await bob.attach(session_id)
            assert attached.code == pb.REPLY_CODE_UNKNOWN_SESSION
            answers.add((grpc.StatusCode.NOT_FOUND, pb.Error.FromString(attached.payload).message))
        assert answers == {(grpc.StatusCode.NOT_FOUND, "no such session")}
        # Nor by its lane, which can be guessed.
        for kind in (pb.COMMAND_KIND_STEP, pb.COMMAND_KIND_RESET):
            refused = await bob.ask(kind, step(1).SerializeToString(), lane=made.lanes[0], number=1)
            assert refused.code == pb.REPLY_CODE_UNKNOWN_SESSION
        assert not (await bob.ask(pb.COMMAND_KIND_CLOSE, lane=made.lanes[0])).code
        listed = await stub.ListSessions(pb.ListSessionsRequest(), metadata=bearer(BOB))
        assert len(listed.sessions) == 10
        # A key of hers gives him a session of his own.
        info = await stub.GetSession(pb.GetSessionRequest(session_id=hers), metadata=bearer(ALICE))
        assert (info.session.state, info.session.steps) == (pb.SESSION_STATE_READY, 0)
        assert not (await alice.ask(pb.COMMAND_KIND_RESET, lane=made.lanes[0], number=1)).code
        bits = [int(session_id.partition("-")[2], 16) for session_id in own]
        assert all(len(session_id.partition("-")[2]) == 32 for session_id in own)
        assert len({value >> 64 for value in bits}) == len({value & (2**64 - 1) for value in bits}) == 10


async def test_keys_of_one_identity_mean_nothing_to_another(shared_server: StartServer) -> None:
    server = shared_server(workers=1, tokens=TOKENS)
    key = secrets.token_bytes(16)
    async with stub_to(server.address) as stub:
        made = [
            await stub.CreateSession(create(idempotency_key=key), metadata=bearer(token))
            for token in (ALICE, BOB, ALICE)
        ]
    assert made[0].session_id == made[2].session_id != made[1].session_id


async def test_a_full_server_makes_creates_wait_in_their_order(start_server: StartServer) -> None:
    server = start_server(workers=1, capacity=2)
    async with connect(server.address) as remote:
        held = [await remote.session("test/Counter-v0").open() for _ in range(2)]
        with pytest.raises(CapacityExhausted, match=r"2 of 2 sessions.*no place within 0.2 s \(--capacity"):
            await remote.session("test/Counter-v0", create_timeout=0.2).open()
        came: list[int] = []

        async def take(number: int) -> None:
            async with remote.session("test/Counter-v0") as session:
                came.append(number)
                assert session.queued > 0
                await session.reset()

        waiting = []
        for number in range(5):
            waiting.append(asyncio.create_task(take(number)))
            await asyncio.sleep(0.02)
        assert came == []
        await held[0].close()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert came == list(range(5))
        await held[1].close()


async def test_an_idle_session_is_closed_at_its_own_limit(server: ServerProcess) -> None:
    from gymhost.client import SessionExpired

    async with connect(server.address) as remote:
        session = await remote.session("test/Slow-v0", idle_timeout=1.0).open()
        await session.reset()
        assert (await session.step(2.5))[0] == 1  # a session with a command in flight is never idle
        await until(lambda: session.lost)
        with pytest.raises(SessionExpired, match=r"no command came for 1 s \(the session's idle_timeout\)"):
            await session.step(0.0)
        assert await remote.sessions() == []


async def attach_directly(path: Path, token: str) -> pb.Reply:
    """Asks a worker for a session past gRPC."""
    reader, writer = await asyncio.open_unix_connection(path)
    attach = command(pb.COMMAND_KIND_ATTACH, pb.Attach(session_id=token).SerializeToString(), number=1)
    writer.write(pack(pb.InteractRequest(commands=[attach]).SerializeToString()))
    frames = FrameReader(2**20)
    try:
        while data := await reader.read(4096):
            for _, message in frames.feed(data):
                return pb.InteractResponse.FromString(message).replies[0]
        raise EOFError
    finally:
        writer.close()
        await writer.wait_closed()


async def test_the_way_past_grpc_opens_to_the_sessions_own_token_alone(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        made, other = [await stream.create() for _ in range(2)]
        path = Path(stream.welcome.direct.folder) / str(made.lanes[0] >> 32)
        token = made.direct_token
        assert (len(token), token[:16] != other.direct_token[:16]) == (32, True)
        flipped, random = f"{int(token, 16) ^ 1:032x}", secrets.token_hex(16)
        for guess in ("", made.session_id, token[:-1], f"{token}0", flipped, random):
            refused = await attach_directly(path, guess)
            assert refused.code == pb.REPLY_CODE_UNKNOWN_SESSION, guess
        assert not (await attach_directly(path, token)).code


async def test_the_way_past_grpc_is_closed_to_other_users_of_the_machine(start_server: StartServer) -> None:
    server = start_server(workers=1)
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        made = await stream.create()
        path = Path(stream.welcome.direct.folder) / str(made.lanes[0] >> 32)
        attach = command(pb.COMMAND_KIND_ATTACH, pb.Attach(session_id=made.direct_token).SerializeToString(), number=1)
        frame = pack(pb.InteractRequest(commands=[attach]).SerializeToString())
        script = (
            "import socket\n"
            "with socket.socket(socket.AF_UNIX) as end:\n"
            "    try:\n"
            f"        end.connect({str(path)!r})\n"
            f"        end.sendall({frame!r})\n"
            "        print(len(end.recv(4096)))\n"
            "    except OSError as error:\n"
            "        print(type(error).__name__)\n"
        )

        def ask(folder: int) -> str:
            """What another user gets, where the folder has these rights."""
            path.parent.chmod(folder)
            path.chmod(0o666)
            with ordinary_user() as user:
                said = user.run("-c", script)
            assert not said.stderr
            return said.stdout.strip()

        answers = [await asyncio.to_thread(ask, rights) for rights in (0o700, 0o711)]
    if os.geteuid() == 0:
        # The folder keeps them out; where it did not, a worker hangs up on them.
        assert answers[0] == "PermissionError"
        assert answers[1] in ("0", "ConnectionResetError", "BrokenPipeError")
