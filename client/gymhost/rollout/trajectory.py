"""The record of one rollout: token rows, turns, rewards and how it ended.

These are pydantic models: `trajectory.model_dump_json()` and `Trajectory.model_validate_json` are how they are kept.
JSON has no numbers that are not finite: such a reward becomes null, which is how a reward that is not known is told.
"""

import math
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from gymhost.rollout.plain import plain, text

__all__ = ["SCHEMA", "Fault", "Outcome", "OutcomeKind", "Row", "Timings", "Trajectory", "Turn"]

SCHEMA = 1
"""The version of what these models are written as."""

OutcomeKind = Literal["terminated", "truncated", "failed", "cancelled"]
Fault = Literal["environment", "agent", "infrastructure", "generator"]

ENVIRONMENT_VERSION = -1
"""The policy version of a token that no policy sampled."""


# What environments and models say: JSON in UTF-8 must hold it, whatever it is.
_Text = Annotated[str, PlainSerializer(text, return_type=str, when_used="json")]
_Plain = PlainSerializer(plain, when_used="json")
_Dict = Annotated[dict[str, Any], _Plain]
_Dicts = Annotated[list[dict[str, Any]], _Plain]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Row(_Record):
    """One training row: a prompt and everything that was appended to it.

    `mask` is 1 on sampled tokens and 0 on tokens of the environment, whose log-prob is 0.0 and whose policy version is
    -1. The four lists below `prompt_ids` grow together, through the two methods, and are never of different lengths.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")  # a log-prob must stay what it was, even an infinite one

    prompt_ids: list[int]
    completion_ids: list[int] = Field(default_factory=list[int])
    mask: list[int] = Field(default_factory=list[int])
    logprobs: list[float] = Field(default_factory=list[float])
    policy_versions: list[int] = Field(default_factory=list[int])

    @property
    def ids(self) -> list[int]:
        """All ids of the row, prompt first."""
        return self.prompt_ids + self.completion_ids

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    def append_sampled(self, token_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Appends what a generator sampled.

        Raises:
            ValueError: The three are of different lengths.
        """
        if not len(token_ids) == len(logprobs) == len(versions):
            raise ValueError(
                f"{len(token_ids)} sampled ids came with {len(logprobs)} log-probs and {len(versions)} policy versions"
            )
        self._append(token_ids, 1, logprobs, versions)

    def append_environment(self, token_ids: Sequence[int]) -> None:
        """Appends what the environment and the chat template put in."""
        count = len(token_ids)
        self._append(token_ids, 0, [0.0] * count, [ENVIRONMENT_VERSION] * count)

    def drop(self, count: int) -> None:
        """Takes the last `count` tokens back."""
        keep = len(self.completion_ids) - count
        for column in (self.completion_ids, self.mask, self.logprobs, self.policy_versions):
            del column[keep:]

    def _append(self, ids: Sequence[int], mask: int, logprobs: Sequence[float], versions: Sequence[int]) -> None:
        self.completion_ids.extend(ids)
        self.mask.extend([mask] * len(ids))
        self.logprobs.extend(logprobs)
        self.policy_versions.extend(versions)


class Turn(_Record):
    """One turn: a generation, and the environment's answer to it."""

    row: int
    """The index of the row that holds the sampled tokens."""
    start: int
    """Where in that row's completion they begin."""
    tokens: int = 0
    policy_version: int = 0
    """The version under which the generation began."""
    finish_reason: str = ""
    mixed_versions: bool = False
    """Whether the weights changed while this turn was being sampled."""
    reward: float | None = 0.0
    """What the environment paid for this turn; None if it is invalid."""
    calls: int = 0
    """How many tools the model called."""
    generator: str = ""
    """The name of the generator that sampled it, where there are several."""
    begun: float = 0.0
    """Seconds from the beginning of the rollout to that of the turn."""
    generation_seconds: float = 0.0
    environment_seconds: float = 0.0


class Outcome(_Record):
    """How a rollout ended."""

    kind: OutcomeKind
    limit: _Text | None = None
    """Truncated: the name of the limit that ended it."""
    fault: Fault | None = None
    """Failed: whose fault it was."""
    cause: str | None = None
    """Failed: the name of the exception's type."""
    message: _Text = ""
    turn: int = 0
    """The number of turns that were begun, so the turn that failed if one did; 0 is before the first."""

    @property
    def final(self) -> bool:
        """Whether it counts as played. Otherwise another try may succeed, neither environment nor agent at fault."""
        return self.kind in ("terminated", "truncated") or self.fault in ("environment", "agent")

    def __str__(self) -> str:
        match self.kind:
            case "truncated":
                return f"truncated by {self.limit}"
            case "failed":
                first_line = self.message.partition("\n")[0]
                return f"failed in turn {self.turn} ({self.fault}: {self.cause}: {first_line})"
            case _:
                return self.kind


