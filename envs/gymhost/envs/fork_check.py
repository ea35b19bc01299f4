"""The check that looks whether an environment can be forked, and whether its forks are what they should be."""

import contextlib
import contextvars
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gymhost.envs.findings import Finding
from gymhost.envs.forking import fork, holds_sandboxes
from gymhost.envs.trials import Env, Episode, Player, differences, episode_differences, play, replay
from gymhost.wire.errors import Unimplemented

_SEED = 10
_NAMES = ("observation", "reward", "terminated", "truncated", "info")
_MEND = (
    "What a copy holds must be its own: a function that was made in a method goes on with the environment that it was "
    "made for. Define `__deepcopy__`, which copies what has to be copied; or raises a TypeError, which says that it "
    "can't be forked."
)


def forks_go_on(make: Callable[[], Env]) -> Iterator[Finding]:
    """Forks an environment in mid-episode; the forks and itself must go on as it would have, one after the other."""
    with contextlib.closing(make()) as env, contextlib.ExitStack() as stack:
        played = play(env, Player(env, _SEED).act, seed=_SEED)
        half = len(played.actions) // 2
        before = Episode(played.opening, played.actions[:half], played.steps[:half])
        again = replay(env, before, seed=_SEED)
        try:
            forks = fork(env, [contextvars.copy_context(), contextvars.copy_context()])
        except Unimplemented as error:
            yield Finding("ok", "It can't be forked", error.message)
            return
        for each in forks:
            stack.enter_context(contextlib.closing(each))
        if next(episode_differences(before, again), None) is not None:
            # What it does is no matter of seed and actions, so nothing can be said; another check tells of that.
            yield Finding("ok", "It can be forked")
            return
        first, last = forks
        for who, one in (("A fork", first), ("After a step of a fork the environment itself", env), ("A fork", last)):
            different = _difference(played, half, one)
            if different is not None and holds_sandboxes(env):
                detail = f"It goes on in another way where that shows: {different}"
                yield Finding("ok", "It can be forked; what runs in its sandboxes begins anew in a fork", detail)
                return
            if different is not None:
                yield Finding("error", f"{who} goes on in another way than it would have", f"{different}\n{_MEND}")
                return
    yield Finding("ok", "It can be forked: forks go on as it would have, and apart from it")


def _difference(played: Episode, half: int, one: Env) -> str | None:
    """Says where an environment goes on in another way than in an episode that was played."""
    for number, (action, wanted) in enumerate(zip(played.actions[half:], played.steps[half:], strict=True)):
        got: Sequence[Any] = copy.deepcopy(one.step(copy.deepcopy(action)))
        for name, a, b in zip(_NAMES, wanted, got, strict=True):
            different = next(differences(a, b, f"step {half + number + 1}'s {name}"), None)
            if different is not None:
                return different
    return None
