"""Sandboxes as containers of a Docker engine, or of what speaks like one."""

from gymhost.envs.sandbox.docker.backend import Docker

__all__ = ["Docker"]
