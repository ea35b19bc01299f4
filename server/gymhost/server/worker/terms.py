"""What a session is made and driven by: what its client asked for, and what the server's settings allow."""

from typing import Any

from gymhost.envs import wrapping
from gymhost.envs.registration import Hosting
from gymhost.server.link import WorkerConfig
from gymhost.server.worker.attributes import Allowed, allowed
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import values


class Terms:
    """The terms of one session.

    Args:
        request: What its client asked for.
        hosting: How the environment runs.
        config: What the server's settings are.

    Attributes:
        defaults: What a reset falls back on where its options name no task.
        attributes: The attributes that the client may reach.
        wrappers: What to put around the environment.

    Raises:
        PermissionDenied: A wrapper is not allowed.
    """

    __slots__ = ("attributes", "defaults", "wrappers")

    def __init__(self, request: pb.CreateSessionRequest, hosting: Hosting, config: WorkerConfig) -> None:
        self.defaults: dict[str, Any] = {}
        if request.HasField("task"):
            self.defaults["task"] = request.task
        if request.split:
            self.defaults["split"] = request.split
        self.attributes: Allowed = allowed(request.environment_id, hosting, config.attributes)
        self.wrappers = wrapping.resolve(
            ((each.name, values.decode(each.kwargs) if each.HasField("kwargs") else {}) for each in request.wrappers),
            config.wrappers,
        )
