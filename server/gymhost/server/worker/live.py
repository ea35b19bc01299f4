"""What sessions do at this moment, for operators who ask."""

import heapq
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from gymhost.server.worker.follow import command_name
from gymhost.server.worker.session import Session

__all__ = ["told"]


def told(sessions: Mapping[int, Session], payload: bytes) -> bytes:
    """Answers a link.LIVE."""
    asked: dict[str, Any] = json.loads(payload)
    lanes: list[int] | None = asked["lanes"]
    some: Iterable[Session] = sessions.values()
    if lanes is not None:
        some = (session for lane in lanes if (session := sessions.get(lane)) is not None)
    environment_id, busy = asked["environment_id"], asked["busy"]
    matching = (
        session
        for session in some
        if (not environment_id or session.environment_id == environment_id) and busy in (None, session.busy)
    )
    now = time.monotonic()
    first = heapq.nsmallest(asked["limit"], matching, key=lambda session: session.since)
    rows = {
        session.lane: [
            session.terms.label,
            session.busy,
            now - session.since,
            command_name(session.kind) if session.busy else "",
            session.last,
        ]
        for session in first
    }
    return json.dumps(rows).encode()
