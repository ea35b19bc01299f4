"""TLS and mutual TLS: who trusts whom, what is said where somebody does not, and certificates that change."""

import datetime
import logging
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from gymhost.client import (
    ConnectionLost,
    InvalidArgument,
    ServerUnavailable,
    Tls,
    Unauthenticated,
    connect,
    make,
    make_vec,
)
from gymhost.server.config import ServerConfig
from gymhost.trainers.connection import Connection as TrainersConnection
from gymhost.wire.host import is_loopback
from support.certificates import Authority
from support.proxy import Proxy
from support.server import ServerProcess

StartServer = Callable[..., ServerProcess]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "others")


async def test_a_session_over_tls(start_server: StartServer, authority: Authority, grpc_path: None) -> None:
    server = start_server(workers=1, tokens={"secret": "alice"}, **authority.server())
    async with connect(server.address, token="secret", tls=authority.trusted) as remote:
        async with remote.session("test/Counter-v0") as session:
            await session.reset(seed=0)
            assert (await session.step(1))[0] == 1
        # What is large goes over a channel of its own, which speaks TLS too.
        async with remote.session("test/Image-v0") as session:
            await session.reset(seed=0)
            action = np.zeros(6 * 1024 * 1024, np.uint8)
            assert (await session.step(action))[0].shape == (1200, 1600, 3)
    assert "Traceback" not in server.log


