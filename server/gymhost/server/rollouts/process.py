"""The rollout service as a whole: file, environment servers, generators, engine, jobs and gRPC put together."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gymhost.client.tls import Tls
from gymhost.rollout import stages
from gymhost.rollout.agents import load_agent
from gymhost.rollout.chat import Chat
from gymhost.rollout.endpoint import Endpoints
from gymhost.rollout.engine import RolloutEngine
from gymhost.rollout.extras import require
from gymhost.rollout.servers import Servers
from gymhost.server import process
from gymhost.server.access import Access
from gymhost.server.addresses import ensure_free
from gymhost.server.identity import SideDoor
from gymhost.server.listener import Listener
from gymhost.server.rollouts import telling
from gymhost.server.rollouts.config import RolloutsConfig
from gymhost.server.rollouts.database import StoreError
from gymhost.server.rollouts.generators import Generators
from gymhost.server.rollouts.jobs import Jobs
from gymhost.server.rollouts.metrics import OPERATIONS, Figures, RolloutOperations, operations_handlers
from gymhost.server.rollouts.service import (
    ENVIRONMENTS,
    SERVICE,
    Forwarding,
    Receivers,
    RolloutService,
    forwarding_handlers,
    handlers,
)
from gymhost.server.rollouts.store import JobStore
from gymhost.server.tokens import Role, hash_of, new_token
from gymhost.wire.errors import InvalidArgument, ServerUnavailable

__all__ = ["RolloutServer", "leave", "prepare", "run"]

log = logging.getLogger("gymhost.server")

# Seconds for calls that are being answered when the service stops.
GRACE = 2.0


class RolloutServer:
    """A running rollout service.

    Args:
        config: Its settings.
        side_address: A Unix socket (`unix:PATH`) where it listens too, in a folder that is its user's alone, for
            processes beside it that show their callers' tokens; empty for none.
    """

    def __init__(self, config: RolloutsConfig, side_address: str = "") -> None:
        self.config = config
        # Nobody has the token that would let in by itself.
        side = SideDoor(side_address, hash_of(new_token()), "beside") if side_address else None
        # It takes those for admins who need no token.
        self._access = Access(config, untold=Role.ADMIN, side=side)
        self._receivers = Receivers()
        self._listener: Listener | None = None
        self._jobs: Jobs | None = None
        self._stack = AsyncExitStack()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._listener.address if self._listener is not None else self.config.address

    async def start(self) -> None:
        """Finds what is on disk, goes on with it, and listens.

        Raises:
            InvalidArgument: A setting can't be used.
            ServerUnavailable: The address is taken, or the file can't be used.
        """
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        config, stack = self.config, self._stack
        if not config.environments:
            raise InvalidArgument("name an environment server to play on (--environments)")
        ensure_free(config.address, config.ADDRESS_OPTION)
        # What is wrong with these is told at once; a tokenizer takes long to load.
        agents = _agents(config)
        try:
            store = JobStore(config.store)
        except StoreError as error:
            raise ServerUnavailable(f"{error} (--jobs-file)") from None
        stack.push_async_callback(store.aclose)
        chat = await asyncio.to_thread(_chat, config)
        source = Servers(config.environments, config.environments_token, _tls(config))
        stack.push_async_callback(asyncio.to_thread, source.close)
        generators = Generators(store, config.generators, config.default_limits.generation_seconds)
        stack.push_async_callback(generators.aclose)
        engine = RolloutEngine(
            source,
            chat,
            generators.pool,
            sampling=config.default_sampling,
            limits=config.default_limits,
            concurrency=config.concurrency,
            agents=agents,
            endpoints=_endpoints(config),
        )
        stack.push_async_callback(engine.aclose)
        self._jobs = jobs = Jobs(config, store, engine)
        generators.policy_changed = jobs.policy_changed
        await jobs.start()
        stack.push_async_callback(jobs.aclose)
        identities = self._access.identities
        service = RolloutService(identities, jobs, generators, engine, source, self._receivers, agents)
        figures = Figures(jobs, engine, generators, source)
        services = {
            SERVICE: handlers(service),
            OPERATIONS: operations_handlers(RolloutOperations(identities, figures)),
            ENVIRONMENTS: forwarding_handlers(Forwarding(identities, source)),
        }
        self._listener = Listener(config.address, self._access, config.max_payload, services)

        def tell(can_sample: bool) -> None:
            """Has rollouts wait without loss while nothing can be sampled."""
            (engine.resume if can_sample else engine.pause)()

        for work in (
            generators.watch(tell),
            self._access.watch(self._receivers),
            _end_when_broken(jobs),
            figures.history.watch(),
        ):
            task = asyncio.get_running_loop().create_task(work)
            stack.push_async_callback(_end, task)
        stack.push_async_callback(self._stop_listening)
        await self._listener.start()
        await self._listener.serving()

    async def drain(self) -> None:
        """Begins nothing more, and waits for what is in flight to end, for as long as is set."""
        assert self._jobs is not None
        assert self._listener is not None
        await self._listener.leaving()
        if not await self._jobs.drain(self.config.drain):
            log.warning(
                "rollouts went on after %g s (--drain); they begin again when the service does", self.config.drain
            )

    async def stop(self) -> None:
        """Stops: rollouts in flight are ended, to begin again when the service is started again."""
        await self._stack.aclose()

    def abort(self) -> None:
        """Does nothing: there is nothing but this process, and the file is in order at any moment."""

    async def _stop_listening(self) -> None:
        assert self._listener is not None
        self._receivers.end(ServerUnavailable("the rollout service is being stopped", retry_after=1.0))
        await self._listener.leaving()
        await asyncio.sleep(0)
        await self._listener.stop(GRACE)


def run(
    config: RolloutsConfig,
    *,
    side_address: str = "",
    on_ready: Callable[[RolloutServer], None] | None = None,
    parent_fd: int | None = None,
) -> None:
    """Runs a rollout service until SIGTERM, Ctrl-C, or the end of the process that started it, and ends the process.

    Args:
        config: The service's settings.
        side_address: As for `RolloutServer`.
        on_ready: Called once the service listens.
        parent_fd: A pipe whose end of file means that the service's parent is gone.

    Raises:
        InvalidArgument: A setting can't be used.
        ServerUnavailable: The service could not start.
        ImportError: What it needs is not installed; the message names the extra.
    """
    prepare(config)
    process.run(
        lambda: RolloutServer(config, side_address),
        config.log_level,
        config.log_format,
        on_ready=on_ready,
        on_stopped=leave,
        parent_fd=parent_fd,
    )


def prepare(config: RolloutsConfig) -> None:
    """Readies the process for a rollout service."""
    for variable in ("GYMHOST_TOKEN", "GYMHOST_TLS_CA", "GYMHOST_TLS_CERT", "GYMHOST_TLS_KEY"):
        os.environ.pop(variable, None)  # which are for clients: this one's are among its settings
    sys.path[:0] = [folder for folder in config.paths if folder not in sys.path]
    logging.getLogger(stages.__name__).addFilter(telling.named)


def leave() -> None:
    """Ends the process. All is closed by now, but for what would only be waited for.

    A thread may still try to reach an environment server, and the interpreter would take seconds to take apart what
    transformers has brought along.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


