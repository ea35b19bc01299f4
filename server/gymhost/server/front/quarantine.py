"""Environments that kill their workers: they are told from their neighbours, and kept apart from them."""

import collections
import dataclasses
import datetime
import logging
import time
from collections.abc import Iterable

from gymhost.server.config import ServerConfig
from gymhost.wire import errors
from gymhost.wire.words import counted

__all__ = ["Quarantine"]

log = logging.getLogger("gymhost.server")

# The most deaths that are remembered.
MOST = 256
# The part of the window for which an environment is refused that kills each worker of its own.
REFUSED = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class _Death:
    """A worker's: when, of what, and the environments that had code running in it."""

    when: float
    suspects: frozenset[str]
    reason: str


class Quarantine:
    """Which environments have killed so many workers within so much time that they get none with others in it.

    Where several environments had code running when a worker died, each is counted in part, unless one of them is known
    for it. An innocent one may so come into quarantine beside a guilty one; there it kills nothing, the guilty one
    does, and that clears the innocent one.

    An environment that kills one worker of its own after the other, with no session in between that ended otherwise, is
    refused for a while; then it is tried again.

    Args:
        config: The server's settings.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._most = config.quarantine_deaths
        self._window = config.quarantine_window
        self._deaths: collections.deque[_Death] = collections.deque(maxlen=MOST)
        # Deaths of workers of an environment's own, one after the other, and when the last one was.
        self._in_a_row: dict[str, tuple[int, float]] = {}
        self._held: set[str] = set()

    def died(self, suspects: Iterable[str], reason: str, *, apart: bool, hurried: bool = False) -> None:
        """Takes note of a worker's death.

        Args:
            suspects: The environments that had code running in it.
            reason: What it died of.
            apart: It was for one environment alone.
            hurried: It was the caller's own time limit that ended it, so that it says little of the environment.
        """
        of = frozenset(suspects)
        if not self._most or not of:
            return
        now = time.monotonic()
        self._deaths.append(_Death(now, of, reason))
        if apart and not hurried:
            for environment_id in of:
                before, _ = self._in_a_row.get(environment_id, (0, 0.0))
                self._in_a_row[environment_id] = before + 1, now
        for environment_id in sorted(of):
            if self.holds(environment_id):
                log.warning("%s", self._tell(environment_id))

    def ended_well(self, environment_id: str) -> None:
        """Takes note of a session that had a worker of its own and did not kill it."""
        self._in_a_row.pop(environment_id, None)

    def holds(self, environment_id: str) -> bool:
        """Whether new sessions of an environment are to be kept apart from others."""
        if not self._deaths:
            return False
        held = self._count(environment_id) >= self._most
        if held:
            self._held.add(environment_id)
        elif environment_id in self._held:
            self._held.discard(environment_id)
            log.info("%s is no longer in quarantine", environment_id)
        return held

    def admit(self, environment_id: str) -> None:
        """Lets a session be made.

        Raises:
            EnvironmentFault: The environment is refused for now; the message says until when.
        """
        if (left := self._refused_for(environment_id)) > 0:
            raise errors.EnvironmentFault(self._tell(environment_id), retry_after=left)

    @property
    def problems(self) -> list[str]:
        """What is in quarantine, in words."""
        known = {*self._in_a_row, *self._held}
        return [self._tell(each) for each in sorted(known) if self._refused_for(each) > 0 or self.holds(each)]

    def _count(self, environment_id: str) -> float:
        """How many workers an environment has killed lately, as far as can be told."""
        since = time.monotonic() - self._window
        while self._deaths and self._deaths[0].when < since:
            self._deaths.popleft()
        alone = collections.Counter(next(iter(death.suspects)) for death in self._deaths if len(death.suspects) == 1)
        known = {each for each, number in alone.items() if number >= self._most}
        return alone[environment_id] + sum(
            1 / len(death.suspects)
            for death in self._deaths
            if len(death.suspects) > 1 and environment_id in death.suspects and known.isdisjoint(death.suspects)
        )

    def _refused_for(self, environment_id: str) -> float:
        number, last = self._in_a_row.get(environment_id, (0, 0.0))
        return last + REFUSED * self._window - time.monotonic() if 0 < self._most <= number else 0.0

    def _tell(self, environment_id: str) -> str:
        last = next((death.reason for death in reversed(self._deaths) if environment_id in death.suspects), "")
        of = f"(the last: {last})"
        settings = "(--quarantine-deaths, --quarantine-window)"
        if (left := self._refused_for(environment_id)) > 0:
            number, _ = self._in_a_row[environment_id]
            until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=left)
            return (
                f"{environment_id} is in quarantine: {counted(number, 'worker')} of its own ended under it, one after "
                f"the other {of}; new sessions of it are refused until {until:%H:%M:%S} UTC, for {left:.0f} s "
                f"{settings}"
            )
        number = self._count(environment_id)
        return (
            f"{environment_id} is in quarantine: {number:g} worker{'' if number == 1 else 's'} ended under it within "
            f"{self._window:g} s {of}; new sessions of it get workers of their own {settings}"
        )
