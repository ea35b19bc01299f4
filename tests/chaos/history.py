"""What clients saw, what environments ran, and a model that says whether the two can be true.

The model is one counter an episode. A reply to a step must be what the counter says after exactly as many steps as
were asked for, the random numbers of the episode's seed included; and what was run, by the environments' own account,
must be those steps, each once. An environment that was made again to repeat an episode's commands runs them once
more: so each instance may run a step once, and where nothing is repeated there is one instance.
"""

import collections
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gymnasium.utils.seeding import np_random

from chaos.environments import draw

# What a session that can be repeated must never be told, nor a step that was answered.
LOST = "SessionLost"


@dataclasses.dataclass(frozen=True)
class Event:
    """A command and what came of it.

    Attributes:
        environment: The environment's id.
        episode: Names the episode; each reset begins one.
        kind: `reset` or `step`.
        number: The number of the step in its episode, from 1; 0 for a reset.
        asked: The seed, or the action.
        seen: The observation; None where there was an error.
        error: The name of the error's class, and its message.
        seconds: How long it took.
    """

    environment: str
    episode: str
    kind: str
    number: int
    asked: int
    seen: list[int] | None = None
    error: str = ""
    seconds: float = 0.0

    def line(self) -> str:
        """The event as a line of JSON."""
        return json.dumps(dataclasses.asdict(self))


def read_events(path: Path) -> Iterator[Event]:
    """Reads the lines that a player wrote."""
    for line in path.read_text().splitlines():
        yield Event(**json.loads(line))


@dataclasses.dataclass
class Verdict:
    """What came out.

    Attributes:
        episodes: Episodes that were begun.
        steps: Steps that were answered.
        failed: Commands that ended in an error, by environment and class of the error.
        problems: What can't be true, or must not be.
    """

    episodes: int = 0
    steps: int = 0
    failed: collections.Counter[tuple[str, str]] = dataclasses.field(
        default_factory=collections.Counter[tuple[str, str]]
    )
    problems: list[str] = dataclasses.field(default_factory=list[str])


def check(events: Iterable[Event], ran: Iterable[str], *, replayable: Iterable[str]) -> Verdict:
    """Compares what was seen with the model, and with what was run.

    Args:
        events: What clients saw, each session's in its order.
        ran: The lines that environments wrote: `episode count action instance`.
        replayable: The ids of the environments that no fault may take an episode from.
    """
    verdict = Verdict()
    instances: dict[str, dict[str, list[int]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in ran:
        episode, count, _, instance = line.split()
        instances[episode][instance].append(int(count))
    unharmed = set(replayable)
    models: dict[str, _Model] = {}
    for event in events:
        name = f"{event.environment} {event.episode[:8]}"
        if event.error:
            kind = event.error.partition(":")[0]
            verdict.failed[event.environment, kind] += 1
            if event.environment in unharmed:
                verdict.problems.append(f"{name} step {event.number}: {event.error}")
            continue
        if event.kind == "reset":
            verdict.episodes += 1
            models[event.episode] = _Model(event)
            continue
        verdict.steps += 1
        model = models[event.episode]
        expected = model.step(event.asked)
        if event.seen != expected:
            verdict.problems.append(f"{name} step {event.number}: saw {event.seen}, can only be {expected}")
    for episode, model in models.items():
        verdict.problems.extend(model.account(instances.pop(episode, {}), replayed=model.environment in unharmed))
    return verdict


class _Model:
    """What an episode must look like."""

    def __init__(self, reset: Event) -> None:
        self.environment = reset.environment
        self._episode = reset.episode
        self._generator, _ = np_random(reset.asked)
        self._count = self._sum = 0

    def step(self, action: int) -> list[int]:
        self._count += 1
        self._sum += draw(self._generator)
        return [self._count, action, self._sum]

    def account(self, instances: dict[str, list[int]], *, replayed: bool) -> Iterator[str]:
        """Says what is wrong with what was run: one step more than was answered may have been."""
        name = f"{self.environment} {self._episode[:8]}"
        if self._count and not instances:
            yield f"{name}: {self._count} steps were answered and none was run"
        for instance, counts in instances.items():
            if counts != list(range(1, len(counts) + 1)):
                yield f"{name}: instance {instance[:8]} ran the steps {counts}"
        longest = max((len(counts) for counts in instances.values()), default=0)
        if not self._count <= longest <= self._count + 1:
            yield f"{name}: {self._count} steps were answered, {longest} were run"
        if len(instances) > 1 and not replayed:
            yield f"{name}: {len(instances)} instances ran it, and it can't be repeated"


def summary(verdict: Verdict) -> dict[str, Any]:
    """The verdict as a report has it."""
    return {
        "episodes": verdict.episodes,
        "steps": verdict.steps,
        "errors": {f"{environment}: {kind}": n for (environment, kind), n in sorted(verdict.failed.items())},
        "problems": verdict.problems,
    }
