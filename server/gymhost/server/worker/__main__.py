"""Runs a worker: `python -m gymhost.server.worker JSON`, started by a front."""

import os
import signal
import socket
import sys

import uvloop

from gymhost.server.descriptors import allow_descriptors
from gymhost.server.link import WorkerConfig
from gymhost.server.worker.host import Host
from gymhost.server.worker.output import tag_output


def main() -> None:
    """Serves the link until the front closes it."""
    config = WorkerConfig.from_json(sys.argv[1])
    # The front decides when its workers end; a Ctrl-C in the terminal reaches the whole process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = dict.fromkeys([*config.paths, *sys.path])
    for fd in (config.link_fd, config.alive_fd):
        os.set_inheritable(fd, False)
    allow_descriptors()
    tag_output()
    host = Host(config)
    host.load()
    uvloop.run(host.serve(socket.socket(fileno=config.link_fd)))
    # Threads that are stuck in an environment's code must not keep the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
