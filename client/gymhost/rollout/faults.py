"""Whose fault an exception is, and whether trying again can help."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gymhost.rollout.generators.base import GeneratorError, PromptTooLong
from gymhost.rollout.trajectory import Fault, Outcome
from gymhost.wire import errors

__all__ = ["Abandoned", "StageTimeout", "bound", "outcome_of", "retryable"]

# The environment itself did what it should not, or was asked for what it can't do: a second try ends like the first.
_ENVIRONMENT = (
    errors.EnvironmentFault,
    errors.CommandTimeout,
    errors.InvalidArgument,
    errors.TooLarge,
    errors.ResetNeeded,
    errors.Unimplemented,
)
# The set-up is wrong, so a second try is of no use either.
_SETUP = (errors.UnknownEnvironment, errors.Unauthenticated, errors.PermissionDenied)


class Abandoned(Exception):
    """What a rollout waited for was cancelled by somebody else, while nobody cancelled the rollout."""


@dataclass
class StageTimeout(Exception):
    """A bound of `Limits` on a single act was passed."""

    limit: str
    seconds: float
    fault: Fault

    def __str__(self) -> str:
        return f"not done after {self.seconds:g} s: see Limits.{self.limit}"


@asynccontextmanager
async def bound(limit: str, seconds: float, fault: Fault) -> AsyncGenerator[None]:
    """Cancels its body after `seconds` and raises a `StageTimeout` that names the limit."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise StageTimeout(limit, seconds, fault) from error


def outcome_of(error: Exception, turn: int) -> Outcome:
    """The outcome of a rollout that was ended by an exception in `turn`."""
    if isinstance(error, errors.Cancelled):
        return Outcome(kind="cancelled", message=str(error), turn=turn)
    limit = getattr(error, "limit", None) or None
    return Outcome(
        kind="failed", limit=limit, fault=_fault(error), cause=type(error).__name__, message=str(error), turn=turn
    )


def retryable(error: Exception) -> bool:
    """Whether the rollout may go well if it is started again."""
    if isinstance(error, (errors.Cancelled, PromptTooLong, *_SETUP)):
        return False
    return _fault(error) != "environment"


def _fault(error: Exception) -> Fault:
    match error:
        case StageTimeout():
            return error.fault
        case GeneratorError():
            return "generator"
        case errors.Error():
            return "environment" if isinstance(error, _ENVIRONMENT) else "infrastructure"
        case OSError() | Abandoned():
            return "infrastructure"
        case _:  # an environment that runs in this process raised, or sent what is no conversation
            return "environment"
