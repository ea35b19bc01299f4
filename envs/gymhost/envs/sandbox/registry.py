"""Backends by name, and the pool that this process's sandboxes come from."""

import importlib
import inspect
import threading
from pathlib import Path
from typing import Any

from gymhost.envs.sandbox.backend import Backend
from gymhost.envs.sandbox.pool import CREATE_TIMEOUT, Pool
from gymhost.envs.sandbox.sandbox import Sandbox
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.envs.sandboxing import settings
from gymhost.wire.errors import InvalidArgument

__all__ = ["BACKENDS", "backend", "build", "builds_images", "close", "create", "keep_spares", "process_backend"]

BACKENDS = {
    "bubblewrap": "gymhost.envs.sandbox.bubblewrap:Bubblewrap",
    "docker": "gymhost.envs.sandbox.docker:Docker",
    "local": "gymhost.envs.sandbox.local:Local",
}

_lock = threading.Lock()
_pool: Pool | None = None


def backend(name: str, **options: Any) -> Backend:
    """Makes a backend.

    Args:
        name: `bubblewrap`, `docker` or `local`, or `module:Class` for one of one's own.
        **options: Keyword arguments of its class.

    Returns:
        The backend; `Pool` makes sandboxes with it, and closes it.

    Raises:
        InvalidArgument: There is none of this name, or it does not take these options.
        SandboxUnavailable: It needs a library that is not installed; the message names the extra that brings it.
    """
    module, colon, class_name = BACKENDS.get(name, name).partition(":")
    if not colon:
        raise InvalidArgument(f"no sandbox backend {name!r}; there are {', '.join(BACKENDS)}, and module:Class")
    try:
        made = getattr(importlib.import_module(module), class_name)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"can't import the sandbox backend {name!r}: {error}") from error
    if not (isinstance(made, type) and issubclass(made, Backend)):
        raise InvalidArgument(f"{name!r} is no sandbox backend: it must be a class below gymhost.envs.sandbox.Backend")
    try:
        return made(**options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(made).parameters) or "none"
        raise InvalidArgument(
            f"the sandbox backend {name!r} can't be made so: {error}; its options: {takes}"
        ) from error


async def create(
    spec: SandboxSpec | None = None, *, snapshot: Snapshot | None = None, timeout: float = CREATE_TIMEOUT
) -> Sandbox:
    """Makes a sandbox with the backend of this process: what `gymhost serve --sandbox` names, else bubblewrap.

    A program of one's own has others by a pool: `async with Pool(backend("docker")) as pool: await pool.create(...)`.
    On a server it ends with the session that it was made for. Elsewhere it ends when it is destroyed or collected, and
    with the process.

    Args:
        spec: What it is to be like.
        snapshot: What it begins with.
        timeout: Seconds that it may take, waits included.

    Returns:
        The sandbox. Its `queued_seconds` are those that it waited for its turn and between refusals, and
        `created_seconds` those of its making.

    Raises:
        CapacityExhausted: The time passed before there was room for it.
        InvalidArgument: The backend can't do what the spec asks for.
        SandboxUnavailable: It could not be made; the message says what to install or set.
        SandboxLost: The session that it is for has ended.
    """
    return await _process_pool().create(spec, snapshot=snapshot, timeout=timeout)


def process_backend() -> Backend:
    """Returns the backend of this process, made if it is not there yet.

    Raises:
        InvalidArgument: There is none of the name that was set, or it does not take the options.
        SandboxUnavailable: It needs a library that is not installed.
    """
    return _process_pool().backend


def builds_images() -> bool:
    """Whether the backend of this process builds images.

    Raises:
        InvalidArgument: The backend can't be made.
    """
    return _process_pool().backend.builds


async def build(folder: Path) -> str:
    """Builds the image that a folder's Dockerfile describes, with the backend of this process.

    Returns:
        What `SandboxSpec.image` calls it.

    Raises:
        InvalidArgument: The folder has no Dockerfile, or the backend builds no images.
        SandboxUnavailable: It could not be built.
    """
    return await _process_pool().backend.build(folder)


def keep_spares(spec: SandboxSpec | None, number: int) -> None:
    """Has so many sandboxes of a kind made in advance, as `Pool.keep_spares` does, for `create`.

    Raises:
        InvalidArgument: The backend of this process can't be made.
    """
    _process_pool().keep_spares(spec, number)


async def close() -> None:
    """Destroys all sandboxes of this process that `create` made; the next one begins anew. Bounded."""
    global _pool
    with _lock:
        pool, _pool = _pool, None
    if pool is not None:
        await pool.close()


def _process_pool() -> Pool:
    global _pool
    with _lock:
        if _pool is None:
            how = settings()
            folder = None if how.folder is None else Path(how.folder)
            made = backend(how.backend, **how.options)
            _pool = Pool(made, creations=how.creations, folder=folder, spares=how.spares)
        return _pool
