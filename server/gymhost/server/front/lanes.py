"""What operators call sessions: by their lanes, which open nothing to anybody."""

import re

__all__ = ["lane_of", "name_of"]


def name_of(lane: int) -> str:
    """What operators call the session of a lane: its worker's number and its own."""
    return f"{lane >> 32}-{lane & 0xFFFFFFFF}"


def lane_of(name: str) -> int:
    """The lane of a session that operators call so; 0, which is none, where nobody calls one so."""
    match = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", name)
    return int(match[1]) << 32 | int(match[2]) if match else 0
