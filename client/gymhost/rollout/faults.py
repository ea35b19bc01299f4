"""Whose fault an exception is, and whether trying again can help."""

import asyncio
from dataclasses import dataclass
from types import TracebackType

from gymhost.rollout.generators.base import GeneratorError, PromptTooLong
from gymhost.rollout.trajectory import Fault, Outcome
from gymhost.wire import errors

__all__ = ["Abandoned", "AgentFault", "LimitReached", "RolloutOver", "StageTimeout", "bound", "outcome_of", "retryable"]

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


class LimitReached(Exception):
    """A limit of the rollout leaves no room for another turn.

    Attributes:
        limit: Its name, as in `Limits`.
        detail: What a generator has to say of it.
    """

    def __init__(self, limit: str, detail: str = "") -> None:
        super().__init__(limit, detail)
        self.limit = limit
        self.detail = detail

    def __str__(self) -> str:
        return f"Limits.{self.limit} leaves no room for another turn" + (f" ({self.detail})" if self.detail else "")


class RolloutOver(RuntimeError):
    """An agent asks for something in a rollout that has ended."""


class AgentFault(Exception):
    """The code of an agent raised, which is the cause of this."""


@dataclass
class StageTimeout(Exception):
    """A bound of `Limits` on a single act was passed."""

    limit: str
    seconds: float
    fault: Fault
    last: str = ""
    """What whoever was stopped has to say of it."""

    def __str__(self) -> str:
        return f"not done after {self.seconds:g} s: see Limits.{self.limit}" + (f" ({self.last})" if self.last else "")


class bound:  # noqa: N801 - it reads as the function that it would be, and each turn of the model uses it
    """Cancels its body `late` after `seconds` and raises a `StageTimeout` that names the limit.

    It does so too where the body takes the cancellation for something else, or goes on in spite of it.
    """

    def __init__(self, limit: str, seconds: float, fault: Fault, *, late: float = 0.0) -> None:
        self._limit = limit
        self._seconds = seconds
        self._fault: Fault = fault
        self._late = late

    async def __aenter__(self) -> None:
        self._scope = asyncio.timeout(self._seconds + self._late)  # from now on, not from when the bound was made
        await self._scope.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        last = "; ".join(getattr(error, "__notes__", ()))
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError as passed:
            error = passed
        if self._scope.expired() and (error is None or isinstance(error, Exception)):
            raise StageTimeout(self._limit, self._seconds, self._fault, last) from error


def outcome_of(error: Exception, turn: int) -> Outcome:
    """The outcome of a rollout that was ended by an exception in `turn`."""
    if isinstance(error, errors.Cancelled):
        return Outcome(kind="cancelled", message=str(error), turn=turn)
    limit = getattr(error, "limit", None) or None
    cause = type(error.__cause__ if isinstance(error, AgentFault) else error).__name__
    return Outcome(kind="failed", limit=limit, fault=_fault(error), cause=cause, message=str(error), turn=turn)


def retryable(error: Exception) -> bool:
    """Whether the rollout may go well if it is started again."""
    if isinstance(error, (errors.Cancelled, PromptTooLong, *_SETUP)):
        return False
    return _fault(error) not in ("environment", "agent")


def _fault(error: Exception) -> Fault:
    match error:
        case StageTimeout():
            return error.fault
        case GeneratorError():
            return "generator"
        case AgentFault():
            return "agent"
        case errors.Error():
            return "environment" if isinstance(error, _ENVIRONMENT) else "infrastructure"
        case OSError() | Abandoned():
            return "infrastructure"
        case _:  # an environment that runs in this process raised, or sent what is no conversation
            return "environment"
