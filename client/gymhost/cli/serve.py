"""`gymhost serve`."""

import dataclasses
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from gymhost.cli.app import Failure
from gymhost.cli.extras import need, need_installed
from gymhost.cli.options import OTHERS, GroupedCommand, option
from gymhost.cli.serve_dashboard import Wanted, dashboard_at, dashboard_options
from gymhost.cli.serve_dashboard import wanted as dashboard_wanted
from gymhost.cli.serve_gateways import PROTOCOLS, Place, check_gateways, gateways_options, gateways_wanted
from gymhost.cli.serve_rollouts import configure as configure_rollouts
from gymhost.cli.serve_rollouts import rollouts_options
from gymhost.server.config import ServerConfig
from gymhost.server.settings import LOG_FORMATS, LOG_LEVELS, DoorSettings, parse_size, read_file
from gymhost.server.tokens import hash_of, new_token
from gymhost.wire.errors import Error, InvalidArgument

if TYPE_CHECKING:
    from gymhost.server.rollouts.config import RolloutsConfig
    from gymhost.server.server import Server
    from gymhost.server.serving import DashboardWanted, Serving

__all__ = ["command"]

# Whom the tokens of GYMHOST_TOKEN and of --new-token stand for.
DEFAULT_IDENTITY = "default"

WHERE, WHO, REACH = "Where and what", "Who may connect", "What clients may reach"
TLS = "Encryption"
HOW_MUCH, TIMES = "How much", "Times, in seconds"
WORKERS = "Workers that grow old or die"
SANDBOXES = "Sandboxes, where code that a model wrote runs"
_DEFAULTS = ServerConfig()
# What a worker says of a module that it can't find.
_NOT_FOUND = re.compile(r"environments of '(?P<module>[^']+)': ModuleNotFoundError: No module named '(?P<name>[^']+)'")


def _read_size(ctx: click.Context, parameter: click.Parameter, text: str) -> int:
    try:
        return parse_size(text)
    except InvalidArgument as error:
        raise click.BadParameter(error.message, ctx, parameter) from None


def _read_attributes(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, list[str]]:
    attributes: dict[str, list[str]] = {}
    for text in given:
        pattern, _, names = text.partition("=")
        if not pattern or not names:
            raise click.BadParameter(f"{text!r} is not ID=NAME,NAME", ctx, parameter)
        attributes.setdefault(pattern.strip(), []).extend(name.strip() for name in names.split(","))
    return attributes


def _read_pairs(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx, parameter)
        pairs[name.strip()] = value
    return pairs


