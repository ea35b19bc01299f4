"""`gymhost rollout` in a process of its own, while the test serves the model that plays."""

import asyncio
import dataclasses
import json
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.command import COMMAND, environment

# Seconds for a whole run, which imports transformers, on a busy machine.
LIMIT = 55.0


@dataclasses.dataclass
class Said:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.stdout)


@asynccontextmanager
async def begun(
    *arguments: str, cwd: Path | None = None, **variables: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "rollout",
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=environment(**variables),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(process: asyncio.subprocess.Process) -> Said:
    async with asyncio.timeout(LIMIT):
        stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, stdout.decode(), stderr.decode())


async def rollout(*arguments: str, cwd: Path | None = None, **variables: str) -> Said:
    async with begun(*arguments, cwd=cwd, **variables) as process:
        return await ended(process)
