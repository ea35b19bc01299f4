"""What the page knows of a trajectory: a line of the list, what was said, and the tokens.

The page reads the first of all trajectories at once, and the other two of the one that is shown.
"""

import base64
import itertools
import json
import math
import re
import zlib
from typing import Any

from gymhost.rollout.plain import plain
from gymhost.rollout.trajectory import Row, Trajectory

__all__ = ["as_json", "conversation", "line", "packed", "tokens"]

_DIGITS = 4
"""How many digits of a log-prob are kept after the point."""

_UNSAFE = re.compile("[<>&\u2028\u2029]")


def line(trajectory: Trajectory) -> dict[str, Any]:
    """Returns what the list shows, and filters and sorts by."""
    outcome = trajectory.outcome
    timings = trajectory.timings
    return {
        "id": trajectory.id,
        "env": trajectory.env_id,
        "task": trajectory.task,
        "seed": trajectory.seed,
        "split": trajectory.split,
        "group": trajectory.group,
        "index": trajectory.index,
        "reward": trajectory.reward if trajectory.valid else None,
        "outcome": outcome.kind,
        "limit": outcome.limit,
        "fault": outcome.fault,
        "cause": outcome.cause,
        "message": outcome.message.partition("\n")[0][:200],
        "turns": len(trajectory.turns),
        "tokens": trajectory.sampled_tokens,
        "seconds": round(timings.queue + timings.init + timings.run + timings.eval, 3),
        "rows": len(trajectory.token_rows),
        "oldest": trajectory.oldest_version,
        "newest": trajectory.newest_version,
        "mixed": trajectory.mixed_versions,
        "attempts": trajectory.attempts,
    }


def conversation(trajectory: Trajectory) -> str:
    """Returns what was said and done, and what it was worth, as JSON."""
    shown = {"messages", "tools", "turns", "rewards", "outcome", "timings", "created", "labels", "info"}
    return trajectory.model_dump_json(include=shown)


def tokens(trajectory: Trajectory) -> str:
    """Returns the token rows as JSON.

    `sampled` and `versions` are runs: the mask as alternating lengths that begin with the environment's tokens, the
    policy versions of the sampled tokens as pairs of version and length. `logprobs` are of sampled tokens alone.
    """
    return _dumps([_row(row) for row in trajectory.token_rows])


def _row(row: Row) -> dict[str, Any]:
    runs = [(bit, len(list(run))) for bit, run in itertools.groupby(row.mask)]
    versions = itertools.compress(row.policy_versions, row.mask)
    return {
        "prompt": len(row.prompt_ids),
        "ids": row.ids,
        "sampled": [0] * (bool(runs) and runs[0][0] == 1) + [length for _, length in runs],
        "logprobs": [_rounded(value) for value in itertools.compress(row.logprobs, row.mask)],
        "versions": [[version, len(list(run))] for version, run in itertools.groupby(versions)],
    }


def as_json(value: Any) -> str:
    """Returns JSON that can stand in a script element: no character in it ends the element, or a line of a script."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", _dumps(plain(value)))


def packed(text: str) -> str:
    """Returns a text deflated and in base64, which can stand in a script element too."""
    # Of token ids and log-probs a higher level makes a tenth less, in six times the time.
    return base64.b64encode(zlib.compress(text.encode("utf-8"), level=1)).decode("ascii")


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _rounded(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None
