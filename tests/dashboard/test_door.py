"""Who gets at the dashboard, where it listens, how it comes and goes; without a browser."""

import asyncio
import os
import re
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from gymhost.cli.app import gymhost as command
from gymhost.server.dashboard.logins import IDLE, LOGINS, Logins, Throttle
from gymhost.server.dashboard.metrics import joined
from gymhost.server.dashboard.told import shown, told
from gymhost.v1 import operations_pb2 as pb
from support.certificates import Authority
from support.command import COMMAND, environment, serving
from support.server import alive, children, running, until
from support.watched import TOKENS, watched


def free_ports() -> int:
    """A port that is free now, as is the second one after it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 2))
            except (OSError, OverflowError):
                continue
            return port


def dashboard_of(pid: int) -> int:
    """The process of the dashboard beside a server."""
    [found] = [
        child for child in children(pid) if b"gymhost.server.dashboard" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return found


def test_without_tokens_only_this_host_s_own_pages_are_answered_and_it_is_there_again(tmp_path: Path):
    with watched(tmp_path) as board, httpx.Client(base_url=board.url, trust_env=False) as http:
        port = board.url.rpartition(":")[2]
        hosts = {
            f"127.0.0.1:{port}": 200,
            f"localhost:{port}": 200,
            f"[::1]:{port}": 200,
            f"evil.example:{port}": 421,
            f"127.0.0.1.evil.example:{port}": 421,
            "": 421,
        }
        for host, status in hosts.items():
            assert http.get("/api/state", headers={"host": host}).status_code == status, host
        page = http.get("/")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script>|<style|style=|onclick=|https?://", page.text), (
            "nothing inline, nothing elsewhere"
        )
        for name in re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text):
            answer = http.get(name)
            assert (answer.status_code, bool(answer.text)) == (200, True), name
        assert http.get("/static/..%2fapp.py").status_code == 404
        assert http.get("/static/app.py").status_code == 404

        for headers, status in (
            ({}, 403),
            ({"x-gymhost-act": "1", "sec-fetch-site": "cross-site"}, 403),
            ({"x-gymhost-act": "1", "sec-fetch-site": "same-origin"}, 200),
        ):
            answer = http.post("/api/server/drain", json={"resume": True}, headers=headers)
            assert answer.status_code == status, answer.text
        large = http.post("/api/server/drain", content=b" " * 70_000, headers={"x-gymhost-act": "1"})
        assert large.status_code == 413
        for body in (b"{", b"[]", b"\xff"):
            answer = http.post("/api/server/drain", content=body, headers={"x-gymhost-act": "1"})
            assert answer.status_code == 400, answer.text
        assert http.get("/api/sessions/9-9/follow").status_code == 404
        assert http.get("/api/jobs/none/rollouts").status_code == 501
        assert http.get("/api/sessions?state=odd").status_code == 400

        first = dashboard_of(board.serving.process.pid)
        os.kill(first, signal.SIGKILL)

        def back() -> bool:
            try:
                return httpx.get(f"{board.url}/healthz", trust_env=False).text == "ok\n"
            except httpx.TransportError:
                return False

        asyncio.run(until(back))
        second = dashboard_of(board.serving.process.pid)
        assert second != first
        assert board.serving.end(signal.SIGTERM) == 0
        asyncio.run(until(lambda: not alive(second)))
        assert "the dashboard ended (status -9), and is started again" in board.serving.stderr.read()


def test_a_login_is_a_cookie_that_scripts_do_not_see_and_goes_with_its_token(tmp_path: Path):
    authority = Authority(tmp_path / "certificates")
    files = authority.server()
    options = ("--tls-cert", files["tls_cert"], "--tls-key", files["tls_key"], "--tls-client-ca", authority.ca)
    context, without = (ssl.create_default_context(cafile=authority.ca) for _ in range(2))
    certificate = authority.client("reader")
    assert certificate.cert
    context.load_cert_chain(certificate.cert, certificate.key)
    with (
        watched(tmp_path, *options, tokens=TOKENS) as board,
        httpx.Client(base_url=board.url, verify=context, trust_env=False) as http,
    ):
        assert board.url.startswith("https://")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{board.url}/healthz", verify=without, trust_env=False)
        assert http.get("/api/state").status_code == 401
        assert http.get("/api/state").headers["www-authenticate"] == "Bearer"
        said = {"x-gymhost-act": "1"}
        assert http.post("/login", json={"token": "wrong"}, headers=said).status_code == 401
        assert http.post("/login", json={"token": "in\nvalid"}, headers=said).status_code == 401
        answer = http.post("/login", json={"token": "work"}, headers=said)
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=strict", "Secure"} <= set(cookie.split("; "))
        assert "work" not in cookie
        state = http.get("/api/state")
        assert state.json()["who"]["role"] == "user"
        assert "max-age" in state.headers["strict-transport-security"]

        file = tmp_path / "tokens"
        file.write_text("".join(line for line in file.read_text().splitlines(True) if not line.startswith("bob")))
        answers = iter(lambda: http.get("/api/state").status_code, 401)
        assert all(status == 200 for status in answers), "until the token is gone, and the login with it"
        assert http.get("/api/state").json()["error"] == "log in with a token of this server"

        http.post("/login", json={"token": "boss"}, headers=said)
        assert http.get("/api/state").json()["who"]["role"] == "admin"
        http.post("/logout", json={}, headers=said)
        assert http.get("/api/state").status_code == 401


def test_by_default_it_is_two_ports_further_and_where_that_is_taken_there_is_none(tmp_path: Path):
    port = free_ports()
    at = ("--workers", "1", "--address", f"127.0.0.1:{port}")
    with running([*COMMAND, "serve", *at], cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert f" on 127.0.0.1:{port} " in process.stdout.readline()
        assert process.stdout.readline() == f"gymhost shows all of it on http://127.0.0.1:{port + 2}/\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port + 2))
        taken.listen()
        with running([*COMMAND, "serve", *at], cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert f" on 127.0.0.1:{port} " in process.stdout.readline()
            lines = iter(process.stderr.readline, "")
            said = next(line for line in lines if line.startswith("there is no dashboard"))
            assert said.startswith(
                f"there is no dashboard: can't listen on 127.0.0.1:{port + 2}: Address already in use"
            )
        asked = subprocess.run(
            [*COMMAND, "serve", *at, "--dashboard", f"127.0.0.1:{port + 2}"],
            check=False,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=60,
        )
        assert asked.returncode == 1
        assert f"can't listen on 127.0.0.1:{port + 2}" in asked.stderr


def test_where_certificates_alone_let_in_there_is_none(tmp_path: Path):
    authority = Authority(tmp_path / "certificates")
    files = authority.server()
    options = ("--tls-cert", files["tls_cert"], "--tls-key", files["tls_key"], "--tls-client-ca", authority.ca)
    result = CliRunner().invoke(command, ["serve", *options, "--dashboard", "127.0.0.1:0"])
    assert result.exit_code == 1
    assert "readers of the dashboard log in with tokens, and this server knows certificates alone" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dashboard", "here"), "not 'here' (--dashboard)"),
        (("--dashboard", "unix:/run/board"), "browsers find the dashboard at HOST:PORT"),
        (("--dashboard", "127.0.0.1:0", "--no-dashboard"), "one of them"),
        (("--dashboard", "0.0.0.0:8000"), "the dashboard on 0.0.0.0:8000 can be reached from other machines"),
    ],
)
def test_what_it_can_not_be_is_said(arguments: tuple[str, ...], message: str):
    result = CliRunner().invoke(command, ["serve", *arguments])
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())


def test_a_file_says_so_too(tmp_path: Path):
    (tmp_path / "server.toml").write_text("dashboard = true\n")
    result = CliRunner().invoke(command, ["serve", "--config", str(tmp_path / "server.toml")])
    assert "dashboard must be an address, or false for none, not True" in result.output
    (tmp_path / "server.toml").write_text("dashboard = false\n")
    # An empty option is none: else the helper would say --no-dashboard.
    with serving("--config", "server.toml", "--dashboard", "", cwd=tmp_path) as without:
        assert not any(
            b"dashboard" in Path(f"/proc/{child}/cmdline").read_bytes().replace(b"--dashboard", b"")
            for child in children(without.process.pid)
        )


def test_logins_are_bounded_and_end():
    now = [0.0]
    logins = Logins(lambda: now[0])
    cookie = logins.open("secret")
    assert (logins.token(cookie), logins.token("another"), logins.token("")) == ("secret", None, None)
    now[0] = IDLE - 1
    assert logins.token(cookie) == "secret", "each use renews it"
    now[0] += IDLE - 1
    assert logins.token(cookie) == "secret"
    for _ in range(LOGINS - 1):
        logins.open("others")
    assert logins.token(cookie) == "secret"
    for _ in range(LOGINS):
        logins.open("others")
    assert logins.token(cookie) is None, "what was used longest ago is gone"
    cookie = logins.open("secret")
    now[0] += IDLE + 1
    assert logins.token(cookie) is None


def test_guesses_take_longer_and_longer():
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    waits: list[float] = []
    for _ in range(16):
        throttle.wrong("10.0.0.1")
        waits.append(throttle.wait("10.0.0.1"))
    assert waits[:6] == [0, 0, 0, 0, 1, 2]
    assert waits[-1] == 60
    assert throttle.wait("10.0.0.2") == 0
    throttle.right("10.0.0.1")
    assert throttle.wait("10.0.0.1") == 0
    for host in range(8):
        throttle.wrong(f"2001:db8::{host}")
    assert throttle.wait("2001:db8::ffff") > 0, "a network of IPv6 is one caller"


def test_metrics_of_two_servers_are_one_text():
    process = (
        "# HELP process_cpu_seconds_total C.\n# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {}\n"
    )
    stages = (
        '# HELP a_seconds A.\n# TYPE a_seconds histogram\na_seconds_bucket{le="1.0",stage="x"} 2.0\n'
        'a_seconds_bucket{le="+Inf",stage="x"} 3.0\na_seconds_count{stage="x"} 3.0\na_seconds_sum{stage="x"} 4.5\n'
    )
    text = joined({"environments": process.format(1.5) + stages, "rollouts": process.format(2.5)})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {sample.labels["server"]: sample.value for sample in families["process_cpu_seconds"].samples} == {
        "environments": 1.5,
        "rollouts": 2.5,
    }
    assert sorted(stages.splitlines()) == sorted(line for line in text.splitlines() if "a_seconds" in line)
    assert joined({"rollouts": stages}) == stages


def test_values_are_shown_in_short():
    assert shown({"a": [1, 2.5, None, "x"], 3: float("nan")}) == {"a": [1, 2.5, None, "x"], "3": "nan"}
    assert shown(2**60) == str(2**60)
    assert shown(np.zeros((3,), np.float32)) == {"$array": [3], "dtype": "float32", "values": [0.0, 0.0, 0.0]}
    large = shown(np.arange(1000.0))
    assert (large["$array"], large["min"], large["max"], large["mean"]) == ([1000], 0.0, 999.0, 499.5)
    assert shown(np.zeros((84, 84, 3), np.uint8))["$picture"] == [84, 84, 3]
    assert len(shown("x" * 100_000)) < 21_000
    assert len(shown(list(range(1000)))) == 65
    assert shown(b"12345") == "5 bytes"
    nested: object = 0
    for _ in range(100):
        nested = [nested]
    assert str(shown(nested)).count("[") < 12
    overview = told(
        pb.GetOverviewResponse(environments=[pb.EnvironmentOverview(failures={"X": 2}, rewards=float("nan"))])
    )
    assert (overview["environments"][0]["failures"], overview["environments"][0]["rewards"]) == ({"X": 2}, None)
