"""How many files and sockets a process may have open."""

import contextlib
import resource


def allow_descriptors() -> None:
    """Raises the limit as far as the system lets this process; each session of a client on this host takes some."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
