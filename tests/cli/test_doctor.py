"""`gymhost doctor`: what it finds, what it advises, and that it waits for nothing too long."""

import json
import threading
import time
from typing import Any

import pytest
from click.testing import CliRunner

from gymhost.cli import doctor_machine, doctor_packages
from gymhost.cli.app import gymhost as command
from gymhost.cli.doctor_findings import Finding, look
from support.command import gymhost, serving

NAMES = {"Python", "packages", "machine", "descriptors", "sockets", "disk", "clock", "sandboxes", "Docker", "GPU"}


def found_by(*arguments: str, code: int = 0) -> dict[str, Any]:
    said = gymhost("doctor", "--json", *arguments)
    assert said.returncode == code, said.stdout + said.stderr
    return {finding["name"]: finding for finding in json.loads(said.stdout)}


def test_it_tells_of_this_machine_within_seconds():
    began = time.monotonic()
    found = found_by()
    assert time.monotonic() - began < 20
    assert found.keys() >= NAMES
    for finding in found.values():
        assert finding["verdict"] in ("ok", "optional", "warning"), finding
        assert finding["detail"]
    assert found["Python"]["verdict"] == found["packages"]["verdict"] == found["sockets"]["verdict"] == "ok"
    assert found["extra server"]["detail"] == "installed"
    # Tests need them, so there are some.
    assert found["sandboxes"]["detail"].startswith("bubblewrap makes them")


def test_people_get_a_line_each_with_the_advice_below():
    said = gymhost("doctor")
    assert said.returncode == 0
    lines = said.stdout.splitlines()
    assert any(line.split()[:2] == ["ok", "Python"] for line in lines)
    assert max(map(len, lines)) <= 160
    assert "Traceback" not in said.stdout + said.stderr


def test_a_missing_extra_is_optional_and_a_broken_base_is_not(monkeypatch: pytest.MonkeyPatch):
    known = doctor_packages._version
    changed: dict[str, str | None] = {"uvloop": None, "pydantic": "1.10.2"}
    monkeypatch.setattr(doctor_packages, "_version", lambda name: changed.get(name, known(name)))
    found = {finding.name: finding for finding in (*doctor_packages.extras(), *doctor_packages.base())}
    assert found["extra server"].verdict == "optional"
    assert "uvloop is not installed" in found["extra server"].detail
    assert "pydantic 1.10.2 is not >=2.6" in found["extra server"].detail
    assert found["extra server"].advice == "pip install 'gymhost[server]'"
    assert found["packages"].verdict == "ok"
    changed["protobuf"] = "4.25.3"
    said = CliRunner().invoke(command, ["doctor", "--json"])
    assert said.exit_code == 1
    [packages] = [each for each in json.loads(said.output) if each["name"] == "packages"]
    assert packages["verdict"] == "broken"
    assert packages["advice"].startswith("pip install 'protobuf")


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [
        ("5.29.1", "<8,>=5.29.1", True),
        ("5.29.0", "<8,>=5.29.1", False),
        ("8.0.0", "<8,>=5.29.1", False),
        ("2.13.0+cpu", "==2.13.0", True),
        ("1.16.3", "==1.16.*", True),
        ("1.17.0", "==1.16.*", False),
        ("0.31", "<=0.31,>=0.22", True),
        ("0.31.1", "<=0.31,>=0.22", False),
        ("3.0.0rc1", ">=2", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, bounds: str, fits: bool):
    assert doctor_packages._fits(version, bounds) is fits


def test_a_probe_that_hangs_or_fails_keeps_no_other_from_telling():
    ended = threading.Event()

    def hangs() -> list[Finding]:
        ended.wait(60)
        return []

    def fails() -> list[Finding]:
        raise ValueError("out of order")

    began = time.monotonic()
    found = look([("slow", hangs), ("bad", fails), ("good", lambda: [Finding("good", "ok", "there")])], 0.5)
    ended.set()
    assert time.monotonic() - began < 10
    assert [(each.name, each.verdict) for each in found] == [("slow", "warning"), ("bad", "warning"), ("good", "ok")]
    assert found[0].detail == "did not answer within 0.5 s"
    assert "ValueError: out of order" in found[1].detail


def test_a_proxy_and_a_low_limit_are_warned_of(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    [finding] = doctor_machine.proxies()
    assert finding.verdict == "warning"
    assert "https_proxy" in finding.detail
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 1024))
    [finding] = doctor_machine.limits()
    assert finding.verdict == "warning"
    assert "ulimit" in finding.advice


def test_it_tells_of_a_server_and_of_a_token_that_lacks():
    with serving("--new-token") as running:
        token = running.stderr.readline().split()[1]
        found = found_by("--server", running.address, "--token", token)
        for name in ("reach", "token", "TLS", "versions", "round trip", "server"):
            assert found[name]["verdict"] == "ok", found[name]
        assert int(found["environments"]["detail"].split()[0]) > 5
        assert "1 worker, " in found["server"]["detail"]
        refused = found_by("--server", running.address, "--token", "wrong", code=1)
        assert refused["token"]["verdict"] == "broken"
        assert "GYMHOST_TOKEN" in refused["token"]["advice"]
        assert token not in json.dumps(found)


def test_a_server_that_is_not_there_is_broken():
    found = found_by("--server", "127.0.0.1:1", code=1)
    assert found["reach"]["verdict"] == "broken"
    assert "gymhost serve" in found["reach"]["advice"]
    assert "is no address" in found_by("--server", "nowhere", code=1)["reach"]["detail"]