def test_whatever_connects_can_speak_tls(
    start_server: StartServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(workers=1, **authority.server())
    fields = {"ca": authority.ca}
    env = make("test/Counter-v0", server=server.address, tls=fields)
    env.reset()
    assert env.spec is not None
    # A spec is written as JSON, with how its server is reached.
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    again.reset()
    again.close()
    env.close()
    envs = make_vec("test/Counter-v0", 3, server=server.address, tls=authority.trusted)
    observations, _ = envs.reset()
    assert observations.shape == (3,)
    envs.close()
    for servers in (server.address, [server.address]):
        connection = TrainersConnection(servers, tls=authority.trusted)
        assert connection.splits("gymhost/GuessNumber-v0", {})
    # Without an argument, what the process's environment has; what it has is in no spec.
    monkeypatch.setenv("GYMHOST_TLS_CA", authority.ca)
    env = make("test/Counter-v0", server=server.address)
    env.reset()
    assert env.spec is not None
    assert authority.ca not in repr(env.spec)
    env.close()
    with pytest.raises(ServerUnavailable, match="speaks TLS"):
        make("test/Counter-v0", server=server.address, tls=False)


async def refused(address: str, tls: Tls | bool | None, kind: type[Exception], words: str) -> None:
    """Connects to no avail, and is told why at once."""
    began = time.monotonic()
    with pytest.raises(kind, match=words):
        await connect(address, tls=tls, connect_timeout=30)
    assert time.monotonic() - began < 10


def tuple_of(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


async def test_a_side_without_tls_is_told_of_the_other(
    server: ServerProcess, start_server: StartServer, authority: Authority, other: Authority
) -> None:
    await refused(
        server.address, authority.trusted, ServerUnavailable, r"does not speak TLS.*GYMHOST_TLS_CA out.*--tls-cert"
    )
    secure = start_server(workers=1, **authority.server())
    await refused(secure.address, None, ServerUnavailable, r"speaks TLS: connect\(\.\.\., tls=Tls\(ca=")
    await refused(secure.address, True, ServerUnavailable, r"no authority in the public ones.*Tls\(ca=")
    await refused(secure.address, other.trusted, ServerUnavailable, r"no authority in .*ca\.pem.*GYMHOST_TLS_CA")
    # Strangers leave nothing in its log, where gRPC would have lines of its own for each.
    with pytest.raises(ssl.SSLError), socket.create_connection(tuple_of(secure.address), 10) as end:
        ssl.create_default_context().wrap_socket(end, server_hostname="a.stranger")
    assert "stranger" not in secure.log
    assert "ssl" not in secure.log.lower()
    # Whom a server without an authority for clients would have: it does not even look.
    async with connect(secure.address, tls=other.client("alice", ca=authority.ca)):
        pass


async def test_a_certificate_for_another_name(start_server: StartServer, authority: Authority) -> None:
    server = start_server(workers=1, **authority.server("cpu7"))
    await refused(server.address, authority.trusted, ServerUnavailable, r"not for '127.0.0.1'.*Tls\(name=")
    async with connect(server.address, tls=Tls(ca=authority.ca, name="cpu7")):
        pass


async def test_a_certificate_that_has_expired(start_server: StartServer, authority: Authority) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    server = start_server(workers=1, **authority.server(expires=yesterday))
    await refused(server.address, authority.trusted, ServerUnavailable, "has expired: renew it")


async def test_files_of_the_client_that_are_none(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    server = start_server(workers=1, **authority.server())
    with pytest.raises(InvalidArgument, match=r"can't read .*there\.pem"):
        await connect(server.address, tls=Tls(ca=str(tmp_path / "not" / "there.pem")))
    (tmp_path / "no.pem").write_text("no certificate")
    with pytest.raises(InvalidArgument, match=r"no\.pem can't be used"):
        await connect(server.address, tls=Tls(ca=str(tmp_path / "no.pem")))


def test_what_makes_no_sense_is_refused_at_once(authority: Authority) -> None:
    with pytest.raises(InvalidArgument, match="go together"):
        Tls(cert="cert.pem")
    for tls, words in (({"cafile": "x"}, "tls has ca, cert, key and name"), ("ca.pem", "tls is Tls")):
        with pytest.raises(InvalidArgument, match=words):
            connect("cpu7:50051", tls=tls)  # pyright: ignore[reportArgumentType]
    for address in (None, "unix:/tmp/socket"):
        with pytest.raises(InvalidArgument, match="tls is for a server at HOST:PORT"):
            connect(address, tls=True)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tls_cert": "a"}, "both --tls-cert and --tls-key"),
        ({"tls_client_ca": "a"}, "--tls-client-ca goes with them"),
        ({"tls_cert": "a", "tls_key": "b", "address": "unix:/tmp/x"}, "TLS is for HOST:PORT"),
    ]
    for settings, words in wrong:
        with pytest.raises(InvalidArgument, match=words):
            ServerConfig(**settings)


async def test_with_mutual_tls_the_certificate_says_who_it_is(
    start_server: StartServer, authority: Authority, other: Authority
) -> None:
    server = start_server(workers=1, tls_client_ca=authority.ca, **authority.server())
    await refused(
        server.address, authority.trusted, Unauthenticated, r"wants a certificate of its clients.*GYMHOST_TLS_CERT"
    )
    await refused(
        server.address,
        other.client("alice", ca=authority.ca),
        Unauthenticated,
        r"does not take the client's certificate.*--tls-client-ca",
    )
    alice, bob, nobody = (
        connect(server.address, tls=authority.client(name, san))
        for name, san in (("alice", "a.example"), ("bob", "a.example"), (None, "carol.example"))
    )
    async with alice, bob, nobody, alice.session("test/Counter-v0") as session:
        await session.reset()
        assert [len(await each.sessions()) for each in (alice, bob, nobody)] == [1, 0, 0]
        second = connect(server.address, tls=authority.client("alice", "another.example"), connect_timeout=9)
        async with second:
            assert len(await second.sessions()) == 1
        async with nobody.session("test/Counter-v0"):
            assert len(await nobody.sessions()) == 1


async def test_with_a_certificate_and_a_token_the_token_says_who_it_is(
    start_server: StartServer, authority: Authority
) -> None:
    server = start_server(workers=1, tokens={"secret": "bob"}, tls_client_ca=authority.ca, **authority.server())
    own = authority.client("alice")
    with pytest.raises(Unauthenticated, match="wants a token"):
        await connect(server.address, tls=own)
    with pytest.raises(Unauthenticated, match="wants a certificate"):
        await connect(server.address, token="secret", tls=authority.trusted)
    async with connect(server.address, token="secret", tls=own) as remote:
        assert await remote.sessions() == []


def text_of(path: str) -> str:
    return Path(path).read_text()


def renew(path: str, by: str) -> None:
    """Gives a file what another has, in one step, as those do who renew certificates."""
    fresh = Path(f"{path}.new")
    fresh.write_text(text_of(by))
    fresh.replace(path)


async def test_certificates_are_renewed_while_the_server_runs(
    start_server: StartServer, authority: Authority, other: Authority
) -> None:
    files = authority.server()
    server = start_server(workers=1, log_level="info", tls_client_ca=authority.ca, **files)
    own = authority.client("alice")
    async with connect(server.address, tls=own) as before, before.session("test/Counter-v0") as session:
        await session.reset()
        # Half of a renewal: the key is another one than the certificate's.
        key = text_of(files["tls_key"])
        fresh = other.server()
        renew(files["tls_key"], fresh["tls_key"])
        async with connect(server.address, tls=own, connect_timeout=9):
            pass
        assert "the certificates in use are kept" in server.log
        assert key not in server.log
        renew(files["tls_cert"], fresh["tls_cert"])
        renew(f"{authority.ca}.old", authority.ca)
        renew(authority.ca, other.ca)
        async with connect(server.address, tls=other.client("alice")) as after:
            assert len(await after.sessions()) == 1
        await refused(server.address, Tls(f"{authority.ca}.old", own.cert, own.key), ServerUnavailable, "no authority")
        # Who is connected stays so.
        assert (await session.step(1))[0] == 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda files: Path(files["tls_cert"]).unlink(), "can't read"),
        (lambda files: Path(files["tls_cert"]).write_text("no certificate"), "not a certificate in PEM"),
        (lambda files: Path(files["tls_client_ca"]).write_text("nobody"), "has no certificates in PEM"),
    ],
)
async def test_a_server_does_not_start_with_files_that_are_none(
    start_server: StartServer, authority: Authority, other: Authority, spoil: Callable[[Any], Any], words: str
) -> None:
    files = {**authority.server(), "tls_client_ca": other.ca}
    spoil(files)
    with pytest.raises(RuntimeError, match=f"{words}.*--tls-cert"):
        start_server(workers=1, **files)


