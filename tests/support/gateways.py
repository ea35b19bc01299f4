"""Real gateways for tests, in processes of their own."""

from typing import Any, ClassVar, Self

from support.server import ServerProcess


class GatewayProcess(ServerProcess):
    """A gateway.

    Args:
        protocol: What it speaks.
        server: The server that it is beside.
        settings: Settings of `GatewayConfig` beyond the usual ones of tests.
    """

    DEFAULTS: ClassVar[dict[str, Any]] = {"address": "127.0.0.1:0", "wants_token": False}

    def __init__(self, protocol: str, server: ServerProcess, **settings: Any) -> None:
        super().__init__(module="gymhost.server.gateways", protocol=protocol, environments=server.address, **settings)

    def __enter__(self) -> Self:
        return self

    def url(self, environment: str = "") -> str:
        """Where an environment is; without a name the one at the root."""
        return f"http://{self.address}" + (f"/env/{environment}" if environment else "")
