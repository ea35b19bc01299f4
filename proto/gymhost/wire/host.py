"""Which host this is: how a client finds out that a server is on its own."""

from pathlib import Path

__all__ = ["host_name"]


def host_name() -> str:
    """A name that only processes under the same running kernel have; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
