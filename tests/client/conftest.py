"""The server that the tests of this folder talk to."""

from support.fixtures import proxy, server, start_server

__all__ = ["proxy", "server", "start_server"]
