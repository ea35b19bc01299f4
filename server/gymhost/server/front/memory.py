"""What the front remembers for a while, within bounds."""

import asyncio
import collections
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# For how long, in seconds; how much of one kind at most; and how many bytes of it.
SECONDS = 300.0
ITEMS = 10_000
BYTES = 64 * 1024 * 1024


class Memory(Generic[K, V]):
    """Things by their keys. The oldest is forgotten when its time is up, or when there are too many or too large ones.

    Args:
        items: How many there may be.
        size: How many bytes they may have together.
    """

    def __init__(self, items: int = ITEMS, size: int = BYTES) -> None:
        self._items = items
        self._size = size
        self._held = 0
        self._by_key: collections.OrderedDict[K, tuple[float, int, V]] = collections.OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, key: K, value: V, size: int) -> None:
        """Remembers something that was not remembered before."""
        self._by_key[key] = asyncio.get_running_loop().time(), size, value
        self._held += size
        while len(self._by_key) > self._items or self._held > self._size:
            self._forget_oldest()

    def get(self, key: K) -> V | None:
        """What is remembered under a key."""
        found = self._by_key.get(key)
        return None if found is None else found[2]

    def forget_old(self) -> None:
        """Forgets what has had its time."""
        before = asyncio.get_running_loop().time() - SECONDS
        while self._by_key and next(iter(self._by_key.values()))[0] < before:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, size, _) = self._by_key.popitem(last=False)
        self._held -= size
