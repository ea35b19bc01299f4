"""One HTTP server for the endpoints of all rollouts of an engine."""

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import Any

from gymhost.rollout.chat import Message
from gymhost.rollout.extras import require
from gymhost.wire.openai import Ask, Refused, Reply

__all__ = ["Endpoint", "Endpoints"]

logger = logging.getLogger(__name__)

_STARTING = 10.0
_STOPPING = 5.0
_BACKLOG = 1024

Answer = Callable[[Ask], Awaitable[Reply]]


class Endpoint:
    """Where the harness of one rollout finds its model.

    Attributes:
        base_url: The address, such as "http://127.0.0.1:4571/v1": what `OPENAI_BASE_URL` is set to.
        api_key: The secret that a request comes with, good for this rollout alone: what `OPENAI_API_KEY` is set to.
    """

    def __init__(self, base_url: str, name: str, answer: Answer, closed: Callable[["Endpoint"], None]) -> None:
        self.base_url = base_url
        self.name = name
        self.api_key = f"{name}.{secrets.token_urlsafe(32)}"
        self.answers = answer
        self.told: dict[str, list[Message]] = {}
        """The conversation up to each response that may be continued by its id."""
        self._closed = closed

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that OpenAI's clients, and most harnesses, read."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": self.api_key}

    def close(self) -> None:
        """Lets its key be good for nothing any more. Closing twice does nothing."""
        self._closed(self)


class Endpoints:
    """Serves the endpoints of rollouts on one port, from the moment that the first is asked for.

    Every request must come with the key of a rollout that is being played, over plain HTTP: for other machines than
    this one, put it behind something that speaks TLS, and say by `url` where that is.

    Args:
        host: The address to listen on.
        port: The port; 0 takes a free one.
        url: Where harnesses find it, if not at `http://host:port/v1`.
        max_body: The most bytes of a request.
        keep_alive: Seconds after which a stream that has nothing to tell yet is begun, and said to be alive again.

    Raises:
        ValueError: A number makes no sense.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        url: str | None = None,
        max_body: int = 16 * 2**20,
        keep_alive: float = 5.0,
    ) -> None:
        if not (0 <= port < 2**16 and max_body > 0 and keep_alive > 0):
            raise ValueError("port must be 0 to 65535, and max_body and keep_alive above 0")
        self.max_body = max_body
        self.keep_alive = keep_alive
        self._host = host
        self._port = port
        self._url = url and url.rstrip("/")
        self._base_url = ""
        self._open: dict[str, Endpoint] = {}
        self._starting = asyncio.Lock()
        self._server: Any = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self, answer: Answer) -> Endpoint:
        """Opens an endpoint, and starts to serve if it is the first.

        Args:
            answer: What answers its requests.

        Raises:
            ImportError: starlette or uvicorn is not installed.
            OSError: The port can't be listened on.
        """
        async with self._starting:
            if self._serving is None or self._serving.done():
                self._base_url = await self._start()
        endpoint = Endpoint(self._base_url, secrets.token_hex(8), answer, self._close)
        self._open[endpoint.name] = endpoint
        return endpoint

    def endpoint(self, api_key: str) -> Endpoint:
        """The endpoint that a key is good for.

        Raises:
            Refused: It is good for none.
        """
        name = api_key.partition(".")[0]
        endpoint = self._open.get(name)
        # The name is no secret; the time that this takes tells nothing of the rest.
        if endpoint is None or not hmac.compare_digest(endpoint.api_key.encode(), api_key.encode()):
            raise Refused(
                "this is the key of no rollout that is being played: it was never one, or its rollout has ended",
                code="invalid_api_key",
                status=401,
            )
        return endpoint

    async def aclose(self) -> None:
        """Stops serving. No endpoint can be opened until the next one is asked for."""
        self._open.clear()
        serving, self._serving = self._serving, None
        if serving is not None:
            self._server.should_exit = True
            _, left = await asyncio.wait([serving], timeout=2 * _STOPPING)
            if left:
                serving.cancel()

    def _close(self, endpoint: Endpoint) -> None:
        self._open.pop(endpoint.name, None)

    async def _start(self) -> str:
        require("starlette", "service")
        uvicorn: Any = require("uvicorn", "service")
        from gymhost.rollout.endpoint.app import application  # which needs them

        bound = _listening(self._host, self._port)
        up = asyncio.Event()

        class Server(uvicorn.Server):
            @contextmanager
            def capture_signals(self) -> Any:
                yield  # they are for whoever runs the engine

            async def startup(self, sockets: Any = None) -> None:
                await super().startup(sockets=sockets)  # pyright: ignore[reportUnknownMemberType]
                up.set()

        config = uvicorn.Config(
            application(self),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(_STOPPING),
        )
        self._server = Server(config)
        serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        ready = asyncio.create_task(up.wait())
        try:
            await asyncio.wait([serving, ready], timeout=_STARTING, return_when=asyncio.FIRST_COMPLETED)
            if not up.is_set():
                raise OSError(f"nothing serves on {self._host}:{self._port} after {_STARTING:g} s")
        except BaseException:
            serving.cancel()
            bound.close()
            raise
        finally:
            ready.cancel()
        self._serving = serving
        port = bound.getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        logger.info("endpoints of rollouts are served on %s:%s", host, port)
        return self._url or f"http://{host}:{port}/v1"


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"endpoints can't be served on {host}:{port}: {error.strerror}") from error
    return bound
