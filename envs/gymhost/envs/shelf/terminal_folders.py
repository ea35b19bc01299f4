"""Task folders in Harbor's layout, the one of Terminal-Bench: an instruction, an environment and a verifier."""

import dataclasses
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from gymhost.envs.sandbox import Limits, Mount, Sandbox, SandboxSpec
from gymhost.envs.shelf.aftermath import Aftermath
from gymhost.envs.shelf.dockerfile import Dockerfile
from gymhost.envs.shelf.terminal_apart import ARTIFACTS, Apart
from gymhost.envs.shelf.terminal_begin import begin
from gymhost.wire.errors import CommandTimeout, TooLarge

__all__ = ["FolderTask", "folder_tasks", "the_reward"]

MIB = 2**20

# Where verifiers are, and where they write.
_TESTS, _LOGS = "/tests", "/logs/verifier"
# The working folder where nothing says another one.
_WORKDIR = "/app"
_USUAL_TIMEOUT = 600.0
# What a step of this environment may take leaves no more to a verifier, nor a reset to making it.
_LONGEST = 3600.0
_DAY = 86_400.0
# A value that stands for a variable of whoever hosts the task.
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
# Bytes of a reward's file, and of what a verifier says that are shown where it gives none.
_REWARD, _SAID = 64 * 1024, 2000
_PROCESSES = 512


@dataclass(slots=True)
class FolderTask:
    """A task folder.

    Attributes:
        name: The folder's name.
        folder: Where it is.
        text: What is asked.
        seconds: How long the agent has.
        verifier_seconds: How long its verifier has.
        verifier_env: Variables that its verifier has.
        build_seconds: How long making its environment may take.
        spec: What its sandbox is like.
        image: The image that its sandbox has, where there are images; None means the Dockerfile's.
        dockerfile: Its Dockerfile; None where it has none.
        apart: How its verifier sees what was done, where it has an environment of its own.
        plain: Whether its sandbox has the system that the backend has by itself, whatever image the task names.
    """

    name: str
    folder: Path
    text: str
    seconds: float
    verifier_seconds: float
    verifier_env: Mapping[str, str]
    build_seconds: float
    spec: SandboxSpec
    image: str | None
    dockerfile: Dockerfile | None
    apart: Apart | None = None
    plain: bool = False

    @classmethod
    def load(cls, folder: Path) -> "FolderTask":
        """Reads a task folder.

        Raises:
            ValueError: It is none that can be used; the message says why.
        """
        if not (folder / "task.toml").is_file():
            raise ValueError(f"{folder} is no task folder: it has no task.toml{_older(folder)}")
        try:
            config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder}/task.toml: {error}") from None
        agent, verifier, environment = (_table(config, name, folder) for name in ("agent", "verifier", "environment"))
        _refuse(folder, config, agent, verifier, environment)
        for needed in ("instruction.md", "tests/test.sh"):
            if not (folder / needed).is_file():
                raise ValueError(f"{folder} is no task folder: it has no {needed}")
        if (folder / "environment/docker-compose.yaml").exists():
            raise ValueError(f"{folder} needs several containers (docker-compose.yaml), and a sandbox is one")
        path = folder / "environment/Dockerfile"
        dockerfile = Dockerfile.read(path) if path.is_file() else None
        image = environment.get("docker_image")
        spec = _spec(folder, environment, dockerfile)
        apart = _apart(folder, config, verifier, environment, spec, dockerfile)
        return cls(
            name=folder.name,
            folder=folder,
            text=(folder / "instruction.md").read_text(encoding="utf-8").strip(),
            seconds=_seconds(agent, "timeout_sec", folder, longest=_DAY),
            verifier_seconds=_seconds(verifier, "timeout_sec", folder),
            verifier_env=_texts(verifier.get("env", {}), folder),
            build_seconds=_seconds(environment, "build_timeout_sec", folder),
            spec=spec if apart is None else dataclasses.replace(spec, scratch=(ARTIFACTS,)),
            image=None if image is None else str(image),
            dockerfile=dockerfile,
            apart=apart,
        )

    async def begin(self) -> Sandbox:
        """Makes the sandbox: of the image where the backend has images, else as the Dockerfile says.

        Raises:
            ValueError: The Dockerfile needs an image, and the backend has none.
            SandboxUnavailable: The image could not be built, or the sandbox not be made.
        """
        if self.apart is not None:
            self.apart.check(plain=self.plain)
        return await begin(self.name, self.spec, self.image, self.dockerfile, self.build_seconds, plain=self.plain)

    async def score(self, sandbox: Sandbox) -> float:
        """Runs the verifier on what the agent left, and returns the reward that it writes, from 0 to 1.

        Raises:
            ValueError: It gives no reward, or one that is no number from 0 to 1.
            SandboxUnavailable: There is no sandbox to run it in.
        """
        reward = the_reward(await self.rewards(sandbox), self.name)
        if not 0 <= reward <= 1:
            raise ValueError(f"the verifier of {self.name} gave the reward {reward:g}, which is no number from 0 to 1")
        return reward

    async def rewards(self, sandbox: Sandbox) -> dict[str, float]:
        """Runs the verifier on what the agent left, and returns all rewards that it writes, by their names.

        It runs in a fresh sandbox, in which nothing of the agent's ever ran, and where there are no files in the folder
        for its logs. What the agent's programs do when a verifier runs them there is that verifier's business.

        Raises:
            ValueError: It gives no rewards, or one that is no number.
            SandboxUnavailable: There is no sandbox to run it in.
        """
        if self.apart is not None:
            return await self.apart.look(sandbox, self._verify, {"reward": 0.0}, plain=self.plain)
        spec = dataclasses.replace(
            sandbox.spec,
            mounts=(*sandbox.spec.mounts, Mount(str(self.folder / "tests"), _TESTS)),
            scratch=(_LOGS,),
        )
        async with await Aftermath.of(sandbox) as left:
            return await left.look(self._verify, {"reward": 0.0}, spec=spec)

    async def _verify(self, sandbox: Sandbox) -> dict[str, float]:
        # No modules that the agent may have put into its home, which is the working folder.
        env = {"PYTHONNOUSERSITE": "1", **self.verifier_env}
        command = ["bash", f"{_TESTS}/test.sh"]
        done = await sandbox.run(command, timeout=self.verifier_seconds, env=env, output_limit=MIB)
        await sandbox.halt()
        for name, read in (("reward.json", _json_rewards), ("reward.txt", _plain_reward)):
            try:
                text = await sandbox.read_text(f"{_LOGS}/{name}", limit=_REWARD)
            except FileNotFoundError:
                continue
            except (OSError, TooLarge, CommandTimeout) as error:
                raise ValueError(f"the reward of the verifier of {self.name} can't be read: {error}") from None
            return read(text, self.name)
        how = f"exit status {done.exit_status}" if done.limit is None else f"limit of {done.limit}"
        said = (done.stdout + done.stderr)[-_SAID:]
        raise ValueError(f"the verifier of {self.name} wrote no reward ({how}); it said: {said}")


