"""What the front and its workers say to each other beyond the contract.

The link is a Unix socket with the frames of `gymhost.wire.frames`: InteractRequest towards the worker, InteractResponse
back. Commands of clients are forwarded as they are. The kinds below are the front's own; it refuses them from clients.

Notices of a worker are replies with sequence 0: SESSION_EXPIRED on a lane whose idle limit ran out, SESSION_LOST on a
lane that was given up, and UNAVAILABLE on lane 0 when the worker asks for no new sessions.
"""

import dataclasses
import json
from typing import Any

# On the lane that the new session gets: payload CreateSessionRequest, whose key the front has replaced by the session's
# token for the direct path; reply CreateSessionResponse without id and lanes.
CREATE = 1001
# Lane 0: no payload, reply ListEnvironmentsResponse.
CATALOG = 1002
# Lane 0: payload GetEnvironmentRequest, reply GetEnvironmentResponse.
DESCRIBE = 1003
# On a lane, numbered by the front, when a stream has attached it: a client that drives it past gRPC is told DETACHED.
# No payload, reply Attached.
LAST_SEQUENCES = 1004
# On a lane, numbered by the front: no payload, reply SessionInfo.
INFO = 1005
# Lane 0, the number is that of a channel whose stream has ended: no payload, no reply.
FORGET_CHANNEL = 1006

# Lane 0: payload ListTasksRequest, reply ListTasksResponse.
TASKS = 1007

# Seconds that all environments of a worker together get to close when the worker ends.
CLOSE_ALL_LIMIT = 10.0

# The exit status of a worker that ended itself because an inline step overran its limit, or its front is gone.
EXIT_OVERRUN = 75


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """What a worker is told at its start, as JSON on its command line.

    Attributes:
        number: The worker's number, which is the upper half of its lanes.
        link_fd: The descriptor of its end of the link.
        direct_path: Where to listen for clients on the same host.
        alive_fd: The descriptor that it writes a byte to every second.
        modules: Modules to import, whose environments are then hosted.
        paths: Folders to put on the import path.
        attributes: Patterns of ids, each with the names of the attributes that clients may reach.
        wrappers: Wrappers that clients may ask for beyond Gymnasium's, as `module:Class`.
        max_payload: The largest payload, in bytes.
        loop_limit: Seconds that the worker's event loop may stand still before the worker ends itself.
        grace: Seconds that a worker with a stuck step goes on for the sake of its other sessions.
        sandboxes: How the sandboxes of its environments are made: what `gymhost.envs.sandboxing.Settings` has.
    """

    number: int
    link_fd: int
    alive_fd: int
    direct_path: str
    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    wrappers: tuple[str, ...] = ()
    max_payload: int = 64 * 1024 * 1024
    loop_limit: float = 60.0
    grace: float = 60.0
    sandboxes: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def to_json(self) -> str:
        """The configuration as one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "WorkerConfig":
        """Reads what `to_json` wrote."""
        fields = json.loads(text)
        for name in ("modules", "paths", "wrappers"):
            fields[name] = tuple(fields[name])
        fields["attributes"] = tuple((pattern, tuple(names)) for pattern, names in fields["attributes"])
        return cls(**fields)
