"""verifiers' environments, as of its version 0.4: `verifiers:TASKSET`, by the name of the package that has the taskset.

verifiers runs an episode as a whole: its task, its harness, its tools, its scoring. The policy is the model that its
harness asks, so what is asked is the observation and an action is the answer. Its rewards are those of verifiers.
"""

import functools
import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

from gymhost.envs import packages
from gymhost.envs.adapters.support import add, needed, value, values
from gymhost.envs.adapters.verifiers_line import Playing
from gymhost.envs.adapters.verifiers_program import HARNESS, install
from gymhost.envs.harness.asked import AskedEnv
from gymhost.envs.harness.link import Ended
from gymhost.envs.packages import Package
from gymhost.envs.rubrics import rubric
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import Action, Observation, Step

__all__ = ["Verifiers", "about", "register"]

_VERSION = "0.4"


class Taskset:
    """The tasks of a taskset of verifiers, loaded when they are wanted first.

    Args:
        config: The settings of verifiers' environment.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._loaded: list[Any] = []
        self._rest: Iterator[Any] | None = None

    @functools.cached_property
    def tasks(self) -> Tasks:
        """The tasks as gymhost has them: without what verifiers keeps of them to itself."""
        taskset: Any = needed("verifiers", "verifiers.v1.utils.loaders").load_taskset(self.config.taskset)
        with self._lock:
            self._rest = iter(taskset)
        size = None
        if taskset.bounded:
            with self._lock:
                self._loaded += self._rest
            size = len(self._loaded)
        return Tasks.generate(self._public, size)

    def __getitem__(self, index: int) -> Any:
        """Returns verifiers' task."""
        with self._lock:
            missing = index + 1 - len(self._loaded)
            if missing > 0 and self._rest is not None:
                self._loaded += itertools.islice(self._rest, missing)
            if index >= len(self._loaded):
                raise IndexError(f"there is no task {index}: the taskset ended with {len(self._loaded)}")
            return self._loaded[index]

    def _public(self, index: int) -> Task:
        data = self[index].data
        return {"index": index, "id": data.id, "name": data.name, "description": data.description}

    def __deepcopy__(self, memo: object) -> "Taskset":
        # Nothing changes it.
        return self


class Verifiers(AskedEnv):
    """A taskset of verifiers, played by its harness, which the policy is the model of.

    The last step's info has `verifiers`: the `rewards` by name, unweighted, the `metrics`, and `stop`, why it ended.

    Args:
        taskset: The taskset.
        task: See `ToolEnv`.
        split: See `ToolEnv`.
    """

    public_fields = ("id", "name", "description")
    _program = "harness of verifiers"
    _playing: Playing | None = None
    _index = 0
    _cut: str | None = None

    def __init__(self, taskset: Taskset, /, *, task: int | None = None, split: str | None = None) -> None:
        self._taskset = taskset
        super().__init__(task=task, split=split)

    def tasks(self) -> dict[str, Tasks]:
        """Returns the one split."""
        return {"tasks": self._taskset.tasks}

    def setup(self, task: Task) -> None:
        """Keeps which task it is."""
        self._index, self._cut, self._playing = task["index"], None, None

    def prompt(self, task: Task) -> str:
        """Says nothing: the harness does."""
        return ""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode, as `reset` does: to where the harness asks for the first time.

        Raises:
            RuntimeError: verifiers failed to begin it.
            TimeoutError: The harness did not ask in time.
        """
        _, info = await super().areset(seed=seed, options=options)
        self._state = "broken"
        made: Any = needed("verifiers", "verifiers.v1.utils.loaders").load_environment(self._taskset.config)
        self._playing = playing = Playing(made, self._taskset[self._index], self._model)
        await playing.start()
        observation, told = await self._listen(playing)
        self._state = "running"
        return observation, info | told

    async def astep(self, action: Action) -> Step:
        """Plays a turn, as `step` does."""
        return self._told(await super().astep(action))

    async def aevaluate(self, limit: str | None = None) -> Step:
        """Scores the episode, as `evaluate` does."""
        return self._told(await super().aevaluate(limit))

    @rubric(name="verifiers", low=-math.inf, high=math.inf)
    def scored(self) -> float:
        """The reward that verifiers gives."""
        trace = self._trace()
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored:
            raise RuntimeError(f"verifiers did not score {', '.join(unscored)} ({trace.stop_condition})")
        return float(trace.reward)

    def _end(self, ended: Ended) -> None:
        trace = self._trace()
        if trace.is_truncated or trace.is_timeout:
            self._cut = str(trace.stop_condition)
        else:
            self.finish()

    def _spent_budget(self) -> str | None:
        return self._cut or super()._spent_budget()

    def _trace(self) -> Any:
        """Returns verifiers' record of what the policy did."""
        assert self._playing is not None
        traces = [trace for trace in self._playing.episode.traces if trace.agent.trainable]
        if len(traces) != 1:
            raise RuntimeError(f"one agent is to be trained, not {len(traces)}, of the episode's")
        return traces[0]

    def _told(self, step: Step) -> Step:
        if self._playing is not None and "rewards" in step[-1]:
            trace = self._trace()
            step[-1]["verifiers"] = {
                "rewards": {name: reward and reward.score for name, reward in trace.rewards.items()},
                "metrics": dict(trace.metrics),
                "stop": trace.stop_condition,
            }
        return step


