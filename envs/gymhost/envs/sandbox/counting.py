"""How many sandboxes of each backend this process has, and has made."""

import bisect
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gymhost.envs.sandbox.sandbox import Sandbox
    from gymhost.envs.sandbox.spares import Spares

__all__ = ["Counts", "counts", "told"]


class Counts:
    """The sandboxes of one backend. From any thread."""

    def __init__(self) -> None:
        self._making = 0
        self._made = 0
        self._failed = 0
        self._live: weakref.WeakSet[Sandbox] = weakref.WeakSet()
        self._spares: weakref.WeakSet[Spares] = weakref.WeakSet()
        # Seconds that each making took that is not told yet.
        self._took: list[float] = []
        self._buckets: list[int] = []
        self._seconds = 0.0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """One is being made."""
        with self._lock:
            self._making += 1

    def end(self, seconds: float | None) -> None:
        """One was made, in so many seconds; None where it was not."""
        with self._lock:
            self._making -= 1
            if seconds is not None:
                self._made += 1
                self._took.append(seconds)

    def failed(self) -> None:
        """One could not be made."""
        with self._lock:
            self._failed += 1

    def keep(self, spares: "Spares") -> None:
        """Some are kept ready there."""
        with self._lock:
            self._spares.add(spares)

    def use(self, sandbox: "Sandbox") -> None:
        """One is used from now on, until it ends."""
        with self._lock:
            self._live.add(sandbox)

    def figures(self, bounds: Sequence[float]) -> list[float]:
        """Live, spare, making, made, failed; of makings the seconds, twice 0, and a histogram with a bucket more.

        Args:
            bounds: The upper bounds of the histogram's buckets: always the same.
        """
        with self._lock:
            self._buckets = self._buckets or [0] * (len(bounds) + 1)
            took, self._took = self._took, []
            for seconds in took:
                self._buckets[bisect.bisect_left(bounds, seconds)] += 1
                self._seconds += seconds
            live = sum(sandbox.alive for sandbox in self._live)
            spare = sum(map(len, self._spares))
            return [live, spare, self._making, self._made, self._failed, self._seconds, 0, 0, *self._buckets]


_counts: dict[str, Counts] = {}


def counts(backend: str) -> Counts:
    """Those of a backend, by its name."""
    return _counts.setdefault(backend, Counts())


def told(bounds: Sequence[float]) -> dict[str, list[float]]:
    """The figures of all backends that were used."""
    return {name: each.figures(bounds) for name, each in list(_counts.items())}