async def test_a_restored_connection_says_why_it_could_not_be(
    start_server: StartServer, authority: Authority, other: Authority
) -> None:
    ours = start_server(workers=1, **authority.server())
    with Proxy(ours.address) as proxy:
        tls = Tls(ca=authority.ca, name="localhost")
        async with connect(proxy.address, tls=tls, direct=False, reconnect_timeout=1) as remote:
            session = await remote.session("test/Counter-v0").open()
            await session.reset()
            theirs = start_server(workers=1, **other.server())
            proxy._target = "127.0.0.1", int(theirs.address.rpartition(":")[2])
            proxy.cut()
            with pytest.raises(ConnectionLost, match=r"could not be restored.*of no authority"):
                await session.step(1)


def test_a_token_that_travels_unencrypted_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    assert [is_loopback(a) for a in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/a")] == [True] * 4
    assert not any(is_loopback(address) for address in ("cpu7:1", "10.0.0.1:1", "[fe80::1]:1", "0.0.0.0:1"))
    caplog.set_level(logging.WARNING, "gymhost.client")
    for _ in range(2):
        with pytest.raises(ServerUnavailable):
            connect("127.0.0.1.invalid:1", token="a-secret", connect_timeout=0.1).open()
    warnings = [record.getMessage() for record in caplog.records if "unencrypted" in record.getMessage()]
    assert warnings == ["the token goes to 127.0.0.1.invalid:1 unencrypted: connect(..., tls=...), or GYMHOST_TLS_CA"]
    assert "a-secret" not in caplog.text


async def test_a_server_that_takes_tokens_unencrypted_says_so(start_server: StartServer, authority: Authority) -> None:
    for settings, warned in (({}, True), (authority.server(), False)):
        server = start_server(workers=1, address="0.0.0.0:0", tokens={"a": "alice"}, **settings)
        assert ("unencrypted: --tls-cert and --tls-key" in server.log) is warned


async def test_a_unix_socket_without_tokens_is_its_users_alone(start_server: StartServer, tmp_path: Path) -> None:
    for tokens, mode in (({}, 0o700), ({"a": "alice"}, 0o700 | 0o055)):
        path = tmp_path / f"socket-{len(tokens)}"
        start_server(workers=1, address=f"unix:{path}", tokens=tokens)
        assert stat.S_IMODE(path.stat().st_mode) == mode & ~_umask()


def _umask() -> int:
    before = os.umask(0o022)
    os.umask(before)
    return before
