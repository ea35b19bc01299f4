"""Environments whose packages can't live beside the server's, and whose workers run in another interpreter."""

import asyncio
import os
import signal
import site
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymhost.client import RemoteServer, Session, connect
from gymhost.server.config import ServerConfig
from gymhost.server.settings import read_file
from gymhost.wire.errors import InvalidArgument
from support.server import PATIENCE, ServerProcess, until

MODULE = '''
import os
import sys

import gymnasium
from gymnasium.spaces import Discrete

from gymhost.envs import register


class Where(gymnasium.Env):
    """Tells where it runs."""

    observation_space = action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {"prefix": sys.prefix, "process": os.getpid()}

    def step(self, action):
        return 0, 1.0, False, False, {}


register("elsewhere/Where-v0", Where)
register("elsewhere/Alone-v0", Where, isolation="process")
'''


class Elsewhere:
    """A virtual environment that has what this one has, and a package that this one has not."""

    def __init__(self, folder: Path, *, with_gymhost: bool = True) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        if with_gymhost:
            # As installed here: what editable installs do at the start of Python is done for this folder too.
            lines = "".join(f"import site; site.addsitedir({place!r})\n" for place in site.getsitepackages())
            (self.packages / "all_of_the_other.pth").write_text(lines)
        (self.packages / "only_elsewhere.py").write_text(MODULE)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    return Elsewhere(tmp_path_factory.mktemp("elsewhere") / "venv")


@pytest.fixture(scope="module")
def server(elsewhere: Elsewhere) -> Iterator[ServerProcess]:
    """With one worker of each interpreter at first, and room for two."""
    settings: dict[str, Any] = {
        "modules": ["support.environments", "only_elsewhere"],
        "python": {"only_elsewhere": elsewhere.python},
    }
    with ServerProcess(workers=2, **settings) as server:
        yield server


async def where(session: Session) -> tuple[str, int]:
    _, info = await session.reset()
    return info["prefix"], info["process"]


async def opened(remote: RemoteServer, environment_id: str) -> Session:
    return await remote.session(environment_id).open()


async def test_an_environment_runs_in_the_interpreter_of_its_module(
    server: ServerProcess, elsewhere: Elsewhere
) -> None:
    async with connect(server.address) as remote:
        listed = {info.id for info in await remote.environments()}
        assert {"elsewhere/Where-v0", "elsewhere/Alone-v0", "test/Counter-v0", "CartPole-v1"} <= listed
        for environment_id in ("elsewhere/Where-v0", "elsewhere/Alone-v0"):
            described = await remote.describe(environment_id)
            assert described.observation_space == described.action_space
            async with remote.session(environment_id) as session:
                prefix, _ = await where(session)
                assert prefix == str(elsewhere.folder)
                assert prefix != sys.prefix
                assert (await session.step(0))[1] == 1.0
        # All that the server's own interpreter has runs there, though the other one has it too.
        async with remote.session("test/Counter-v0") as session:
            await session.reset()
            assert (await session.step(1))[0] == 1


async def test_more_sessions_get_more_workers_there_and_one_that_dies_is_replaced(server: ServerProcess) -> None:
    async with connect(server.address) as remote:
        async with asyncio.timeout(PATIENCE):
            sessions = [await opened(remote, "elsewhere/Where-v0")]
            processes = {(await where(sessions[0]))[1]}
            while len(processes) < 2:
                sessions.append(await opened(remote, "elsewhere/Where-v0"))
                processes.add((await where(sessions[-1]))[1])
        assert processes <= set(server.workers)
        for session in sessions:
            await session.close()
        for process in processes:
            os.kill(process, signal.SIGKILL)
        await until(lambda: not processes & set(server.workers))
        async with remote.session("elsewhere/Where-v0") as session:
            _, process = await where(session)
            assert process not in processes


def test_an_interpreter_without_gymhost_is_told_with_what_to_install(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    bare = Elsewhere(tmp_path / "bare", with_gymhost=False)
    with pytest.raises(RuntimeError) as raised:
        start_server(workers=1, modules=["only_elsewhere"], python={"only_elsewhere": bare.python})
    assert f"--python {bare.python}" in str(raised.value)
    assert "pip install 'gymhost[worker]'" in str(raised.value)


def test_another_version_of_gymhost_there_is_told(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    other = Elsewhere(tmp_path / "other")
    folder = other.packages / "gymhost-0.0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gymhost\nVersion: 0.0.1\n")
    with pytest.raises(RuntimeError, match=r"here is gymhost 0\.0\.1: install the same"):
        start_server(workers=1, modules=["only_elsewhere"], python={"only_elsewhere": other.python})


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ({"nothing": sys.executable}, "'nothing' has an interpreter but is none of the modules"),
        (
            {"only_elsewhere": "/nowhere/python"},
            "'/nowhere/python', the interpreter of 'only_elsewhere', is no program",
        ),
        ({"only_elsewhere": "/"}, "is no program"),
    ],
)
def test_a_wrong_interpreter_is_refused_at_once(python: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        ServerConfig(modules=("only_elsewhere",), python=python)


def test_a_file_names_interpreters_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('modules = ["some"]\n[python]\nsome = "venv/bin/python"\n')
    assert read_file(tmp_path / "server.toml")["python"] == {"some": str(tmp_path / "venv/bin/python")}
