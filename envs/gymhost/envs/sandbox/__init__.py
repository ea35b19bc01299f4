"""Sandboxes: where code runs that nobody trusts.

What a model wrote runs in one, or not at all:

    sandbox = await create(SandboxSpec(limits=Limits(memory=2**30)))
    result = await sandbox.run(["python3", "-c", "print(1 + 1)"], timeout=10.0)
    await sandbox.destroy()
"""

from gymhost.envs.sandbox.backend import Backend, Container, Stream, StreamEnded
from gymhost.envs.sandbox.pool import Pool
from gymhost.envs.sandbox.python_session import PythonSession, interpreter_mounts
from gymhost.envs.sandbox.registry import backend, build, builds_images, create, keep_spares
from gymhost.envs.sandbox.results import CommandResult, FileInfo, Image, PythonResult, Usage
from gymhost.envs.sandbox.sandbox import Sandbox
from gymhost.envs.sandbox.shell import Shell
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import Limits, Mount, SandboxSpec

__all__ = [
    "Backend",
    "CommandResult",
    "Container",
    "FileInfo",
    "Image",
    "Limits",
    "Mount",
    "Pool",
    "PythonResult",
    "PythonSession",
    "Sandbox",
    "SandboxSpec",
    "Shell",
    "Snapshot",
    "Stream",
    "StreamEnded",
    "Usage",
    "backend",
    "build",
    "builds_images",
    "create",
    "interpreter_mounts",
    "keep_spares",
]
