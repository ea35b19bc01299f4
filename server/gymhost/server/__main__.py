"""Runs a server for the process that started it: `python -m gymhost.server PARENT_FD READY_FD`.

The parent writes the configuration as one line of JSON into a pipe and keeps it open; the server writes its address
into another once it listens, and stops when the first one ends. `gymhost serve` is the command for people.
"""

import os
import sys
from functools import partial

from gymhost.server.config import ServerConfig
from gymhost.server.front import leftovers
from gymhost.server.process import read_settings, tell_address
from gymhost.server.server import run
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
        run(ServerConfig.from_dict(settings), on_ready=partial(tell_address, ready), parent_fd=parent)
    except Error as error:
        sys.exit(f"gymhost: {error}")
    finally:
        # The folder of an embedded one is its client's to remove, unless that was killed.
        leftovers.clear_embedded()


if __name__ == "__main__":
    main()
