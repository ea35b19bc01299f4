"""Runs a worker: `python -m gymhost.server.worker`, started by a front, with its configuration as standard input."""

import os
import signal
import socket
import sys

import uvloop

from gymhost.server.descriptors import allow_descriptors
from gymhost.server.link import read_config
from gymhost.server.worker.host import Host
from gymhost.server.worker.output import tag_output
from gymhost.server.worker.watchdog import end_group


def main() -> None:
    """Serves the link until the front closes it."""
    config = read_config()
    # The front decides when its workers end; a Ctrl-C in the terminal reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = dict.fromkeys([*config.paths, *sys.path])
    for fd in (config.link_fd, config.alive_fd, config.board_fd, config.meter_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    allow_descriptors()
    tag_output()
    host = Host(config)
    host.load()
    uvloop.run(host.serve(socket.socket(fileno=config.link_fd)))
    # Threads that are stuck in an environment's code must not keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    if host.watchdog.front_is_gone():
        end_group()
    os._exit(0)


if __name__ == "__main__":
    main()
