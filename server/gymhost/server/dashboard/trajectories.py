"""The trajectories of a job in the viewer: results that wait to be acknowledged are read, and go on waiting."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response

from gymhost.server.dashboard.config import DashboardConfig
from gymhost.server.dashboard.readers import Reader, rollout_client
from gymhost.wire import errors

__all__ = ["trajectories"]

# How many trajectories a page has at most, and bytes; pages that are being made at once; seconds for one.
TRAJECTORIES = 512
PAGE_BYTES = 64_000_000
PAGES = 2
LIMIT = 60.0
BATCH = 64
# The page has a policy of its own, which names its script by a hash: what is said here holds beside it.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)

_making = asyncio.Semaphore(PAGES)


async def trajectories(config: DashboardConfig, reader: Reader, job_id: str) -> Response:
    """Makes a page of the trajectories of a job that are kept.

    Raises:
        UnknownJob: There is no such job, or it is another's.
        CapacityExhausted: Others' pages are being made.
    """
    try:
        async with asyncio.timeout(LIMIT):
            async with _making:
                found, title, more = await _fetched(config, reader, job_id)
                path = await asyncio.to_thread(_written, found, title, more)
    except TimeoutError:
        raise errors.CapacityExhausted("the page took too long: others are being made") from None
    return FileResponse(
        path,
        media_type="text/html",
        headers={"Content-Security-Policy": POLICY},
        background=BackgroundTask(path.unlink, missing_ok=True),
    )


async def _fetched(config: DashboardConfig, reader: Reader, job_id: str) -> tuple[list[Any], str, int]:
    """The trajectories, what they are of, and how many there are beyond those."""
    # A client gives each result once, so that each page has one of its own.
    client = rollout_client(config.rollouts, reader.token) if reader.rollouts is not None else None
    assert client is not None
    async with client:
        job = await client.job(id=job_id)
        status = await job.status()
        found: list[Any] = []
        while len(found) < TRAJECTORIES:
            batch, _ = await job.fetch(limit=BATCH)
            if not batch:
                break
            found += batch
    title = status.label or status.key
    return found[:TRAJECTORIES], f"{title} · {status.env_id}", max(0, status.unacknowledged - TRAJECTORIES)


def _written(found: list[Any], title: str, more: int) -> Path:
    from gymhost.rollout.view import write_page

    with tempfile.NamedTemporaryFile(prefix="gymhost-view-", suffix=".html", delete=False) as file:
        path = Path(file.name)
    settings = {"left out": f"{more} more trajectories, beyond {TRAJECTORIES}"} if more else None
    try:
        write_page(path, found, title=title, settings=settings, max_bytes=PAGE_BYTES)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path
