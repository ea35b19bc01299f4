"""Runs a gateway for the server that it is beside: `python -m gymhost.server.gateways PARENT_FD READY_FD`.

As with `gymhost.server`, the parent writes the configuration as one line of JSON into a pipe and keeps it open; the
gateway writes its address into another once it listens, and stops when the first one ends.
"""

import os
import sys
from functools import partial

from gymhost.server.gateways.config import GatewayConfig
from gymhost.server.gateways.process import run
from gymhost.server.process import read_settings, tell_address
from gymhost.wire.errors import Error


def main() -> None:
    """Serves until the parent is gone."""
    parent, ready = int(sys.argv[1]), int(sys.argv[2])
    for fd in (parent, ready):
        os.set_inheritable(fd, False)
    settings = read_settings(parent)
    if settings is None:
        return
    try:
        run(GatewayConfig.from_dict(settings), on_ready=partial(tell_address, ready), parent_fd=parent)
    except (Error, ImportError) as error:
        sys.exit(f"gymhost: {error}")


if __name__ == "__main__":
    main()
