"""What one session counts: its commands before they are answered, and the episodes that they make up."""

import copy
from typing import Any, Self

from gymhost.server.meter import Ends, Meter, Row, Stage
from gymhost.server.worker.episodes import Episodes
from gymhost.v1 import environments_pb2 as pb

__all__ = ["CopiesTally", "Tally", "ThreadTally"]

_RESET, _STEP, _EVALUATE = int(pb.COMMAND_KIND_RESET), int(pb.COMMAND_KIND_STEP), int(pb.COMMAND_KIND_EVALUATE)
# The stage of each kind of command; of all others it is `other`.
_STAGES: dict[int, str] = {
    _RESET: "reset",
    _STEP: "step",
    pb.COMMAND_KIND_CALL_TOOL: "step",
    _EVALUATE: "evaluate",
}
# Those that return a reward.
_PAYING = frozenset(_STAGES) - {_RESET}


class _Place:
    """Where is counted: a row, and what of it is to be written before anybody is answered."""

    __slots__ = ("changed", "other", "row", "stages")

    def __init__(self, row: Row, changed: list[Stage | Ends]) -> None:
        self.row = row
        self.changed = changed
        self.stages = {kind: row.stages[stage] for kind, stage in _STAGES.items()}
        self.other = row.stages["other"]

    def count(self, kind: int, received: int, sent: int, seconds: float) -> None:
        """Counts a command in its stage."""
        stage = self.stages.get(kind, self.other)
        stage.add(seconds, received, sent)
        self.touch(stage)

    def touch(self, changed: Stage | Ends) -> None:
        """Has something written in time."""
        if not changed.changed:
            changed.changed = True
            self.changed.append(changed)


class Tally:
    """Counts for one session of one environment, on the event loop.

    Args:
        meter: What has the rows.
        environment_id: The environment.
    """

    __slots__ = ("_due", "_known", "_open", "_place", "_reward", "_step")

    def __init__(self, meter: Meter, environment_id: str) -> None:
        self._place = _Place(meter.row(environment_id), meter.changed)
        self._step = self._place.stages[_STEP]
        # The episode: whether it goes on, its reward so far, whether that can be told, and whether some is still due.
        self._open = self._known = True
        self._reward: Any = 0.0
        self._due = False

    def twin(self) -> Self:
        """That of a session that goes on from the present state of this one."""
        return copy.copy(self)

    def add(self, kind: int, received: int, sent: int, seconds: float, returned: Any) -> None:
        """Counts a command that was run.

        Args:
            kind: Its kind.
            received: The bytes of its payload.
            sent: Those of the reply's.
            seconds: How long it took.
            returned: What the environment returned; None where it failed.
        """
        step = self._step
        if kind == _STEP and returned is not None and not returned[4] and step.below < seconds <= step.above:
            # Most commands are steps without more ado: all that is done here is on the way of each.
            step.number += 1
            step.seconds += seconds
            step.received += received
            step.sent += sent
            if not step.changed:
                step.changed = True
                self._place.changed.append(step)
            self._reward += returned[1]
            if (returned[2] or returned[3]) and self._open:
                self._end(self._place, terminated=bool(returned[2]), due=False)
        else:
            self._add(self._place, kind, received, sent, seconds, returned)

    def _add(self, place: _Place, kind: int, received: int, sent: int, seconds: float, returned: Any) -> None:
        """Counts any command somewhere."""
        place.count(kind, received, sent, seconds)
        if kind == _RESET and returned is not None:
            self._open = self._known = True
            self._due = False
            self._reward = 0.0
        elif kind in _PAYING and returned is not None:
            _, reward, terminated, truncated, info = returned
            self._reward += reward
            if info and info.get("reward_invalid"):
                self._known = False
            if self._open and (terminated or truncated):
                self._end(place, terminated=bool(terminated), due=bool(info and info.get("evaluation_due")))
            elif self._due and kind == _EVALUATE:
                self._due = False
                self._pay(place)

    def _end(self, place: _Place, *, terminated: bool, due: bool) -> None:
        """Counts the end of the episode, and its reward where none is due still."""
        self._open = False
        self._due = due
        ends = place.row.ends
        if terminated:
            ends.terminated += 1
        else:
            ends.truncated += 1
        place.touch(ends)
        if not due:
            self._pay(place)

    def _pay(self, place: _Place) -> None:
        """Counts the reward of an episode that has ended."""
        if self._known:
            ends = place.row.ends
            ends.pay(float(self._reward))
            place.touch(ends)

    def failed(self, code: int) -> None:
        """Counts a failure, of a command or of something else, before anybody is told. From any thread."""
        with self._place.row.lock:
            self._place.row.failed(code)

    def took(self, stage: str, seconds: float) -> None:
        """Counts how long something else took. On the event loop only."""
        self._place.row.took(stage, seconds)


class ThreadTally(Tally):
    """The same for a session whose commands are run on a thread: what is added is counted where the command ends.

    For the most part that is the event loop. What ends on threads is counted in a row of its own.
    """

    __slots__ = ("_ran", "_threads")

    def __init__(self, meter: Meter, environment_id: str) -> None:
        super().__init__(meter, environment_id)
        self._threads = _Place(meter.row(environment_id, threads=True), [])
        self._ran: tuple[int, int, int, float, Any] | None = None

    def twin(self) -> Self:
        twin = super().twin()
        twin._ran = None
        return twin

    def add(self, kind: int, received: int, sent: int, seconds: float, returned: Any) -> None:
        self._ran = kind, received, sent, seconds, returned

    def settle(self, *, on_loop: bool) -> None:
        """Counts what was added.

        Args:
            on_loop: Whether this is the event loop.
        """
        ran, self._ran = self._ran, None
        if ran is None:
            return
        if on_loop:
            self._settle(self._place, *ran)
            return
        threads = self._threads
        with threads.row.lock:
            self._settle(threads, *ran)
            for each in threads.changed:
                each.write()
            threads.changed.clear()

    def _settle(self, place: _Place, kind: int, received: int, sent: int, seconds: float, returned: Any) -> None:
        if place is self._place:
            super().add(kind, received, sent, seconds, returned)
        else:
            self._add(place, kind, received, sent, seconds, returned)


class CopiesTally(ThreadTally):
    """Counts for a vector session, each of its copies.

    Attributes:
        episodes: Those of the copies; None before there are any.
    """

    __slots__ = ("episodes",)

    def __init__(self, meter: Meter, environment_id: str) -> None:
        super().__init__(meter, environment_id)
        self.episodes: Episodes | None = None

    def _settle(self, place: _Place, kind: int, received: int, sent: int, seconds: float, returned: Any) -> None:
        """Counts a command, and what the copies have done, also where it failed."""
        place.count(kind, received, sent, seconds)
        row, episodes = place.row, self.episodes
        if episodes is not None:
            # The command itself is counted by its stage.
            row.add("steps", episodes.steps - (_STAGES.get(kind) == "step"))
            row.add("resets", episodes.resets - (kind == _RESET))
            for terminated, reward in episodes.ended:
                row.ends.terminated += terminated
                row.ends.truncated += not terminated
                if reward is not None:
                    row.ends.pay(reward)
            if episodes.ended:
                place.touch(row.ends)
            episodes.clear()
