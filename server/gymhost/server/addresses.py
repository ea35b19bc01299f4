"""Whether an address can be listened on. gRPC says little of why not, and takes a Unix socket from whoever has it."""

import socket
import stat
from pathlib import Path

from gymhost.wire.errors import ServerUnavailable

__all__ = ["ensure_free"]


def ensure_free(address: str, option: str = "--address") -> None:
    """Checks that nobody listens on `HOST:PORT` or `unix:PATH`, an option's, and that it is possible here.

    Raises:
        ServerUnavailable: It is not.
    """
    try:
        if address.startswith("unix:"):
            _ensure_free_path(Path(address.removeprefix("unix:")))
        else:
            host, _, port = address.rpartition(":")
            _ensure_free_port(host.strip("[]"), int(port))
    except OSError as error:
        raise ServerUnavailable(f"can't listen on {address}: {error.strerror or error} ({option})") from None


def _ensure_free_port(host: str, port: int) -> None:
    for family, kind, protocol, _, place in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()


def _ensure_free_path(path: Path) -> None:
    """A socket that a server left behind when it was killed is taken over; nothing else is."""
    if not path.exists():
        if not path.parent.is_dir():
            raise OSError(f"there is no folder {path.parent}")
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise OSError("there is a file, which is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
    raise OSError("another server listens there")
