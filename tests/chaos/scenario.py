"""A run: players play, faults come by a seed, and in the end all is looked at."""

import collections
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

from chaos import history
from chaos.arena import RECOVERY, REPLAYABLE, Arena
from chaos.faults import FAULTS, Fault


@dataclasses.dataclass
class Report:
    """What a run came to.

    Attributes:
        seed: What made it.
        seconds: How long faults were injected.
        faults: How many of each kind.
        verdict: What the model says of what was seen.
        recoveries: How often an episode was repeated elsewhere and went on.
        problems: All that must not be; empty after a run that is as it should be.
    """

    seed: int
    seconds: float
    faults: collections.Counter[str]
    verdict: history.Verdict
    recoveries: int
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As a table for JSON."""
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "faults": dict(sorted(self.faults.items())),
            "recoveries": self.recoveries,
            **history.summary(self.verdict),
            "problems": self.problems,
        }


def run(
    seed: int,
    seconds: float,
    *,
    pause: float = 1.0,
    faults: dict[Fault, int] | None = None,
    tell: Callable[[str], None] = print,
    watch: Callable[[Arena], None] = lambda _: None,
    interval: float = 1.0,
    **arena: Any,
) -> Report:
    """Runs one scenario.

    Args:
        seed: Makes the faults, their order and their times, and what the players do.
        seconds: For how long faults are injected.
        pause: The mean of the seconds between two faults.
        faults: Which, with weights; None for all.
        tell: Is told of each fault as it comes.
        watch: Called again and again while nothing is done.
        interval: Seconds between two such calls.
        arena: Arguments for `Arena`.
    """
    chance = random.Random(seed)
    weights = faults or FAULTS
    came: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    tell(f"chaos: seed {seed}, {seconds:g} s")
    with Arena(seed, **arena) as place:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            (fault,) = chance.choices(list(weights), list(weights.values()))
            tell(f"chaos: {passed:6.1f} s {fault.__name__}")
            fault(place, chance)
            came[fault.__name__] += 1
            until = min(time.monotonic() + chance.expovariate(1 / pause), began + seconds)
            while (left := until - time.monotonic()) > 0:
                watch(place)
                time.sleep(min(left, interval))
        passed = time.monotonic() - began
        place.finish()
        problems += _wait_whole(place)
        if left := place.left_sessions():
            problems.append(f"{left} sessions are left on the server")
        place.server.stop()
        problems += [f"left behind: {what}" for what in _left_behind(place)]
        ran = place.log.read_text().splitlines() if place.log.exists() else []
        verdict = history.check(place.events(), ran, replayable=REPLAYABLE)
        problems += verdict.problems
        for told in place.told:
            problems += told["faults"]
        recoveries = sum(told["recoveries"] for told in place.told)
        if problems:
            tell(place.server.log[-20000:])
    return Report(seed, passed, came, verdict, recoveries, problems)


def _wait_whole(place: Arena) -> list[str]:
    give_up = time.monotonic() + RECOVERY
    while not place.whole():
        if time.monotonic() > give_up:
            return [f"the server has the workers {place.workers} {RECOVERY:g} s after the last fault"]
        time.sleep(0.1)
    return []


def _left_behind(place: Arena) -> list[str]:
    """What is left, once nothing is or after a time: the last processes may be on their way out."""
    give_up = time.monotonic() + 15.0
    while (left := place.left_behind()) and time.monotonic() < give_up:
        time.sleep(0.1)
    return left
