"""Sandboxes made by bubblewrap: the kernel's namespaces, a filter of system calls, control groups."""

from gymhost.envs.sandbox.bubblewrap.backend import Bubblewrap

__all__ = ["Bubblewrap"]
