"""What `gymhost serve` runs: an environment server, a rollout service, gateways, and a dashboard beside them."""

import dataclasses
import secrets
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gymhost.server import process
from gymhost.server.beside import Beside, Together
from gymhost.server.config import ServerConfig
from gymhost.server.dashboard.config import DashboardConfig
from gymhost.server.gateways.config import GatewayConfig
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.server import Server
from gymhost.server.settings import DoorSettings

__all__ = ["DashboardWanted", "GatewayWanted", "Serving", "serve", "serve_rollouts"]

# Seconds for the rollout service to begin: it loads a tokenizer, and what it has on disk. And for the others.
ROLLOUTS_START, DASHBOARD_START, GATEWAY_START = 120.0, 60.0, 60.0


class DashboardWanted(NamedTuple):
    """A dashboard that there is to be.

    Attributes:
        address: Where it is to listen.
        needed: Whether the server can't begin without it, since somebody asked for it.
    """

    address: str
    needed: bool


class GatewayWanted(NamedTuple):
    """A gateway that there is to be.

    Attributes:
        protocol: What it speaks: `openenv` or `mcp`.
        address: Where it is to listen.
        environment: The environment that is at its root too; empty for none.
    """

    protocol: str
    address: str
    environment: str


class Serving(NamedTuple):
    """What runs.

    Attributes:
        environments: The environment server, if it runs here.
        rollouts_address: Where the rollout service listens; empty without one.
        dashboard: The dashboard; None without one. Its `problem` says why it could not begin.
        gateways: Where gateways listen, by protocol.
    """

    environments: Server | None
    rollouts_address: str
    dashboard: Beside | None
    gateways: dict[str, str]


def serve(
    config: ServerConfig,
    rollouts: RolloutsConfig | None,
    dashboard: DashboardWanted | None,
    gateways: Sequence[GatewayWanted] = (),
    *,
    on_ready: Callable[[Serving], None],
) -> None:
    """Runs an environment server, and what is beside it, until SIGTERM or Ctrl-C.

    Args:
        config: The settings of the environment server.
        rollouts: Those of the rollout service, but for the environment server that it plays on; None for none.
        dashboard: The dashboard; None for none.
        gateways: What speaks others' protocols.
        on_ready: Called once all of them listen.

    Raises:
        Error: One could not start.
    """

    def make() -> Together:
        beside: list[Beside] = []
        token = secrets.token_hex(32) if rollouts is not None or dashboard is not None or gateways else ""
        server = Server(config, side_token=token)
        both = rollouts is not None and dashboard is not None
        side_address = f"{server.side_address}-rollouts" if both else ""
        if rollouts is not None:
            beside.append(_rollouts_beside(rollouts, server.side_address, token, side_address))
        beside += [_gateway_beside(config, gateway, server.side_address) for gateway in gateways]
        if dashboard is not None:
            beside.append(_dashboard_beside(config, dashboard, server.side_address, side_address))
        return Together(server, beside)

    process.run(
        make,
        config.log_level,
        config.log_format,
        on_ready=lambda running: on_ready(_serving(running, rollouts, dashboard, gateways)),
    )


def serve_rollouts(
    config: RolloutsConfig, dashboard: DashboardWanted | None, *, on_ready: Callable[[Serving], None]
) -> None:
    """Runs a rollout service alone, with a dashboard, until SIGTERM or Ctrl-C, and ends the process.

    Args:
        config: The settings of the service.
        dashboard: The dashboard; None for none.
        on_ready: Called once both listen.

    Raises:
        Error: One could not start.
        ImportError: What the service needs is not installed; the message names the extra.
    """
    # Which imports what plays rollouts: where environments are hosted that is another process's.
    from gymhost.server.rollouts.process import RolloutServer, leave, prepare

    def make() -> Together:
        if dashboard is None:
            return Together(RolloutServer(config), ())
        folder = tempfile.mkdtemp(prefix="gymhost-side-")
        side_address = f"unix:{folder}/rollouts"
        beside = _dashboard_beside(config, dashboard, "", side_address)
        return Together(RolloutServer(config, side_address), (beside,), folder)

    def ready(running: Together) -> None:
        on_ready(Serving(None, running.address, next(iter(running.beside), None), {}))

    prepare(config)
    process.run(make, config.log_level, config.log_format, on_ready=ready, on_stopped=leave)


def _serving(running: Together, rollouts: object, dashboard: object, gateways: Sequence[GatewayWanted]) -> Serving:
    assert isinstance(running.server, Server)
    beside = list(running.beside)
    service = beside.pop(0) if rollouts is not None else None
    shown = beside.pop() if dashboard is not None else None
    spoken = {wanted.protocol: gateway.address for wanted, gateway in zip(gateways, beside, strict=True)}
    return Serving(running.server, service.address if service else "", shown, spoken)


def _rollouts_beside(rollouts: RolloutsConfig, environments: str, token: str, side_address: str) -> Beside:
    played = dataclasses.replace(
        rollouts,
        environments=(environments,),
        environments_token=token,
        environments_ca="",
        environments_cert="",
        environments_key="",
    )
    settings: dict[str, Any] = played.to_dict() | {"side_address": side_address}
    return Beside(
        "the rollout service",
        "gymhost.server.rollouts",
        settings,
        start_limit=ROLLOUTS_START,
        drain=rollouts.drain,
        option=rollouts.ADDRESS_OPTION,
    )


def _gateway_beside(server: ServerConfig, wanted: GatewayWanted, environments: str) -> Beside:
    config = GatewayConfig(
        protocol=wanted.protocol,
        address=wanted.address,
        environments=environments,
        environment=wanted.environment,
        wants_token=bool(server.tokens or server.token_file),
        max_payload=server.max_payload,
        tls_cert=server.tls_cert,
        tls_key=server.tls_key,
        tls_client_ca=server.tls_client_ca,
        log_level=server.log_level,
        log_format=server.log_format,
    )
    return Beside(
        f"the gateway for {'OpenEnv' if wanted.protocol == 'openenv' else 'MCP'}",
        "gymhost.server.gateways",
        config.to_dict(),
        start_limit=GATEWAY_START,
        early=True,
        option=config.option,
    )


def _dashboard_beside(door: DoorSettings, wanted: DashboardWanted, environments: str, rollouts: str) -> Beside:
    config = DashboardConfig(
        address=wanted.address,
        environments=environments,
        rollouts=rollouts,
        wants_token=bool(door.tokens or door.token_file),
        tls_cert=door.tls_cert,
        tls_key=door.tls_key,
        tls_client_ca=door.tls_client_ca,
        log_level=door.log_level,
        log_format=door.log_format,
    )
    return Beside(
        "the dashboard",
        "gymhost.server.dashboard",
        config.to_dict(),
        start_limit=DASHBOARD_START,
        early=True,
        needed=wanted.needed,
        option="--dashboard",
    )
