"""Runs a server for the process that started it: `python -m gymhost.server PARENT_FD READY_FD`.

The parent writes the configuration as one line of JSON into a pipe and keeps it open; the server writes its address
into another once it listens, and stops when the first one ends. `gymhost serve` is the command for people.
"""

import json
import os
import sys

from gymhost.server.config import ServerConfig
from gymhost.server.front import leftovers
from gymhost.server.server import Server, run
from gymhost.wire.errors import Error


def main() -> None:
    """Serves until the parent is gone."""
    parent, ready = int(sys.argv[1]), int(sys.argv[2])
    for fd in (parent, ready):
        os.set_inheritable(fd, False)
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(parent, 1)
        if not byte:
            return
        line += byte

    def on_ready(server: Server) -> None:
        with open(ready, "w") as writer:
            writer.write(server.address + "\n")

    try:
        run(ServerConfig.from_dict(json.loads(line)), on_ready=on_ready, parent_fd=parent)
    except Error as error:
        sys.exit(f"gymhost: {error}")
    finally:
        # The folder of an embedded one is its client's to remove, unless that was killed.
        leftovers.clear_embedded()


if __name__ == "__main__":
    main()
