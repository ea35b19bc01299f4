"""The server that the tests of this folder talk to."""

from support.fixtures import server

__all__ = ["server"]
