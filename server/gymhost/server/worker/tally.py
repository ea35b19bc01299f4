"""What one session counts: commands as they are answered, and the episodes that they make up."""

import copy
from typing import Any, Self

from gymhost.server.meter import Ends, Meter, Stage
from gymhost.server.worker.episodes import Episodes
from gymhost.v1 import environments_pb2 as pb

__all__ = ["CopiesTally", "Tally"]

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


class Tally:
    """Counts for one session of one environment, into the row of that.

    Args:
        meter: What has the rows.
        environment_id: The environment.
        thread: A number of the thread on which its commands end; None for the event loop.
    """

    __slots__ = (
        "_changed", "_due", "_known", "_lock", "_open", "_other", "_reward", "_row", "_stages", "_step",
    )  # fmt: skip

    def __init__(self, meter: Meter, environment_id: str, *, thread: int | None) -> None:
        self._row = row = meter.row(environment_id, thread)
        # None where all is done on one thread, which writes it once for all that are answered together.
        self._lock = None if thread is None else row.lock
        self._changed = meter.changed
        self._stages = {kind: row.stages[stage] for kind, stage in _STAGES.items()}
        self._step = row.stages["step"]
        self._other = row.stages["other"]
        # The episode: whether it goes on, its reward so far, whether that can be told, and whether some is still due.
        self._open = self._known = True
        self._reward: Any = 0.0
        self._due = False

    def twin(self) -> Self:
        """That of a session that goes on from the present state of this one."""
        return copy.copy(self)

    def add(self, kind: int, received: int, sent: int, seconds: float, returned: Any) -> None:
        """Counts a command that was run, before it is answered.

        Args:
            kind: Its kind.
            received: The bytes of its payload.
            sent: Those of the reply's.
            seconds: How long it took.
            returned: What the environment returned; None where it failed.
        """
        if kind == _STEP and returned is not None and not returned[4]:
            # Most commands are steps without more ado: all that is done here is on the way of each.
            step, lock = self._step, self._lock
            if lock is not None:
                lock.acquire()
            if not step.below < seconds <= step.above:
                step.turn_to(seconds)
            step.number += 1
            step.seconds += seconds
            step.received += received
            step.sent += sent
            if lock is not None:
                step.write()
                lock.release()
            elif not step.changed:
                step.changed = True
                self._changed.append(step)
            self._reward += returned[1]
            if (returned[2] or returned[3]) and self._open:
                self._end(terminated=bool(returned[2]), due=False)
            return
        self._count(self._stages.get(kind, self._other), received, sent, seconds)
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
                self._end(terminated=bool(terminated), due=bool(info and info.get("evaluation_due")))
            elif self._due and kind == _EVALUATE:
                self._due = False
                self._pay()

    def _count(self, stage: Stage, received: int, sent: int, seconds: float) -> None:
        """Counts a command in its stage."""
        if self._lock is None:
            stage.add(seconds, received, sent)
            self._write(stage)
        else:
            with self._lock:
                stage.add(seconds, received, sent)
                stage.write()

    def _end(self, *, terminated: bool, due: bool) -> None:
        """Counts the end of the episode, and its reward where none is due still."""
        self._open = False
        self._due = due
        with self._row.lock:
            ends = self._row.ends
            if terminated:
                ends.terminated += 1
            else:
                ends.truncated += 1
            if self._known and not due:
                ends.pay(float(self._reward))
            self._write(ends)

    def _pay(self) -> None:
        """Counts the reward of an episode whose end is counted already."""
        if self._known:
            with self._row.lock:
                self._row.ends.pay(float(self._reward))
                self._write(self._row.ends)

    def _write(self, changed: Stage | Ends) -> None:
        """Has something written before anybody is answered."""
        if self._lock is not None:
            changed.write()
        elif not changed.changed:
            changed.changed = True
            self._changed.append(changed)

    def failed(self, code: int) -> None:
        """Counts a failure, of a command or of something else, before anybody is told. From any thread."""
        with self._row.lock:
            self._row.failed(code)

    def took(self, stage: str, seconds: float) -> None:
        """Counts how long something else took. From any thread."""
        with self._row.lock:
            self._row.took(stage, seconds)


class CopiesTally(Tally):
    """Counts for a vector session, each of its copies.

    Attributes:
        episodes: Those of the copies; None before there are any.
    """

    __slots__ = ("episodes",)

    def __init__(self, meter: Meter, environment_id: str, *, thread: int | None) -> None:
        super().__init__(meter, environment_id, thread=thread)
        self.episodes: Episodes | None = None

    def add(self, kind: int, received: int, sent: int, seconds: float, returned: Any) -> None:
        """Counts a command, and what the copies have done, also where it failed."""
        self._count(self._stages.get(kind, self._other), received, sent, seconds)
        row, episodes = self._row, self.episodes
        if episodes is not None:
            with row.lock:
                # The command itself is counted by its stage.
                row.add("steps", episodes.steps - (_STAGES.get(kind) == "step"))
                row.add("resets", episodes.resets - (kind == _RESET))
                for terminated, reward in episodes.ended:
                    row.ends.terminated += terminated
                    row.ends.truncated += not terminated
                    if reward is not None:
                        row.ends.pay(reward)
                row.ends.write()
            episodes.clear()
