"""The dashboard's application: who reads, the pages, and what is served beside the API."""

import functools
import importlib.util
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gymhost.server.dashboard import api, metrics
from gymhost.server.dashboard.config import DashboardConfig
from gymhost.server.dashboard.guard import Guard
from gymhost.server.dashboard.logins import Logins, Throttle
from gymhost.server.dashboard.readers import Reader, Readers
from gymhost.server.dashboard.trajectories import trajectories
from gymhost.wire import errors

__all__ = ["application"]

PAGES = Path(__file__).parent / "pages"
# The viewer of trajectories says how messages are shown; its files are taken by their place, since it need not be
# possible to import it where no rollouts are played.
VIEW_SCRIPTS = ("dom", "messages")
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_STATUS: tuple[tuple[type[errors.Error], int], ...] = (
    (errors.Unauthenticated, 401),
    (errors.PermissionDenied, 403),
    (errors.UnknownSession, 404),
    (errors.UnknownJob, 404),
    (errors.UnknownEnvironment, 404),
    (errors.SessionError, 409),
    (errors.InvalidArgument, 400),
    (errors.CapacityExhausted, 429),
    (errors.Unimplemented, 501),
    (errors.ServerUnavailable, 503),
)


class Door:
    """Who reads: by a cookie of a login, by a bearer token, or anybody where no token is wanted.

    Args:
        config: The dashboard's settings.
        readers: The readers.
    """

    def __init__(self, config: DashboardConfig, readers: Readers) -> None:
        self.config = config
        self.readers = readers
        self._logins = Logins()
        self._throttle = Throttle()

    def reader(self, request: Request) -> Reader:
        """The reader of a request.

        Raises:
            Unauthenticated: It shows neither a login nor a token.
            CapacityExhausted: It has tried too many tokens that were none.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            self._check_tries(request)
            if scheme.lower() != "bearer" or not token.strip():
                raise errors.Unauthenticated("an authorization here is: Bearer TOKEN")
            return self.readers.reader(token.strip())
        if not self.config.wants_token:
            return self.readers.reader("")
        kept = self._logins.token(request.cookies.get(_cookie_name(request), ""))
        if kept is None:
            raise errors.Unauthenticated("log in with a token of this server")
        return self.readers.reader(kept)

    def refused(self, request: Request) -> None:
        """Takes note that a server did not take the token of a request."""
        if "authorization" in request.headers:
            self._throttle.wrong(_host(request))
        elif cookie := request.cookies.get(_cookie_name(request)):
            self._logins.close(cookie)  # its token was revoked

    async def log_in(self, request: Request) -> Response:
        """Lets a reader in who shows a token once, and has a cookie from then on."""
        self._check_tries(request)
        token = str((await api.body_of(request)).get("token", "")).strip()
        if not token:
            raise errors.InvalidArgument("a token is wanted")
        reader = self.readers.reader(token)
        try:
            await reader.admit()
        except errors.Unauthenticated:
            self._throttle.wrong(_host(request))
            self.readers.forget(reader)
            raise
        self._throttle.right(_host(request))
        response = JSONResponse({})
        response.set_cookie(
            _cookie_name(request),
            self._logins.open(token),
            httponly=True,
            samesite="strict",
            secure=bool(self.config.tls_cert),
            path="/",
        )
        return response

    async def log_out(self, request: Request) -> Response:
        """Forgets a login."""
        self._logins.close(request.cookies.get(_cookie_name(request), ""))
        response = JSONResponse({})
        response.delete_cookie(_cookie_name(request), path="/")
        return response

    def _check_tries(self, request: Request) -> None:
        if wait := self._throttle.wait(_host(request)):
            raise errors.CapacityExhausted(
                f"too many tokens from here were none: try again in {wait:.0f} s", retry_after=wait
            )


def application(config: DashboardConfig, readers: Readers, address: str) -> Any:
    """Makes the application.

    Args:
        config: The dashboard's settings.
        readers: The readers.
        address: Where it listens.
    """
    door = Door(config, readers)

    def read(endpoint: api.Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def with_reader(request: Request) -> Response:
            return await endpoint(request, door.reader(request))

        return with_reader

    def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, errors.Error)
        if isinstance(error, errors.Unauthenticated):
            door.refused(request)
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 502)
        headers = {"Retry-After": str(max(1, round(error.retry_after)))} if error.retry_after else {}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        # What gRPC says of a server that is away is for nobody.
        words = "the server does not answer" if isinstance(error, errors.ConnectionLost) else error.message
        return JSONResponse({"error": words}, status, headers)

    async def all_metrics(request: Request, reader: Reader) -> Response:
        return PlainTextResponse(
            metrics.joined(await api.metrics_texts(reader, readers)), media_type=metrics.CONTENT_TYPE
        )

    async def trajectories_page(request: Request, reader: Reader) -> Response:
        return await trajectories(config, reader, request.path_params["job"])

    routes = [
        Route("/", page),
        Route("/static/{name}", static),
        Route("/healthz", health),
        Route("/login", door.log_in, methods=["POST"]),
        Route("/logout", door.log_out, methods=["POST"]),
        Route("/metrics", read(all_metrics)),
        Route("/trajectories/{job}", read(trajectories_page)),
        *(
            Route(f"/api/{path}", read(endpoint), methods=[method])
            for method, path, endpoint in api.routes(config, readers)
        ),
    ]
    handlers: dict[Any, Any] = {errors.Error: failed}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, address, checks_host=not config.wants_token, https=bool(config.tls_cert))


async def page(request: Request) -> Response:
    """The one page, which has no figures in it."""
    return FileResponse(PAGES / "index.html", media_type="text/html", headers={"Cache-Control": "no-cache"})


async def static(request: Request) -> Response:
    """What the page consists of."""
    path = files().get(request.path_params["name"])
    if path is None:
        return PlainTextResponse("There is no such file.", 404)
    return FileResponse(path, media_type=KINDS[path.suffix], headers={"Cache-Control": "no-cache"})


async def health(request: Request) -> Response:
    """Says that the dashboard answers, to whoever asks."""
    return PlainTextResponse("ok\n")


@functools.cache
def files() -> dict[str, Path]:
    """The files of the page, by the names that they are asked for by."""
    found = {path.name: path for path in PAGES.iterdir() if path.suffix in KINDS}
    spec = importlib.util.find_spec("gymhost.rollout")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    view = Path(spec.submodule_search_locations[0]) / "view" / "js"
    return found | {f"view-{name}.js": view / f"{name}.js" for name in VIEW_SCRIPTS}


def _host(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _cookie_name(request: Request) -> str:
    # Browsers keep cookies by host, whatever the port: so several dashboards of a host don't log each other out.
    return f"gymhost-{request.scope['server'][1]}"
