"""What a rollout service is asked beside jobs: how it fares, its generators and weights, its environments."""

import os
from typing import Any

from gymhost.client.api import EnvironmentDescription, TaskList, tasks_request
from gymhost.client.connection import CALL_GRACE
from gymhost.rollout.generators.base import InFlight
from gymhost.rollout.service.link import ASK_LIMIT, Link
from gymhost.rollout.service.reports import GeneratorStatus, ServiceStatus
from gymhost.v1 import environments_pb2 as environments_pb
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.wire import values

__all__ = ["Controls"]

# Seconds for making an environment to describe it, and for loading weights beyond the wait for what is in flight.
_DESCRIBE_LIMIT = 300.0
_LOAD_LIMIT = 600.0

_IN_FLIGHT: dict[InFlight, pb.InFlight.ValueType] = {
    "wait": pb.IN_FLIGHT_WAIT,
    "cut": pb.IN_FLIGHT_CUT,
    "keep": pb.IN_FLIGHT_KEEP,
}


class Controls:
    """The calls of a client that concern no job.

    Args:
        link: The connection.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    # -- the service ---------------------------------------------------------------------------------------------------

    async def status(self) -> ServiceStatus:
        """How the service fares."""
        return ServiceStatus.from_message(await self._link.call("GetStatus", pb.GetStatusRequest()))

    async def announce(
        self,
        version: int,
        weights: str | os.PathLike[str] | None = None,
        in_flight: InFlight = "wait",
        patience: float = 300.0,
    ) -> list[str]:
        """Says which weights the generators have from now on, or has them load these.

        Args:
            version: Higher than the last one; the same again is no error.
            weights: A folder with safetensors files that the generators can read; None where somebody else has changed
                their weights already.
            in_flight: With `weights`: what becomes of generations in flight.
            patience: With `weights`: seconds that these may take to end, after which they are cut.

        Returns:
            The names of the generators that have it.

        Raises:
            PermissionDenied: This is for the role `admin`.
            InvalidArgument: The version is lower than the last one.
        """
        request = pb.AnnouncePolicyRequest(
            version=version,
            weights="" if weights is None else os.fspath(weights),
            in_flight=_IN_FLIGHT[in_flight],
            patience=patience,
        )
        return list((await self._link.call("AnnouncePolicy", request, patience + _LOAD_LIMIT)).generators)

    async def generators(self) -> list[GeneratorStatus]:
        """Lists the generators, with load and health at this moment."""
        response = await self._link.call("ListGenerators", pb.ListGeneratorsRequest())
        return [GeneratorStatus.from_message(generator) for generator in response.generators]

    async def add_generator(self, url: str, *, name: str = "", model: str = "", api_key: str = "") -> GeneratorStatus:
        """Takes in a generator; the same name and URL again is no error.

        Args:
            url: A vLLM server, such as http://gpu3:8000.
            name: What tells it from others; without one the URL.
            model: The name under which the model is served; without one the first that the server names.
            api_key: The server's key, if it wants one.

        Raises:
            PermissionDenied: This is for the role `admin`.
            InvalidArgument: The name is another generator's.
        """
        request = pb.AddGeneratorRequest(url=url, name=name, model=model, api_key=api_key)
        return GeneratorStatus.from_message((await self._link.call("AddGenerator", request)).generator)

    async def drain_generator(self, name: str, patience: float = 300.0) -> GeneratorStatus:
        """Sends a generator nothing more, and waits until it has nothing in flight.

        Args:
            name: Its name.
            patience: Seconds after which what is still in flight there goes on elsewhere.

        Raises:
            PermissionDenied: This is for the role `admin`.
            InvalidArgument: There is no such generator.
        """
        request = pb.DrainGeneratorRequest(name=name, patience=patience)
        response = await self._link.call("DrainGenerator", request, patience + ASK_LIMIT)
        return GeneratorStatus.from_message(response.generator)

    async def remove_generator(self, name: str) -> None:
        """Takes a generator out at once; what is in flight there goes on elsewhere, from its tokens.

        Raises:
            PermissionDenied: This is for the role `admin`.
        """
        await self._link.call("RemoveGenerator", pb.RemoveGeneratorRequest(name=name))

    # -- environments --------------------------------------------------------------------------------------------------

    async def environments(self, prefix: str = "") -> list[EnvironmentDescription]:
        """Lists the environments that can be played, by the beginning of their ids."""
        response = await self._link.call("ListEnvironments", environments_pb.ListEnvironmentsRequest(prefix=prefix))
        return [EnvironmentDescription.from_info(info) for info in response.environments]

    async def describe(self, environment_id: str, /, **kwargs: Any) -> EnvironmentDescription:
        """Describes an environment: spaces, tools, tasks.

        Args:
            environment_id: The environment.
            **kwargs: Keyword arguments for the instance that is made to find out.

        Raises:
            UnknownEnvironment: No such environment is to be played.
            EnvironmentFault: It could not be made.
        """
        request = environments_pb.GetEnvironmentRequest(environment_id=environment_id)
        if kwargs:
            values.encode(kwargs, request.kwargs)
        response = await self._link.call("GetEnvironment", request, _DESCRIBE_LIMIT + CALL_GRACE)
        return EnvironmentDescription.from_info(response.environment)

    async def tasks(
        self,
        environment_id: str,
        /,
        *,
        split: str | None = None,
        start: int = 0,
        limit: int = 100,
        sample: int | None = None,
        **kwargs: Any,
    ) -> TaskList:
        """Lists or samples the tasks of an environment, with the fields that it declares public.

        Args:
            environment_id: The environment.
            split: The split; None means the environment's first.
            start: The index of the first task.
            limit: How many tasks at most, up to 1000.
            sample: Draws so many at random instead, each at most once; this is the seed.
            **kwargs: Keyword arguments for the instance that is made to find out.

        Raises:
            UnknownEnvironment: No such environment is to be played.
            InvalidArgument: It has no tasks, or no such split.
            EnvironmentFault: It could not be made.
        """
        request = tasks_request(environment_id, split, start, limit, sample, kwargs)
        return TaskList.from_response(await self._link.call("ListTasks", request, _DESCRIBE_LIMIT + CALL_GRACE))
