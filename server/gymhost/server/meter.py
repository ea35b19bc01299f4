"""What a worker counts, in memory that outlives it: so its front knows all of it, however the worker ended.

The memory has a row for each environment, in which its id is written, and one for each backend of sandboxes. A figure
takes 8 bytes. Whoever counts writes them one by one, and readers take them as they are: nobody waits for a reader.
"""

import bisect
import dataclasses
import mmap
import os
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

__all__ = [
    "BOUNDS",
    "FIGURES",
    "OTHER",
    "SANDBOX_FIGURES",
    "STAGES",
    "Figures",
    "Layout",
    "Meter",
    "Meters",
    "Row",
    "Spell",
    "Stage",
]

# The stages whose durations are counted.
STAGES = ("queue", "make", "reset", "step", "evaluate", "close")
# The upper bounds of the buckets of durations, in seconds; the last bucket has what took longer.
BOUNDS = (
    50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0,
    60.0, 120.0, 300.0,
)  # fmt: skip
_BUCKETS = len(BOUNDS) + 1
# Codes of replies that are told apart; what lies beyond is taken for the last.
CODES = 32
# The row of environments that there is no room for.
OTHER = "other"


class Layout:
    """Where the figures of a row are. Each stage has its seconds, the bytes received and sent, and its buckets.

    Args:
        counts: The names of what is counted.
        stages: The names of what has durations.
        codes: How many kinds of failures there are.
        sums: The names of what is summed.

    Attributes:
        floats: Where the figures are that are no whole numbers.
    """

    def __init__(self, counts: Sequence[str], stages: Sequence[str], codes: int = 0, sums: Sequence[str] = ()) -> None:
        self.counts = {name: at for at, name in enumerate(counts)}
        self.codes = range(len(counts), len(counts) + codes)
        self.sums = {name: self.codes.stop + at for at, name in enumerate(sums)}
        first = self.codes.stop + len(sums)
        self.stages = {name: first + at * _STAGE for at, name in enumerate(stages)}
        self.floats = (*self.sums.values(), *self.stages.values())
        self.size = first + len(stages) * _STAGE


# What a stage has: seconds, received, sent, and the buckets.
_RECEIVED, _SENT, _FIRST = 1, 2, 3
_STAGE = _FIRST + _BUCKETS
_pack = struct.Struct("=dqq").pack_into

FIGURES = Layout(
    # `steps` and `resets` are those beside the commands that are counted by their stages: it may be less than none.
    ("steps", "resets", "terminated", "truncated", "rewarded", "created", "closed", "expired", "lost"),
    (*STAGES, "other"),
    CODES,
    ("rewards", "rewards_squared"),
)
SANDBOX_FIGURES = Layout(("live", "spare", "making", "made", "failed"), ("making",))

# What is counted by a stage, for the most part.
_COMMANDS = {"steps": "step", "resets": "reset"}

# A row begins with the length of its name and the name.
_NAME_WORDS = 32
_NAME_BYTES = 8 * (_NAME_WORDS - 1)
# How many rows there are: of environments, and of backends.
ROWS = 512
BACKENDS = 4
_ROW = _NAME_WORDS + FIGURES.size
_BACKEND_ROW = _NAME_WORDS + SANDBOX_FIGURES.size
_BACKENDS_AT = ROWS * _ROW
SIZE = 8 * (_BACKENDS_AT + BACKENDS * _BACKEND_ROW)


