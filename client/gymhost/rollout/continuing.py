"""A turn of the model, sampled in as many pieces as it takes: a change of weights may cut it at any token."""

import asyncio
import math
import operator
from array import array
from collections.abc import Awaitable, Callable, Collection, Sequence

from gymhost.rollout.generators.base import Generation, GeneratorError, PromptTooLong

__all__ = ["sample_turn"]

_IDLE_CUTS = 10
_PAUSE = 0.02
_IDS = 2**31  # no vocabulary is as large, and tokenizers can't decode what is much larger
_ROUNDING = 1e-3  # the log of a probability, which half precision may take for a little more than 1

Sample = Callable[[Sequence[int], int], Awaitable[Generation]]
"""Samples from a context, at most so many tokens."""


async def sample_turn(
    sample: Sample,
    prompt_ids: Sequence[int],
    room: int,
    stop_ids: Collection[int],
    cut: Callable[[Generation], object],
) -> Generation:
    """Samples until the turn ends or has no more room, going on from what was sampled wherever it was cut.

    Args:
        sample: Samples one piece.
        prompt_ids: The context.
        room: The most tokens of the turn.
        stop_ids: What ends a turn.
        cut: Told what there is so far before it is gone on with, which may never come to its end.

    Returns:
        The pieces as one generation, which finished by "stop" or "length"; each token has its own version.

    Raises:
        GeneratorError: A piece failed or is not what a generator may return, or the turn was cut time and again without
            a token sampled.
    """
    turn = _checked(await sample(prompt_ids, room), room)
    idle = 0
    while turn.finish_reason == "cut":
        if turn.token_ids and turn.token_ids[-1] in stop_ids:
            turn.finish_reason = "stop"
        elif len(turn.token_ids) >= room:
            turn.finish_reason = "length"
        elif idle == _IDLE_CUTS:
            raise GeneratorError(f"a turn was cut {idle} times in a row without a token being sampled")
        else:
            if turn.token_ids:
                cut(turn)
            await asyncio.sleep(_PAUSE * idle)
            left = room - len(turn.token_ids)
            try:
                piece = _checked(await sample([*prompt_ids, *turn.token_ids], left), left)
            except PromptTooLong:
                # The turn has filled the model's own context.
                turn.finish_reason = "length"
                break
            idle = 0 if piece.token_ids else idle + 1
            _join(turn, piece)
    return turn


def _join(turn: Generation, piece: Generation) -> None:
    versions = [*turn.versions, *piece.versions]
    if not turn.token_ids:
        turn.policy_version = piece.policy_version
    turn.token_ids = [*turn.token_ids, *piece.token_ids]
    turn.logprobs = [*turn.logprobs, *piece.logprobs]
    turn.token_versions = versions
    turn.mixed_versions = turn.mixed_versions or piece.mixed_versions or len(set(versions)) > 1
    turn.finish_reason = piece.finish_reason
    turn.generator = piece.generator or turn.generator


def _checked(piece: Generation, room: int) -> Generation:
    """What a generator returned, as plain numbers in lists of our own: of what it keeps, nothing is written into.

    Raises:
        GeneratorError: It is no generation, or one that nobody could train on.
    """
    try:
        version = operator.index(piece.policy_version)
        ids = array("q", piece.token_ids).tolist()
        logprobs = array("d", piece.logprobs).tolist()
        versions = None if piece.token_versions is None else array("q", piece.token_versions).tolist()
        generation = Generation(
            ids,
            logprobs,
            piece.finish_reason,
            version,
            bool(piece.mixed_versions) or len(set(versions or ())) > 1,
            versions,
            str(piece.generator),
        )
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise GeneratorError(f"what a generator returned is no generation: {error}") from error
    if problem := _problem(generation, room):
        raise GeneratorError(problem)
    return generation


def _problem(piece: Generation, room: int) -> str | None:
    ids, logprobs, versions = piece.token_ids, piece.logprobs, piece.versions
    if not len(ids) == len(logprobs) == len(versions):
        return f"{len(ids)} sampled ids came with {len(logprobs)} log-probs and {len(versions)} policy versions"
    if piece.finish_reason not in ("stop", "length", "cut"):
        return f"a generation ended by {piece.finish_reason!r}, which is none of stop, length and cut"
    if len(ids) > room:
        return f"{len(ids)} ids were sampled where {room} were asked for"
    if ids and not (min(ids) >= 0 and max(ids) < _IDS):
        return f"ids were sampled that are none: {min(ids)} to {max(ids)}"
    if (oldest := min(piece.token_versions or (piece.policy_version,))) < 0:
        return f"a policy version is {oldest}, and must be 0 or more"
    if logprobs and not (math.isfinite(sum(logprobs)) and max(logprobs) <= _ROUNDING):
        odd = next((value for value in logprobs if not (math.isfinite(value) and value <= _ROUNDING)), sum(logprobs))
        return f"a log-prob is {odd}, and must be a number, finite and not above 0"
    return None