def register(name: str, **options: str) -> list[str]:
    """Registers a taskset of verifiers.

    Args:
        name: The name of its package, as `prime eval` and the like take it.
        **options: `harness`: the id of verifiers' harness that plays, in place of the taskset's own or the one that
            has a conversation with the task's tools; `runtime`: the type of what it runs in, such as `docker`;
            `env`: the id of an environment to pair the taskset with; `max_turns`; and the taskset's settings.

    Raises:
        ModuleNotFoundError: verifiers is not installed, or the taskset's package.
        ValueError: A setting is none, or the harness would run a model's code outside of a container.
    """
    needed("verifiers", "verifiers.v1")
    version = about().version
    if not version.startswith(f"{_VERSION}."):
        raise ModuleNotFoundError(
            f"verifiers {version} is installed, and {_VERSION} is needed: pip install 'verifiers=={_VERSION}.*'"
        )
    install()
    config = _config(name, options)
    taskset = Taskset(config)
    id = add(
        "verifiers",
        name,
        functools.partial(Verifiers, taskset),
        description=f"verifiers' {name}.",
        package=packages.of_module(name.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()) or about(),
        order_enforce=False,
    )
    return [id]


def about() -> Package:
    """Returns verifiers' package."""
    return packages.installed("verifiers")


def _config(name: str, options: dict[str, str]) -> Any:
    """Returns the settings of verifiers' environment."""
    loaders: Any = needed("verifiers", "verifiers.v1.utils.loaders")
    options = dict(options)
    environment, runtime = options.pop("env", ""), options.pop("runtime", "subprocess")
    own = loaders.default_harness_id(name)
    # What verifiers takes where a taskset has none of its own lets the model run commands on this machine.
    harness = options.pop("harness", HARNESS if own == "bash" else own)
    if runtime == "subprocess" and loaders.harness_class(harness).EXECUTES_CODE:
        raise ValueError(
            f"verifiers' harness {harness!r} runs what a model wrote: give it a container, as in ?runtime=docker, or "
            f"have a conversation without it: ?harness={HARNESS}"
        )
    agent: dict[str, Any] = {"harness": {"id": harness}, "runtime": {"type": runtime}}
    if "max_turns" in options:
        agent["max_turns"] = value(options.pop("max_turns"))
    roles = [
        role
        for role, declared in needed("verifiers", "verifiers.v1.configs.agent")
        .agent_config_fields(loaders.env_config_type(name, environment)(taskset={"id": name}))
        .items()
        if declared.client is None
    ]
    if len(roles) != 1:
        raise ValueError(f"one agent of an environment is the policy, and {name} has {', '.join(roles) or 'none'}")
    given = {"id": environment, "taskset": {"id": name, **values(options)}, "interception": {"type": "server"}}
    return loaders.resolve_env_config({**given, roles[0]: agent})
