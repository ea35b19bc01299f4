"""What is asked of the engine: rollouts, the limits that they run under, and how many at once."""

import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from gymhost.rollout.generators.base import Sampling

__all__ = ["Concurrency", "Limits", "RolloutRequest", "grouped", "named"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a rollout. The outcome names the field that did.

    Budgets truncate: what was sampled so far is kept, with what the environment paid so far.

    Args:
        turns: Turns of the model.
        turn_tokens: Tokens that the model may sample in one turn.
        sampled_tokens: Tokens that the model may sample in all turns together, in whatever rows they are.
        completion_tokens: Tokens after the first prompt, those of the environment included.
        context_tokens: Tokens in all, the prompt included: the context of the model.
        episode_seconds: Time for all turns together, but for that which the engine is paused. If it ends in the middle
            of a step, nobody knows what that would have paid, and the reward is None.

    Bounds on single acts make a rollout fail:

    Args:
        init_seconds: Opening the session and its reset.
        generation_seconds: One generation.
        step_seconds: One step of the environment; without one the environment's own limit holds.
        eval_seconds: Scoring the episode, and closing the session. That a close overruns is logged and does no harm to
            the rollout.
        retries: How often a rollout is started again after a fault of the infrastructure or of a generator.
    """

    turns: int | None = None
    turn_tokens: int = 512
    sampled_tokens: int | None = None
    completion_tokens: int | None = None
    context_tokens: int | None = None
    episode_seconds: float | None = None
    init_seconds: float = 300.0
    generation_seconds: float = 600.0
    step_seconds: float | None = None
    eval_seconds: float = 300.0
    retries: int = 2

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = "0 or more" if name == "retries" else "above 0"
            if value is not None and (value < 0 or (value == 0 and name != "retries")):
                raise ValueError(f"the limit {name} must be {least}, not {value}")


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to be made.

    Args:
        env_id: The environment, such as "gymhost/GuessNumber-v0".
        task: The task's index in its split; without one the environment draws it.
        seed: The seed of the reset.
        split: The split of the environment's tasks.
        kwargs: Keyword arguments of the environment.
        options: More options of the reset.
        sampling: How to sample, instead of the engine's setting.
        limits: What ends the rollout, instead of the engine's setting.
        agent: The loop that is played, by its name among the engine's `agents`; without one the built-in one.
        agent_options: What the agent is told.
        group: Names the rollouts that share a task and a seed.
        index: The place within the group.
        labels: Anything that JSON can hold, for the caller to find again in the trajectory.
        id: The trajectory's id, unique among all rollouts; without one it gets a random one.

    Raises:
        TypeError: A field is of the wrong type.
    """

    env_id: str
    task: int | None = None
    seed: int | None = None
    split: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sampling: Sampling | None = None
    limits: Limits | None = None
    agent: str | None = None
    agent_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    group: str | None = None
    index: int = 0
    labels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str | None = None

    def __post_init__(self) -> None:
        for name in ("task", "seed", "index"):
            if (value := getattr(self, name)) is not None:
                try:
                    object.__setattr__(self, name, operator.index(value))  # which also makes a plain one of NumPy's
                except TypeError:
                    raise TypeError(f"the {name} of a request must be a whole number, not {value!r}") from None
        for name in ("env_id", "split", "agent", "group", "id"):
            if not isinstance(value := getattr(self, name), str) and (value is not None or name == "env_id"):
                raise TypeError(f"the {name} of a request must be text, not {value!r}")
        for name in ("kwargs", "options", "agent_options", "labels"):
            if not isinstance(value := getattr(self, name), Mapping) or not all(
                isinstance(key, str) for key in cast(Mapping[object, Any], value)
            ):
                raise TypeError(f"the {name} of a request must be named by texts, not {value!r}")


def grouped(requests: Iterable[RolloutRequest], size: int) -> list[RolloutRequest]:
    """Repeats each request `size` times in a row, as a group that shares task and seed.

    A request without a group gets its place as the group's name, and one without a seed that place as its seed, so that
    all of a group begin alike.
    """
    result: list[RolloutRequest] = []
    for place, request in enumerate(requests):
        of_group = named(request, place)
        result.extend(replace(of_group, index=index) for index in range(size))
    return result


def named(request: RolloutRequest, place: int) -> RolloutRequest:
    """A request for a group: without a name it gets its place as that, and without a seed as its seed."""
    return replace(
        request,
        id=None,  # which its rollouts can't share
        group=str(place) if request.group is None else request.group,
        seed=place if request.seed is None else request.seed,
    )


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many rollouts may be in each stage at once.

    Args:
        init: Sessions being opened and reset.
        run: Rollouts that take turns.
        eval: Sessions being evaluated, and given back or closed.
        ahead: Rollouts that may be begun before there is a place in `run` for them, so that it is never empty.
    """

    init: int = 32
    run: int = 256
    eval: int = 64
    ahead: int = 32

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = 0 if name == "ahead" else 1
            if value < least:
                raise ValueError(f"Concurrency.{name} must be {least} or more, not {value}")

    @property
    def in_flight(self) -> int:
        """How many rollouts may have begun and not ended, in all stages together."""
        return self.run + self.ahead + self.eval
