"""The checks of a `ToolEnv`: what it says, and how it takes what a model says."""

import contextlib
import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from gymhost.envs.findings import Finding
from gymhost.envs.toolenv import ToolEnv
from gymhost.envs.trials import Env, Episode, Player, conversation, load_expert, load_policy, play

_POLICY_EPISODES = 20
# What a reward of 1 may come to by rounding.
_WON = 0.999
_IDLE = "I can't do this."

Make = Callable[[], Env]


def converses(make: Make) -> Iterator[Finding]:
    """Checks tools, prompt, tasks, rubrics and malformed calls of a `ToolEnv`."""
    with contextlib.closing(make()) as env:
        inner = env.unwrapped
        if not isinstance(inner, ToolEnv):
            return
        yield from _tools(inner)
        yield from _tasks(inner)
        opening, _ = inner.reset(seed=0)
        if not any(message["role"] == "user" and message["content"] for message in opening):
            yield Finding("error", "The prompt has no text of a user", "prompt(task) returns what the model is asked.")
        # What a harness says of such calls is its own affair.
        if not hasattr(inner, "harness"):
            yield from _malformed(inner)
        if not inner.rubrics:
            yield Finding("advice", "It has no rubric, so its reward is always 0", "Mark a method with @rubric.")
        episode = play(inner, Player(inner, 2).act, seed=2)
        if episode.ended:
            for name, problem in episode.steps[-1][4].get("rewards_errors", {}).items():
                yield Finding("error", f"Rubric {name!r} gave no valid score", problem)
        else:
            yield Finding("advice", "An episode may go on for ever", "Set max_turns, max_calls or max_characters.")


def policies_play(make: Make) -> Iterator[Finding]:
    """Lets the expert of a `ToolEnv` play, one that does nothing, and the cheats that it names."""
    with contextlib.closing(make()) as env:
        inner = env.unwrapped
        if not isinstance(inner, ToolEnv):
            return
        idle = _mean(inner, lambda episode: _IDLE)
        expert = load_expert(inner)
        if expert is not None:
            mean = _mean(inner, Player(inner, 3).act)
            said = f"The expert's mean reward over {_episodes(inner)} episodes is {mean:.3g}"
            if mean < _WON:
                yield Finding("advice", said, "One that solves every task shows that all can be solved, and gets 1.")
            else:
                yield Finding("ok", said)
            if idle >= mean:
                yield Finding(
                    "error",
                    f"One that only talks gets {idle:.3g}, no less than the expert",
                    "A rubric pays for what was not done.",
                )
            else:
                yield Finding("ok", f"One that only talks gets {idle:.3g}")
        for place in inner.cheats:
            cheat = load_policy(place)
            paid = _mean(inner, lambda episode, cheat=cheat: cheat(conversation(episode)))
            if paid > 0:
                yield Finding("error", f"The cheat {place} is paid {paid:.3g}", "No rubric may pay for what it does.")
            else:
                yield Finding("ok", f"The cheat {place} gets {paid:.3g}")


def _mean(env: ToolEnv, act: Callable[[Episode], Any]) -> float:
    """Returns a policy's mean reward over tasks of the last split, which is the one to test on, or over seeds."""
    count = _episodes(env)
    if env.splits:
        split = list(env.splits)[-1]
        episodes = [play(env, act, seed=0, task=task, split=split) for task in range(count)]
    else:
        episodes = [play(env, act, seed=seed) for seed in range(count)]
    return statistics.fmean(episode.reward for episode in episodes) if episodes else 0.0


def _episodes(env: ToolEnv) -> int:
    sizes = [tasks.size for tasks in env.splits.values()]
    return _POLICY_EPISODES if not sizes or sizes[-1] is None else min(_POLICY_EPISODES, sizes[-1])


def _tools(env: ToolEnv) -> Iterator[Finding]:
    for tool in env.tools:
        where = f"Tool {tool.name!r}"
        json.dumps(tool.parameters, allow_nan=False)
        properties: dict[str, Any] = tool.parameters.get("properties", {})
        if tool.parameters.get("type") != "object" or set(tool.parameters.get("required", ())) - set(properties):
            yield Finding("error", f"{where} has no valid schema of its arguments", json.dumps(tool.parameters))
        if not tool.description:
            yield Finding("advice", f"{where} has no description", "Write a docstring: all that the model knows of it.")
        silent = [name for name, schema in properties.items() if not schema.get("description")]
        if silent:
            text = f"Describe {', '.join(silent)} in the docstring's Args section."
            yield Finding("advice", f"{where} has arguments without a description", text)


def _tasks(env: ToolEnv) -> Iterator[Finding]:
    for name, tasks in env.splits.items():
        if tasks.size == 0:
            yield Finding("error", f"The split {name!r} has no tasks")
            continue
        for task in {0, 0 if tasks.size is None else tasks.size - 1}:
            env.reset(seed=0, options={"split": name, "task": task})
    heads = {name: list(itertools.islice(tasks, 50)) for name, tasks in env.splits.items()}
    for (one, tasks), (other, others) in itertools.combinations(heads.items(), 2):
        if any(task in others for task in tasks):
            yield Finding("advice", f"The splits {one!r} and {other!r} share tasks", "No task to train on can test.")


def _malformed(env: ToolEnv) -> Iterator[Finding]:
    """Steps with calls that no tool can take: each must be answered, none may raise."""
    broken: list[dict[str, Any]] = [
        {},
        {"function": {"name": "no such tool", "arguments": {}}},
        {"function": {"name": "", "arguments": None}},
        *({"function": {"name": tool.name, "arguments": "{"}} for tool in env.tools),
    ]
    for call in broken:
        env.reset(seed=0)
        observation, *_ = env.step({"role": "assistant", "content": "", "tool_calls": [call]})
        if not any(message["role"] == "tool" and message["content"] for message in observation):
            yield Finding("error", "A malformed tool call is not answered", f"{call!r} led to {observation!r}")
            return
    env.reset(seed=0)
    env.step("No tool call, only text.")
    yield Finding("ok", "Malformed tool calls and plain text are answered")
