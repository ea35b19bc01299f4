"""Hosting other people's environments: adapters by the kind of package, each for an extra of its own.

`gymhost serve gem:game:Sudoku-v0-easy 'dm:cartpole/swingup'` hosts environments of packages as they are. What stands
before the first `:` is the kind, what follows is the name that the package gives to the environment; `?option=value`,
with `&` between several, goes to the package. Where a `*` is in the name, all are meant that it fits. The options
`isolation`, `memory_limit`, `replayable`, `reset_timeout` and `step_timeout` say how it runs, as they do in
`gymhost.envs.register`.
"""

import importlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from gymhost.envs import registration

__all__ = ["KINDS", "Kind", "load"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of environments.

    Attributes:
        module: The module that registers them: `register(name, **options)` returns the ids, `about()` the package.
        extra: The extra of gymhost that installs what they need.
        help: What is named after the `:`, in a line.
    """

    module: str
    extra: str
    help: str


KINDS = MappingProxyType(
    {
        "dm": Kind(
            "gymhost.envs.adapters.dm",
            "dm",
            "DOMAIN/TASK of dm-control's suite, or MODULE:FACTORY of any dm_env.Environment",
        ),
        "gem": Kind("gymhost.envs.adapters.gem", "gem", "an environment of GEM, such as game:Sudoku-v0-easy"),
        "harbor": Kind(
            "gymhost.envs.adapters.harbor", "sandbox", "a task folder in Harbor's layout, or a folder of such folders"
        ),
        "mcp": Kind("gymhost.envs.adapters.mcp", "mcp", "the command, or the URL, of an MCP server"),
        "nemo": Kind("gymhost.envs.adapters.nemo", "nemo", "the URL of a resources server of NeMo Gym"),
        "openenv": Kind(
            "gymhost.envs.adapters.openenv",
            "openenv",
            "an installed environment of OpenEnv, MODULE:CLASS of one, or the URL of a server of one",
        ),
        "pettingzoo": Kind(
            "gymhost.envs.adapters.pettingzoo",
            "pettingzoo",
            "one seat in an environment of PettingZoo, such as classic/connect_four_v3, or in one of MODULE:FACTORY",
        ),
        "reasoning-gym": Kind(
            "gymhost.envs.adapters.reasoning_gym", "reasoning-gym", "a dataset of reasoning-gym, such as chain_sum"
        ),
        "skyrl-gym": Kind(
            "gymhost.envs.adapters.skyrl_gym",
            "skyrl-gym",
            "an environment of SkyRL-Gym with the rows that it plays, such as gsm8k?tasks=train.parquet",
        ),
        "textarena": Kind("gymhost.envs.adapters.textarena", "textarena", "a game of TextArena, such as Mastermind-v0"),
        "verifiers": Kind(
            "gymhost.envs.adapters.verifiers", "verifiers", "a taskset of verifiers (0.4), by the name of its package"
        ),
    }
)
"""The kinds, by the name that stands before the `:`."""


_HOW = ("isolation", "memory_limit", "replayable", "reset_timeout", "step_timeout")


def load(wanted: str) -> list[str]:
    """Registers environments of another package, and says where they come from.

    Args:
        wanted: `kind:name` or `kind:name?option=value&...`; values may have `%26` for `&` and the like.

    Returns:
        The ids under which they are registered now.

    Raises:
        ValueError: There is no such kind, no such environment of it, or an option is none.
        ImportError: The package is not installed; the message names the extra.
    """
    kind, _, rest = wanted.partition(":")
    name, _, query = rest.partition("?")
    if kind not in KINDS:
        raise ValueError(f"there is no kind {kind!r} of environments: the kinds are {', '.join(KINDS)}")
    if not name:
        raise ValueError(f"{wanted!r} names no environment: {kind}:NAME, where NAME is {KINDS[kind].help}")
    # It imports this module.
    from gymhost.envs.adapters.support import value

    module: Any = importlib.import_module(KINDS[kind].module)
    options = _options(query)
    how = {option: value(options.pop(option)) for option in _HOW if option in options}
    ids: list[str] = module.register(name, **options)
    for id in ids:
        if how:
            registration.rehost(id, **how)
        # Some come from a package of their own, which the adapter has said.
        if not registration.credited(id):
            registration.credit(id, module.about())
    return ids


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        option, equals, value = pair.partition("=")
        if not option or not equals:
            raise ValueError(f"{pair!r} is no option: it is to be OPTION=VALUE")
        options[unquote(option)] = unquote(value)
    return options
