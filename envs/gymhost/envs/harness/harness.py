"""What an agent's harness is: a program that asks a model by OpenAI's API, and acts on what it is answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gymhost.envs.harness.software import Software, installed
from gymhost.envs.sandbox import Limits, Mount, SandboxSpec

__all__ = ["Harness"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """A program that plays the agent's part, as an environment's author names it. It runs as it is, unmodified.

    Words of its command and values of its variables may have in them `{prompt}`, what the environment asks for,
    `{url}`, where the model answers, as `http://127.0.0.1:40000/v1`, `{model}`, its name, `{python}`, the Python that
    finds the packages, and `{folder}`, a folder of its own, where its files are and its prompt is as `prompt.txt`.
    Other braces are left as they are.

    Besides its own it is given the variables OPENAI_BASE_URL, OPENAI_API_BASE, OPENAI_API_KEY, which opens nothing, and
    HOME, which is its folder.

    Attributes:
        command: The program and its arguments.
        packages: Packages of Python that it needs, by the names that pip knows, as they are installed where the
            environment runs. What they need is found, and nothing else of what is installed is seen in the sandbox.
        install: What pip is to install where a package is missing, such as an extra that brings it.
        files: Files of its own, by their paths in its folder.
        mounts: What else of the host it needs, which is the environment's author's to choose: no client can.
        env: Variables.
        limits: What may be used in the sandbox, harness included; None for the environment's own limits.
        model: What the model is called.
        first_seconds: How long it may take until it asks for the first time.
        turn_seconds: How long it may take, with all that the agent does, from an answer until it asks again. Longer
            turns end the episode, which is scored, with the limit `turn_seconds`. The `step_timeout` that the
            environment is registered with (300) has to be longer.
        statuses: The exit statuses that are an ordinary end, once it has asked; another one is a fault of the
            environment, and there is no reward. None for all: what a model says may be what makes a harness fail, and
            what was done until then is scored. That a signal ended it is always an end, since agents may do that.
    """

    command: tuple[str, ...]
    packages: tuple[str, ...] = ()
    install: str = ""
    files: Mapping[str, str | bytes] = field(default_factory=dict[str, str | bytes])
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits | None = None
    model: str = "policy"
    first_seconds: float = 120.0
    turn_seconds: float = 240.0
    statuses: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Checks it.

        Raises:
            ValueError: It has no command, or a time that is none.
        """
        if isinstance(self.command, str) or not self.command:
            raise ValueError(f"command is a program and its arguments, as a tuple, not {self.command!r}")
        for name in ("first_seconds", "turn_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)!r}")

    def software(self) -> Software | None:
        """Returns where its packages are; None where it has none.

        Raises:
            ModuleNotFoundError: One is not installed.
        """
        if not self.packages:
            return None
        try:
            return installed(*self.packages)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"the harness needs {error.name}, which is not installed: pip install '{self.install or error.name}'",
                name=error.name,
            ) from None

    def spec(self, spec: SandboxSpec) -> SandboxSpec:
        """Returns what a sandbox is to be like, so that it can run there.

        Args:
            spec: What the environment's sandbox is like otherwise.

        Raises:
            ModuleNotFoundError: A package is not installed.
        """
        software = self.software()
        return replace(
            spec,
            mounts=(*spec.mounts, *(software.mounts if software else ()), *self.mounts),
            scratch=(*spec.scratch, *(software.scratch if software else ())),
            limits=self.limits or spec.limits,
            network="loopback",
        )
