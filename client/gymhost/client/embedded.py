"""The embedded server: a real one, in processes of its own, that lives as long as its client."""

import hashlib
import importlib.util
import json
import os
import secrets
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gymhost.wire.errors import ServerUnavailable
from gymhost.wire.folders import HeldFolder

# Seconds for the server to start, and to stop.
START_LIMIT = 120.0
STOP_LIMIT = 20.0


class EmbeddedServer:
    """Starts `gymhost.server` as a child process on a Unix socket. It ends when its parent does, however that ends.

    Args:
        modules: Modules for it to import; they are looked for where this process looks for modules.

    Raises:
        ServerUnavailable: It could not be started; the message has what it said.
    """

    def __init__(self, modules: tuple[str, ...] = ()) -> None:
        if importlib.util.find_spec("uvloop") is None:
            raise ServerUnavailable("an embedded server needs the extra 'server': pip install 'gymhost[server]'")
        self.token = secrets.token_hex(16)
        # Where it is found abandoned when this process and the server have both been killed.
        self._folder = HeldFolder("gymhost-embedded-")
        self.address = f"unix:{self._folder.path / 'server'}"
        config: dict[str, Any] = {
            "address": self.address,
            "modules": list(modules),
            "paths": [str(Path(path).absolute()) for path in sys.path if path],
            "tokens": {f"sha256:{hashlib.sha256(self.token.encode()).hexdigest()}": "embedded"},
            # It is its user's own.
            "attributes": {"*": ["*"]},
            "wrappers": ["*"],
            "log_level": "warning",
        }
        if "" in sys.path:
            config["paths"].insert(0, str(Path.cwd()))
        ready, ready_writer = os.pipe()
        # The server reads its configuration from here, and takes the end of the file for the end of its parent.
        parent_reader, self._parent = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gymhost.server", str(parent_reader), str(ready_writer)],
                stdin=subprocess.DEVNULL,
                pass_fds=(parent_reader, ready_writer),
                start_new_session=True,
            )
            os.write(self._parent, json.dumps(config).encode() + b"\n")
        except BaseException:
            os.close(self._parent)
            os.close(ready)
            raise
        finally:
            os.close(parent_reader)
            os.close(ready_writer)
        try:
            self._wait(ready)
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(ready)

    def _wait(self, ready: int) -> None:
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            readable, _, _ = select.select([ready], [], [], 0.5)
            if readable:
                if os.read(ready, 4096):
                    return
                status = self._process.wait(STOP_LIMIT)
                raise ServerUnavailable(
                    f"the embedded server could not start (status {status}): what it said stands above"
                )
        raise ServerUnavailable(f"the embedded server was not ready after {START_LIMIT:g} s")

    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Stops the server and waits for it. Twice is no error."""
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.remove()

    def forked(self) -> None:
        """Called in a forked child: the server is the parent's, and nobody's child here."""
        self._process.returncode = 0
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1
