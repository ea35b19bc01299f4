"""The Docker backend: each sandbox is a container whose first process, a shell, is attached from the start."""

import asyncio
import contextlib
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Literal

from gymhost.envs.sandbox.backend import RUNNER, Backend
from gymhost.envs.sandbox.docker import images, leftovers, oom
from gymhost.envs.sandbox.docker.container import DockerContainer
from gymhost.envs.sandbox.docker.engine import Engine, Facts, NotFound
from gymhost.envs.sandbox.docker.settings import in_force, settings
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import Mount, SandboxSpec
from gymhost.wire.errors import CapacityExhausted, Error, InvalidArgument, SandboxUnavailable

__all__ = ["Docker"]

# Seconds between two looks for containers whose owner is dead.
_SWEEP_EVERY = 60.0

# Seconds that a creation waits while another one has an image fetched.
_PULL_PATIENCE = 1.0


class Docker(Backend):
    """Sandboxes as containers of a Docker engine, or of podman behind its Docker socket.

    Args:
        base_url: Where the engine listens, `unix://PATH` or `tcp://HOST:PORT`; None takes DOCKER_HOST, or
            Docker's usual socket.
        runtime: The runtime that containers have, such as `runsc` for gVisor; None takes the engine's default. Where it
            has a kernel of its own, that takes its part of the limits: gVisor needs some 100 processes and 128 MiB.
        image: The image of sandboxes that name none; None makes one of this machine's own system, which needs no
            registry: the programs in /usr, read-only.
        pull: What to do about an image that the engine does not have: `never` refuses, `missing` fetches it.
        timeout: Seconds that the engine may take for an answer. Commands in sandboxes are not answers.
        image_timeout: Seconds that it may take to fetch or build an image.
        server: The name of the server that this process works for; containers are labelled with it.

    Raises:
        InvalidArgument: An argument has a value that it can't have.
        SandboxUnavailable: Docker's SDK is not installed.
    """

    name = "docker"
    builds = True

    def __init__(
        self,
        base_url: str | None = None,
        *,
        runtime: str | None = None,
        image: str | None = None,
        pull: Literal["never", "missing"] = "never",
        timeout: float | str = 60.0,
        image_timeout: float | str = 1800.0,
        server: str = "",
    ) -> None:
        if pull not in ("never", "missing"):
            raise InvalidArgument(f"pull must be 'never' or 'missing', not {pull!r}")
        address = base_url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        self._engine = Engine(address, _seconds("timeout", timeout))
        self._runtime = runtime
        self._image = image
        self._pull = pull
        self._image_timeout = _seconds("image_timeout", image_timeout)
        self._labels = leftovers.labels(server)
        self._lock = threading.Lock()
        self._pull_lock = threading.Lock()
        self._containers: set[DockerContainer] = set()
        self._doubtful: set[str] = set()
        self._facts: Facts | None = None
        self._swept = -float("inf")
        self._closed = False

    async def problem(self) -> str | None:
        """Returns why the engine can't be used; see `Backend.problem`."""
        try:
            facts = await self._engine.call(self._ready)
        except (Error, NotFound) as error:
            return str(error)
        if self._runtime is not None and facts.runtimes and self._runtime not in facts.runtimes:
            known = ", ".join(sorted(facts.runtimes))
            return f"Docker knows no runtime {self._runtime!r}, only {known}: add it to its daemon.json"
        return None

    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> DockerContainer:
        """Makes a container; see `Backend.create`."""
        if snapshot is not None:
            raise InvalidArgument("Docker has no snapshots of its own")
        name = f"gymhost-{secrets.token_hex(6)}"
        try:
            container = await self._engine.call(lambda: self._create(spec, name), late=DockerContainer.kill)
        except NotFound as error:
            raise SandboxUnavailable(f"Docker failed: {error}") from error
        except CapacityExhausted:
            # It may be made still, once the engine comes to it.
            with self._lock:
                self._doubtful.add(name)
            self._engine.submit(lambda: self._engine.remove(name))
            raise
        return container

    async def pull(self, image: str, progress: images.Progress | None = None) -> None:
        """Fetches an image from its registry.

        Args:
            image: Its name.
            progress: Is told what is done, from another thread.

        Raises:
            InvalidArgument: The registry has no such image, or does not give it away.
            SandboxUnavailable: It could not be fetched, or not within `image_timeout`.
        """
        await self._engine.call(lambda: images.pull(self._engine, image, self._image_timeout, progress))

    async def build(
        self,
        folder: str | os.PathLike[str],
        *,
        tag: str | None = None,
        network: str | None = None,
        progress: images.Progress | None = None,
    ) -> str:
        """Builds the image that a folder's Dockerfile describes, for the `image` of a spec.

        Args:
            folder: The folder, whose files the Dockerfile may copy.
            tag: A name for the image.
            network: The network that its steps have: `none`, `host`, or a name; None takes the engine's default.
            progress: Is told what is done, from another thread.

        Returns:
            Its id.

        Raises:
            InvalidArgument: The folder has no Dockerfile.
            SandboxUnavailable: It could not be built, or not within `image_timeout`.
        """
        path = Path(folder)
        return await self._engine.call(
            lambda: images.build(self._engine, path, tag, network, self._image_timeout, progress)
        )

    async def close(self) -> None:
        """Destroys all containers that it made; see `Backend.close`."""
        with self._lock:
            self._closed = True
            containers = list(self._containers)
        await asyncio.gather(*(container.destroy() for container in containers))
        with contextlib.suppress(Error, NotFound):
            await self._engine.call(self._remove_doubtful)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._engine.close), 2 * self._engine.timeout)

    def _ready(self) -> Facts:
        """Returns what the engine is, after a look for what dead owners left, at times; blocks."""
        facts = self._facts
        if facts is None:
            facts = self._facts = self._engine.facts()
        with self._lock:
            due = time.monotonic() - self._swept > _SWEEP_EVERY
            if due:
                self._swept = time.monotonic()
        if due:
            leftovers.sweep(self._engine)
            self._remove_doubtful()
        return facts

    def _remove_doubtful(self) -> None:
        """Removes what the engine may have made when nobody waited for it any more; blocks."""
        with self._lock:
            names, self._doubtful = self._doubtful, set()
        for name in names:
            self._engine.remove(name)

    def _create(self, spec: SandboxSpec, name: str) -> DockerContainer:
        with self._lock:
            if self._closed:
                raise SandboxUnavailable("the Docker backend was closed")
        facts = self._ready()
        engine, api = self._engine, self._engine.api()
        image, mounts = self._system(spec)
        config = settings(
            spec,
            image=image,
            mounts=(*mounts, *spec.mounts),
            volumes=self._volumes(image),
            command=RUNNER,
            labels=self._labels,
            runtime=self._runtime,
            facts=facts,
        )
        container_id: str = api.create_container_from_config(config, name=name)["Id"]
        try:
            # Attached before it starts, so that nothing it says is missed.
            main = engine.hand_over(f"/containers/{container_id}/attach?stream=1&stdin=1&stdout=1&stderr=1")
            try:
                api.start(container_id)
            except engine.errors.APIError as error:
                main.close()
                raise _unfit(str(error.explanation), spec, image) or error from error
            except BaseException:
                main.close()
                raise
        except BaseException:
            engine.remove(container_id)
            raise
        limits = in_force(spec, facts, self._runtime)
        kills = oom.counter(api, container_id) if engine.local else None
        container = DockerContainer(container_id, name, spec, main, engine, limits, kills, self._containers.discard)
        with self._lock:
            closed = self._closed
            if not closed:
                self._containers.add(container)
        if closed:
            container.remove()
            raise SandboxUnavailable("the Docker backend was closed")
        return container

    def _system(self, spec: SandboxSpec) -> tuple[str, list[Mount]]:
        """Returns the image of a sandbox, and what of this machine is seen in it as part of its system."""
        named = spec.image or self._image
        if named is not None:
            return named, []
        if not self._engine.local:
            raise InvalidArgument(
                "name an image (SandboxSpec.image): the default one needs this machine's own programs, which the "
                f"engine at {self._engine.base_url} can't see"
            )
        return images.host_image(self._engine), images.host_mounts()

    def _volumes(self, image: str) -> list[str]:
        """Returns the folders for which the image asks for volumes; has it fetched where that is wanted."""
        with contextlib.suppress(self._engine.errors.NotFound):
            return images.volumes(self._engine, image)
        if self._pull == "never":
            raise InvalidArgument(
                f"Docker has no image {image!r}: fetch it by `docker pull {image}` or Docker.pull, or use "
                "pull='missing' to have it fetched when it is wanted"
            )
        if not self._pull_lock.acquire(timeout=_PULL_PATIENCE):
            # Threads are few, and a fetch may take long.
            raise CapacityExhausted(f"the image {image!r} is being fetched")
        try:
            with contextlib.suppress(self._engine.errors.NotFound):
                return images.volumes(self._engine, image)
            images.pull(self._engine, image, self._image_timeout, None)
            return images.volumes(self._engine, image)
        finally:
            self._pull_lock.release()


def _unfit(said: str, spec: SandboxSpec, image: str) -> InvalidArgument | None:
    """Returns what is wrong with a spec for which a container does not start; None where it is something else."""
    if "rlimit" in said:
        return InvalidArgument(f"the engine may not give {spec.limits.open_files} open files (limits.open_files)")
    if "executable file not found" in said or ("no such file or directory" in said and "exec" in said):
        return InvalidArgument(f"the image {image!r} has no bash, or no coreutils (env): a sandbox needs both")
    return None


def _seconds(name: str, value: float | str) -> float:
    """Returns a time limit, which may come as text from a server's settings."""
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise InvalidArgument(f"{name} must be a number of seconds above 0, not {value!r}")
    return seconds
