"""`gymhost jobs fetch`: a job's rollouts into a folder."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from gymhost.cli.app import Failure
from gymhost.rollout.service import Job, RolloutClient
from gymhost.rollout.store import Store, StoreError
from gymhost.rollout.trajectory import Trajectory

__all__ = ["fetch"]

# Rollouts that are written to the disk and acknowledged at once.
_TOGETHER = 64


def fetch(rollouts: RolloutClient, job: Job, folder: Path, *, wait: bool) -> int:
    """Keeps the rollouts of a job in a folder; returns the exit code of the command.

    Args:
        rollouts: The service.
        job: The job.
        folder: Where they are kept, beside those of the same job that are there.
        wait: Whether to go on until the job has ended.

    Raises:
        Failure: The folder holds something else.
    """
    try:
        with _opened(folder, job) as store:
            there = {trajectory.id for trajectory in store}
            try:
                fetched = rollouts.call_sync(_fetch(job, store, there, wait=wait))
            except KeyboardInterrupt:
                click.echo(f"gymhost: interrupted; {len(store):,} rollouts are in {folder}", err=True)
                return 130
    except StoreError as error:
        raise Failure(str(error)) from None
    click.echo(f"{fetched:,} rollouts fetched, {len(there):,} in {folder}")
    return 0


def _opened(folder: Path, job: Job) -> Store:
    try:
        store = Store.open(folder, writing=True)
    except StoreError:
        return Store.create(folder, {"job": job.id, "key": job.key})  # which says why, if it can't
    if (other := store.settings.get("job")) != job.id:
        store.close()
        raise StoreError(f"{folder} holds the rollouts of {f'the job {other}' if other else 'no job'}: name another")
    return store


async def _fetch(job: Job, store: Store, there: set[str], *, wait: bool) -> int:
    """Keeps what comes, and acknowledges what is kept. What was kept before and not acknowledged comes once more."""
    fetched = 0
    kept: list[Trajectory] = []
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        total = (await job.status()).unacknowledged
        shown = progress.add_task("fetched", total=total)
        try:
            async with aclosing(job.results(acknowledge=False) if wait else _there(job)) as results:
                async for trajectory in results:
                    if trajectory.id not in there:
                        store.append(trajectory)
                        there.add(trajectory.id)
                        fetched += 1
                    kept.append(trajectory)
                    if len(kept) == _TOGETHER:
                        await _acknowledge(job, store, kept)
                        total = (await job.status()).total if wait else total
                    progress.update(shown, completed=fetched, total=max(total, fetched))
        finally:
            await _acknowledge(job, store, kept)
    return fetched


async def _acknowledge(job: Job, store: Store, kept: list[Trajectory]) -> None:
    store.sync()
    await job.acknowledge(kept)
    kept.clear()


async def _there(job: Job) -> AsyncGenerator[Trajectory, None]:
    """What there is now."""
    while True:
        found, _ = await job.fetch(_TOGETHER)
        for trajectory in found:
            yield trajectory
        if not found:
            return
