"""The options of `gymhost serve` that are about the dashboard."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from gymhost.cli.options import option
from gymhost.server.settings import DoorSettings, check_address
from gymhost.wire.errors import InvalidArgument
from gymhost.wire.host import is_loopback

__all__ = ["Wanted", "dashboard_at", "dashboard_options", "wanted"]

F = TypeVar("F", bound=Callable[..., Any])

GROUP = "The dashboard, pages that show what runs"
# How many ports after that of what is watched: one is the rollout service's, beside environments.
AFTER_ENVIRONMENTS, AFTER_ROLLOUTS = 2, 1


class Wanted(NamedTuple):
    """What was said of a dashboard.

    Attributes:
        address: Where it is to listen; empty where nothing was said of it.
        off: Whether there is to be none.
    """

    address: str = ""
    off: bool = False


def dashboard_options(function: F) -> F:
    """Adds them to the command."""
    function = option(
        "--no-dashboard",
        "no_dashboard",
        is_flag=True,
        group=GROUP,
        help="Run none. `dashboard = false` in the configuration does so too.",
    )(function)
    return option(
        "--dashboard",
        "dashboard",
        group=GROUP,
        metavar="ADDRESS",
        help="Where it listens: HOST:PORT (port 0: a free one). Readers log in with their tokens, and see what these "
        "let them see. Without it, two ports after the environments, and the next one after a rollout service alone; "
        "where that is taken there is none.",
    )(function)


def wanted(settings: dict[str, Any], given: dict[str, Any]) -> Wanted:
    """Reads what was said of a dashboard.

    Args:
        settings: All settings of the file, of which `dashboard` is taken out.
        given: The options that were given, of which the dashboard's are taken out.

    Raises:
        InvalidArgument: It is no address.
        UsageError: It is wanted and not.
    """
    of_file = settings.pop("dashboard", None)
    address, off = given.pop("dashboard", ""), given.pop("no_dashboard", False)
    if address and off:
        raise click.UsageError("--dashboard says where it listens, and --no-dashboard that there is none: one of them")
    if not address and not off and of_file is not None:
        off, address = of_file is False, of_file
        if not off and not isinstance(of_file, str):
            raise InvalidArgument(f"dashboard must be an address, or false for none, not {of_file!r}")
    if off:
        return Wanted(off=True)
    if address:
        check_address(address, "--dashboard")
        if address.startswith("unix:"):
            raise InvalidArgument("browsers find the dashboard at HOST:PORT, not at a Unix socket (--dashboard)")
    return Wanted(address)


def dashboard_at(said: Wanted, door: DoorSettings, *, alone: bool) -> tuple[str, str]:
    """Where the dashboard of a server is to listen.

    Args:
        said: What was said of it.
        door: The server's settings.
        alone: Whether the server is a rollout service alone.

    Returns:
        The address, empty for none; and why there is none, where that is worth a word.

    Raises:
        InvalidArgument: There can be none where it was asked for.
    """
    if said.off:
        return "", ""
    if door.tls_client_ca and not (door.tokens or door.token_file):
        why = "readers of the dashboard log in with tokens, and this server knows certificates alone (--token-file)"
        if said.address:
            raise InvalidArgument(why)
        return "", why
    if said.address:
        if not (door.is_closed or door.insecure or is_loopback(said.address)):
            raise InvalidArgument(
                f"the dashboard on {said.address} can be reached from other machines: set a token (--token-file), or "
                "say --insecure to let everybody in"
            )
        return said.address, ""
    if door.address.startswith("unix:"):
        return "", ""
    host, _, port = door.address.rpartition(":")
    later = int(port) + (AFTER_ROLLOUTS if alone else AFTER_ENVIRONMENTS)
    return f"{host}:{later if int(port) and later <= 65535 else 0}", ""
