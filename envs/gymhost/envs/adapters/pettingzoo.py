"""One seat in PettingZoo's environments: `pettingzoo:classic/connect_four_v3`, or `pettingzoo:module:factory`.

The others play at random, by what is allowed, unless a policy is named: `?opponent=my_players:best`.
"""

import copy
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils import EzPickle

from gymhost.envs import packages
from gymhost.envs.adapters.support import add, chosen, imported, needed, values
from gymhost.envs.packages import Package

__all__ = ["PettingZoo", "about", "register"]

Opponent = Callable[[str, Any, dict[str, Any], gymnasium.Space[Any]], Any]


class PettingZoo(gymnasium.Env[Any, Any]):
    """A seat in an environment of PettingZoo's AEC API, in which agents act in turn.

    A step goes on until it is the seat's turn again, or its end: reward, observation and info are what the environment
    tells the seat then.

    Args:
        factory: Makes the environment; is given the render mode, where there is one.
        opponent: Returns who plays the other agents: takes the agent, its observation, its info and its action space,
            and returns its action. None plays at random.
        seat: The agent that the policy is; empty for the first.
        render_mode: How the environment is rendered.

    Raises:
        ValueError: There is no such agent.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        opponent: Callable[[], Opponent] | None,
        /,
        *,
        seat: str = "",
        render_mode: str | None = None,
    ) -> None:
        self._env: Any = factory(**({} if render_mode is None else {"render_mode": render_mode}))
        if not isinstance(self._env, needed("pettingzoo", "pettingzoo").AECEnv):
            raise TypeError(f"what was made is a {type(self._env).__name__}, and not of PettingZoo's AEC API")
        agents: list[str] = self._env.possible_agents
        if seat and seat not in agents:
            raise ValueError(f"seat is one of {', '.join(agents)}, not {seat!r}")
        self.seat = seat or agents[0]
        self.observation_space = self._env.observation_space(self.seat)
        self.action_space = self._env.action_space(self.seat)
        self.metadata = dict(self._env.metadata)
        self.render_mode = render_mode
        self._make_opponent = opponent
        self._ended = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode, as PettingZoo does with this seed and these options.

        Raises:
            RuntimeError: It ended before it was the seat's turn.
        """
        super().reset(seed=seed)
        self._env.reset(seed=seed, options=options)
        if self._make_opponent is not None:
            self._opponent = self._make_opponent()
        else:
            self._opponent = _AtRandom(self.np_random)
        self._ended = False
        observation, _, terminated, truncated, info = self._await_turn()
        if terminated or truncated:
            self._ended = True
            raise RuntimeError(f"the episode ended before it was {self.seat}'s turn")
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Acts for the seat; the others act until it is its turn again.

        Raises:
            ResetNeeded: There is no episode.
        """
        if self._ended:
            raise ResetNeeded("call reset before step")
        self._ended = True  # until the step is through
        self._env.step(action)
        observation, reward, terminated, truncated, info = self._await_turn()
        self._ended = terminated or truncated
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """Renders the environment."""
        return self._env.render()

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> "PettingZoo":
        return _copied(self, memo, (needed("pettingzoo", "pettingzoo").AECEnv, EzPickle))

    def _await_turn(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        while True:
            agent: str = self._env.agent_selection
            observation, reward, terminated, truncated, info = self._env.last()
            if agent == self.seat:
                return copy.deepcopy(observation), float(reward), bool(terminated), bool(truncated), dict(info)
            if terminated or truncated:
                self._env.step(None)
            else:
                self._env.step(self._opponent(agent, observation, info, self._env.action_space(agent)))


class _AtRandom:
    """A policy that does anything that is allowed."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._spaces: dict[str, gymnasium.Space[Any]] = {}

    def __call__(self, agent: str, observation: Any, info: dict[str, Any], space: gymnasium.Space[Any]) -> Any:
        if agent not in self._spaces:
            # The environment's own spaces may be shared: seeding a copy disturbs nobody.
            self._spaces[agent] = copy.deepcopy(space)
            self._spaces[agent].seed(int(self._random.integers(2**31)))
        mask = info.get("action_mask")
        if mask is None and isinstance(observation, Mapping):
            mask = cast("Mapping[str, Any]", observation).get("action_mask")
        return self._spaces[agent].sample(mask)


def register(name: str, *, seat: str = "", opponent: str = "", **options: str) -> list[str]:
    """Registers environments of PettingZoo.

    Args:
        name: What PettingZoo calls it, such as `classic/connect_four_v3`; with a `*`, several. Or `module:factory`,
            what makes one.
        seat: The agent that the policy is, unless a client says otherwise; without it the first.
        opponent: `module:name` of who plays the others, a function or a class of such; see `PettingZoo`. Without it
            they play at random.
        **options: What the environment is made with.

    Raises:
        ModuleNotFoundError: pettingzoo is not installed.
        ValueError: There is none, or an option can't be.
    """
    zoo = needed("pettingzoo", "pettingzoo")
    given = values(options)
    package = None
    if ":" in name:
        factories: dict[str, Callable[..., Any]] = {name: functools.partial(imported(name), **given)}
        package = packages.of_module(name.partition(":")[0]) or Package("")
    else:
        # Gymnasium's way of writing versions is the one of its registry.
        names = chosen("pettingzoo", re.sub(r"_v(\d+)$", r"-v\1", name), zoo.aec_registry)
        factories = {each: functools.partial(zoo.make, "aec", each, **given) for each in names}
    others = imported(opponent) if opponent else None
    return [
        add(
            "pettingzoo",
            each,
            functools.partial(PettingZoo, factory, None if others is None else _maker(others)),
            description=f"A seat in PettingZoo's {each}, against {opponent or 'those who play at random'}.",
            package=package,
            kwargs={"seat": seat} if seat else None,
        )
        for each, factory in factories.items()
    ]


def about() -> Package:
    """Returns PettingZoo's package."""
    return packages.installed("pettingzoo")


def _copied(of: Any, memo: dict[int, Any], kinds: tuple[type, ...]) -> Any:
    """Returns a copy of an object with its state: a copy of an `EzPickle` is one that was made anew."""
    memo[id(of)] = made = cast(Any, object.__new__(cast("type[object]", type(of))))
    for name, value in cast("dict[str, Any]", of.__dict__).items():
        anew = isinstance(value, kinds) and id(value) not in memo
        made.__dict__[name] = _copied(value, memo, kinds) if anew else copy.deepcopy(value, memo)
    return made


def _maker(others: Any) -> Callable[[], Opponent]:
    return others if isinstance(others, type) else lambda: others
