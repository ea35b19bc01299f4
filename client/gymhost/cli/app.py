"""The command as a whole: its subcommands by name, its errors, its version."""

import importlib
import importlib.metadata
import sys
from typing import IO, Any

import click

__all__ = ["Failure", "main"]

# Where each subcommand is, and what `gymhost --help` says of it without importing it.
COMMANDS = {
    "bench": ("gymhost.cli.bench", "Measure how fast an environment runs."),
    "check": (
        "gymhost.cli.check",
        "Check whether an environment is fit to be hosted. `check sandbox` checks sandboxes.",
    ),
    "doctor": ("gymhost.cli.doctor", "Say what works on this machine, what is missing, and what to install or to set."),
    "envs": ("gymhost.cli.envs", "List environments, or describe one."),
    "jobs": ("gymhost.cli.jobs", "Look after the jobs of a rollout service, and get their rollouts."),
    "new": ("gymhost.cli.new", "Write a package with an environment of your own."),
    "play": ("gymhost.cli.play", "Play an environment yourself, in the terminal."),
    "rollout": ("gymhost.cli.rollout", "Have a model play an environment, and say how well it does."),
    "serve": ("gymhost.cli.serve", "Host environments until Ctrl-C or SIGTERM."),
    "token": ("gymhost.cli.token", "Make a token, and the line of the token file that lets it in."),
    "top": ("gymhost.cli.top", "See what a server does, in the terminal."),
    "version": ("gymhost.cli.version", "Show the versions of gymhost and of what it builds on."),
    "view": ("gymhost.cli.view", "Write rollouts as a page to read in a browser."),
}


class Failure(click.ClickException):
    """What ends a command with a message for people and the exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints the message."""
        click.echo(f"gymhost: {self.message}", file=file or sys.stderr)


class Commands(click.Group):
    """A group whose subcommands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a subcommand: the attribute `command` of its module."""
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(COMMANDS[cmd_name][0]).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a subcommand; an error of gymhost ends it without a Python traceback unless that is asked for."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if ctx.params["debug"] or not _is_error_of_gymhost(error):
                raise
            raise Failure(str(error)) from None


def _is_error_of_gymhost(error: Exception) -> bool:
    from gymhost.wire.errors import Error

    return isinstance(error, Error)


def _show_version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"gymhost {importlib.metadata.version('gymhost')}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--debug", is_flag=True, envvar="GYMHOST_DEBUG", show_envvar=True, help="Show Python tracebacks of errors."
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def gymhost(debug: bool) -> None:
    """Hosts environments behind the Gymnasium API for trainers elsewhere.

    \b
      gymhost serve                          host what is installed, on 127.0.0.1:50051
      gymhost envs                           what there is to host
      gymhost check gymhost/GuessNumber-v0   is it fit to be hosted?

    `gymhost COMMAND --help` tells more of a command.
    """  # noqa: D301 - click wants the character, not an escape


def main() -> None:
    """Runs the command with the arguments of the process, and exits."""
    gymhost(prog_name="gymhost")
