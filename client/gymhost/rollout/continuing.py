"""A turn of the model, sampled in as many pieces as it takes: a change of weights may cut it at any token."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace

from gymhost.rollout.generators.base import Generation, GeneratorError, PromptTooLong

__all__ = ["sample_turn"]

_IDLE_CUTS = 10
_PAUSE = 0.02

Sample = Callable[[Sequence[int], int], Awaitable[Generation]]
"""Samples from a context, at most so many tokens."""


async def sample_turn(sample: Sample, prompt_ids: Sequence[int], room: int, stop_ids: Collection[int]) -> Generation:
    """Samples until the turn ends or has no more room, going on from what was sampled wherever it was cut.

    Args:
        sample: Samples one piece.
        prompt_ids: The context.
        room: The most tokens of the turn.
        stop_ids: What ends a turn.

    Returns:
        The pieces as one generation, which finished by "stop" or "length"; each token has its own version.

    Raises:
        GeneratorError: A piece failed or is not whole, or the turn was cut time and again without a token sampled.
    """
    turn = _checked(await sample(prompt_ids, room))
    if turn.finish_reason != "cut":
        return turn
    turn = replace(turn)  # what a generator gave is its own
    idle = 0
    while turn.finish_reason == "cut":
        if turn.token_ids and turn.token_ids[-1] in stop_ids:
            turn.finish_reason = "stop"
        elif len(turn.token_ids) >= room:
            turn.finish_reason = "length"
        elif idle == _IDLE_CUTS:
            raise GeneratorError(f"a turn was cut {idle} times in a row without a token being sampled")
        else:
            await asyncio.sleep(_PAUSE * idle)
            try:
                piece = _checked(await sample([*prompt_ids, *turn.token_ids], room - len(turn.token_ids)))
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


def _checked(piece: Generation) -> Generation:
    ids, logprobs, versions = len(piece.token_ids), len(piece.logprobs), len(piece.versions)
    if not ids == logprobs == versions:
        raise GeneratorError(f"{ids} sampled ids came with {logprobs} log-probs and {versions} policy versions")
    return piece
