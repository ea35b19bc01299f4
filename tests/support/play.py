"""Plays an environment and keeps all that it gave, to be compared with what another one gives."""

import copy
from typing import Any, NamedTuple

import gymnasium

from support.compare import assert_same


class Seen(NamedTuple):
    """What one call gave.

    Attributes:
        action: None for a reset.
        observation: As it was then.
        reward: None for a reset.
        terminated: None for a reset.
        truncated: None for a reset.
        info: As it was then.
        frame: What was rendered after it; None where nothing was.
    """

    action: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]
    frame: Any


def play(
    env: Any, actions: gymnasium.Space[Any], *, episodes: int, steps: int, seed: int, render_every: int = 0
) -> list[Seen]:
    """Plays episodes with sampled actions; only the first reset has a seed.

    Args:
        env: The environment, wrapped or not.
        actions: What actions are sampled from.
        episodes: How many episodes.
        steps: The most steps of each.
        seed: For the first reset and the actions.
        render_every: Steps from one rendering to the next; 0: nothing is rendered.
    """
    actions.seed(seed)
    seen: list[Seen] = []

    def keep(action: Any, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        frame = env.render() if render_every and len(seen) % render_every == 0 else None
        # Some environments fill what they returned again.
        seen.append(copy.deepcopy(Seen(action, observation, reward, terminated, truncated, info, frame)))

    for number in range(episodes):
        observation, info = env.reset(seed=None if number else seed)
        keep(None, observation, None, None, None, info)
        for _ in range(steps):
            action = actions.sample()
            observation, reward, terminated, truncated, info = env.step(action)
            keep(action, observation, reward, terminated, truncated, info)
            if terminated or truncated:
                break
    return seen


def assert_played_same(remote: list[Seen], local: list[Seen]) -> None:
    """Assert that a remote environment gave what a local one did: rewards as Python's floats, flags as its bools."""
    for number, (there, here) in enumerate(zip(remote, local, strict=True)):
        if here.action is not None:
            flags = {"terminated": bool(here.terminated), "truncated": bool(here.truncated)}
            here = here._replace(reward=float(here.reward), **flags)
        assert_same(there._asdict(), here._asdict(), f"call {number}")