class Stage:
    """A stage of one row, for whoever counts.

    What is counted is not in the memory before it is written: where many are answered together that is done once.

    Args:
        row: The row's memory.
        at: Where its figures are.

    Attributes:
        seconds: How long all took.
        received: The bytes of the payloads of all.
        sent: Those of the replies' payloads.
        number: How many there are in the last bucket, which is likely to be the next one too.
        below: What took no longer is not in that bucket.
        above: What took longer is not either.
        changed: Whether something is not written yet.
    """

    __slots__ = (
        "_at", "_bucket", "_counts", "_first", "_memory", "above", "below", "changed", "number", "received", "seconds",
        "sent",
    )  # fmt: skip

    def __init__(self, row: memoryview, at: int) -> None:
        self._memory = row
        self._at = 8 * at
        self._counts = row.cast("q")
        self._first = self._bucket = at + _FIRST
        self.seconds = 0.0
        self.received = self.sent = self.number = 0
        self.below, self.above = -1.0, BOUNDS[0]
        self.changed = False

    def add(self, seconds: float, received: int = 0, sent: int = 0) -> None:
        """Counts one."""
        if not self.below < seconds <= self.above:
            self.turn_to(seconds)
        self.number += 1
        self.seconds += seconds
        self.received += received
        self.sent += sent

    def turn_to(self, seconds: float) -> None:
        """Turns to the bucket of so many seconds; what the last one has is written."""
        bucket = bisect.bisect_left(BOUNDS, seconds)
        self._counts[self._bucket] = self.number
        self._bucket = self._first + bucket
        self.number = self._counts[self._bucket]
        self.below = BOUNDS[bucket - 1] if bucket else -1.0
        self.above = BOUNDS[bucket] if bucket < len(BOUNDS) else float("inf")

    def write(self) -> None:
        """Writes it."""
        self.changed = False
        _pack(self._memory, self._at, self.seconds, self.received, self.sent)
        self._counts[self._bucket] = self.number


class Ends:
    """The ends of episodes of one row, for whoever counts; written as a `Stage` is.

    Args:
        row: The row's memory.

    Attributes:
        terminated: Episodes that have terminated.
        truncated: Those that were truncated, and have not terminated.
        rewarded: Those of both whose reward is known.
        rewards: The sum of these rewards.
        squared: The sum of their squares.
        changed: Whether something is not written yet.
    """

    __slots__ = ("_counts", "_floats", "changed", "rewarded", "rewards", "squared", "terminated", "truncated")

    def __init__(self, row: memoryview) -> None:
        self._counts = row.cast("q")
        self._floats = row.cast("d")
        self.terminated = self.truncated = self.rewarded = 0
        self.rewards = self.squared = 0.0
        self.changed = False

    def pay(self, reward: float) -> None:
        """Counts the reward of one that has ended."""
        self.rewarded += 1
        self.rewards += reward
        self.squared += reward * reward

    def write(self) -> None:
        """Writes it."""
        self.changed = False
        counts, at = self._counts, FIGURES.counts
        counts[at["terminated"]], counts[at["truncated"]] = self.terminated, self.truncated
        counts[at["rewarded"]] = self.rewarded
        self._floats[FIGURES.sums["rewards"]], self._floats[FIGURES.sums["rewards_squared"]] = (
            self.rewards,
            self.squared,
        )


class Row:
    """The figures of one environment or backend, for whoever counts.

    Args:
        memory: The row's memory.
        layout: Where its figures are.

    Attributes:
        lock: Is held by whoever counts where several threads do.
        stages: The stages, by name.
        ends: The ends of episodes.
    """

    __slots__ = ("_counts", "_floats", "_layout", "ends", "lock", "stages")

    def __init__(self, memory: memoryview, layout: Layout) -> None:
        self.lock = threading.Lock()
        self._layout = layout
        self._counts = memory.cast("q")
        self._floats = memory.cast("d")
        self.stages = {name: Stage(memory, at) for name, at in layout.stages.items()}
        self.ends = Ends(memory)

    def add(self, name: str, number: int = 1) -> None:
        """Counts something."""
        self._counts[self._layout.counts[name]] += number

    def took(self, stage: str, seconds: float) -> None:
        """Counts how long something took."""
        self.stages[stage].add(seconds)
        self.stages[stage].write()

    def failed(self, code: int) -> None:
        """Counts a failure."""
        self._counts[self._layout.codes[min(code, CODES - 1)]] += 1

    def put(self, figures: Sequence[float]) -> None:
        """Sets all figures."""
        for at, figure in enumerate(figures):
            if at in self._layout.floats:
                self._floats[at] = figure
            else:
                self._counts[at] = int(figure)


