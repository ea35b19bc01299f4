"""Dockerfiles, followed without images: in a sandbox of the host's own system, as far as that goes."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymhost.envs.sandbox import Sandbox

__all__ = ["Dockerfile"]

# What says nothing of the files that there are.
_IGNORED = ("CMD", "ENTRYPOINT", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER", "SHELL", "STOPSIGNAL", "USER")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_SAID = 1000
_CHMOD = 20.0


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A Dockerfile.

    Attributes:
        path: Where it is.
        steps: Its instructions: name and rest.
        env: The environment variables that it sets.
        workdir: The working folder that it ends with; None where it sets none.
    """

    path: Path
    steps: tuple[tuple[str, str], ...]
    env: Mapping[str, str]
    workdir: str | None

    @classmethod
    def read(cls, path: Path) -> "Dockerfile":
        """Reads a Dockerfile.

        Raises:
            ValueError: An instruction can't be read.
        """
        steps = tuple(_instructions(path.read_text(encoding="utf-8")))
        env: dict[str, str] = {}
        workdir: PurePosixPath | None = None
        for name, rest in steps:
            if name == "ENV":
                env |= _settings(_filled(rest, env), path)
            elif name == "WORKDIR":
                workdir = (workdir or PurePosixPath("/")) / _filled(rest, env).strip("\"'")
        usable = workdir if workdir != PurePosixPath("/") else None
        return cls(path, steps, env, None if usable is None else str(usable))

    async def follow(self, sandbox: Sandbox, seconds: float) -> None:
        """Does in a sandbox what it says: copies files to where it may write, and runs commands there.

        The system is the sandbox's, whatever it says of one, and so is the user.

        Args:
            sandbox: The sandbox, whose working folder is that of the Dockerfile.
            seconds: How long each of its commands may take.

        Raises:
            ValueError: Something can't be done so, such as what needs a network; the message says what.
            SandboxLost: The sandbox is gone.
        """
        env: dict[str, str] = {}
        workdir = PurePosixPath("/")
        for name, rest in self.steps:
            match name:
                case "ENV":
                    env |= _settings(_filled(rest, env), self.path)
                case "ARG":
                    key, _, value = rest.partition("=")
                    env.setdefault(key.strip(), _filled(value, env).strip("\"'"))
                case "WORKDIR":
                    workdir /= _filled(rest, env).strip("\"'")
                    await self._run(sandbox, ["mkdir", "-p", str(workdir)], f"WORKDIR {rest}", seconds)
                case "COPY" | "ADD":
                    await self._copy(sandbox, _filled(rest, env), workdir, f"{name} {rest}")
                case "RUN":
                    command = _command(rest)
                    await self._run(sandbox, command, f"RUN {rest}", seconds, env=env, cwd=str(workdir))
                case _ if name not in _IGNORED:
                    raise self._impossible(f"{name} {rest}", "it is not known here")
                case _:
                    pass

    async def _run(
        self,
        sandbox: Sandbox,
        command: list[str],
        what: str,
        seconds: float,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        result = await sandbox.run(command, timeout=seconds, env=env, cwd=cwd)
        if not result.ok:
            ended = f"exit status {result.exit_status}" if result.limit is None else f"limit of {result.limit}"
            raise self._impossible(what, f"{ended}: {(result.stdout + result.stderr)[-_SAID:].strip()}")

    async def _copy(self, sandbox: Sandbox, rest: str, workdir: PurePosixPath, what: str) -> None:
        words = json.loads(rest) if rest.lstrip().startswith("[") else shlex.split(rest)
        options = [word for word in words if word.startswith("--")]
        *sources, target = words[len(options) :]
        if any(option.startswith("--from") for option in options) or any("://" in source for source in sources):
            raise self._impossible(what, "only files of its own folder can be copied")
        mode = next((option.partition("=")[2] for option in options if option.startswith("--chmod=")), None)
        found = [path for source in sources for path in self._found(source)]
        if not found:
            raise self._impossible(what, "there is no such file")
        files: dict[str, Path] = {}
        for path in found:
            inside = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
            files |= {each.relative_to(path if path.is_dir() else path.parent).as_posix(): each for each in inside}
        if any(not path.resolve().is_relative_to(self.path.parent.resolve()) for path in files.values()):
            raise self._impossible(what, "a link leads out of its folder")
        place = workdir / target
        into_folder = len(found) > 1 or found[0].is_dir() or target == "." or target.endswith(("/", "/."))
        try:
            if into_folder:
                await sandbox.upload({name: path.read_bytes() for name, path in files.items()}, place)
            else:
                await sandbox.write(place, found[0].read_bytes())
        except OSError as error:
            raise self._impossible(what, str(error)) from None
        made = {str(place / name) if into_folder else str(place): path for name, path in files.items()}
        changed = [name for name, path in made.items() if mode is not None or path.stat().st_mode & 0o100]
        if changed:
            await self._run(sandbox, ["chmod", mode or "+x", "--", *changed], what, _CHMOD)

    def _found(self, source: str) -> list[Path]:
        """Returns what a source of its folder stands for."""
        plain = PurePosixPath("/", source).relative_to("/").as_posix()
        return [self.path.parent] if plain == "." else sorted(self.path.parent.glob(plain))

    def _impossible(self, what: str, why: str) -> ValueError:
        return ValueError(
            f"{self.path}: {what!r} can't be done without an image, in a sandbox without a network whose system is the "
            f"host's: {why}. Serve it with `--sandbox docker`, which builds the image"
        )


def _instructions(text: str) -> list[tuple[str, str]]:
    """Returns instructions, with lines that go on joined, and texts that are given inline as they are."""
    found: list[tuple[str, str]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line
        while whole.rstrip().endswith("\\"):
            following = next(lines, "")
            if not following.lstrip().startswith("#"):
                whole = f"{whole.rstrip()[:-1]} {following}"
        name, _, rest = whole.strip().partition(" ")
        if (inline := re.search(r"<<-?[\"']?(\w+)[\"']?\s*$", rest)) is not None:
            for following in lines:
                rest += f"\n{following}"
                if following.strip() == inline[1]:
                    break
        found.append((name.upper(), rest.strip()))
    return found


def _command(rest: str) -> list[str]:
    if rest.startswith("["):
        try:
            return [str(word) for word in json.loads(rest)]
        except ValueError:
            pass
    # A text that is given inline is a script.
    inline = re.fullmatch(r"<<-?[\"']?(\w+)[\"']?\n(.*)\n\1", rest, re.DOTALL)
    return ["bash", "-c", inline[2] if inline is not None else rest]


def _settings(rest: str, path: Path) -> dict[str, str]:
    if "=" not in rest.split()[0]:
        name, _, value = rest.partition(" ")
        return {name: value.strip()}
    try:
        pairs = [word.partition("=") for word in shlex.split(rest)]
    except ValueError as error:
        raise ValueError(f"{path}: ENV {rest}: {error}") from None
    return {name: value for name, _, value in pairs}


def _filled(text: str, env: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[2], found[3] or ""), text)
