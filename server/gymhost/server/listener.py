"""A gRPC server as gymhost's servers have it: the services, their health, and reflection, behind one door."""

from collections.abc import Mapping
from typing import Any, cast

import grpc.aio
from grpc_health.v1 import health as health_v1
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gymhost.server.access import Access
from gymhost.wire import errors, limits

__all__ = ["Listener"]

# gRPC's asyncio health service, which has no types of its own.
health: Any = cast(Any, health_v1).aio


class Listener:
    """Serves services at an address. Their health is that of the server.

    Args:
        address: Where to listen; after `start` with the port that was found, if it was to be a free one.
        access: Who is let in.
        max_payload: The largest payload, in bytes.
        services: For each service by its full name how it is served.
    """

    def __init__(
        self, address: str, access: Access, max_payload: int, services: Mapping[str, grpc.GenericRpcHandler]
    ) -> None:
        self.address = address
        self._access = access
        self._max_payload = max_payload
        self._services = services
        self._health: Any = health.HealthServicer()
        self._grpc: Any = None

    async def start(self) -> None:
        """Listens.

        Raises:
            ServerUnavailable: The address is taken.
        """
        self._grpc = grpc.aio.server(options=_options(self._max_payload))
        self._grpc.add_generic_rpc_handlers(tuple(self._services.values()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)  # pyright: ignore[reportUnknownMemberType]
        names = (*self._services, health_v1.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._grpc)
        port = self._access.listen(self._grpc)
        if not port:
            raise errors.ServerUnavailable(f"can't listen on {self.address}: is it taken? (--address)")
        if not self.address.startswith("unix:"):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await self._grpc.start()

    async def serving(self, well: bool = True) -> None:
        """Tells whoever asks about the server's health that it is well, or that it takes nothing new for now."""
        status = health_pb2.HealthCheckResponse
        for name in ("", *self._services):
            await self._health.set(name, status.SERVING if well else status.NOT_SERVING)

    async def leaving(self) -> None:
        """Tells whoever asks about the server's health that it is going away."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float) -> None:
        """Ends calls, after a grace time in seconds, and listens no more."""
        if self._grpc is not None:
            await self._grpc.stop(grace)


def _options(max_payload: int) -> list[tuple[str, int]]:
    message = max_payload + limits.ENVELOPE
    return [
        ("grpc.max_receive_message_length", message),
        ("grpc.max_send_message_length", message),
        # Beyond 1000 calls that come at once gRPC would drop some at random, health checks too; what is too much is
        # refused here, with a reason.
        ("grpc.server.max_pending_requests", 65_536),
        ("grpc.server.max_pending_requests_hard_limit", 131_072),
        # Two servers never share a port silently.
        ("grpc.so_reuseport", 0),
        # Clients may ping while a model thinks: by default gRPC takes that for abuse and sends GOAWAY.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        # Notices a peer that is gone without a word.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]
