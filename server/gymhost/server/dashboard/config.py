"""How a dashboard is set up, by the server that it is beside."""

import dataclasses
from typing import Any, Self

__all__ = ["DashboardConfig"]


@dataclasses.dataclass(frozen=True)
class DashboardConfig:
    """The settings of a dashboard.

    Attributes:
        address: Where it listens: `HOST:PORT` (port 0: a free one).
        environments: The environment server's own Unix socket (`unix:PATH`); empty where there is none here.
        rollouts: The rollout service's.
        wants_token: Whether the servers want a token, which readers must show then.
        tls_cert: The servers' certificate chain, in PEM: readers must speak HTTPS.
        tls_key: Its key.
        tls_client_ca: The authorities of the certificates that readers must have, in PEM; empty for none.
        log_level: `debug`, `info`, `warning` or `error`.
        log_format: `text` or `json`.
    """

    address: str
    environments: str = ""
    rollouts: str = ""
    wants_token: bool = True
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    log_level: str = "info"
    log_format: str = "text"

    def to_dict(self) -> dict[str, Any]:
        """The settings, for `from_dict` in another process."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """Reads what `to_dict` made."""
        return cls(**settings)
