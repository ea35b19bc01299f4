"""The options of `gymhost serve` that are about gateways, which speak others' protocols."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from gymhost.cli.options import option
from gymhost.server.settings import DoorSettings, check_address
from gymhost.wire.errors import InvalidArgument
from gymhost.wire.host import is_loopback

__all__ = ["PROTOCOLS", "Place", "check_gateways", "gateways_options", "gateways_wanted"]

F = TypeVar("F", bound=Callable[..., Any])

GROUP = "Other protocols, for clients that know nothing of gymhost"
# What people call each.
PROTOCOLS = {"openenv": "OpenEnv's protocol", "mcp": "MCP"}


class Place(NamedTuple):
    """A gateway that was asked for.

    Attributes:
        protocol: What it speaks.
        address: Where it is to listen.
        environment: The environment that is at its root too; empty for none.
    """

    protocol: str
    address: str
    environment: str


def gateways_options(function: F) -> F:
    """Adds them to the command."""
    function = option(
        "--mcp",
        "mcp",
        group=GROUP,
        metavar="ADDRESS[/ID]",
        help="Serve the environments over MCP at HOST:PORT (port 0: a free one), each at /env/ID/mcp; with /ID that "
        "one at /mcp too.",
    )(function)
    return option(
        "--openenv",
        "openenv",
        group=GROUP,
        metavar="ADDRESS[/ID]",
        help="Serve the environments to OpenEnv's clients at HOST:PORT (port 0: a free one), each at /env/ID; with /ID "
        "that one at the root too. Callers show the server's tokens.",
    )(function)


def gateways_wanted(settings: dict[str, Any], given: dict[str, Any]) -> list[Place]:
    """Reads what was said of gateways.

    Args:
        settings: All settings of the file, of which theirs are taken out.
        given: The options that were given, of which theirs are taken out.

    Raises:
        InvalidArgument: One has no address.
    """
    places: list[Place] = []
    for protocol in PROTOCOLS:
        of_file = settings.pop(protocol, "")
        said = given.pop(protocol, of_file)
        if not isinstance(said, str):
            raise InvalidArgument(f"{protocol} must be an address, not {said!r}")
        if not said:
            continue
        if said.startswith("unix:"):
            raise InvalidArgument(
                f"clients find {PROTOCOLS[protocol]} at HOST:PORT, not at a Unix socket (--{protocol})"
            )
        address, _, environment = said.partition("/")
        check_address(address, f"--{protocol}")
        places.append(Place(protocol, address, environment))
    return places


def check_gateways(places: list[Place], door: DoorSettings) -> None:
    """Checks that gateways let in nobody whom their server does not.

    Raises:
        InvalidArgument: One would.
    """
    for place in places:
        if door.tls_client_ca and not (door.tokens or door.token_file):
            raise InvalidArgument(
                f"callers of a gateway show tokens, and this server knows certificates alone (--token-file beside "
                f"--{place.protocol})"
            )
        if not (door.is_closed or door.insecure or is_loopback(place.address)):
            raise InvalidArgument(
                f"{place.address} can be reached from other machines (--{place.protocol}): set a token (--token-file), "
                "or say --insecure to let everybody in"
            )
