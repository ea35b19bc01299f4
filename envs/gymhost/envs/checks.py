"""The single checks that `check` is made of: each returns what it found."""

import contextlib
import copy
import gc
import itertools
import os
import random
import re
import statistics
import sys
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.utils.env_checker import check_env

from gymhost.envs.findings import Finding
from gymhost.envs.registration import Hosting
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.trials import Env, Episode, Player, differences, episode_differences, play, replay
from gymhost.wire import spaces, values

_LEAK_EPISODES = 100
_WARM_UP_EPISODES = 5
_LEAK_SECONDS = 15.0
_LEAK_BYTES = 16 * 1024
_TIMED_STEPS = 200
_TIMED_SECONDS = 5.0
# In seconds. Steps below it can well share one thread.
_LONG_STEP = 0.001

Make = Callable[[], Env]


def gymnasium_rules(id: str, kwargs: dict[str, Any]) -> Iterator[Finding]:
    """Runs Gymnasium's own checker; its warnings become advice."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = gymnasium.make(id, disable_env_checker=True, **kwargs)
        try:
            try:
                check_env(env.unwrapped)
            except DependencyNotInstalled as missing:
                yield Finding("advice", "It can't be rendered here", str(missing))
                check_env(env.unwrapped, skip_render_check=True)
        except AssertionError as error:
            yield Finding("error", "Gymnasium's checker refuses it", str(error))
        else:
            yield Finding("ok", "Gymnasium's checker passes")
        finally:
            env.close()
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        plain = re.sub(r"\x1b\[\d*m|^WARN: ", "", re.sub(r"\x1b\[\d*m", "", message))
        yield Finding("advice", "Gymnasium's checker warns", plain)


def travels(make: Make) -> Iterator[Finding]:
    """Sends spaces, actions, observations and infos through the codec and back."""
    with contextlib.closing(make()) as env:
        for name in ("observation_space", "action_space"):
            space = getattr(env, name)
            if spaces.decode(spaces.encode(space)) != space:
                yield Finding("error", f"Its {name} does not travel", f"{space} is another space afterwards")
                return
        episode = play(env, Player(env, 0).act, seed=0)
        observations = [episode.opening[0], *(step[0] for step in episode.steps)]
        for observation in observations:
            if not env.observation_space.contains(observation):
                yield Finding("error", "An observation is outside of the observation space", f"{observation!r:.300}")
                return
    said = {
        "observation": observations,
        "action": episode.actions,
        "info": [episode.opening[1], *(step[4] for step in episode.steps)],
    }
    for name, items in said.items():
        try:
            changed = next(differences(items, values.loads(values.dumps(items, name=name)), name), None)
        except ValueError as error:
            changed = str(error)
        if changed is not None:
            yield Finding(
                "error",
                f"An {name} does not travel unchanged",
                f"{changed}\nUse numbers, text, bytes, NumPy arrays, lists, tuples and dicts.",
            )
            return
    yield Finding("ok", "Spaces, actions, observations and infos travel")
    if not all(isinstance(flag, bool) for step in episode.steps for flag in step[2:4]):
        text = "Gymnasium and trainers want a Python bool for terminated and truncated: return bool(...)."
        yield Finding("advice", "Its flags are no Python bool", text)


def is_deterministic(make: Make) -> Iterator[Finding]:
    """Plays the same seed and actions on two instances, also over the unseeded episodes that follow."""
    with contextlib.closing(make()) as first, contextlib.closing(make()) as second, _global_random_kept():
        if first.spec is not None and first.spec.nondeterministic:
            yield Finding("ok", "It says that it is not deterministic")
            return
        player = Player(first, 1)
        seeds = (123, None, None)
        # Global generators stand differently for each, so that an environment which uses them is found out.
        _seed_global_random(1)
        played = [play(first, player.act, seed=seed) for seed in seeds]
        _seed_global_random(2)
        again = [replay(second, episode, seed=seed) for episode, seed in zip(played, seeds, strict=True)]
    for number, (a, b) in enumerate(zip(played, again, strict=True), start=1):
        different = list(itertools.islice(episode_differences(a, b), 3))
        if different:
            yield Finding(
                "error",
                f"Seed and actions do not decide episode {number} after a seeded reset",
                "\n".join(different) + "\nTake every random number from self.np_random, and call "
                "super().reset(seed=seed) first; or register it with nondeterministic=True.",
            )
            return
    yield Finding("ok", "Deterministic: three episodes after a seeded reset are the same on two instances")


def leaks_nothing(make: Make) -> Iterator[Finding]:
    """Looks for threads, file descriptors and memory that are left over from episodes and from closed instances."""
    gc.collect()
    before = _held()
    env = make()
    try:
        player = Player(env, 4)
        for _ in range(_WARM_UP_EPISODES):
            play(env, player.act)
        in_episodes = _held()
        started = time.monotonic()
        played = 0
        with _traced() as allocated:
            while played < _LEAK_EPISODES and time.monotonic() - started < _LEAK_SECONDS:
                play(env, player.act)
                played += 1
            growth = allocated() / max(1, played)
        left = _more(in_episodes, _held())
    finally:
        env.close()
    gc.collect()
    clean = True
    if left:
        clean = False
        yield Finding("error", f"{played} episodes left {left}", "Free in reset what the episode before it held.")
    if growth > _LEAK_BYTES:
        clean = False
        yield Finding(
            "error",
            f"Its memory grows by {growth / 1024:.0f} KiB an episode",
            "Let go of an episode's data in reset.",
        )
    left = _more(before, _held())
    if left:
        clean = False
        yield Finding("error", f"close() left {left}", "Free in close what the instance holds.")
    if clean:
        yield Finding("ok", f"Nothing leaks over {played} episodes")


def surroundings() -> dict[str, Any]:
    """Returns what belongs to the whole process, by name."""
    return {"the working directory": Path.cwd(), "environment variables": dict(os.environ)}


def keeps_surroundings(before: dict[str, Any], hosting: Hosting) -> Iterator[Finding]:
    """Tells what of the process is no longer as it was before the environment was played."""
    changed = [name for name, value in surroundings().items() if value != before[name]]
    if changed and hosting.isolation != "process":
        yield Finding(
            "advice",
            f"It changes {' and '.join(changed)} of its process",
            'Register it with isolation="process", or other sessions of its worker are changed too.',
        )


def runs_as_registered(make: Make, hosting: Hosting) -> Iterator[Finding]:
    """Measures steps and says how the environment is best run."""
    with contextlib.closing(make()) as env:
        timing = _time_steps(env, Player(env, 5))
        inner = env.unwrapped
        has_coroutines = hasattr(inner, "areset") and hasattr(inner, "astep")
        waits = inner.is_async if isinstance(inner, ToolEnv) else has_coroutines
    speed = 1 / max(timing.median, 1e-9)
    figures = (
        f"a step takes {_milliseconds(timing.median)}, at most {_milliseconds(timing.slowest)} ({speed:,.0f} steps/s)"
    )
    if timing.median > _LONG_STEP:
        figures += f", and waits for {timing.waiting:.0%} of that"
    if hosting.mode == "async" and not has_coroutines:
        yield Finding("error", 'It is registered with mode="async" but has no coroutines', "Define areset and astep.")
        return
    blocking = timing.slowest > 10 * _LONG_STEP or (timing.waiting > 0.5 and timing.median > _LONG_STEP)
    if waits:
        fitting = "async"
    elif timing.slowest < _LONG_STEP:
        fitting = "inline"
    else:
        fitting = "thread"
    if hosting.mode == "inline" and (blocking or waits):
        yield Finding(
            "advice",
            f'It is registered with mode="inline", yet {figures}',
            f'All sessions of its worker stand still for as long: register it with mode="{fitting}".',
        )
    elif hosting.mode == "async" and not waits and blocking:
        yield Finding(
            "advice",
            f'It is registered with mode="async", yet none of its tools and hooks is `async def`, and {figures}',
            'All sessions of its worker stand still for as long: register it with mode="thread".',
        )
    elif hosting.mode == "thread" and fitting != "thread":
        why = "its tools or hooks are `async def`" if fitting == "async" else figures
        yield Finding("advice", f'It could run with mode="{fitting}"', f"With less overhead, since {why}.")
    else:
        yield Finding("ok", f'It is well run with mode="{hosting.mode}": {figures}')


def same_over_wire(make: Make, make_remote: Make) -> Iterator[Finding]:
    """Plays the same episodes here and behind a server."""
    with contextlib.closing(make()) as local, contextlib.closing(make_remote()) as remote:
        for name in ("observation_space", "action_space"):
            if getattr(local, name) != getattr(remote, name):
                yield Finding("error", f"Its {name} is another one over the wire", f"{getattr(remote, name)}")
        if local.spec is not None and local.spec.nondeterministic:
            replay(remote, play(local, Player(local, 6).act, seed=7), seed=7)
            yield Finding("ok", "It plays over the wire")
            return
        for seed in (7, None):
            here = play(local, Player(local, 6).act, seed=seed)
            there = replay(remote, here, seed=seed)
            different = list(itertools.islice(episode_differences(_plain(here), there), 3))
            if different:
                yield Finding("error", "It plays differently over the wire", "\n".join(different))
                return
    yield Finding("ok", "It plays the same over the wire")


def repeats_elsewhere(make: Make, make_remote: Make, hosting: Hosting) -> Iterator[Finding]:
    """Plays the same here, after another episode, and on a new instance in another process; compares the replies."""
    with contextlib.closing(make()) as here, contextlib.closing(make_remote()) as there:
        if here.spec is not None and here.spec.nondeterministic:
            return
        player = Player(here, 8)
        play(here, player.act, seed=8)  # the seeded reset after it has to leave nothing of it
        for number, seed in enumerate((9, None), start=1):
            played = _plain(play(here, player.act, seed=seed))
            different = _first_difference(played, replay(there, played, seed=seed))
            if different and hosting.replayable:
                yield Finding(
                    "error",
                    f"It is not replayable: in another process episode {number} after a seeded reset differs",
                    f"{different}\nSeed and actions must decide every reply: not the time, the process, the order of a "
                    "set, or what was before the reset. Or leave out replayable=True.",
                )
            if different:
                return
    if hosting.replayable:
        yield Finding("ok", "Replayable: another process gives the same replies after a seeded reset, byte for byte")
    else:
        yield Finding(
            "ok",
            "It could be replayable",
            "Another process gave the same replies: with replayable=True, or gymhost serve --replayable ID, its "
            "sessions outlive their workers.",
        )


@dataclass(frozen=True, slots=True)
class _Timing:
    """How long steps took, in seconds, and the share of it in which they did not compute."""

    median: float
    slowest: float
    waiting: float


def _time_steps(env: Env, player: Player) -> _Timing:
    walls: list[float] = []
    computed = 0.0
    until = time.monotonic() + _TIMED_SECONDS
    episode: Episode | None = None
    while len(walls) < _TIMED_STEPS and time.monotonic() < until:
        if episode is None or episode.ended:
            episode = Episode(env.reset())
        action = player.act(episode)
        computing, started = time.process_time(), time.perf_counter()
        step = env.step(action)
        walls.append(time.perf_counter() - started)
        computed += time.process_time() - computing
        episode.actions.append(copy.deepcopy(action))
        episode.steps.append(copy.deepcopy(step))
    # The very slowest steps may be due to the machine.
    walls.sort()
    slowest = walls[int(len(walls) * 0.95)]
    return _Timing(statistics.median(walls), slowest, max(0.0, 1 - computed / sum(walls)))


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2g} ms"


def _first_difference(played: Episode, again: Episode) -> str:
    """Says where the first reply is that another instance gave in another way; nothing where there is none."""
    replies = [played.opening, *played.steps]
    for number, reply in enumerate(replies):
        there = [again.opening, *again.steps][number : number + 1]
        if not there or values.dumps(reply) != values.dumps(there[0]):
            told = next(episode_differences(played, again), "their bytes differ")
            return f"The first reply that differs is that of {f'step {number}' if number else 'the reset'}. {told}"
    return ""


def _plain(episode: Episode) -> Episode:
    """Returns an episode with rewards and flags as Python's own types, which they are over the wire."""
    steps = [(step[0], float(step[1]), bool(step[2]), bool(step[3]), step[4]) for step in episode.steps]
    return Episode(episode.opening, episode.actions, steps)


def _held() -> dict[str, int]:
    """Counts what may leak, by name."""
    held = {"threads": threading.active_count()}
    descriptors = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    if descriptors.is_dir():
        held["file descriptors"] = sum(1 for _ in descriptors.iterdir())
    return held


def _more(before: dict[str, int], after: dict[str, int]) -> str:
    """Says how much more is held, or nothing."""
    grown = {name: count - before[name] for name, count in after.items() if count > before[name]}
    return " and ".join(f"{count} {name}" for name, count in grown.items())


@contextlib.contextmanager
def _traced() -> Generator[Callable[[], int], None, None]:
    """Gives a function that returns how many bytes more are allocated than at the start."""
    already = tracemalloc.is_tracing()
    if not already:
        tracemalloc.start()
    gc.collect()
    start, _ = tracemalloc.get_traced_memory()

    def allocated() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - start

    try:
        yield allocated
    finally:
        if not already:
            tracemalloc.stop()


@contextlib.contextmanager
def _global_random_kept() -> Generator[None, None, None]:
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _seed_global_random(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