@dataclasses.dataclass(frozen=True, slots=True)
class Spell:
    """Durations.

    Attributes:
        buckets: How many there are in each bucket.
        sum: Seconds of all together.
    """

    buckets: Sequence[float]
    sum: float

    @property
    def count(self) -> int:
        """How many there are."""
        return int(sum(self.buckets))

    def quantile(self, part: float) -> float:
        """What so large a part of them is not above, in seconds, as its bucket tells; NaN where there are none."""
        left = part * self.count
        below = 0.0
        for bound, number in zip(BOUNDS, self.buckets, strict=False):
            if number and left <= number:
                return below + (bound - below) * left / number
            left -= number
            below = bound
        return below if self.count else float("nan")


class Figures:
    """Figures of an environment or a backend, as they were when they were read.

    Args:
        layout: Where each is.
        figures: The figures; None for none yet.
    """

    def __init__(self, layout: Layout = FIGURES, figures: Sequence[float] | None = None) -> None:
        self.layout = layout
        self.all: list[float] = [0] * layout.size if figures is None else list(figures)

    def add(self, other: Self) -> None:
        """Adds others to these."""
        self.all = [own + more for own, more in zip(self.all, other.all, strict=True)]

    def since(self, before: Self) -> Self:
        """What has come since these were `before`."""
        return type(self)(self.layout, [now - then for now, then in zip(self.all, before.all, strict=True)])

    def count(self, name: str) -> int:
        """How many there are of something."""
        number = self.all[self.layout.counts[name]]
        return int(number + self.spell(_COMMANDS[name]).count if name in _COMMANDS else number)

    def sum(self, name: str) -> float:
        """The sum of something."""
        return self.all[self.layout.sums[name]]

    def spell(self, name: str) -> Spell:
        """How long something took."""
        at = self.layout.stages[name]
        return Spell(self.all[at + _FIRST : at + _STAGE], self.all[at])

    @property
    def received(self) -> int:
        """Bytes of payloads that were received."""
        return int(sum(self.all[at + _RECEIVED] for at in self.layout.stages.values()))

    @property
    def sent(self) -> int:
        """Bytes of payloads that were sent."""
        return int(sum(self.all[at + _SENT] for at in self.layout.stages.values()))

    def failures(self) -> dict[int, int]:
        """How many commands failed, by code, where some did."""
        codes = self.all[self.layout.codes.start : self.layout.codes.stop]
        return {code: int(number) for code, number in enumerate(codes) if number}


