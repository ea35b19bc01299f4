"""The self-check of sandbox backends: what is sound passes, and what is broken is found in its family."""

import json
from collections.abc import AsyncGenerator

import pytest

from gymhost.envs.findings import Report
from gymhost.envs.sandbox import Backend, SandboxSpec
from gymhost.envs.sandbox.check import FAMILIES, check
from gymhost.envs.sandbox.registry import backend
from gymhost.wire.errors import InvalidArgument, SandboxUnavailable
from support import broken_sandboxes
from support.broken_sandboxes import Broken
from support.command import gymhost


@pytest.fixture
async def bubblewrap() -> AsyncGenerator[Backend]:
    made = backend("bubblewrap")
    yield made
    await made.close()


def faults(report: Report) -> dict[str, str]:
    return {finding.title: finding.detail for finding in report.findings if finding.level == "error"}


@pytest.mark.timeout(180)
async def test_bubblewrap_is_fit(bubblewrap: Backend):
    told: list[str] = []
    report = await check(bubblewrap, progress=told.append)
    assert not faults(report)
    assert report.render().splitlines()[-1].startswith("Fit to run what a model wrote; ")
    for family in FAMILIES:
        assert any(title.startswith(f"{family}: ") for title in told)
        assert any(finding.title.startswith(f"{family}: ") for finding in report.findings)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("broken", "family", "topic", "words"),
    [
        (broken_sandboxes.LeaksVariables, "isolation", "variables of the server", "FOO_PRIVATE"),
        (broken_sandboxes.MountsHost, "isolation", "files of the host", "was read as /mnt/"),
        (broken_sandboxes.HoldsNoMemory, "limits", "memory of one process", "MiB of 96"),
        (broken_sandboxes.HoldsNoProcesses, "limits", "processes", "processes ran at a time, of 40"),
        (broken_sandboxes.ReadsText, "decoding", "what a command writes", "UnicodeDecodeError"),
        (broken_sandboxes.StopsNothing, "timeouts", "a command whose caller gives up", "goes on"),
        (
            broken_sandboxes.SparesOrphans,
            "trees",
            "after a time-out",
            "a double fork of a command of the shell outlives",
        ),
        (broken_sandboxes.LeavesProcesses, "trees", "after destroy()", "outlives its sandbox"),
        (broken_sandboxes.ForgetsFolder, "shells", "folder and variables last", "should say"),
        (broken_sandboxes.MendsLineEnds, "files", "contents", "line ends: "),
        (broken_sandboxes.SharesFiles, "fork", "copies are independent", "not its own"),
        (broken_sandboxes.LeaksDescriptors, "leaks", "what sandboxes leave", "descriptors"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
async def test_what_is_broken_is_found(bubblewrap: Backend, broken: type[Broken], family: str, topic: str, words: str):
    made = broken(bubblewrap)
    try:
        report = await check(made, families=[f"{family}: {topic}"])
    finally:
        await made.close()
    assert words in faults(report).get(f"{family}: {topic}", "")
    assert report.render().splitlines()[-1].startswith(f"Not fit to run what a model wrote, as far as {family}: ")


async def test_limits_that_are_not_in_force_are_advice_and_not_tried(bubblewrap: Backend):
    report = await check(
        broken_sandboxes.SaysThatItHoldsNothing(bubblewrap),
        families=["limits: in force", "limits: memory of one process", "isolation: rights"],
    )
    assert report.ok
    advice = {finding.title: finding.detail for finding in report.findings if finding.level == "advice"}
    assert "memory: not in force. Run as root, or give this user a cgroup" in advice["limits: in force"]
    assert "Not tried: the limit is not in force" in advice["limits: memory of one process"]
    assert "System calls are not filtered: install" in advice["isolation: rights"]


async def test_a_backend_that_does_not_isolate_is_never_fit():
    with pytest.warns(UserWarning, match="for code that you trust"):
        made = backend("local")
    try:
        report = await check(made, families=["isolation"])
        decoding = await check(made, families=["decoding"])
    finally:
        await made.close()
    assert list(faults(report)) == ["isolation: none"]
    assert "never for what a model wrote" in report.render()
    assert not faults(decoding)


async def test_what_can_not_be_checked_is_said(bubblewrap: Backend):
    with pytest.raises(InvalidArgument, match="no check 'speed': it is one of isolation, limits"):
        await check(bubblewrap, families=["speed"])
    report = await check(bubblewrap, spec=SandboxSpec(image="/no/such/root"), families=["files"])
    assert list(faults(report)) == ["making one"]
    assert "/no/such/root" in report.render()

    class Absent(Broken):
        async def problem(self) -> str | None:
            return "install the moon"

    with pytest.raises(SandboxUnavailable, match="install the moon"):
        await check(Absent(bubblewrap))


def test_the_command_tells_and_returns_what_was_found():
    said = gymhost("check", "sandbox", "bubblewrap", "--family", "decoding", "--json")
    assert said.returncode == 0, said.stdout
    report = json.loads(said.stdout)
    assert report["id"] == "sandbox bubblewrap"
    assert report["ok"] is True
    assert {finding["level"] for finding in report["findings"]} == {"ok"}
    assert "decoding: random bytes ..." in said.stderr


def test_the_command_returns_1_where_something_is_to_mend():
    said = gymhost("check", "sandbox", "local", "--family", "isolation")
    assert said.returncode == 1
    assert said.stdout.startswith("sandbox local\n")
    assert "ERROR   isolation: none\n" in said.stdout
    assert said.stdout.splitlines()[-1].startswith("Not fit to run what a model wrote")
    assert "Traceback" not in said.stderr


def test_the_command_says_what_it_does_not_know():
    said = gymhost("check", "sandbox", "balloon")
    assert said.returncode == 1
    assert "no sandbox backend 'balloon'; there are bubblewrap, docker, local" in said.stderr
    said = gymhost("check", "sandbox", "bubblewrap", "--option", "colour=red")
    assert said.returncode == 1
    assert "colour" in said.stderr
    said = gymhost("check", "sandbox", "bubblewrap", "--family", "speed")
    assert said.returncode == 1
    assert "it is one of isolation" in said.stderr
    assert "Traceback" not in said.stderr
