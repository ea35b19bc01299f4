"""`gymhost check`."""

import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import click

from gymhost.cli import check_sandbox
from gymhost.cli.app import Failure
from gymhost.cli.extras import need
from gymhost.cli.options import GroupedCommand, extend_import_path, kwargs_option, module_options

__all__ = ["command"]


class CheckCommand(GroupedCommand):
    """The command, which stands aside for `gymhost check sandbox`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Reads the arguments."""
        if args[:1] == ["sandbox"]:
            return check_sandbox.command.make_context(f"{info_name} sandbox", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("check", cls=CheckCommand)
@click.argument("id")
@module_options("Where it is")
@kwargs_option("How it is made", "Keyword arguments of the environment.")
@click.pass_context
def command(
    ctx: click.Context,
    id: str,
    modules: Sequence[str],
    folders: Sequence[str],
    kwargs: dict[str, Any],
) -> None:
    """Check whether the environment ID is fit to be hosted, and say what to mend.

    What sandboxes on this machine hold back is checked by `gymhost check sandbox`, which has a `--help` of its own.

    It is played for some dozens of episodes here and behind a server: Gymnasium's own checker, what travels over the
    wire, determinism under a seed, tools and tasks, leaks, and how it is best run. The exit code is 0 where there is
    nothing to mend.

    \b
    Examples:
      gymhost check gymhost/GuessNumber-v0
      gymhost check my/Maze-v0 --module my_environments --kwargs size=9 --kwargs '{"walls": [1, 2]}'
      gymhost check sandbox bubblewrap
    """  # noqa: D301 - click wants the character, not an escape
    registration, checks, _ = need(
        "server", "gymhost check", "gymhost.envs.registration", "gymhost.envs.check", "gymhost.server.server"
    )
    import gymnasium

    from gymhost.client import make

    extend_import_path(folders)
    started = time.monotonic()
    try:
        problems = registration.load(modules)
    except ImportError as error:
        cause = error.__cause__ or error
        raise Failure(f"{error}\n\n{''.join(traceback.format_exception(cause)).rstrip()}") from None
    for problem in problems:
        click.echo(f"gymhost: could not be loaded: {problem.source}: {problem.message}", err=True)

    def progress(title: str) -> None:
        click.echo(f"{time.monotonic() - started:6.1f} s  {title} ...", err=True)

    def remote(id: str, kwargs: dict[str, Any]) -> Any:
        return make(id, modules=modules, **kwargs)

    try:
        report = checks.check(id, kwargs, remote_factory=remote, progress=progress)
    except gymnasium.error.UnregisteredEnv as error:
        raise Failure(f"{error} (--module names the module that registers it)") from None
    click.echo(report.render())
    sys.stdout.flush()
    ctx.exit(0 if report.ok else 1)
