"""Sandboxes of each backend that needs no engine, for tests of what is the same on all."""

import contextlib
import warnings
from collections.abc import AsyncGenerator

from gymhost.envs.sandbox import Backend, SandboxSpec, backend
from gymhost.envs.sandbox.pool import Pool
from gymhost.envs.sandbox.sandbox import Sandbox

# Those that keep what runs inside from the host, and its first process from what runs inside.
ISOLATING = ("bubblewrap",)
BACKENDS = (*ISOLATING, "local")


def make_backend(name: str) -> Backend:
    with warnings.catch_warnings():
        # That `local` contains nothing is what it has to say.
        warnings.simplefilter("ignore", UserWarning)
        return backend(name)


@contextlib.asynccontextmanager
async def fresh_sandbox(name: str, spec: SandboxSpec | None = None) -> AsyncGenerator[Sandbox]:
    async with Pool(make_backend(name)) as pool, await pool.create(spec) as sandbox:
        yield sandbox
