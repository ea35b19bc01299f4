"""The options of `gymhost serve` that are about the rollout service."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from gymhost.cli.options import kwargs_option, option
from gymhost.server.config import ServerConfig
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.settings import DoorSettings, parse_size
from gymhost.wire.errors import InvalidArgument

__all__ = ["OPTIONS", "configure", "rollouts_options"]

F = TypeVar("F", bound=Callable[..., Any])

SERVICE = "The rollout service, where trainers submit jobs and get trajectories"
MUCH = "How much the rollout service does"

_DEFAULTS = RolloutsConfig()
# What the service has of the server's settings, beside those of the door.
SHARED = ("max_payload", "drain", "paths")


def _read_agents(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    agents: dict[str, str] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not name.strip() or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=MODULE:CLASS", ctx, parameter)
        agents[name.strip()] = place.strip()
    return agents


def _read_size(ctx: click.Context, parameter: click.Parameter, text: str) -> int:
    try:
        return parse_size(text)
    except InvalidArgument as error:
        raise click.BadParameter(error.message, ctx, parameter) from None


def _setting(flag: str, name: str, group: str, help: str, **how: Any) -> Any:
    how = {"default": getattr(_DEFAULTS, name), "show_default": True, **how}
    return option(flag, f"rollouts_{name}", group=group, help=help, **how)


def _several(flag: str, name: str, help: str, metavar: str) -> Any:
    return option(flag, f"rollouts_{name}", group=SERVICE, help=help, metavar=metavar, multiple=True)


def _file(flag: str, name: str, help: str, *, exists: bool = True) -> Any:
    kind = click.Path(exists=exists, dir_okay=False)

    def absolute(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
        return given and str(Path(given).absolute())

    return option(
        flag, f"rollouts_{name}", group=SERVICE, help=help, metavar="FILE", type=kind, default=None, callback=absolute
    )


def _count(flag: str, name: str, help: str) -> Any:
    return _setting(flag, name, MUCH, help, type=int, metavar="N")


def _seconds(flag: str, name: str, help: str) -> Any:
    return _setting(flag, name, MUCH, help, type=float, metavar="S")


# In the order in which the help shows them.
OPTIONS: tuple[Callable[[Any], Any], ...] = (
    option(
        "--rollouts",
        "rollouts",
        is_flag=True,
        group=SERVICE,
        help="Run the service: beside the environments that are hosted here, in a process of its own, or alone with "
        "--environments. A table [rollouts] in the configuration does so too.",
    ),
    option(
        "--rollouts-address",
        "rollouts_address",
        group=SERVICE,
        metavar="ADDRESS",
        help="Where it listens: HOST:PORT (port 0: a free one) or unix:PATH. Without it, on the port after that of the "
        f"environments, and alone on {_DEFAULTS.address}.",
    ),
    _several(
        "--environments",
        "environments",
        "An environment server that it plays on, which runs elsewhere; none is run here then. May be given several "
        "times: sessions go where the fewest are, and a server that is gone is left for a while.",
        "ADDRESS",
    ),
    option(
        "--environments-token",
        "rollouts_environments_token",
        group=SERVICE,
        metavar="TOKEN",
        help="Their bearer token. Other users of this machine can see it here; without it, that of "
        "GYMHOST_ENVIRONMENTS_TOKEN.",
    ),
    _file(
        "--environments-ca", "environments_ca", "The authority of their certificates in PEM: TLS is spoken with them."
    ),
    _file(
        "--environments-cert", "environments_cert", "The certificate in PEM that they are shown, if they ask for one."
    ),
    _file("--environments-key", "environments_key", "Its key in PEM, without a password."),
    option(
        "--tokenizer",
        "rollouts_tokenizer",
        group=SERVICE,
        metavar="FOLDER",
        help="The model's tokenizer: its folder, or the name of a model that this machine has in its cache.",
    ),
    option(
        "--renderer",
        "rollouts_renderer",
        group=SERVICE,
        metavar="NAME",
        help="What turns messages into tokens, such as qwen3; without it, chosen by the tokenizer and its template.",
    ),
    _setting(
        "--keep-thoughts/--drop-thoughts",
        "keep_thoughts",
        SERVICE,
        "Whether the model is shown what it thought in earlier turns, though its template may leave that out. Where it "
        "is not, such rollouts are several rows of tokens.",
    ),
    _several(
        "--generator",
        "generators",
        "A vLLM server that samples, such as http://gpu3:8000, started with --logprobs-mode processed_logprobs. May be "
        "given several times. Others can be added while the service runs, and jobs wait until there is one.",
        "URL",
    ),
    _file(
        "--jobs-file",
        "store",
        "Where jobs, results, generators and the policy version are kept, so that a service that is started again goes "
        f"on; without it, {_DEFAULTS.store} in the current folder.",
        exists=False,
    ),
    option(
        "--agent",
        "rollouts_agents",
        group=SERVICE,
        multiple=True,
        metavar="NAME=MODULE:CLASS",
        callback=_read_agents,
        help="A loop that jobs may ask for by its name, in place of the built-in one. May be given several times.",
    ),
    _setting(
        "--agent-address",
        "agent_address",
        SERVICE,
        "Where harnesses that agents run find their OpenAI-compatible endpoints: HOST:PORT (port 0: a free one).",
        metavar="ADDRESS",
    ),
    option(
        "--agent-url",
        "rollouts_agent_url",
        group=SERVICE,
        metavar="URL",
        help="How harnesses get there, where that is not http://HOST:PORT/v1: with TLS, say, or from another machine.",
    ),
    _count("--rollouts-init", "init", "Sessions that are being opened and reset at once."),
    _count("--rollouts-run", "run", "Rollouts that take turns at once."),
    _count("--rollouts-eval", "eval", "Rollouts that are being scored at once."),
    _count("--rollouts-ahead", "ahead", "Rollouts that may be begun before there is a place for them to take turns."),
    _count("--attempts", "attempts", "How often a rollout is begun, where faults are no fault of its own."),
    _count(
        "--max-unacknowledged",
        "max_unacknowledged",
        "The most results of a job that nobody has acknowledged; beyond it the job begins nothing.",
    ),
    _count("--quota-jobs", "quota_jobs", "The most jobs of one identity that have not ended; 0 for no quota."),
    _count("--quota-rollouts", "quota_rollouts", "The most rollouts of one identity that have not begun."),
    _setting(
        "--quota-bytes",
        "quota_bytes",
        MUCH,
        "The most bytes of results of one identity that nobody has acknowledged, such as 4GiB.",
        metavar="SIZE",
        callback=_read_size,
        default=f"{_DEFAULTS.quota_bytes // 2**30}GiB",
    ),
    _seconds("--retention", "retention", "Seconds for which results that nobody acknowledges are kept."),
    _seconds("--keep-ended", "keep_ended", "Seconds for which a job is listed that has ended and has no results left."),
    kwargs_option(
        MUCH,
        "What ends a rollout, where its job says nothing else: a limit such as turns=8 or completion_tokens=16384.",
        name="--rollout-limit",
        parameter="rollouts_limits",
    ),
    kwargs_option(
        MUCH,
        "How to sample, where a job says nothing else, such as temperature=0.7.",
        name="--sampling",
        parameter="rollouts_sampling",
    ),
)


def rollouts_options(function: F) -> F:
    """Adds them to the command."""
    for each in reversed(OPTIONS):
        function = each(function)
    return function


def configure(settings: dict[str, Any], given: dict[str, Any], tokens: dict[str, str]) -> RolloutsConfig | None:
    """Puts the settings of the service together.

    Args:
        settings: All other settings, of which the table `rollouts` is taken out.
        given: The options about the service that were given, by their parameters' names.
        tokens: The hashes of tokens that are no setting.

    Returns:
        None if there is to be no service.

    Raises:
        InvalidArgument: A setting is wrong; the message names it.
        UsageError: Options were given that mean nothing without others.
    """
    table = settings.pop("rollouts", None)
    wanted = given.pop("rollouts", False) or table is not None
    options = {name.removeprefix("rollouts_"): value for name, value in given.items()}
    if not wanted:
        if options:
            flag = _flag_of(f"rollouts_{next(iter(options))}")
            raise click.UsageError(f"{flag} is for the rollout service: --rollouts runs it")
        return None
    if not isinstance(table, dict | None):
        raise InvalidArgument(f"rollouts must be a table, not {table!r}")
    said = cast(dict[str, Any], table or {})
    door = {field.name for field in dataclasses.fields(DoorSettings)} - {"address"}
    if misplaced := door & set(said):
        raise InvalidArgument(
            f"{min(misplaced)} is said for the environments and the rollout service at once: outside of [rollouts]"
        )
    shared = {name: settings[name] for name in (*door, *SHARED) if name in settings}
    mine: dict[str, Any] = {**shared, **said, **options}
    if isinstance(of_file := mine.get("tokens", {}), dict):
        mine["tokens"] = cast(dict[str, str], of_file) | tokens
    if "environments_token" not in mine and (token := os.environ.get("GYMHOST_ENVIRONMENTS_TOKEN")):
        mine["environments_token"] = token
    if not mine.get("environments"):
        mine.setdefault("address", _next_to(settings.get("address", ServerConfig.address)))
    elif foreign := set(settings) - door - set(SHARED):
        raise InvalidArgument(
            f"{min(foreign)} is for an environment server, and --environments says that it runs elsewhere"
        )
    config = RolloutsConfig.from_dict(mine)
    folders = [str(Path(folder).resolve()) for folder in (".", *config.paths)]
    return dataclasses.replace(config, paths=tuple(folders), store=str(Path(config.store).absolute()))


def _flag_of(parameter: str) -> str:
    context = click.get_current_context()
    return next(each.opts[0] for each in context.command.params if each.name == parameter)


def _next_to(address: Any) -> str:
    """Where the service listens beside a server: on the next port, or on a free one."""
    if not isinstance(address, str) or address.startswith("unix:"):
        return f"{address}-rollouts"
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1 if port.isdecimal() and 0 < int(port) < 65535 else 0}"
