"""Tokens: their file, its changes while the server runs, what a revocation ends; and secrets, which nobody sees."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gymhost.client import PermissionDenied, Session, SessionClosed, Unauthenticated, connect
from gymhost.client.embedded import EmbeddedServer
from gymhost.server.config import ServerConfig
from gymhost.server.tokens import Owner, Role, TokenFile, add_to_file, hash_of, new_token, read_tokens
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire.errors import InvalidArgument
from support.raw import RawStream, bearer, create, stub_to
from support.server import ServerProcess, children, until

StartServer = Callable[..., ServerProcess]

# Seconds within which a revocation has to have its effect; one, where the machine does nothing else.
SOON = 15.0


class Tokens:
    """A token file, and the tokens that it has the hashes of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._of: dict[str, str] = {}

    def add(self, name: str, role: Role = Role.USER) -> str:
        token = new_token()
        add_to_file(self.path, Owner(name, role), hash_of(token))
        return token

    def take_out(self, token: str) -> None:
        lines = self.path.read_text().splitlines(keepends=True)
        left = [line for line in lines if hash_of(token) not in line]
        assert len(left) == len(lines) - 1
        self.write("".join(left))

    def write(self, text: str) -> None:
        """Puts another file in its place: a server that reads it meanwhile sees the one or the other."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.chmod(0o600)
        new.replace(self.path)


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens")


async def lets_in(address: str, token: str) -> bool:
    try:
        async with connect(address, token=token):
            return True
    except Unauthenticated:
        return False


async def until_let_in(address: str, token: str, wanted: bool) -> None:
    deadline = time.monotonic() + SOON
    while await lets_in(address, token) != wanted:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def step_on(session: Session) -> None:
    """Steps until it is no longer possible."""
    while True:
        await session.step(1)


# -- while it runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "grpc"])
async def test_a_revoked_token_is_cut_off_at_once(start_server: StartServer, tokens: Tokens, direct: bool) -> None:
    alice, bob = tokens.add("alice"), tokens.add("bob")
    server = start_server(workers=1, token_file=str(tokens.path))
    async with (
        connect(server.address, token=alice, direct=direct) as hers,
        connect(server.address, token=bob, direct=direct) as his,
        his.session("test/Counter-v0") as other,
        stub_to(server.address) as stub,
    ):
        session = await hers.session("test/Counter-v0").open()
        slow = await hers.session("test/Slow-v0").open()
        by_hand = await stub.CreateSession(create(), metadata=bearer(alice))
        for each in (session, slow, other):
            await each.reset()
        step = asyncio.create_task(slow.step(60.0))
        await session.step(1)
        tokens.take_out(alice)
        # What is under way ends, on the stream and past it.
        async with asyncio.timeout(SOON):
            with pytest.raises((Unauthenticated, SessionClosed), match="revoked"):
                await step
            with pytest.raises((Unauthenticated, SessionClosed), match="revoked"):
                await step_on(session)
        assert not await lets_in(server.address, alice)
        request = pb.GetSessionRequest(session_id=by_hand.session_id)
        with pytest.raises(Exception, match="was revoked"):
            await stub.GetSession(request, metadata=bearer(alice))
        # Nobody else notices, and nothing of hers is left in the workers.
        assert (await other.step(1))[0] == 1
        assert "Traceback" not in server.log
        # Who comes back finds that they were closed.
        again = tokens.add("alice")
        await until_let_in(server.address, again, True)
        async with connect(server.address, token=again) as back:
            assert await back.sessions() == []
            info = await stub.GetSession(request, metadata=bearer(again))
            assert info.session.state == pb.SESSION_STATE_CLOSED
            assert "tokens were revoked" in info.session.reason


async def test_a_token_is_changed_for_another_without_losing_a_session(
    start_server: StartServer, tokens: Tokens
) -> None:
    old = tokens.add("alice")
    server = start_server(workers=1, token_file=str(tokens.path))
    async with stub_to(server.address) as stub, RawStream(stub, old) as before:
        made = await before.create()
        assert not (await before.ask(pb.COMMAND_KIND_RESET, lane=made.lanes[0], number=1)).code
        new = tokens.add("alice")
        await until_let_in(server.address, new, True)
        assert await lets_in(server.address, old)
        tokens.take_out(old)
        await until_let_in(server.address, old, False)
        with pytest.raises(Exception, match="the token was revoked"):
            await before.call.read()
        async with RawStream(stub, new) as after:
            assert not (await after.attach(made.session_id)).code
            assert not (await after.ask(pb.COMMAND_KIND_RESET, lane=made.lanes[0], number=2)).code


async def test_a_create_that_waits_for_a_place_ends_too(start_server: StartServer, tokens: Tokens) -> None:
    alice, bob = tokens.add("alice"), tokens.add("bob")
    server = start_server(workers=1, capacity=1, token_file=str(tokens.path))
    async with stub_to(server.address) as stub, connect(server.address, token=bob) as remote:
        await stub.CreateSession(create(), metadata=bearer(alice))
        waiting = asyncio.ensure_future(stub.CreateSession(create(), metadata=bearer(alice)))
        await asyncio.sleep(0.1)
        tokens.take_out(alice)
        # The place of the first becomes free, the second gets it, and is ended in its turn.
        async with remote.session("test/Counter-v0", create_timeout=3 * SOON) as session:
            await session.reset()
        await waiting


async def test_another_role_is_another_caller(start_server: StartServer, tokens: Tokens) -> None:
    token = tokens.add("alice")
    server = start_server(workers=1, token_file=str(tokens.path))
    async with connect(server.address, token=token, direct=False) as remote:
        session = await remote.session("test/Counter-v0").open()
        await session.reset()
        line = tokens.path.read_text()
        tokens.write(line.replace("alice ", "alice read-only "))
        async with asyncio.timeout(SOON):
            # Which of these depends on whether the client comes back before the notice of the end reaches it.
            with pytest.raises((Unauthenticated, PermissionDenied, SessionClosed)):
                await step_on(session)
    async with connect(server.address, token=token) as remote:
        assert await remote.sessions() == []


async def test_a_file_that_is_not_in_order_changes_nothing(start_server: StartServer, tokens: Tokens) -> None:
    alice = tokens.add("alice")
    server = start_server(workers=1, log_level="info", token_file=str(tokens.path))
    before = tokens.path.read_text()
    async with connect(server.address, token=alice) as remote:
        session = await remote.session("test/Counter-v0").open()
        await session.reset()
        for spoiled, words in (
            (before + "bob secret-of-bob\n", "line 2 is not NAME"),
            (before + "bob owner " + hash_of("x") + "\n", "line 2: a role is one of"),
            (before + "b/b " + hash_of("x") + "\n", "line 2: a name has letters"),
        ):
            tokens.write(spoiled)
            await until(lambda words=words: f"the tokens in use are kept: {words}" in server.log, SOON)
        tokens.path.chmod(0o666)
        await until(lambda: "others than its user may write it" in server.log, SOON)
        tokens.path.unlink()
        await until(lambda: "No such file" in server.log, SOON)
        assert await lets_in(server.address, alice)
        assert (await session.step(1))[0] == 1
        # An empty one is in order: the last token was taken out.
        tokens.path.touch(0o600)
        await until_let_in(server.address, alice, False)
        assert "nobody is let in by it" in server.log
        assert "secret-of-bob" not in server.log


# -- the file ----------------------------------------------------------------------------------------------------------


def test_a_file_has_names_roles_and_hashes() -> None:
    one, two, three = (hash_of(text) for text in ("one", "two", "three"))
    text = f"# who may come in\n\n alice {one}\nalice   admin {two}\nb.o-b@x+y read-only  {three}\n"
    assert read_tokens(text) == {
        one: Owner("alice"),
        two: Owner("alice", Role.ADMIN),
        three: Owner("b.o-b@x+y", Role.READ_ONLY),
    }
    assert read_tokens("") == {}
    assert len({new_token() for _ in range(100)}) == 100
    assert len(bytes.fromhex(new_token())) == 32


@pytest.mark.parametrize(
    "line",
    [
        "alice=secret-token",
        "secret-token",
        "alice secret-token",
        "alice sha256:secret-token",
        "sha256:" + "0" * 64,
        "alice SHA256:" + "0" * 64,
        "alice root sha256:" + "0" * 64,
        "alice user extra sha256:" + "0" * 64,
        f"bob {hash_of('known')}",
        f"alice admin {hash_of('known')}",
    ],
)
def test_another_line_is_refused_and_not_repeated(line: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"alice {hash_of('known')}\n{line}\n")
    path.chmod(0o600)
    for read in (lambda: read_tokens(path.read_text()), lambda: TokenFile(str(path))):
        with pytest.raises((ValueError, InvalidArgument), match="line 2") as raised:
            read()
        assert "secret-token" not in str(raised.value)
    with pytest.raises(InvalidArgument, match="line 2"):
        add_to_file(path, Owner("carol"), hash_of("x"))
    assert "carol" not in path.read_text()


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_to_file(path, Owner("alice"), hash_of("x"))
    assert path.stat().st_mode & 0o777 == 0o600
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(InvalidArgument, match="others than its user may write it: chmod 600"):
            TokenFile(str(path))
    path.chmod(0o644)
    assert TokenFile(str(path)).readable_by_others
    path.chmod(0o600)
    assert not TokenFile(str(path)).readable_by_others


def test_half_of_what_an_editor_writes_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_to_file(path, Owner("alice"), hash_of("x"))
    file = TokenFile(str(path))
    path.write_text("")
    assert not file.refresh()
    path.write_text(f"bob {hash_of('y')}\n")
    assert not file.refresh()
    assert file.owners == {hash_of("x"): Owner("alice")}
    assert file.refresh()
    assert file.owners == {hash_of("y"): Owner("bob")}
    assert not file.refresh()


def test_many_add_to_one_file_and_no_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from gymhost.server.tokens import Owner, add_to_file, hash_of\n"
        "for number in range(20):\n"
        "    add_to_file(Path(sys.argv[1]), Owner(sys.argv[2]), hash_of(sys.argv[2] + str(number)))"
    )
    adding = [subprocess.Popen([sys.executable, "-c", script, str(path), f"user{each}"]) for each in range(4)]
    assert [each.wait(30) for each in adding] == [0] * 4
    assert len(read_tokens(path.read_text())) == 80
    assert [each.name for each in tmp_path.iterdir()] == ["tokens"]


# -- secrets -----------------------------------------------------------------------------------------------------------


def test_a_configuration_knows_no_token() -> None:
    token = new_token()
    config = ServerConfig(tokens={hash_of(token): "alice admin"})
    assert token not in repr(config)
    for wrong in ({token: "alice"}, {f"sha256:{token[:5]}": "alice"}, {"alice": token}):
        with pytest.raises(InvalidArgument, match="must be given as its hash") as raised:
            ServerConfig(tokens=wrong)
        assert token[:5] not in str(raised.value)
    with pytest.raises(InvalidArgument, match="NAME or NAME ROLE"):
        ServerConfig(tokens={hash_of(token): "alice owner"})


def command_lines(pid: int) -> Iterator[bytes]:
    """The command lines of a process and of all that it has started, which every user of the machine may read."""
    yield Path(f"/proc/{pid}/cmdline").read_bytes()
    for child in children(pid):
        yield from command_lines(child)


async def test_secrets_are_in_no_log_error_or_command_line(start_server: StartServer, tokens: Tokens) -> None:
    alice = tokens.add("alice")
    server = start_server(workers=1, log_level="debug", token_file=str(tokens.path))
    said: list[str] = []
    async with stub_to(server.address) as stub, RawStream(stub, alice) as stream:
        made = [await stream.create(f"test/{name}-v0") for name in ("Counter", "Raises", "Exit", "Process")]
        for number in (1, 2):
            for each in made:
                reply = await stream.ask(pb.COMMAND_KIND_RESET, lane=each.lanes[0], number=number)
                said.append(str(pb.Error.FromString(reply.payload)) if reply.code else "")
        for call, request in (
            (stub.Step, pb.StepRequest(session_id=made[1].session_id, sequence=7)),
            (stub.CloseSession, pb.CloseSessionRequest(session_id=made[0].session_id + "0")),
            (stub.ListEnvironments, pb.ListEnvironmentsRequest()),
        ):
            try:
                await call(request, metadata=bearer(alice if call is not stub.ListEnvironments else f"{alice}0"))
            except Exception as error:  # noqa: BLE001 - whatever is said
                said.append(f"{error!r} {error}")
        listed = await stub.ListSessions(pb.ListSessionsRequest(), metadata=bearer(alice))
        said.append(str(listed))
        lines = b"\n".join(command_lines(server.pid))
    async with connect(server.address, token=alice) as remote:
        said += [repr(remote), repr(remote.connection)]
    tokens.take_out(alice)
    await until(lambda: "nobody is let in" in server.log, SOON)
    everything = "\n".join([server.log, *said]).encode() + lines
    assert b"worker" in lines
    assert b"creations" not in lines, "how sandboxes are made may be told with a password"
    for secret in (alice, *(text for each in made for text in (each.session_id, each.direct_token))):
        assert secret
        assert secret.encode() not in everything


def test_an_embedded_servers_token_is_nowhere_to_be_seen() -> None:
    embedded = EmbeddedServer()
    try:
        lines = b"".join(command_lines(embedded._process.pid))
        variables = b"".join(
            Path(f"/proc/{pid}/environ").read_bytes()
            for pid in (embedded._process.pid, *children(embedded._process.pid))
        )
        assert embedded.token.encode() not in lines + variables
        folder = Path(embedded.address.removeprefix("unix:")).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        embedded.stop()


async def test_the_workers_sockets_are_the_servers_users_alone(server: ServerProcess) -> None:
    async with stub_to(server.address) as stub, RawStream(stub) as stream:
        folder = await asyncio.to_thread(Path(stream.welcome.direct.folder).stat)
    assert (folder.st_mode & 0o777, folder.st_uid) == (0o700, os.getuid())


def test_what_workers_get_of_the_servers_environment(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments are the host's own code, and may need its variables; the server's own secrets they do not get."""
    monkeypatch.setenv("GYMHOST_TOKEN", "c0ffee-own")
    monkeypatch.setenv("HF_TOKEN", "c0ffee-hub")
    [worker] = start_server(workers=1).workers
    variables = Path(f"/proc/{worker}/environ").read_bytes()
    assert b"c0ffee-own" not in variables
    assert b"HF_TOKEN=c0ffee-hub" in variables