def _read_pythons(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pythons: dict[str, str] = {}
    for text in given:
        # The name of a module may have a `=`, as an option of an adapter; a path rarely has.
        module, equals, path = text.rpartition("=")
        if not module.strip() or not equals:
            raise click.BadParameter(f"{text!r} is not MODULE=PATH", ctx, parameter)
        pythons[module.strip()] = str(Path(path).absolute())
    return pythons


def file_setting(name: str, group: str, help: str) -> Any:
    """The option of a setting that names a file."""

    def absolute(ctx: click.Context, parameter: click.Parameter, given: str | None) -> str | None:
        return given and str(Path(given).absolute())  # and links as they are: one may lead to another file later

    kind = click.Path(exists=True, dir_okay=False)
    how: dict[str, Any] = {"default": None, "show_default": False, "type": kind, "callback": absolute}
    return setting(name, group, help, metavar="FILE", **how)


def setting(name: str, group: str, help: str, **how: Any) -> Any:
    """The option of a setting of the server."""
    how = {"default": getattr(_DEFAULTS, name), "show_default": True, **how}
    return option(f"--{name.replace('_', '-')}", name, group=group, help=help, **how)


@click.command("serve", cls=GroupedCommand)
@click.argument("modules", nargs=-1)
@setting("address", WHERE, "Where to listen: HOST:PORT (port 0: a free one) or unix:PATH.", metavar="ADDRESS")
@setting("workers", WHERE, "Worker processes; 0 means one a core.", type=int, metavar="N")
@option(
    "--app-dir",
    "paths",
    group=WHERE,
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="A folder to look for MODULES in, after the current one. May be given several times.",
)
@option(
    "--python",
    "python",
    group=WHERE,
    multiple=True,
    metavar="MODULE=PATH",
    callback=_read_pythons,
    help="The interpreter in which the workers of one of MODULES run, where it can't live in the same environment as "
    "the rest: PATH is its `python`, which has gymhost[worker] in the same version. May be given several times.",
)
@option(
    "--config",
    "config_file",
    group=WHERE,
    metavar="FILE.toml",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings in TOML; options win over it.",
)
@file_setting(
    "token_file",
    WHO,
    "Tokens that are let in: NAME [ROLE] sha256:HEX on each line, as gymhost token NAME makes them. It is read again "
    "when it changes. GYMHOST_TOKEN gives a token too.",
)
@option("--new-token", "new", group=WHO, is_flag=True, help="Make a token, and print it once to stderr.")
@setting("insecure", WHO, "Listen beyond loopback without a token: everybody is let in.", is_flag=True)
@file_setting("tls_cert", TLS, "The server's certificate chain in PEM. The three are read again when they change.")
@file_setting("tls_key", TLS, "Its key in PEM, without a password.")
@file_setting(
    "tls_client_ca",
    TLS,
    "Authorities in PEM: a client must have a certificate of one of them. Where no token is asked for, the "
    "certificate's common name is the client's identity.",
)
@option(
    "--attributes",
    "attributes",
    group=REACH,
    multiple=True,
    metavar="ID=NAME,...",
    callback=_read_attributes,
    help="Attributes and methods that clients may read, set and call, beside those that environments declare. ID may "
    "be a pattern, NAME a * for all without a leading underscore. May be given several times.",
)
@option(
    "--wrapper",
    "wrappers",
    group=REACH,
    multiple=True,
    metavar="MODULE:CLASS",
    help="A wrapper that clients may ask for, beside those of Gymnasium. May be given several times.",
)
@option(
    "--replayable",
    "replayable",
    group=WORKERS,
    multiple=True,
    metavar="ID",
    help="An environment, or a pattern of ids, that gives the same replies to the same commands after the same seeded "
    "reset and does not say so itself: clients recover its sessions when their worker or the server dies. "
    "gymhost check finds out. May be given several times.",
)
@setting("capacity", HOW_MUCH, "The most sessions at once; a new one beyond it waits.", metavar="N")
@setting("queue_length", HOW_MUCH, "The most new sessions that wait; one beyond it is refused at once.", metavar="N")
@setting("quota_sessions", HOW_MUCH, "The most sessions of one identity; 0 for no quota.", type=int, metavar="N")
@setting("quota_queued", HOW_MUCH, "The most new sessions of one identity that wait.", type=int, metavar="N")
@setting("quota_streams", HOW_MUCH, "The most streams of one identity, one a client.", type=int, metavar="N")
@setting(
    "quota_sandbox_memory",
    HOW_MUCH,
    "The most memory of the sandboxes of one identity, by their limits, such as 8GiB; one beyond it waits.",
    metavar="SIZE",
    callback=_read_size,
    default="0",
)
@setting(
    "max_payload",
    HOW_MUCH,
    "The largest action or observation, such as 500kB or 1GiB.",
    metavar="SIZE",
    callback=_read_size,
    default=f"{_DEFAULTS.max_payload // 2**20}MiB",
)
@setting("queue_timeout", TIMES, "How long a new session waits for a place on a full server.", metavar="S")
@setting("lease", TIMES, "How long a session outlives the last sign of its client.", metavar="S")
@setting("heartbeat", TIMES, "How often clients should give a sign.", metavar="S")
@setting("drain", TIMES, "How long sessions go on after SIGTERM, while no new ones are taken.", metavar="S")
@setting("grace", TIMES, "How long running commands get when the server is stopped.", metavar="S")
@setting("worker_liveness", TIMES, "How long a worker may be silent before it is killed.", metavar="S")
@setting(
    "worker_max_age",
    WORKERS,
    "Seconds after which a worker is renewed: another takes its place, and it ends with its last session. 0: never.",
    metavar="S",
)
@setting(
    "worker_max_memory",
    WORKERS,
    "Memory at which a worker is renewed, such as 4GiB; at half as much again it is killed. 0: no limit.",
    metavar="SIZE",
    callback=_read_size,
    default="0",
)
@setting(
    "worker_max_sessions",
    WORKERS,
    "About how many sessions after which a worker is renewed. 0: never.",
    type=int,
    metavar="N",
)
@setting(
    "quarantine_deaths",
    WORKERS,
    "After so many workers that ended under an environment its new sessions get workers of their own; after so many of "
    "these it is refused for a while. 0: never.",
    type=int,
    metavar="N",
)
@setting("quarantine_window", WORKERS, "Seconds within which they are counted.", metavar="S")
@setting(
    "sandbox",
    SANDBOXES,
    "What makes them: bubblewrap (needs no service), docker (its engine must run), local (contains nothing: for code "
    "that you trust), or MODULE:CLASS for a backend of your own. gymhost check sandbox NAME tells whether it works.",
    metavar="NAME",
)
@option(
    "--sandbox-option",
    "sandbox_options",
    group=SANDBOXES,
    multiple=True,
    metavar="NAME=VALUE",
    callback=_read_pairs,
    help="An option of the backend, such as runtime=runsc for docker with gVisor. May be given several times.",
)
@setting(
    "sandbox_creations",
    SANDBOXES,
    "The most that are being made at once, by all workers together; others wait for their turn.",
    type=int,
    metavar="N",
)
@setting(
    "sandbox_spares",
    SANDBOXES,
    "How many of each kind that was asked for a worker keeps ready, so that a reset need not wait for one.",
    type=int,
    metavar="N",
)
@rollouts_options
@dashboard_options
@gateways_options
@option(
    "--metrics/--no-metrics",
    "metrics",
    group=OTHERS,
    default=_DEFAULTS.metrics,
    show_default=True,
    help="Count what sessions do, for the dashboard, gymhost top and Prometheus.",
)
@setting("log_level", OTHERS, "How much to log, to stderr.", type=click.Choice(LOG_LEVELS))
@setting(
    "log_format",
    OTHERS,
    "How to log: lines of text, or an object of JSON a line, with the ids of sessions and rollouts as fields.",
    type=click.Choice(LOG_FORMATS),
)
@click.pass_context
def command(ctx: click.Context, config_file: Path | None, new: bool, **options: Any) -> None:
    """Host environments until Ctrl-C or SIGTERM; the same once more stops at once.

    After SIGTERM running sessions have --drain seconds to end by themselves. `docker stop` and the like must wait
    longer than --drain and --grace together before they kill. systemd wants KillMode=mixed, or it ends the workers too.

    MODULES are imported in the workers, and the environments that they register are hosted beside those of installed
    packages and of Gymnasium.

    A dashboard runs beside: pages that show what the server does, what failed, and any session turn by turn.

    With --openenv and --mcp the environments are served to clients of OpenEnv and of MCP too.

    With --rollouts a rollout service runs beside: trainers submit jobs to it and get scored trajectories, exact to the
    token. It samples with vLLM servers. After SIGTERM it begins nothing more, and its rollouts have --drain seconds;
    what is cut off begins again when the service is started again with the same --jobs-file.

    \b
    Examples:
      gymhost serve
      gymhost serve my_environments --workers 8
      gymhost serve --address 0.0.0.0:50051 --token-file tokens --tls-cert cert.pem --tls-key key.pem
      gymhost serve --attributes 'CartPole-v1=gravity,length' --wrapper my_environments:Noise
      gymhost serve --sandbox docker --sandbox-option runtime=runsc
      gymhost serve 'openenv:echo' --python openenv:echo=.venv-openenv/bin/python
      gymhost serve --openenv 127.0.0.1:50060 --mcp 127.0.0.1:50061
      gymhost serve --config server.toml
      gymhost serve my_environments --rollouts --tokenizer ./Qwen3-4B --generator http://gpu3:8000
      gymhost serve --rollouts --environments cpu7:50051 --tokenizer ./Qwen3-4B

    The keys of the TOML file are the names of the options with `_` for `-`; `dashboard = false` is --no-dashboard;
    besides, `modules`, `wrappers`, `replayable` and `paths` (the folders of --app-dir, from the file's own on) are
    lists, the table `attributes` has a list of names for each pattern of ids, the tables `python` and
    `sandbox_options` have those of --python and --sandbox-option, and the table `tokens` the name and the role of
    each token's hash. Those of the table `rollouts` are named as its options, without a `rollouts-` at their
    beginning; `environments` and `generators` are lists, `store` is the --jobs-file, and `agents`, `limits`
    (--rollout-limit), `sampling` and `quotas` are tables:

    \b
      address = "0.0.0.0:50051"
      modules = ["my_environments"]
      max_payload = "16MiB"
      [attributes]
      "CartPole-*" = ["gravity", "length"]
      [tokens]
      "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" = "alice admin"
      [quotas.alice]
      sessions = 500
      queued = 100
      streams = 8
      sandbox_memory = "8GiB"
      [rollouts]
      tokenizer = "./Qwen3-4B"
      generators = ["http://gpu3:8000", "http://gpu4:8000"]
      [rollouts.limits]
      turns = 8
      [rollouts.quotas.alice]
      jobs = 10
      rollouts = 5000
      bytes = "1GiB"
    """  # noqa: D301 - click wants the character, not an escape
    given = {
        name: value
        for name, value in options.items()
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT and value not in ((), {})
    }
    about_dashboard = {name: given.pop(name) for name in ("dashboard", "no_dashboard") if name in given}
    about_gateways = {name: given.pop(name) for name in PROTOCOLS if name in given}
    about_rollouts = {name: given.pop(name) for name in list(given) if name.startswith("rollouts")}
    tokens = _tokens(new)
    settings = (read_file(config_file) if config_file is not None else {}) | given
    dashboard = dashboard_wanted(settings, about_dashboard)
    gateways = gateways_wanted(settings, about_gateways)
    rollouts = configure_rollouts(settings, about_rollouts, tokens)
    if rollouts is not None and rollouts.environments:
        if gateways:
            raise click.UsageError(
                f"--{gateways[0].protocol} is for a server that hosts environments: with --environments "
                "none are hosted here"
            )
        _serve_rollouts(rollouts, dashboard)
    else:
        _serve(_configure(settings, tokens), rollouts, dashboard, gateways)


def _serve(config: ServerConfig, rollouts: "RolloutsConfig | None", dashboard: Wanted, gateways: list[Place]) -> None:
    """Hosts environments, and runs beside them what there is to be."""
    _, serving = need("server", "gymhost serve", "gymhost.envs", "gymhost.server.serving")
    if rollouts is not None:
        _need_rollouts()
    check_gateways(gateways, config)
    for place in gateways:
        extra, package = ("mcp", "mcp") if place.protocol == "mcp" else ("server", "websockets")
        need_installed(extra, f"gymhost serve --{place.protocol}", package)
    spoken = [serving.GatewayWanted(*place) for place in gateways]
    try:
        serving.serve(config, rollouts, _dashboard(dashboard, config, alone=False), spoken, on_ready=_announce_all)
    except Error as error:
        missing = _NOT_FOUND.search(error.message)
        # A module that is there may also lack one that it imports.
        if missing is None or not f"{missing['module']}.".startswith(f"{missing['name']}."):
            raise
        raise Failure(f"{error.message} (a module's name, not a path; --app-dir adds a folder)") from error


def _serve_rollouts(config: "RolloutsConfig", dashboard: Wanted) -> None:
    """Runs the rollout service alone."""
    [serving] = need("server", "gymhost serve", "gymhost.server.serving")
    _need_rollouts()

    def announce(running: "Serving") -> None:
        _say_rollouts(running.rollouts_address, config)
        _say_dashboard(running, config)

    serving.serve_rollouts(config, _dashboard(dashboard, config, alone=True), on_ready=announce)


def _dashboard(said: Wanted, door: DoorSettings, *, alone: bool) -> "DashboardWanted | None":
    """The dashboard that there is to be."""
    [serving] = need("server", "gymhost serve", "gymhost.server.serving")
    address, why_not = dashboard_at(said, door, alone=alone)
    if why_not:
        click.echo(f"there is no dashboard: {why_not}", err=True)
    if not address:
        return None
    need_installed("server", "the dashboard of gymhost serve", "starlette", "uvicorn", "prometheus_client")
    return serving.DashboardWanted(address, needed=bool(said.address))


def _need_rollouts() -> None:
    """Sees to it that there is what plays rollouts. Beside environments it is imported in another process alone."""
    need_installed("rollout", "gymhost serve --rollouts", "httpx", "pydantic", "renderers", "transformers")


def _configure(settings: dict[str, Any], tokens: dict[str, str]) -> ServerConfig:
    """Makes the configuration of the server of what the file and the options say."""
    of_file = settings.get("tokens", {})
    if isinstance(of_file, dict):
        settings["tokens"] = cast(dict[str, str], of_file) | tokens
    config = ServerConfig.from_dict(settings)
    return dataclasses.replace(config, paths=tuple(str(Path(folder).resolve()) for folder in (".", *config.paths)))


def _tokens(new: bool) -> dict[str, str]:
    """The hashes of the tokens that are no setting, each with its identity."""
    tokens: dict[str, str] = {}
    if token := os.environ.get("GYMHOST_TOKEN"):
        tokens[hash_of(token)] = DEFAULT_IDENTITY
    if new:
        token = new_token()
        tokens[hash_of(token)] = DEFAULT_IDENTITY
        click.echo(f"token: {token}", err=True)
    return tokens


def _announce(server: "Server") -> None:
    """Says that the server listens."""
    config = server.config
    workers = f"{config.worker_count} worker{'' if config.worker_count == 1 else 's'}"
    needed, connect = _way_in(config, server.address)
    if config.sandbox == "local":
        click.echo("warning: --sandbox local contains nothing: tools can do all that this server can", err=True)
    click.echo(
        f"gymhost serves {len(server.environments)} environments on {server.address} with {workers}; {needed}. "
        f"Connect: gymhost.client.connect({connect})"
    )


def _announce_all(running: "Serving") -> None:
    """Says that the server listens, and what is beside it."""
    assert running.environments is not None
    _announce(running.environments)
    if running.rollouts_address:
        _say_rollouts(running.rollouts_address, running.environments.config)
    _say_gateways(running, running.environments.config)
    _say_dashboard(running, running.environments.config)


def _say_gateways(running: "Serving", config: DoorSettings) -> None:
    for protocol, address in running.gateways.items():
        path = "/env/ID" if protocol == "openenv" else "/env/ID/mcp"
        click.echo(f"gymhost speaks {PROTOCOLS[protocol]} on {_url(address, config)}{path}")


def _url(address: str, config: DoorSettings) -> str:
    """Where others find what listens, for HTTP."""
    host, _, port = address.rpartition(":")
    shown = f"{socket.gethostname()}:{port}" if host.strip("[]") in ("0.0.0.0", "::") else address
    return f"{'https' if config.tls_cert else 'http'}://{shown}"


def _say_dashboard(running: "Serving", config: DoorSettings) -> None:
    dashboard = running.dashboard
    if dashboard is None:
        return
    if dashboard.problem:
        click.echo(f"there is no dashboard: {dashboard.problem} (--dashboard ADDRESS)", err=True)
        return
    click.echo(f"gymhost shows all of it on {_url(dashboard.address, config)}/")


def _say_rollouts(address: str, config: DoorSettings) -> None:
    needed, connect = _way_in(config, address)
    click.echo(
        f"gymhost takes rollout jobs on {address}; {needed}. Connect: gymhost.rollout.service.RolloutClient({connect})"
    )


def _way_in(config: DoorSettings, address: str) -> tuple[str, str]:
    """What callers need, in words, and how they connect."""
    host, _, port = address.rpartition(":")
    everywhere = host.strip("[]") in ("0.0.0.0", "::")
    connect = f'"{socket.gethostname()}:{port}"' if everywhere else f'"{address}"'
    needed: list[str] = []
    if config.tokens or config.token_file:
        needed, connect = ["a token"], f"{connect}, token=..."
    if config.tls_client_ca:
        needed, connect = [*needed, "a certificate"], f"{connect}, tls=Tls(ca=..., cert=..., key=...)"
    elif config.tls_cert:
        connect = f"{connect}, tls=Tls(ca=...)"
    return f"{' and '.join(needed) or 'no token'} {'are' if len(needed) > 1 else 'is'} needed", connect
