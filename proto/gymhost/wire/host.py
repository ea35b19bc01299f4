"""Which host this is: how a client finds out that a server is on its own."""

import ipaddress
from pathlib import Path

__all__ = ["host_name", "is_loopback"]


def host_name() -> str:
    """A name that only processes under the same running kernel have; empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_loopback(address: str) -> bool:
    """Whether what goes to `HOST:PORT` or `unix:PATH` stays on this host."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
