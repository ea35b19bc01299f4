"""Servers of tests that need one which runs elsewhere."""

from support.fixtures import server, start_server

__all__ = ["server", "start_server"]
