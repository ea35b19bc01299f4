"""What the front and its workers say to each other beyond the contract.

The link is a Unix socket with the frames of `gymhost.wire.frames`: InteractRequest towards the worker, InteractResponse
back. Commands of clients are forwarded as they are. The kinds below are the front's own; it refuses them from clients.

Notices of a worker are replies with sequence 0: SESSION_EXPIRED on a lane whose idle limit ran out, SESSION_LOST on a
lane that was given up, and UNAVAILABLE on lane 0 when the worker asks for no new sessions.
"""

import dataclasses
import importlib.metadata
import json
import os
import struct
import sys
from typing import Any

# On the lane that the new session gets: payload CreateSessionRequest, whose key the front has replaced by the session's
# token for the direct path; reply CreateSessionResponse without id and lanes.
CREATE = 1001
# Lane 0: no payload, reply ListEnvironmentsResponse.
CATALOG = 1002
# On a lane of its own, which nothing else is on: payload GetEnvironmentRequest, reply GetEnvironmentResponse.
DESCRIBE = 1003
# On a lane, numbered by the front, when a stream has attached it: a client that drives it past gRPC is told DETACHED.
# No payload, reply Attached.
LAST_SEQUENCES = 1004
# On a lane, numbered by the front: no payload, reply SessionInfo.
INFO = 1005
# Lane 0, the number is that of a channel whose stream has ended: no payload, no reply.
FORGET_CHANNEL = 1006

# As DESCRIBE: payload ListTasksRequest, reply ListTasksResponse.
TASKS = 1007
# On a lane and numbered on it, in place of a client's FORK that the front can't have run: payload a Reply, with the
# code and the payload to answer it with. The payload of a FORK is a ForkResult here, with the ids, lanes and tokens of
# the sessions to make, which are the front's to give. Of those that are not made it is told by a SESSION_CLOSED on
# their lanes.
REPLY = 1008

# What a worker sends on a connection to its front's socket for memory, one for each sandbox: the lane that it is made
# on, and its bytes. It is answered by frames with a Reply: number 0 says why it has to wait, number 1 that it has the
# memory as long as the connection is open, or why it gets none.
CLAIM = struct.Struct("!QQ")
# The name of that socket in the server's folder.
MEMORY_SOCKET = "memory"

# Lane 0: payload a JSON list of lanes, reply a JSON object: the bytes that the sandboxes of each use, by its lane as
# text. Those of which nothing is known within MEMORY_LIMIT seconds are left out.
MEMORY = 1009
MEMORY_LIMIT = 1.5

# Lane 0: payload a JSON object with `environment_id` (empty: any), `busy` (null: any), `lanes` (null: all) and `limit`;
# reply a JSON object: of those sessions whose state has lasted longest, by their lanes as text, a list with the label,
# whether a command runs, for how many seconds it has or has not, its name, and how many commands there were.
LIVE = 1010
# On a lane, numbered by the front: payload a number that the front gives to somebody who follows the session, as text.
# The reply is a FollowSessionResponse with what came since the last time, once there is something; to the first one it
# comes at once, and is empty. UNFOLLOW has no reply.
FOLLOW = 1011
UNFOLLOW = 1012
# What a worker tells by itself of a lane, in place of the code of a notice: the payload is a Failure.
FAILED = 1013

# What stands in a worker's output before a line that an environment printed, and after each part of what it begins with
# then: the environment's id, the lane, and the label of the session's episode.
TAG = "\x1f"

# Seconds that all environments of a worker together get to close when the worker ends.
CLOSE_ALL_LIMIT = 10.0

# The exit status of a worker that ended itself because an inline step overran its limit, or its front is gone.
EXIT_OVERRUN = 75


@dataclasses.dataclass(frozen=True)
class WorkerConfig:
    """What a worker is told at its start, as JSON on its standard input: every user of a machine sees command lines.

    Attributes:
        number: The worker's number, which is the upper half of its lanes.
        link_fd: The descriptor of its end of the link.
        direct_path: Where to listen for clients on the same host.
        memory_path: Where to ask for the memory of sandboxes; empty where none is kept account of.
        alive_fd: The descriptor that it writes a byte to every second.
        board_fd: The memory of its `Board`.
        meter_fd: The memory of its `Meter`; -1 where nothing is counted.
        modules: Modules to import, whose environments are then hosted.
        paths: Folders to put on the import path.
        attributes: Patterns of ids, each with the names of the attributes that clients may reach.
        wrappers: Wrappers that clients may ask for beyond Gymnasium's, as `module:Class`.
        replayable: Patterns of the ids of environments that are replayable and do not say so.
        max_payload: The largest payload, in bytes.
        loop_limit: Seconds that the worker's event loop may stand still before the worker ends itself.
        grace: Seconds that a worker with a stuck step goes on for the sake of its other sessions.
        version: The front's gymhost, which the worker's own must be.
        sandboxes: How the sandboxes of its environments are made: what `gymhost.envs.sandboxing.Settings` has.
        clears: Whether it clears away what sandboxes of servers left that were killed.
    """

    number: int
    link_fd: int
    alive_fd: int
    board_fd: int
    direct_path: str
    version: str
    meter_fd: int = -1
    memory_path: str = ""
    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    attributes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    wrappers: tuple[str, ...] = ()
    replayable: tuple[str, ...] = ()
    max_payload: int = 64 * 1024 * 1024
    loop_limit: float = 60.0
    grace: float = 60.0
    sandboxes: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    clears: bool = False


def write_config(config: WorkerConfig) -> int:
    """Returns a descriptor of a file in memory that has a configuration, to be a worker's standard input."""
    descriptor = os.memfd_create("gymhost-worker")
    os.write(descriptor, json.dumps(dataclasses.asdict(config)).encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def own_version() -> str:
    """The version of gymhost that runs here."""
    return importlib.metadata.version("gymhost")


def read_config() -> WorkerConfig:
    """Reads what `write_config` wrote from standard input, which is empty from then on.

    Raises:
        SystemExit: The front is of another version, as where this is another interpreter than the front's.
    """
    with open(0, closefd=False) as file:
        fields = json.load(file)
    if fields["version"] != own_version():
        sys.exit(f"the server is gymhost {fields['version']}, and here is gymhost {own_version()}: install the same")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for name in ("modules", "paths", "wrappers", "replayable"):
        fields[name] = tuple(fields[name])
    fields["attributes"] = tuple((pattern, tuple(names)) for pattern, names in fields["attributes"])
    return WorkerConfig(**fields)
