"""The servers that the tests of this folder talk to."""

from support.docker_engine import docker_engine
from support.fixtures import server

__all__ = ["docker_engine", "server"]
