"""`make adapters`: each adapter's tests in a virtual environment that has its package, and a dated report of them.

It runs on any Python from 3.11 on, and needs nothing but the standard library.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "tests/adapters/reports"
# Seconds for one installation, and for the tests of one environment.
INSTALL_LIMIT, TEST_LIMIT = 1800, 1200


class Kind(NamedTuple):
    """A virtual environment, and what is tested in it.

    Attributes:
        adapters: What pytest's `--adapter` is given; without any the tests of the usual virtual environment run.
        install: What pip installs, beside what all have.
        packages: What the report tells the versions of.
        pythons: The minor versions of Python 3 that do.
        forced: What pip installs then, whatever Python it asks for.
        commands: Programs that must be there.
        group: The group of dependencies that its tests want.
    """

    adapters: tuple[str, ...]
    install: tuple[str, ...]
    packages: tuple[str, ...]
    pythons: tuple[int, ...] = (11, 12, 13)
    forced: str = ""
    commands: tuple[str, ...] = ()
    group: str = "pytest"


KINDS = {
    # With them what needs no package of its own: Harbor's task folders, MCP servers, the gateways.
    "shelf": Kind(
        (),
        (".[server,rollout,shelf,mcp]",),
        ("textarena", "reasoning-gym", "mcp", "dm-env"),
        group="test",
    ),
    "gem": Kind(
        ("gem", "skyrl-gym", "pettingzoo", "dm"),
        (".[server,gem,skyrl-gym,pettingzoo,dm]",),
        ("gem-llm", "skyrl-gym", "pettingzoo", "dm-control", "dm-env", "reasoning-gym"),
        pythons=(11,),
    ),
    "node": Kind(("node",), (".[server]",), (), commands=("node", "npm")),
    "openenv": Kind(("openenv",), (".[server,openenv]",), ("openenv", "mcp")),
    "verifiers": Kind(("verifiers",), (".[server,verifiers]",), ("verifiers", "mcp")),
    "harbor": Kind(("harbor",), (".[server]", "harbor==0.25.*"), ("harbor",), pythons=(12, 13)),
    # Where TRL's generation of Transformers wants it, and no newer one.
    "trl-openenv": Kind(
        ("trl-openenv",),
        (".[server,openenv,trl]", "torch==2.13.0", "huggingface-hub<2"),
        ("trl", "openenv", "torch", "transformers"),
    ),
    "nemo": Kind(("nemo",), (".[server,nemo]",), ("nemo-gym",), pythons=(13,), forced="nemo-gym==0.7.0"),
}


class Ran(NamedTuple):
    """What came of a kind."""

    name: str
    python: str
    versions: dict[str, str]
    passed: int
    failed: int
    seconds: float


def find_python(minors: Sequence[int]) -> str:
    """Returns a Python of one of these versions that makes virtual environments; empty where there is none."""
    for minor in minors:
        installed = sorted(map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")))
        for python in (f"python3.{minor}", *installed):
            told = f"import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))"
            path = shutil.which(python)
            if path and subprocess.run([path, "-c", told], capture_output=True, timeout=60).returncode == 0:
                return path
    return ""


def prepare(name: str, kind: Kind, python: str) -> Path:
    """Makes the environment of a kind, unless its stamp says that it is there, and returns its Python.

    Raises:
        CalledProcessError: Something can't be installed; pip has said what.
        TimeoutExpired: It takes too long.
    """
    folder = ROOT / f".venv-adapters-{name}"
    stamp, own = folder / "installed", str(folder / "bin/python")
    wanted = json.dumps([kind.install, kind.forced, kind.group, python])
    newest = (ROOT / "pyproject.toml").stat().st_mtime
    if stamp.exists() and stamp.stat().st_mtime >= newest and stamp.read_text() == wanted:
        return Path(own)
    print(f"== Making {folder.name} with {python}: a minute, or several", flush=True)
    pip = [own, "-m", "pip", "-qq", "install"]
    installs = [["--upgrade", "pip>=25.1"], ["--group", kind.group]]
    for requirement in kind.install:
        installs[1] += ["--editable", requirement] if requirement.startswith(".") else [requirement]
    if kind.forced:
        installs.append(["--ignore-requires-python", kind.forced])
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True, timeout=INSTALL_LIMIT)
    for arguments in installs:
        subprocess.run([*pip, *arguments], cwd=ROOT, check=True, timeout=INSTALL_LIMIT)
    stamp.write_text(wanted)
    return Path(own)


def test(name: str, kind: Kind, python: Path) -> Ran:
    """Runs the tests of a kind; pytest says what fails."""
    results = _results(name)
    results.unlink(missing_ok=True)
    chosen = [argument for adapter in kind.adapters for argument in ("--adapter", adapter)]
    command = [str(python), "-m", "pytest", "-q", "tests/adapters", *(chosen or ["--core"]), f"--junitxml={results}"]
    cache = ["-o", f"cache_dir=.pytest_cache_adapters_{name}"]
    begun = time.monotonic()
    try:
        subprocess.run([*command, *cache], cwd=ROOT, timeout=TEST_LIMIT)
    except subprocess.TimeoutExpired:
        print(f"== {name}: not done after {TEST_LIMIT} s", flush=True)
    # What ends without results has failed.
    return told(name, "") or Ran(name, *versions(kind, python), 0, 1, time.monotonic() - begun)


def told(name: str, date: str) -> Ran | None:
    """What came of a kind when it last ran, if that was on this date."""
    results = _results(name)
    if not results.exists():
        return None
    [suite] = ElementTree.parse(results).getroot().iter("testsuite")
    if not suite.get("timestamp", "").startswith(date):
        return None
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    passed = int(suite.get("tests", 0)) - failed - int(suite.get("skipped", 0))
    if passed + failed == 0:
        failed = 1  # pytest could not begin, or has found nothing to do
    number, found = versions(KINDS[name], results.with_name("bin") / "python")
    return Ran(name, number, found, passed, failed, float(suite.get("time", 0)))


def _results(name: str) -> Path:
    return ROOT / f".venv-adapters-{name}/results.xml"


def versions(kind: Kind, python: Path) -> tuple[str, dict[str, str]]:
    """The versions of an environment's Python, and of what is tested in it."""
    ask = (
        "import importlib.metadata, json, platform, sys\n"
        "print(json.dumps([platform.python_version(), {n: importlib.metadata.version(n) for n in sys.argv[1:]}]))"
    )
    told = subprocess.run([python, "-c", ask, *kind.packages], check=True, capture_output=True, timeout=60).stdout
    number, found = json.loads(told)
    for command in kind.commands:
        said = subprocess.run([command, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
        found[command] = said.strip().lstrip("v")
    return number, found


def report(date: str, ran: Sequence[Ran], left_out: dict[str, str]) -> str:
    """Words the report."""
    lines = [
        f"# Adapters against their packages, {date}",
        "",
        f"`make adapters` on {platform.system()}, {platform.machine()}, {os.cpu_count()} cores.",
        "Of each kind it is the last run of the day.",
        "",
        "| tests of | versions | Python | passed | failed | seconds |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    for one in ran:
        adapters = ", ".join(KINDS[one.name].adapters) or "what is in the usual environment"
        found = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        lines.append(
            f"| {adapters} | {found} | {one.python} | {one.passed} | {one.failed} | {one.seconds:.0f} |",
        )
    lines += ["", *(f"- {name} is left out, {why}." for name, why in left_out.items())]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Runs what is asked for, and writes the report."""
    parser = argparse.ArgumentParser(prog="make adapters", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}")
    only: list[str] = parser.parse_args().only or list(KINDS)
    date = datetime.date.today().isoformat()
    ran: list[Ran] = []
    left_out: dict[str, str] = {}
    for name, kind in KINDS.items():
        if name not in only:
            if earlier := told(name, date):
                ran.append(earlier)
            else:
                left_out[name] = "which was not asked for"
            continue
        missing = [command for command in kind.commands if shutil.which(command) is None]
        python = find_python(kind.pythons)
        if missing or not python:
            wanted = " or ".join(f"3.{minor}" for minor in kind.pythons)
            left_out[name] = f"since there is no {missing[0] if missing else f'Python {wanted}'} here"
            print(f"== {name} is left out, {left_out[name]}", flush=True)
            continue
        try:
            own = prepare(name, kind, python)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            left_out[name] = f"since it could not be installed ({type(error).__name__})"
            print(f"== {name} could not be installed: {error}", flush=True)
            continue
        print(f"== {name}", flush=True)
        ran.append(test(name, kind, own))
    text = report(date, ran, left_out)
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / f"{date}.md").write_text(text)
    print(text)
    installed = all("could not be installed" not in why for why in left_out.values())
    return 0 if installed and not any(one.failed for one in ran if one.name in only) else 1


if __name__ == "__main__":
    sys.exit(main())
