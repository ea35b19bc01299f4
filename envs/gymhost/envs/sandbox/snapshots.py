"""Snapshots: what a sandbox had written at a moment, from which others begin."""

import abc

__all__ = ["Snapshot"]


class Snapshot(abc.ABC):
    """The files of a sandbox at a moment. Processes are no part of it."""

    @abc.abstractmethod
    async def discard(self) -> None:
        """Frees what it holds. Sandboxes that were made from it go on. May be called twice."""
