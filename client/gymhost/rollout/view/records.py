"""What the page knows of a trajectory: a line of the list, what was said, and the tokens.

The page reads the first of all trajectories at once, and the other two of the one that is shown.
"""

import base64
import itertools
import json
import math
import re
import zlib
from typing import Any, cast

from gymhost.rollout.trajectory import Row, Trajectory

__all__ = ["as_json", "conversation", "line", "packed", "tokens"]

_DIGITS = 4
"""How many digits of a log-prob are kept after the point."""

_UNSAFE = re.compile("[<>&\u2028\u2029]")


def line(trajectory: Trajectory) -> dict[str, Any]:
    """What the list shows, and filters and sorts by."""
    outcome = trajectory.outcome
    timings = trajectory.timings
    versions = [turn.policy_version for turn in trajectory.turns]
    return {
        "id": trajectory.id,
        "env": trajectory.env_id,
        "task": trajectory.task,
        "seed": trajectory.seed,
        "split": trajectory.split,
        "group": trajectory.group,
        "index": trajectory.index,
        "reward": _finite(trajectory.reward),
        "outcome": outcome.kind,
        "limit": outcome.limit,
        "fault": outcome.fault,
        "cause": outcome.cause,
        "message": outcome.message.partition("\n")[0][:200],
        "turns": len(trajectory.turns),
        "tokens": trajectory.sampled_tokens,
        "seconds": round(timings.queue + timings.init + timings.run + timings.eval, 3),
        "rows": len(trajectory.token_rows),
        "versions": [min(versions), max(versions)] if versions else [],
        "mixed": trajectory.mixed_versions,
        "attempts": trajectory.attempts,
    }


def conversation(trajectory: Trajectory) -> dict[str, Any]:
    """What was said and done, and what it was worth."""
    shown = {"messages", "tools", "turns", "rewards", "outcome", "timings", "created", "labels", "info"}
    return _plain(trajectory.model_dump(mode="json", include=shown))


def tokens(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The token rows.

    `sampled` and `versions` are runs: the mask as alternating lengths that begin with one of the environment's tokens,
    the policy versions of the sampled tokens as pairs of version and length. `logprobs` are of sampled tokens alone.
    """
    return [_row(row) for row in trajectory.token_rows]


def _row(row: Row) -> dict[str, Any]:
    runs = [(bit, len(list(run))) for bit, run in itertools.groupby(row.mask)]
    versions = [version for bit, version in zip(row.mask, row.policy_versions, strict=True) if bit]
    return {
        "prompt": len(row.prompt_ids),
        "ids": row.ids,
        "sampled": [0] * (bool(runs) and runs[0][0] == 1) + [length for _, length in runs],
        "logprobs": [_rounded(value) for bit, value in zip(row.mask, row.logprobs, strict=True) if bit],
        "versions": [[version, len(list(run))] for version, run in itertools.groupby(versions)],
    }


def as_json(value: Any) -> str:
    """JSON that can stand in a script element: no character in it ends the element, or a line of JavaScript."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", _dumps(_plain(value)))


def packed(value: Any) -> str:
    """JSON, deflated, in base64, which can stand in a script element too."""
    # A lone surrogate, which a model's bytes can leave in a text, is no UTF-8.
    return base64.b64encode(zlib.compress(_dumps(value).encode("utf-8", "replace"))).decode("ascii")


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """The value without floats that JSON does not have."""
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(list[Any], value)]
    return value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _rounded(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None
