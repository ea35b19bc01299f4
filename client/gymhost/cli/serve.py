"""`gymhost serve`."""

import dataclasses
import os
import re
import secrets
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from gymhost.cli.app import Failure
from gymhost.cli.extras import need
from gymhost.cli.options import OTHERS, GroupedCommand, option
from gymhost.server.config import LOG_LEVELS, ServerConfig, parse_size, read_file
from gymhost.wire.errors import Error, InvalidArgument

if TYPE_CHECKING:
    from gymhost.server.server import Server

__all__ = ["command"]

# The identity that a token without a name stands for.
DEFAULT_IDENTITY = "default"

WHERE, WHO, REACH = "Where and what", "Who may connect", "What clients may reach"
HOW_MUCH, TIMES = "How much", "Times, in seconds"
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
    "--config",
    "config_file",
    group=WHERE,
    metavar="FILE.toml",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings in TOML; options win over it.",
)
@option(
    "--token-file",
    group=WHO,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Tokens that are let in: a NAME=TOKEN or a TOKEN on each line. GYMHOST_TOKEN gives one too.",
)
@option("--new-token", group=WHO, is_flag=True, help="Make a token, and print it once to stderr.")
@setting("insecure", WHO, "Listen beyond loopback without a token: everybody is let in.", is_flag=True)
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
@setting("capacity", HOW_MUCH, "The most sessions at once; a new one beyond it waits.", metavar="N")
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
@setting("grace", TIMES, "How long running commands get when the server is stopped.", metavar="S")
@setting("worker_liveness", TIMES, "How long a worker may be silent before it is killed.", metavar="S")
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
@setting("log_level", OTHERS, "How much to log, to stderr.", type=click.Choice(LOG_LEVELS))
@click.pass_context
def command(
    ctx: click.Context, config_file: Path | None, token_file: Path | None, new_token: bool, **options: Any
) -> None:
    """Host environments until Ctrl-C or SIGTERM; a second Ctrl-C stops at once.

    MODULES are imported in the workers, and the environments that they register are hosted beside those of installed
    packages and of Gymnasium.

    \b
    Examples:
      gymhost serve
      gymhost serve my_environments --workers 8
      gymhost serve --address 0.0.0.0:50051 --new-token
      gymhost serve --attributes 'CartPole-v1=gravity,length' --wrapper my_environments:Noise
      gymhost serve --sandbox docker --sandbox-option runtime=runsc
      gymhost serve --config server.toml

    The keys of the TOML file are the names of the options with `_` for `-`; besides, `modules`, `wrappers` and `paths`
    (the folders of --app-dir, from the file's own on) are lists, the table `attributes` has a list of names for each
    pattern of ids, the table `sandbox_options` has those of --sandbox-option, and the table `tokens` the name of each
    token's identity:

    \b
      address = "0.0.0.0:50051"
      modules = ["my_environments"]
      max_payload = "16MiB"
      [attributes]
      "CartPole-*" = ["gravity", "length"]
      [tokens]
      "a-long-random-text" = "alice"
    """  # noqa: D301 - click wants the character, not an escape
    given = {
        name: value
        for name, value in options.items()
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT and value != ()
    }
    config = _configure(config_file, given, _tokens(token_file, new_token))
    _, server = need("server", "gymhost serve", "gymhost.envs", "gymhost.server.server")
    try:
        server.run(config, on_ready=_announce)
    except Error as error:
        missing = _NOT_FOUND.search(error.message)
        # A module that is there may also lack one that it imports.
        if missing is None or not f"{missing['module']}.".startswith(f"{missing['name']}."):
            raise
        raise Failure(f"{error.message} (a module's name, not a path; --app-dir adds a folder)") from error


def _configure(file: Path | None, given: dict[str, Any], tokens: dict[str, str]) -> ServerConfig:
    """Puts the settings of the file and of the options together."""
    settings = (read_file(file) if file is not None else {}) | given
    of_file = settings.get("tokens", {})
    if isinstance(of_file, dict):
        settings["tokens"] = cast(dict[str, str], of_file) | tokens
    config = ServerConfig.from_dict(settings)
    return dataclasses.replace(config, paths=tuple(str(Path(folder).resolve()) for folder in (".", *config.paths)))


def _tokens(file: Path | None, new: bool) -> dict[str, str]:
    """The tokens of the command line and of the process's environment, each with its identity."""
    tokens: dict[str, str] = {}
    if token := os.environ.get("GYMHOST_TOKEN"):
        tokens[token] = DEFAULT_IDENTITY
    if file is not None:
        try:
            tokens |= read_tokens(file.read_text())
        except (OSError, ValueError) as error:
            raise click.BadParameter(f"{file}: {error}", param_hint="--token-file") from None
    if new:
        token = secrets.token_urlsafe(24)
        tokens[token] = DEFAULT_IDENTITY
        click.echo(f"token: {token}", err=True)
    return tokens


def read_tokens(text: str) -> dict[str, str]:
    """Reads a file of tokens.

    Raises:
        ValueError: It has none, or the same one for two names.
    """
    tokens: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, token = (part.strip() for part in line.partition("="))
        if not equals:
            name, token = DEFAULT_IDENTITY, line
        # A token in base64 may end with =, and must not be taken for a name with an empty token.
        if not name or not token.strip("="):
            raise ValueError(f"line {number} is neither TOKEN nor NAME=TOKEN; a token that ends with = needs a name")
        if tokens.setdefault(token, name) != name:
            raise ValueError(f"line {number} has the token of another name")
    if not tokens:
        raise ValueError("it has no token")
    return tokens


def _announce(server: "Server") -> None:
    """Says that the server listens."""
    config = server.config
    workers = f"{config.worker_count} worker{'' if config.worker_count == 1 else 's'}"
    host, _, port = server.address.rpartition(":")
    everywhere = host.strip("[]") in ("0.0.0.0", "::")
    connect = f'"{socket.gethostname()}:{port}"' if everywhere else f'"{server.address}"'
    if config.tokens:
        who, connect = "a token is needed", f"{connect}, token=..."
    else:
        who = "no token is needed"
    if config.sandbox == "local":
        click.echo("warning: --sandbox local contains nothing: tools can do all that this server can", err=True)
    click.echo(
        f"gymhost serves {len(server.environments)} environments on {server.address} with {workers}; {who}. "
        f"Connect: gymhost.client.connect({connect})"
    )
