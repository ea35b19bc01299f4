"""What a session is made and driven by: what its client asked for, and what the server's settings allow."""

from fnmatch import fnmatchcase
from typing import Any

import gymnasium

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
        replayable: Whether the session can be made again from its commands.
        label: What its client calls the episode.

    Raises:
        PermissionDenied: A wrapper is not allowed.
    """

    __slots__ = ("attributes", "defaults", "label", "replayable", "wrappers")

    def __init__(self, request: pb.CreateSessionRequest, hosting: Hosting, config: WorkerConfig) -> None:
        self.defaults: dict[str, Any] = {}
        self.label = ""
        if request.HasField("task"):
            self.defaults["task"] = request.task
        if request.split:
            self.defaults["split"] = request.split
        self.attributes: Allowed = allowed(request.environment_id, hosting, config.attributes)
        self.wrappers = wrapping.resolve(
            ((each.name, values.decode(each.kwargs) if each.HasField("kwargs") else {}) for each in request.wrappers),
            config.wrappers,
        )
        self.replayable = (
            not request.num_envs
            and replayable(request.environment_id, hosting, config.replayable)
            and wrapping.replayable(self.wrappers)
        )


def replayable(environment_id: str, hosting: Hosting, patterns: tuple[str, ...]) -> bool:
    """Whether sessions of an environment can be made again from their commands.

    Args:
        environment_id: The environment.
        hosting: What it says itself.
        patterns: Patterns of the ids of those that do not say so, from the server's settings.
    """
    said = any(fnmatchcase(environment_id, pattern) for pattern in patterns)
    return hosting.replayable or (said and not gymnasium.spec(environment_id).nondeterministic)