class Timings(_Record):
    """Seconds that a rollout spent, by stage, and within the turns by who was at work."""

    queue: float = 0.0
    """Waiting for a place in a stage."""
    init: float = 0.0
    run: float = 0.0
    eval: float = 0.0
    generation: float = 0.0
    environment: float = 0.0


class Trajectory(_Record):
    """The record of one rollout.

    `prompt_ids`, `completion_ids`, `mask`, `logprobs` and `policy_versions` are those of the last row; unless the chat
    template rewrote history, or an agent led several conversations, it is the only one. `rows()` are what a trainer
    should take.

    The messages may end with an answer of the environment that is in no row: what came after the last sampled token is
    of no use to a trainer, and is not tokenized.
    """

    env_id: str
    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    """Unique among all rollouts."""
    task: int | None = None
    seed: int | None = None
    split: str | None = None
    group: _Text | None = None
    index: int = 0
    """The place within the group."""
    outcome: Outcome = Field(default_factory=lambda: Outcome(kind="cancelled"))
    reward: float | None = None
    """The sum of what the environment paid; None if it is not known, so never 0.0 for a failure."""
    rewards: dict[_Text, float | None] = Field(default_factory=dict[str, float | None])
    """The reward by rubric, None where a rubric could not be computed."""
    created: float = Field(default_factory=time.time)
    """When the rollout began: seconds since 1970."""
    attempts: int = 1
    """How often the rollout was started, faults of the infrastructure being retried from scratch."""
    timings: Timings = Field(default_factory=Timings)
    messages: _Dicts = Field(default_factory=list[dict[str, Any]])
    """The conversation; the first one, of an agent that leads several."""
    asides: Annotated[list[list[dict[str, Any]]], _Plain] = Field(default_factory=list[list[dict[str, Any]]])
    """The other conversations of an agent that leads several: those of sub-agents, or after history was shortened."""
    tools: _Dicts = Field(default_factory=list[dict[str, Any]])
    turns: list[Turn] = Field(default_factory=list[Turn])
    token_rows: list[Row] = Field(default_factory=list[Row])
    labels: _Dict = Field(default_factory=dict[str, Any])
    """What the request was labelled with."""
    info: _Dict = Field(default_factory=dict[str, Any])
    """The environment's last info."""

    def __repr__(self) -> str:
        # Not the thousands of numbers that it holds: trainers log what they are given.
        return f"<Trajectory of {self.env_id}, task {self.task}: {self.outcome}, reward {self.reward}>"

    @property
    def valid(self) -> bool:
        """Whether there is a reward to learn from: a number, and a finite one."""
        return self.reward is not None and math.isfinite(self.reward)

    @property
    def trainable(self) -> bool:
        """Whether there are token ids to learn from: a chat endpoint gives none."""
        return any(any(row.mask) for row in self.token_rows)

    @property
    def rewritten(self) -> bool:
        """Whether there are several rows: the chat template rewrote history, or an agent led several conversations."""
        return len(self.token_rows) > 1

    @property
    def mixed_versions(self) -> bool:
        """Whether more than one policy version sampled this rollout."""
        versions = {turn.policy_version for turn in self.turns}
        return len(versions) > 1 or any(turn.mixed_versions for turn in self.turns)

    @property
    def oldest_version(self) -> int | None:
        """The lowest policy version that sampled a part of it; None if nothing was sampled."""
        return min(self._versions(), default=None)

    @property
    def newest_version(self) -> int | None:
        """The highest policy version that sampled a part of it; None if nothing was sampled."""
        return max(self._versions(), default=None)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens were sampled in all rows."""
        return sum(turn.tokens for turn in self.turns)

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt of the last row."""
        return self.token_rows[-1].prompt_ids if self.token_rows else []

    @property
    def completion_ids(self) -> list[int]:
        """The completion of the last row."""
        return self.token_rows[-1].completion_ids if self.token_rows else []

    @property
    def mask(self) -> list[int]:
        """The loss mask of the last row."""
        return self.token_rows[-1].mask if self.token_rows else []

    @property
    def logprobs(self) -> list[float]:
        """The log-probs of the last row."""
        return self.token_rows[-1].logprobs if self.token_rows else []

    @property
    def policy_versions(self) -> list[int]:
        """The policy versions of the last row."""
        return self.token_rows[-1].policy_versions if self.token_rows else []

    def rows(self) -> list[Row]:
        """The training rows: those with at least one sampled token."""
        return [row for row in self.token_rows if any(row.mask)]

    def _versions(self) -> set[int]:
        versions = {turn.policy_version for turn in self.turns if turn.tokens}
        return versions.union(*(row.policy_versions for row in self.token_rows)) - {ENVIRONMENT_VERSION}
