"""Verifiers of task folders with an environment of their own: they see those of the agent's files that are said."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from gymhost.envs.sandbox import Sandbox, SandboxSpec, builds_images
from gymhost.envs.sandbox.snapshots import TarSnapshot
from gymhost.envs.shelf.dockerfile import Dockerfile
from gymhost.envs.shelf.terminal_begin import begin
from gymhost.wire.errors import CommandTimeout, TooLarge

__all__ = ["ARTIFACTS", "Apart"]

T = TypeVar("T")

ARTIFACTS = "/logs/artifacts"
"""The folder whose files a verifier sees in any case. It can be written in an agent's sandbox."""

_LOOK = 20.0
_MARGIN = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Apart:
    """How a verifier sees what an agent did.

    Attributes:
        name: Whose it is, in messages.
        spec: What its sandbox is like.
        image: The image of its sandbox, where there are images; None means the Dockerfile's.
        dockerfile: Its Dockerfile; None where it has none.
        is_of_tests: Whether that is in the folder with the tests. Such a one is never followed without images: it says
            where the tests are, which is known, and what to install.
        build_seconds: How long making its sandbox may take.
        artifacts: The files and folders of the agent's that it sees, at the same paths.
        collect: Commands that are run before in the agent's sandbox, each with the seconds that it may take.
    """

    name: str
    spec: SandboxSpec
    image: str | None
    dockerfile: Dockerfile | None
    is_of_tests: bool
    build_seconds: float
    artifacts: tuple[str, ...]
    collect: tuple[tuple[str, float], ...] = ()

    def check(self, *, plain: bool) -> None:
        """Sees that there can be a sandbox for it, before an agent has worked for nothing.

        Raises:
            ValueError: It needs an image, and the backend has none.
        """
        if self.is_of_tests and not plain and not builds_images():
            raise ValueError(
                f"{self.name} has an image of its own (tests/Dockerfile): serve it with `--sandbox docker`, or have it "
                "in the sandboxes' own system (image=none)"
            )

    async def look(
        self, sandbox: Sandbox, look: Callable[[Sandbox], Awaitable[T]], otherwise: T, *, plain: bool = False
    ) -> T:
        """Ends all that runs in a sandbox, destroys it, and looks at what is to be seen of its files.

        Args:
            sandbox: The agent's.
            look: What looks, in the verifier's.
            otherwise: What is seen where there are files that can't be kept.
            plain: Whether there is to be no image.

        Raises:
            SandboxLost: One is gone.
            SandboxUnavailable: There is no sandbox for the verifier to be had.
            ValueError: The files can't be put to where they were.
        """
        await sandbox.halt()
        for command, seconds in self.collect:
            await sandbox.run(command, timeout=seconds)
        await sandbox.halt()
        folders, paths = await self._found(sandbox)
        limit = self.spec.limits.disk
        try:
            files = {path: await sandbox.read(path, limit=limit) for path in paths}
            snapshot = await TarSnapshot.take(sandbox.run, folders, limit=limit + _MARGIN)
        except (CommandTimeout, OSError, TooLarge):
            return otherwise  # whoever makes files that can't be kept has done no work
        try:
            await sandbox.destroy()
            dockerfile = None if plain and self.is_of_tests else self.dockerfile
            fresh = await begin(self.name, self.spec, self.image, dockerfile, self.build_seconds, plain=plain)
            async with fresh:
                try:
                    await snapshot.restore(fresh.run)
                    for path, data in files.items():
                        await fresh.write(path, data)
                except OSError as error:
                    raise ValueError(f"an artifact can't be put before {self.name}: {error}") from error
                return await look(fresh)
        finally:
            await snapshot.discard()

    async def _found(self, sandbox: Sandbox) -> tuple[list[str], list[str]]:
        """Returns the folders and the files among what is to be seen that are there."""
        script = 'for path; do if [ -d "$path" ]; then echo d; elif [ -f "$path" ]; then echo f; else echo -; fi; done'
        looked = await sandbox.run(["bash", "-c", script, "look", *self.artifacts], timeout=_LOOK)
        kinds = dict(zip(self.artifacts, looked.stdout.split(), strict=False))
        return [path for path in kinds if kinds[path] == "d"], [path for path in kinds if kinds[path] == "f"]
