"""The server of the rollouts that are played over one."""

from support.fixtures import proxy, server

__all__ = ["proxy", "server"]
