"""Fixtures of the tests of sandboxes."""

from support.docker_engine import docker_engine

__all__ = ["docker_engine"]
