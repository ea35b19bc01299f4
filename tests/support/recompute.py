"""The log-probs of what was sampled, computed once more by transformers: one pass over a whole row, in float32."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymhost.rollout import Row, Sampling, Trajectory

__all__ = ["CLOSE", "Token", "check_rows", "check_update", "tokens_of"]

CLOSE = 1e-3

_ROUNDING = 1e-5
"""How far two sums of probabilities may be apart, so that one is past `top_p` and the other is not."""


@dataclass(slots=True)
class Token:
    """One sampled token, and what it should have been."""

    place: int
    """Where it is in the row's completion."""
    version: int
    logprob: float
    expected: dict[int, float]
    """Its log-prob by each model."""

    @property
    def difference(self) -> float:
        """How far its log-prob is from that of the model of its version."""
        return abs(self.logprob - self.expected[self.version])


def tokens_of(row: Row, models: Mapping[int, Any], sampling: Sampling | None = None) -> Iterator[Token]:
    """Yields the sampled tokens of a row, each with its log-prob by the models that `models` has by their version."""
    sampling = sampling or Sampling()
    tables = {version: _table(model, row, sampling) for version, model in models.items()}
    for place, sampled in enumerate(row.mask):
        if sampled:
            logprob = row.logprobs[place]
            near = {
                version: min((table[place] for table in alike), key=lambda value: abs(value - logprob))
                for version, alike in tables.items()
            }
            yield Token(place, row.policy_versions[place], logprob, near)


def _table(model: Any, row: Row, sampling: Sampling) -> list[list[float]]:
    """The log-prob of each token of the completion; several, where rounding decides what `top_p` leaves."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([row.ids])).logits[0, len(row.prompt_ids) - 1 : -1].float()
    logits = logits / sampling.temperature
    ids = torch.tensor(row.completion_ids).unsqueeze(1)
    if sampling.top_p >= 1:
        return [logits.log_softmax(-1).gather(1, ids)[:, 0].tolist()]
    return [
        _nucleus(logits, sampling.top_p + error).log_softmax(-1).gather(1, ids)[:, 0].tolist()
        for error in (0.0, -_ROUNDING, _ROUNDING)
    ]


def _nucleus(logits: Any, top_p: float) -> Any:
    """Leaves the likeliest tokens that together have `top_p`."""
    import torch

    ordered, order = logits.double().softmax(-1).sort(-1, descending=True)
    past = ordered.cumsum(-1) - ordered >= top_p
    return logits.masked_fill(torch.zeros_like(past).scatter(1, order, past), -torch.inf)


def check_rows(
    trajectories: Sequence[Trajectory], models: Mapping[int, Any], sampling: Sampling | None = None
) -> list[Token]:
    """Checks every sampled token of every row against the model of its version, and returns them all.

    What is marked as sampled must be what the turns say, token by token, and nothing else.
    """
    tokens: list[Token] = []
    for trajectory in trajectories:
        places = [set[int]() for _ in trajectory.token_rows]
        for turn in trajectory.turns:
            places[turn.row].update(range(turn.start, turn.start + turn.tokens))
        for row, sampled in zip(trajectory.token_rows, places, strict=True):
            found = list(tokens_of(row, models, sampling))
            assert [token.place for token in found] == sorted(sampled)
            for token in found:
                assert token.difference < CLOSE, f"{trajectory!r}: {token}"
            tokens += found
    return tokens


def check_update(
    trajectories: Sequence[Trajectory], models: Mapping[int, Any], *, mixed: bool, exact: bool = True
) -> None:
    """Checks rollouts in the middle of which the weights changed: versions are visible, and nothing is mixed unmarked.

    Args:
        trajectories: The rollouts.
        models: Two models, by their versions, the older first.
        mixed: Whether turns may go on across the change, which some then must have done.
        exact: Whether the version of each token in such a turn is known. If not the turn is marked as mixed under its
            first version, and its tokens are the old model's up to somewhere and the new one's from there on.
    """
    old, new = models
    seen: set[int] = set()
    told_apart: dict[int, int] = {old: 0, new: 0}
    turns_mixed = 0
    for trajectory in trajectories:
        by_row = [{token.place: token for token in tokens_of(row, models)} for row in trajectory.token_rows]
        versions: list[int] = []
        for turn in trajectory.turns:
            tokens = [by_row[turn.row][turn.start + i] for i in range(turn.tokens)]
            own = [token.version for token in tokens]
            versions += own
            turns_mixed += turn.mixed_versions
            if exact or not turn.mixed_versions:
                assert turn.mixed_versions == (len(set(own)) > 1)
                assert all(token.difference < CLOSE for token in tokens), [str(token) for token in tokens]
                for token in tokens:
                    told_apart[token.version] += abs(token.expected[old] - token.expected[new]) > CLOSE
            else:
                by_old = [abs(token.logprob - token.expected[old]) < CLOSE for token in tokens]
                by_new = [abs(token.logprob - token.expected[new]) < CLOSE for token in tokens]
                assert any(all(by_old[:i]) and all(by_new[i:]) for i in range(len(tokens) + 1)), [*map(str, tokens)]
        assert versions == sorted(versions)
        assert trajectory.mixed_versions == (
            len(set(versions)) > 1 or any(turn.mixed_versions for turn in trajectory.turns)
        )
        seen |= set(versions)
    assert seen == {old, new}
    # If the versions had been swapped, or had changed a little later, the log-probs would show it.
    assert min(told_apart.values()) > 20, told_apart
    assert (turns_mixed > 0) == mixed