class Meter:
    """A row for each environment, and for each backend of sandboxes.

    Args:
        memory: Where the rows are.
        descriptor: The memory of a new one, to be handed to another process and closed.
    """

    def __init__(self, memory: mmap.mmap | bytearray, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        self._memory = memoryview(memory)
        # What is to be written before anybody is answered, by whoever counts on one thread alone.
        self.changed: list[Stage | Ends] = []
        self._rows: dict[tuple[str, bool], Row] = {}
        self._backends: dict[str, Row] = {}
        self._lock = threading.Lock()

    @classmethod
    def own(cls) -> Self:
        """One of this process alone."""
        return cls(bytearray(SIZE))

    @classmethod
    def shared(cls) -> Self:
        """A new one for another process to count in."""
        descriptor = os.memfd_create("gymhost-meter", os.MFD_CLOEXEC)
        os.truncate(descriptor, SIZE)
        return cls(mmap.mmap(descriptor, SIZE), descriptor)

    @classmethod
    def of(cls, descriptor: int) -> Self:
        """That of another process, to count in."""
        return cls(mmap.mmap(descriptor, SIZE))

    # -- counting ------------------------------------------------------------------------------------------------------

    def row(self, environment_id: str, *, threads: bool = False) -> Row:
        """A row of an environment. From any thread.

        Args:
            environment_id: Its id.
            threads: Whether several threads count in it, which hold its lock; else it is for one alone.
        """
        with self._lock:
            row = self._rows.get((environment_id, threads))
            if row is None:
                name = environment_id.encode()
                if len(name) > _NAME_BYTES or len(self._rows) >= ROWS - 2:
                    environment_id, name = OTHER, OTHER.encode()
                    row = self._rows.get((OTHER, threads))
                if row is None:
                    # There is room for those of all others, wherever they come.
                    memory = self._begin(len(self._rows) * _ROW, name, FIGURES)
                    row = self._rows[environment_id, threads] = Row(memory, FIGURES)
            return row

    def write(self) -> None:
        """Writes what is not written yet, of those rows that one thread alone counts in."""
        for each in self.changed:
            each.write()
        self.changed.clear()

    def backend(self, name: str) -> Row | None:
        """The row of a backend; None where there is no room."""
        row = self._backends.get(name)
        known = len(self._backends)
        encoded = name.encode()
        if row is None and known < BACKENDS and len(encoded) <= _NAME_BYTES:
            memory = self._begin(_BACKENDS_AT + known * _BACKEND_ROW, encoded, SANDBOX_FIGURES)
            row = self._backends[name] = Row(memory, SANDBOX_FIGURES)
        return row

    def _begin(self, at: int, name: bytes, layout: Layout) -> memoryview:
        """Begins a row; returns the memory of its figures."""
        memory = self._memory[8 * at : 8 * (at + _NAME_WORDS + layout.size)]
        memory[8 : 8 + len(name)] = name
        # The length comes last: with it the row is there.
        memory[:8].cast("q")[0] = len(name)
        return memory[8 * _NAME_WORDS :]

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self) -> dict[str, Figures]:
        """The figures of all environments that have been counted."""
        return self._read(range(0, _BACKENDS_AT, _ROW), FIGURES)

    def read_backends(self) -> dict[str, Figures]:
        """The figures of all backends that have been used."""
        return self._read(range(_BACKENDS_AT, SIZE // 8, _BACKEND_ROW), SANDBOX_FIGURES)

    def _read(self, places: Iterable[int], layout: Layout) -> dict[str, Figures]:
        """What is in the rows at these places, up to the first that is empty: they are begun one after the other."""
        found: dict[str, Figures] = {}
        for at in places:
            memory = self._memory[8 * at : 8 * (at + _NAME_WORDS + layout.size)]
            length = memory[:8].cast("q")[0]
            if not 0 < length <= _NAME_BYTES:
                break
            own = memory[8 * _NAME_WORDS :]
            figures: list[float] = [*own.cast("q")]
            floats = own.cast("d")
            for place in layout.floats:
                figures[place] = floats[place]
            name = bytes(memory[8 : 8 + length]).decode(errors="replace")
            _add(found, {name: Figures(layout, figures)})
        return found


class Meters:
    """All that is counted on a server: by the front itself, by its workers, and by those that have ended.

    Attributes:
        front: What the front counts.
    """

    def __init__(self) -> None:
        self.front = Meter.own()
        self._ended: dict[str, Figures] = {}
        self._ended_backends: dict[str, Figures] = {}

    def retire(self, meter: Meter) -> None:
        """Keeps what was counted by a worker that has ended."""
        _add(self._ended, meter.read())
        for name, figures in meter.read_backends().items():
            # What there was has ended with it.
            for state in ("live", "spare", "making"):
                figures.all[SANDBOX_FIGURES.counts[state]] = 0
            _add(self._ended_backends, {name: figures})

    def read(self, workers: Iterable[Meter]) -> dict[str, Figures]:
        """The figures of each environment, of all together.

        Args:
            workers: Those of the workers that there are.
        """
        total: dict[str, Figures] = {}
        for figures in (self._ended, self.front.read(), *(meter.read() for meter in workers)):
            _add(total, figures)
        return dict(sorted(total.items()))

    def read_backends(self, workers: Iterable[Meter]) -> dict[str, Figures]:
        """The figures of each backend of sandboxes, of all together."""
        total: dict[str, Figures] = {}
        for figures in (self._ended_backends, *(meter.read_backends() for meter in workers)):
            _add(total, figures)
        return dict(sorted(total.items()))


def _add(total: dict[str, Figures], more: Mapping[str, Figures]) -> None:
    for name, figures in more.items():
        if (known := total.get(name)) is None:
            known = total[name] = Figures(figures.layout)
        known.add(figures)
