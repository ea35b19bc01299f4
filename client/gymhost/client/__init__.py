"""The client: environments on a server, behind Gymnasium's API or as async sessions."""

import gymnasium

from gymhost.client.api import EnvironmentDescription, RemoteServer, TaskList, connect
from gymhost.client.env import RemoteEnv, make
from gymhost.client.operations import Operations
from gymhost.client.session import Session
from gymhost.client.tls import Tls
from gymhost.client.vector import make_vec
from gymhost.client.vector_env import RemoteVectorEnv
from gymhost.wire.errors import (
    Cancelled,
    CapacityExhausted,
    CommandTimeout,
    ConnectionLost,
    DecodeError,
    Detached,
    EncodeError,
    EnvironmentFault,
    Error,
    InvalidArgument,
    OutOfSequence,
    PermissionDenied,
    ReplayDiverged,
    ResetNeeded,
    SandboxLost,
    SandboxUnavailable,
    ServerFault,
    ServerUnavailable,
    SessionClosed,
    SessionError,
    SessionExpired,
    SessionLost,
    TooLarge,
    Unauthenticated,
    Unimplemented,
    UnknownEnvironment,
    UnknownJob,
    UnknownSession,
)

# For `gymnasium.make("gymhost.client:gymhost/Remote-v0", environment_id="CartPole-v1", server="...")`, and make_vec.
if "gymhost/Remote-v0" not in gymnasium.registry:
    gymnasium.register(  # pyright: ignore[reportUnknownMemberType]
        "gymhost/Remote-v0",
        entry_point="gymhost.client.env:make_remote",
        vector_entry_point="gymhost.client.vector:make_remote",
    )

__all__ = [
    "Cancelled",
    "CapacityExhausted",
    "CommandTimeout",
    "ConnectionLost",
    "DecodeError",
    "Detached",
    "EncodeError",
    "EnvironmentDescription",
    "EnvironmentFault",
    "Error",
    "InvalidArgument",
    "Operations",
    "OutOfSequence",
    "PermissionDenied",
    "RemoteEnv",
    "RemoteServer",
    "RemoteVectorEnv",
    "ReplayDiverged",
    "ResetNeeded",
    "SandboxLost",
    "SandboxUnavailable",
    "ServerFault",
    "ServerUnavailable",
    "Session",
    "SessionClosed",
    "SessionError",
    "SessionExpired",
    "SessionLost",
    "TaskList",
    "Tls",
    "TooLarge",
    "Unauthenticated",
    "Unimplemented",
    "UnknownEnvironment",
    "UnknownJob",
    "UnknownSession",
    "connect",
    "make",
    "make_vec",
]
