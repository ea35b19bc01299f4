"""Who has logged in, and how often somebody may try to."""

import hashlib
import ipaddress
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Logins", "Throttle"]

# How many logins are kept: the one that was used last stays longest.
LOGINS = 1000
# Seconds after its last use for which a login is kept; a page that is open uses it all the time.
IDLE = 12 * 3600.0
# Tries with tokens that are none which a caller has for nothing, and seconds for which it waits after more of them.
FREE_TRIES = 5
FIRST_WAIT, LAST_WAIT = 1.0, 60.0
# Callers whose tries are remembered.
CALLERS = 4096


class Logins:
    """Logins by what their cookies say. Nothing of them is written anywhere.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By the hash of the cookie: the token, and when it was last used.
        self._kept: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def open(self, token: str) -> str:
        """Keeps a token that a server takes, and returns what the reader's cookie says of it."""
        cookie = secrets.token_urlsafe(32)
        self._kept[_hash(cookie)] = (token, self._clock())
        while len(self._kept) > LOGINS:
            self._kept.popitem(last=False)
        return cookie

    def token(self, cookie: str) -> str | None:
        """The token of a login, or None if there is none, or none any more."""
        key = _hash(cookie)
        token, used = self._kept.pop(key, ("", 0.0))
        now = self._clock()
        if not token or now - used > IDLE:
            return None
        self._kept[key] = (token, now)
        return token

    def close(self, cookie: str) -> None:
        """Forgets a login."""
        self._kept.pop(_hash(cookie), None)


class Throttle:
    """Has those wait who guess at tokens.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By caller: how many tries were wrong in a row, and until when it waits.
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, host: str) -> float:
        """Seconds until a caller may try again; 0 for now."""
        _, until = self._wrong.get(_caller(host), (0, 0.0))
        return max(0.0, until - self._clock())

    def wrong(self, host: str) -> None:
        """A token was none."""
        caller = _caller(host)
        tries = self._wrong.pop(caller, (0, 0.0))[0] + 1
        pause = min(FIRST_WAIT * 2.0 ** min(tries - FREE_TRIES, 30), LAST_WAIT) if tries >= FREE_TRIES else 0.0
        self._wrong[caller] = (tries, self._clock() + pause)
        while len(self._wrong) > CALLERS:
            self._wrong.popitem(last=False)

    def right(self, host: str) -> None:
        """A token was one."""
        self._wrong.pop(_caller(host), None)


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


def _caller(host: str) -> str:
    """What counts as one caller: of IPv6 a whole network, since anybody has all its addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
