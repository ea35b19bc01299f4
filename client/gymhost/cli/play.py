"""`gymhost play`."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from gymhost.cli.extras import need
from gymhost.cli.options import (
    GroupedCommand,
    extend_import_path,
    kwargs_option,
    module_options,
    option,
    server_options,
)

__all__ = ["command"]

REMOTE, LOCAL, WHAT = "On a server that runs elsewhere", "Else, on this machine", "What to play"


@click.command("play", cls=GroupedCommand)
@click.argument("id")
@option("--task", type=click.IntRange(min=0), group=WHAT, help="The index of the task; without it, one is drawn.")
@option("--split", group=WHAT, help="The split of the tasks; without it, the first.")
@option("--seed", type=click.IntRange(min=0), group=WHAT, help="Seeds the first episode, to play it again.")
@kwargs_option(WHAT, "Keyword arguments of the environment.")
@server_options(REMOTE)
@module_options(LOCAL)
def command(
    id: str,
    task: int | None,
    split: str | None,
    seed: int | None,
    kwargs: dict[str, Any],
    server: str | None,
    token: str | None,
    tls: Any,
    modules: Sequence[str],
    folders: Sequence[str],
) -> None:
    """Play the environment ID yourself, in the terminal, with its tools.

    It runs behind a server, as it does for a model. `/help` tells what can be typed.

    \b
    Examples:
      gymhost play gymhost/GuessNumber-v0
      gymhost play acme/Maze-v0 --module my_environments --split test --task 3
      gymhost play CartPole-v1
      gymhost play gymhost/GuessNumber-v0 --server cpu7:50051
    """  # noqa: D301 - click wants the character, not an escape
    if server is not None and (modules or folders):
        raise click.UsageError("--module and --app-dir are of this machine: leave them out, or leave --server out")
    if server is None:
        need("server", "gymhost play without --server", "gymhost.envs", "gymhost.server.server")
        extend_import_path(folders)
    from gymhost.cli.playing import Player
    from gymhost.client import make

    if sys.stdin.isatty():
        # Keys that edit a line and recall earlier ones work as soon as this is imported.
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 # pyright: ignore[reportUnusedImport]
    env = make(id, server=server, token=token, tls=tls, modules=modules, task=task, split=split, **kwargs)
    with contextlib.closing(env):
        Player(env, id).play(seed)