async def _end_when_broken(jobs: Jobs) -> None:
    """Ends the process, without any grace, once nothing can be kept any more: another one may have better luck."""
    log.critical("the rollout service ends, since its file is written no more: %s", await jobs.failed())
    signal.raise_signal(signal.SIGINT)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _tls(config: RolloutsConfig) -> Tls | bool:
    if not config.environments_ca:
        return False
    return Tls(config.environments_ca, config.environments_cert or None, config.environments_key or None)


def _chat(config: RolloutsConfig) -> Chat:
    """The chat of the model's tokenizer.

    Raises:
        InvalidArgument: There is none that can be loaded, or no way to render its conversations.
    """
    if not config.tokenizer:
        raise InvalidArgument("name the model's tokenizer, a folder (--tokenizer)")
    is_path = config.tokenizer.startswith((".", "/", "~"))  # no name of a model
    if is_path and not Path(config.tokenizer).is_dir():
        raise InvalidArgument(f"there is no folder {config.tokenizer} (--tokenizer)")
    transformers = require("transformers", "rollout")
    renderers = require("renderers", "rollout")
    try:
        renderer = renderers.config_from_name(config.renderer) if config.renderer else None
    except ValueError as error:  # it lists those that there are
        raise InvalidArgument(f"{error} (--renderer)") from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(config.tokenizer, local_files_only=True)
    except Exception as error:
        raise InvalidArgument(
            f"{config.tokenizer} has no tokenizer that can be loaded: {_one_line(error)} (--tokenizer)"
        ) from error
    try:
        return Chat(tokenizer, _with_thoughts(tokenizer, renderer, renderers) if config.keep_thoughts else renderer)
    except Exception as error:
        raise InvalidArgument(
            f"it is not known how conversations are rendered for the tokenizer in {config.tokenizer}: "
            f"{_one_line(error)}; name a renderer (--renderer)"
        ) from error


def _with_thoughts(tokenizer: Any, renderer: Any, renderers: Any) -> Any:
    """The configuration of a renderer that leaves out no thoughts; a chat template that is used does as it does."""
    if renderer is None and tokenizer.name_or_path in renderers.base.MODEL_RENDERER_MAP:
        renderer = renderers.AutoRendererConfig()
    if renderer is None or isinstance(renderer, renderers.DefaultRendererConfig):
        return renderer
    return renderer.model_copy(update={"thinking_retention": "all"})


def _agents(config: RolloutsConfig) -> dict[str, Any]:
    """The agents that jobs may name: classes, of which every rollout makes one.

    Raises:
        InvalidArgument: One can't be imported, or is none.
    """
    try:
        return {name: load_agent(place) for name, place in config.agents.items()}
    except ValueError as error:
        raise InvalidArgument(f"{error} (--agent)") from error


def _endpoints(config: RolloutsConfig) -> Endpoints:
    host, _, port = config.agent_address.rpartition(":")
    return Endpoints(host.strip("[]"), int(port), url=config.agent_url or None)


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")
