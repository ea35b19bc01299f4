"""How a gateway is set up, by the server that it is beside."""

import dataclasses
from typing import Any, Self

from gymhost.wire import limits as bounds
from gymhost.wire.errors import InvalidArgument

__all__ = ["PROTOCOLS", "GatewayConfig"]

PROTOCOLS = ("openenv", "mcp")


@dataclasses.dataclass(frozen=True)
class GatewayConfig:
    """The settings of a gateway. Times are in seconds, sizes in bytes.

    Attributes:
        protocol: What it speaks: `openenv` or `mcp`.
        address: Where it listens: `HOST:PORT` (port 0: a free one).
        environments: The environment server: its own Unix socket (`unix:PATH`), or `HOST:PORT`.
        environment: The environment that is at the root too; empty for none. All are under `/env/ID`.
        wants_token: Whether the server wants a token, which callers must show then.
        create_timeout: How long a session may wait for a place on a full server.
        idle_timeout: How long a session may be without a command, where no socket holds it.
        max_payload: The largest message.
        tls_cert: The certificate chain, in PEM: callers must speak HTTPS.
        tls_key: Its key.
        tls_client_ca: The authorities of the certificates that callers must have, in PEM; empty for none.
        log_level: `debug`, `info`, `warning` or `error`.
        log_format: `text` or `json`.
    """

    protocol: str
    address: str
    environments: str
    environment: str = ""
    wants_token: bool = True
    create_timeout: float = 30.0
    idle_timeout: float = 1800.0
    max_payload: int = bounds.MAX_PAYLOAD
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        """Checks the settings.

        Raises:
            InvalidArgument: One is out of range; the message names it.
        """
        if self.protocol not in PROTOCOLS:
            raise InvalidArgument(f"protocol is one of {', '.join(PROTOCOLS)}, not {self.protocol!r}")
        for name in ("create_timeout", "idle_timeout", "max_payload"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name} must be above 0, not {getattr(self, name)}")

    @property
    def option(self) -> str:
        """The option of `gymhost serve` that gives the address."""
        return f"--{self.protocol}"

    def to_dict(self) -> dict[str, Any]:
        """The settings, for `from_dict` in another process."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """Reads what `to_dict` made."""
        return cls(**settings)
