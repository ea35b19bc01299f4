"""The user ids of the host that sandboxes run as where root makes them."""

import secrets
import threading
from pathlib import Path

from gymhost.wire.errors import InvalidArgument

__all__ = ["Uids", "parsed", "usual"]

# Far from those that distributions, systemd and container engines give out.
USUAL = range(1_900_000_000, 2_000_000_000)


class Uids:
    """Gives out user ids, each once before any comes again. It begins by chance, so that processes seldom share one.

    Args:
        ids: The range.
    """

    def __init__(self, ids: range) -> None:
        self._range = ids
        self._next = secrets.randbelow(len(self._range))
        self._lock = threading.Lock()

    def take(self) -> int:
        """Returns the next one."""
        with self._lock:
            self._next = (self._next + 1) % len(self._range)
            return self._range[self._next]


def parsed(text: str) -> Uids:
    """Returns the user ids of a range such as `1900000000-1999999999`.

    Raises:
        InvalidArgument: It is no range, or has ids that this process's user namespace has not.
    """
    first, _, last = text.partition("-")
    try:
        found = range(int(first), int(last) + 1)
    except ValueError:
        found = range(0)
    if not found or found[0] < 1 or found[-1] > 2**32 - 2:
        raise InvalidArgument(f"uids must be a range of user ids such as 1900000000-1999999999, not {text!r}")
    if not any(found[0] in mapped and found[-1] in mapped for mapped in _mapped()):
        raise InvalidArgument(f"this process's user namespace has not all of the user ids {text}")
    return Uids(found)


def usual() -> Uids | None:
    """Returns the usual user ids, or what there is in a user namespace; None where root is the only user there."""
    mapped = _mapped()
    if any(USUAL[0] in there and USUAL[-1] in there for there in mapped):
        return Uids(USUAL)
    largest = max(mapped, key=len)
    # The upper half: the lower one has users of its own.
    return Uids(largest[len(largest) // 2 :]) if len(largest) > 1 else None


def _mapped() -> list[range]:
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    numbers = [[int(word) for word in line.split()] for line in lines]
    return [range(inside, inside + length) for inside, _, length in numbers]
