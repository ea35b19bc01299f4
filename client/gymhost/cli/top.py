"""`gymhost top`."""

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from gymhost.cli.extras import need, need_installed
from gymhost.cli.options import GroupedCommand, access_options, option

if TYPE_CHECKING:
    from gymhost.cli.top_watch import Watch
    from gymhost.client.tls import Tls

__all__ = ["command"]

REMOTE, WHAT = "Which server", "What to show"


@click.command("top", cls=GroupedCommand)
@click.argument("address", default="127.0.0.1:50051")
@access_options(REMOTE)
@option("--rollouts", metavar="ADDRESS", group=REMOTE, help="A rollout service to show too: its jobs and generators.")
@option(
    "--interval",
    type=click.FloatRange(min=0.2, max=3600.0),
    default=2.0,
    show_default=True,
    group=WHAT,
    help="Seconds from one look to the next.",
)
@option(
    "--once", is_flag=True, group=WHAT, help="Look twice, print tables, and end. So it does where there is no terminal."
)
def command(
    address: str, token: str | None, tls: "Tls | None", rollouts: str | None, interval: float, once: bool
) -> None:
    """See what a server does, in the terminal.

    ADDRESS is that of a server, HOST:PORT or unix:PATH, or of a rollout service. Whatever it is that one may not see or
    do, such as other people's sessions, needs a token with another role.

    \b
    Examples:
      gymhost top                                  the server of this machine
      gymhost top cpu7:50051 --rollouts cpu7:50052
      gymhost top cpu7:50051 --once                tables, for scripts

    Keys: Tab and 1 to 6 change what is shown, Enter tells more, / filters, s sorts, e ends a session, D drains the
    server, ? tells the rest, q quits.
    """  # noqa: D301 - click wants the character, not an escape
    need_installed("top", "gymhost top", "textual")
    from gymhost.cli import top_watch

    if rollouts is not None:
        need("rollout", "gymhost top --rollouts", "gymhost.rollout.service")
    once = once or not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    asyncio.run(_watch(top_watch.Watch(address, token, tls, rollouts), interval, once))


async def _watch(watch: "Watch", interval: float, once: bool) -> None:
    async with watch:
        # A server that can't be seen at all ends the command, before anything is drawn.
        look = await watch.look()
        if once:
            from gymhost.cli import top_views

            await asyncio.sleep(interval)
            top_views.print_look(await watch.look())
        else:
            from gymhost.cli import top_app

            await top_app.Top(watch, look, interval).run_async()
