"""`gymhost new`: a package whose tests pass, and which is hosted as soon as it is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.command import environment, gymhost, serving


def python(*arguments: str, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env=environment(**variables),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new package."""
    made = tmp_path_factory.mktemp("new")
    said = gymhost("new", "acme-maze", cwd=made)
    assert said.returncode == 0, said.stderr
    assert "acme/Maze-v0 is in acme-maze" in said.stdout
    return made / "acme-maze"


@pytest.fixture(scope="module")
def installed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed, as pip does it."""
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    python("pip", "install", *options, str(folder), cwd=folder)
    return target


def test_its_tests_pass_as_it_is_written(folder: Path) -> None:
    assert re.search(r"\d+ passed", python("pytest", "-q", "-p", "no:cacheprovider", cwd=folder, PYTHONPATH="src"))


def test_once_installed_it_is_listed_fit_and_hosted(installed: Path, tmp_path: Path) -> None:
    listed = gymhost("envs", "acme/", cwd=tmp_path, PYTHONPATH=str(installed)).stdout
    assert re.search(r"^acme/Maze-v0 +inline +shared +acme-maze 0\.1\.0", listed, re.MULTILINE)
    checked = gymhost("check", "acme/Maze-v0", cwd=tmp_path, PYTHONPATH=str(installed))
    assert checked.returncode == 0, checked.stdout
    assert "0 pieces of advice" in checked.stdout
    with serving(cwd=tmp_path, PYTHONPATH=str(installed)) as server:
        assert "Tool dig()" in gymhost("envs", "acme/Maze-v0", "--server", server.address, cwd=tmp_path).stdout


def test_names_and_ids(tmp_path: Path) -> None:
    said = gymhost("new", "Sokoban", "--id", "puzzles/Push-v3", "--folder", "elsewhere", cwd=tmp_path)
    assert "puzzles/Push-v3 is in elsewhere" in said.stdout
    assert "class Sokoban(ToolEnv)" in (tmp_path / "elsewhere/src/sokoban/environment.py").read_text()
    assert 'name = "sokoban"' in (tmp_path / "elsewhere/pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["acme maze"], "letters, digits and '-'"),
        (["class"], "can't be the name"),
        (["gymhost"], "can't be the name"),
        (["json"], "can't be the name"),
        (["acme-maze", "--id", "Maze"], "written like acme/Maze-v0"),
        (["full"], "not empty: name another folder (--folder)"),
    ],
)
def test_what_can_not_be_written_is_refused(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    said = gymhost("new", *arguments, cwd=tmp_path)
    assert said.returncode != 0
    assert complaint in said.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
