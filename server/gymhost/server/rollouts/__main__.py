"""Runs the rollout service for the process that started it: `python -m gymhost.server.rollouts PARENT_FD READY_FD`.

As with `gymhost.server`, the parent writes the configuration as one line of JSON into a pipe and keeps it open; the
service writes its address into another once it listens, and stops when the first one ends. Beside the settings the
line may have `side_address`, where it listens for processes beside it.
"""

import os
import sys
from functools import partial

from gymhost.server.process import read_settings, tell_address
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.rollouts.process import run
from gymhost.wire.errors import Error


def main() -> None:
    """Serves until the parent is gone."""
    parent, ready = int(sys.argv[1]), int(sys.argv[2])
    for fd in (parent, ready):
        os.set_inheritable(fd, False)
    settings = read_settings(parent)
    if settings is None:
        return
    side_address = settings.pop("side_address", "")
    try:
        run(
            RolloutsConfig.from_dict(settings),
            side_address=side_address,
            on_ready=partial(tell_address, ready),
            parent_fd=parent,
        )
    except (Error, ImportError) as error:
        sys.exit(f"gymhost: {error}")


if __name__ == "__main__":
    main()