def folder_tasks(path: Path) -> list[FolderTask]:
    """Loads a folder of task folders, in the order of their names, or one task folder.

    Raises:
        ValueError: There is none, or one can't be used.
    """
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}")
    if (path / "task.toml").exists() or (path / "task.yaml").exists():
        return [FolderTask.load(path.resolve())]
    found = [FolderTask.load(each.resolve()) for each in sorted(path.iterdir()) if (each / "task.toml").exists()]
    if not found:
        raise ValueError(f"{path} has no task folders: each has a task.toml{_older(path)}")
    return found


def _older(folder: Path) -> str:
    if any(folder.glob("task.yaml")) or any(folder.glob("*/task.yaml")):
        return "; with its task.yaml it is of Terminal-Bench's older layout: convert it with `harbor tasks migrate`"
    return ""


def _table(config: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    table = config.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{folder}/task.toml: {name} is no table")
    return cast(dict[str, Any], table)


def _refuse(folder: Path, config: dict[str, Any], *tables: dict[str, Any]) -> None:
    """Refuses a task that asks for what a sandbox is not, by the name of the setting that does.

    Raises:
        ValueError: It does.
    """
    agent, verifier, environment = tables
    one = "a sandbox is one Linux"
    refused = [
        ("steps", config.get("steps"), "a task is one step"),
        ("environment.os", environment.get("os", "linux").lower() != "linux", f"{one}, without GPUs"),
        ("environment.gpus", environment.get("gpus"), f"{one}, without GPUs"),
        ("environment.tpu", environment.get("tpu"), f"{one}, without TPUs"),
        ("environment.mcp_servers", environment.get("mcp_servers"), "nothing starts such servers"),
        ("environment.skills_dir", environment.get("skills_dir"), "no agent that has skills plays it"),
        ("environment.healthcheck", environment.get("healthcheck"), "an image's own command is not run"),
        *(
            (f'{name}.network_mode = "allowlist"', table.get("network_mode") == "allowlist", "there is no network")
            for name, table in (("agent", agent), ("verifier", verifier), ("environment", environment))
        ),
        *(
            (f"{name}.user = {table.get('user')!r}", table.get("user") in ("root", "0", 0), "nothing runs as root")
            for name, table in (("agent", agent), ("verifier", verifier))
        ),
    ]
    for name, asked, why in refused:
        if asked:
            raise ValueError(f"{folder}/task.toml: {name} can't be had here: {why}")


def _spec(folder: Path, environment: dict[str, Any], dockerfile: Dockerfile | None) -> SandboxSpec:
    """Returns what the sandbox of an environment is like."""
    made = dockerfile.workdir if dockerfile is not None else None
    return SandboxSpec(
        env={**(dockerfile.env if dockerfile is not None else {}), **_texts(environment.get("env", {}), folder)},
        workdir=str(environment.get("workdir") or made or _WORKDIR),
        network="loopback",
        limits=Limits(
            memory=_bytes(environment, "memory", 2048 * MIB, folder),
            disk=_bytes(environment, "storage", 10240 * MIB, folder),
            cpus=float(environment.get("cpus", 1)),
            processes=_PROCESSES,
        ),
    )


def _apart(
    folder: Path,
    config: dict[str, Any],
    verifier: dict[str, Any],
    environment: dict[str, Any],
    spec: SandboxSpec,
    agents: Dockerfile | None,
) -> Apart | None:
    """Returns how the verifier sees what was done, where it has an environment of its own.

    Raises:
        ValueError: It is of another container.
    """
    own: dict[str, Any] | None = verifier.get("environment")
    if verifier.get("environment_mode", "shared" if own is None else "separate") != "separate":
        return None
    artifacts: list[Any] = [
        each if isinstance(each, dict) else {"source": each} for each in config.get("artifacts", ())
    ]
    collect: list[dict[str, Any]] = verifier.get("collect", [])
    if any(each.get("service", "main") != "main" for each in [*artifacts, *collect]):
        raise ValueError(f"{folder}/task.toml: a service of artifacts or of verifier.collect can't be had here: one is")
    # What is built of `tests` may have all that it needs; else it is another one like the agent's.
    path = folder / "tests/Dockerfile"
    dockerfile = Dockerfile.read(path) if path.is_file() else agents
    image = (own or {}).get("docker_image") or (None if path.is_file() else environment.get("docker_image"))
    sources = [ARTIFACTS, *(str(each["source"]) for each in artifacts)]
    return Apart(
        name=f"the verifier of {folder.name}",
        spec=dataclasses.replace(
            _spec(folder, environment if own is None else own, dockerfile),
            mounts=(Mount(str(folder / "tests"), _TESTS),),
            scratch=(_LOGS, ARTIFACTS),
        ),
        image=None if image is None else str(image),
        dockerfile=dockerfile,
        is_of_tests=path.is_file(),
        build_seconds=_seconds(environment if own is None else own, "build_timeout_sec", folder),
        artifacts=tuple(dict.fromkeys(str(PurePosixPath(spec.workdir) / source) for source in sources)),
        collect=tuple((str(each["command"]), float(each.get("timeout_sec", 60.0))) for each in collect),
    )


def _texts(table: object, folder: Path) -> dict[str, str]:
    if not isinstance(table, dict):
        raise ValueError(f"{folder}/task.toml: env is a table of texts")
    return {str(name): _filled(str(value), folder) for name, value in cast(dict[object, object], table).items()}


def _filled(text: str, folder: Path) -> str:
    """Returns a value, that of a variable of this process where it is written `${NAME}` or `${NAME:-default}`."""
    found = _VARIABLE.fullmatch(text)
    if found is None:
        return text
    default: str | None = found[2]
    value = os.environ.get(found[1], default)
    if value is None:
        raise ValueError(f"{folder}/task.toml: it needs the environment variable {found[1]}, which is not set")
    return value


def _seconds(table: dict[str, Any], name: str, folder: Path, *, longest: float = _LONGEST) -> float:
    value: object = table.get(name, _USUAL_TIMEOUT)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= longest:
        raise ValueError(f"{folder}/task.toml: {name} is a number of seconds up to {longest:g}, not {value!r}")
    return float(value)


def _bytes(table: dict[str, Any], name: str, usual: int, folder: Path) -> int:
    """Returns a size, which is given in MiB or, as in older versions of the layout, as a text such as `2G`."""
    if f"{name}_mb" in table:
        return int(table[f"{name}_mb"]) * MIB
    if name not in table:
        return usual
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B?", str(table[name]), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{folder}/task.toml: {name} is a size such as 2G, not {table[name]!r}")
    return int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2].upper())))


def the_reward(rewards: Mapping[str, float], name: str) -> float:
    """Returns the reward among those of a verifier: what is called so, or is alone.

    Raises:
        ValueError: There are several, of which none is called so.
    """
    if "reward" in rewards:
        return rewards["reward"]
    if len(rewards) != 1:
        raise ValueError(f"the verifier of {name} gave {', '.join(rewards) or 'nothing'}, of which none is `reward`")
    return next(iter(rewards.values()))


def _plain_reward(text: str, name: str) -> dict[str, float]:
    try:
        return {"reward": _number(float(text), name)}
    except ValueError:
        raise ValueError(f"the verifier of {name} wrote {text[:80]!r}, which is no number") from None


def _json_rewards(text: str, name: str) -> dict[str, float]:
    try:
        said: object = json.loads(text)
    except ValueError:
        raise ValueError(f"the verifier of {name} wrote {text[:80]!r}, which is no JSON") from None
    named = cast(dict[str, object], said) if isinstance(said, dict) else {"reward": said}
    return {key: _number(value, name) for key, value in named.items()}


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the verifier of {name} gave the reward {value!r}, which is no number")
    return float(value)
