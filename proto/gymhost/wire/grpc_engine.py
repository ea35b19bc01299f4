"""Which of gRPC's pollers a process uses. This module imports no gRPC: gRPC reads its settings when it is imported."""

import contextlib
import os
from collections.abc import Generator
from importlib import metadata

_VARIABLE = "GRPC_EXPERIMENTS"
# Some version after 1.76, 1.80 at the latest, began to hand each event to a pool of threads; the poller of before does
# without. On two cores a lone message there and back takes 153 us in place of 246, and 105 us of CPU a side, not 153.
_WITHOUT_POOL = "-event_engine_client,-event_engine_listener"
# The newest version that was tried; a later one may not know these names, and say so on stderr.
_KNOWN_UNTIL = (1, 85)


def choose_poller() -> bool:
    """Has gRPC use its quickest poller in this process, and in those that it starts, where gRPC was not imported yet.

    Returns:
        False where nothing was changed: the user has made a choice, or this version of gRPC is not known.
    """
    if _VARIABLE in os.environ or _version() > _KNOWN_UNTIL:
        return False
    os.environ[_VARIABLE] = _WITHOUT_POOL
    return True


@contextlib.contextmanager
def quickest_poller() -> Generator[None]:
    """Has gRPC use its quickest poller if it is imported within; no process that is started later inherits that."""
    chosen = choose_poller()
    try:
        yield
    finally:
        if chosen:
            del os.environ[_VARIABLE]


def _version() -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in metadata.version("grpcio").split(".")[:2])
    except (metadata.PackageNotFoundError, ValueError):
        return (99,)
