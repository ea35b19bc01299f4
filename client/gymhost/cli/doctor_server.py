"""What `gymhost doctor --server` says of a server."""

import asyncio
import os
import socket
import statistics
import time
from collections.abc import Sequence
from typing import Any

from gymhost.cli.doctor_findings import Finding
from gymhost.wire.host import is_loopback
from gymhost.wire.words import counted

__all__ = ["connection", "reach"]

# Seconds to reach a server, and calls that are timed.
REACH_LIMIT = 5.0
CALLS = 7


def reach(address: str) -> Sequence[Finding]:
    """Whether something listens there."""
    began = time.perf_counter()
    try:
        if address.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(REACH_LIMIT)
                probe.connect(address.removeprefix("unix:"))
            who = address
        else:
            host, _, port = address.rpartition(":")
            with socket.create_connection((host.strip("[]"), int(port)), REACH_LIMIT) as probe:
                who = "{}:{}".format(*probe.getpeername()[:2])
    except ValueError:
        return [Finding("reach", "broken", f"{address!r} is no address", "HOST:PORT, [IPv6]:PORT or unix:PATH")]
    except OSError as error:
        advice = "is `gymhost serve` running there, does it listen beyond loopback (--address), does a firewall let in?"
        return [Finding("reach", "broken", f"{address} can't be reached: {error}", advice)]
    return [Finding("reach", "ok", f"{who} answers after {(time.perf_counter() - began) * 1000:.1f} ms")]


def connection(address: str, token: str | None, tls: Any) -> Sequence[Finding]:
    """Whether it lets in whoever asks, what it hosts, and how far away it is."""
    from gymhost.client import connect
    from gymhost.wire.errors import Error, PermissionDenied, Unauthenticated
    from gymhost.wire.limits import PROTOCOL_MINOR

    try:
        with connect(address, token=token, tls=tls, connect_timeout=REACH_LIMIT) as server:
            welcome = server.connection.welcome
            environments, problems, calls = asyncio.run(_ask(server))
            draining, direct = server.draining, server.connection.folder is not None
            encrypted = bool(server.arguments["tls"])
    except (Unauthenticated, PermissionDenied) as error:
        if "certificate" in error.message:
            return [Finding("TLS", "broken", error.message, "give the client's certificate: --tls-cert and --tls-key")]
        return [Finding("token", "broken", error.message, "give its token: --token, or GYMHOST_TOKEN")]
    except Error as error:
        return [Finding("server", "broken", error.message)]
    shown = token or os.environ.get("GYMHOST_TOKEN")
    found = [Finding("token", "ok", "let in with the token" if shown else "let in without a token")]
    found.append(_encryption(address, encrypted))
    minor = welcome.protocol_minor
    versions = f"it speaks version 1.{minor} of the contract, this client 1.{PROTOCOL_MINOR}"
    if minor < PROTOCOL_MINOR:
        found.append(
            Finding("versions", "warning", versions, "update the server, which lacks some of what the client asks for")
        )
    else:
        found.append(Finding("versions", "ok", versions))
    quickest, usual = min(calls) * 1000, statistics.median(calls) * 1000
    found.append(Finding("round trip", "ok", f"{usual:.1f} ms, at best {quickest:.1f} ms, of {len(calls)} calls"))
    way = "straight to the workers' sockets, of this host and user" if direct else "by gRPC"
    said = f"{counted(welcome.workers, 'worker')}, sessions go {way}; a lease of {welcome.lease_ms / 1000:g} s"
    if draining:
        found.append(Finding("server", "warning", f"{said}; it is going away and takes no new sessions"))
    else:
        found.append(Finding("server", "ok", said))
    found.append(Finding("environments", "ok", f"{counted(environments, 'environment')} hosted"))
    found += [Finding("environments", "warning", problem) for problem in problems]
    return found


def _encryption(address: str, encrypted: bool) -> Finding:
    if encrypted:
        return Finding("TLS", "ok", "spoken, and the server's certificate is right")
    if is_loopback(address):
        return Finding("TLS", "ok", "not spoken, and nothing leaves this machine")
    advice = "gymhost serve --tls-cert CERT --tls-key KEY, and --tls-ca here"
    return Finding("TLS", "warning", "not spoken: whoever is on the way can read and change all, the token too", advice)


async def _ask(server: Any) -> tuple[int, list[str], list[float]]:
    environments = len(await server.environments())
    problems: list[str] = []
    calls: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        problems = await server.problems()
        calls.append(time.perf_counter() - began)
    return environments, problems, calls
