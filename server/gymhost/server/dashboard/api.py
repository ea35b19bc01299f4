"""What pages ask for, as JSON: the dashboard adds nothing to what a reader's token lets it see."""

import asyncio
import json
import math
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeAlias, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gymhost.server.dashboard.config import DashboardConfig
from gymhost.server.dashboard.readers import Asked, Reader, Readers
from gymhost.server.dashboard.told import followed, told
from gymhost.wire import errors

__all__ = ["Endpoint", "body_of", "metrics_texts", "routes"]

Endpoint: TypeAlias = Callable[[Request, Reader], Awaitable[Response]]

# Seconds after which a stream that is quiet says that it is there.
SIGN = 10.0
# Streams at once, over all readers.
STREAMS = 64
# Seconds that a generator may take to be drained, and that its act is waited for.
DRAIN_PATIENCE = 300.0
JOBS = 200


def routes(config: DashboardConfig, readers: Readers) -> list[tuple[str, str, Endpoint]]:
    """What is answered: method, path below `/api/`, and by what."""
    streams = asyncio.Semaphore(STREAMS)

    async def state(request: Request, reader: Reader) -> Response:
        """All that the overview shows, but for what was before."""
        environments, rollouts = await asyncio.gather(
            _asked(readers.environments, lambda: _environments(reader)),
            _asked(readers.rollouts, lambda: _rollouts(reader)),
        )
        role = (environments or {}).get("role") or (rollouts or {}).get("role") or ""
        who = {"role": role, "token": config.wants_token, "host": socket.gethostname()}
        return JSONResponse({"time": time.time(), "who": who, "environments": environments, "rollouts": rollouts})

    async def history(request: Request, reader: Reader) -> Response:
        """How it went, after the times that are given."""
        after = {name: _number(request, name) for name in ("environments", "rollouts")}
        environments, rollouts = await asyncio.gather(
            _asked(readers.environments, lambda: _history(reader.environments, after["environments"])),
            _asked(readers.rollouts, lambda: _history(reader.service, after["rollouts"])),
        )
        return JSONResponse({"environments": environments, "rollouts": rollouts})

    async def follow(request: Request, reader: Reader) -> Response:
        """A session turn by turn, as server-sent events."""
        if streams.locked():
            raise errors.CapacityExhausted(f"{STREAMS} sessions are followed here already")
        # There is a place: it is taken before anything is waited for.
        await streams.acquire()
        turns = reader.environments.follow(request.path_params["name"])
        try:
            first = await anext(turns)  # what is wrong with it is answered as with any request
        except StopAsyncIteration:
            streams.release()
            raise errors.SessionClosed("the session has ended") from None
        except BaseException:
            streams.release()
            raise
        return Following(first, turns, streams)

    return [
        ("GET", "state", state),
        ("GET", "history", history),
        ("GET", "failures", failures),
        ("GET", "sessions", sessions),
        ("GET", "sessions/{name}/follow", follow),
        ("POST", "sessions/{name}/end", end_session),
        ("POST", "server/drain", drain_server),
        ("GET", "jobs/{job}/rollouts", job_rollouts),
        ("POST", "jobs/{job}/{act:path}", act_on_job),
        ("POST", "rollouts/cancel", cancel_rollouts),
        ("POST", "generators/drain", drain_generator),
    ]


async def failures(request: Request, reader: Reader) -> Response:
    """The last failures, with their tracebacks."""
    found = await reader.environments.failures(request.query_params.get("environment", ""))
    return JSONResponse({"failures": told(found)})


async def sessions(request: Request, reader: Reader) -> Response:
    """Sessions, one by one."""
    asked = request.query_params
    found = await reader.environments.live(
        asked.get("environment", ""), asked.get("state", ""), min(max(int(_number(request, "limit")), 0), 1000)
    )
    return JSONResponse(told(found))


async def end_session(request: Request, reader: Reader) -> Response:
    """Ends a session."""
    name = request.path_params["name"]
    await reader.environments.end(name, str((await body_of(request)).get("reason", "")))
    return _said(f"Session {name} was ended.")


async def drain_server(request: Request, reader: Reader) -> Response:
    """Has the server take no new sessions, or take them again."""
    resume = bool((await body_of(request)).get("resume"))
    left = await reader.environments.drain(resume)
    if resume:
        return _said("The server takes new sessions again.")
    return _said(f"The server takes no new sessions; it has {left} that go on.")


async def job_rollouts(request: Request, reader: Reader) -> Response:
    """What of a job is in flight or waits."""
    job = await reader.rollouts.job(id=request.path_params["job"])
    return JSONResponse({"rollouts": told(await job.rollouts(limit=200))})


async def act_on_job(request: Request, reader: Reader) -> Response:
    """Cancels a job, pauses it, or has it go on."""
    job = await reader.rollouts.job(id=request.path_params["job"])
    act = request.path_params["act"]
    if act == "cancel":
        return _said(f"The job was cancelled, and with it {await job.cancel()} rollouts.")
    if act == "pause":
        await job.pause()
        return _said("The job begins no more rollouts; those that have begun go on.")
    if act == "resume":
        await job.resume()
        return _said("The job goes on.")
    raise errors.InvalidArgument(f"a job can be cancelled, paused and resumed; {act!r} is none of these")


async def cancel_rollouts(request: Request, reader: Reader) -> Response:
    """Cancels single rollouts."""
    ids = (await body_of(request)).get("ids")
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in cast(list[Any], ids)):
        raise errors.InvalidArgument("ids are a list of rollouts' ids")
    cancelled = await reader.rollouts.cancel_rollouts(ids)
    return _said(f"{cancelled} {'rollout was' if cancelled == 1 else 'rollouts were'} cancelled.")


async def drain_generator(request: Request, reader: Reader) -> Response:
    """Sends a generator nothing more. It is not waited for: pages show how it goes on."""
    name = str((await body_of(request)).get("name", ""))
    draining = asyncio.ensure_future(reader.rollouts.drain_generator(name, DRAIN_PATIENCE))
    _beside.add(draining)
    draining.add_done_callback(_ended)
    done, _ = await asyncio.wait([draining], timeout=1.0)
    if done:
        draining.result()
        return _said(f"The generator {name} has nothing in flight, and is sent nothing more.")
    return _said(f"The generator {name} is sent nothing more; what is in flight there has {DRAIN_PATIENCE:.0f} s.")


async def metrics_texts(reader: Reader, readers: Readers) -> dict[str, str]:
    """What the servers count, by their names, of those that answer.

    Raises:
        Error: None does.
    """
    asked = {
        name: server.answer(operations().metrics())
        for name, server, operations in (
            ("environments", readers.environments, lambda: reader.environments),
            ("rollouts", readers.rollouts, lambda: reader.service),
        )
        if server is not None
    }
    answers = dict(zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True), strict=True))
    texts = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
    for answer in answers.values():
        if isinstance(answer, errors.Unauthenticated) or (isinstance(answer, BaseException) and not texts):
            raise answer
    return texts


async def _environments(reader: Reader) -> dict[str, Any]:
    return told(await reader.environments.overview())


async def _rollouts(reader: Reader) -> dict[str, Any]:
    status = await reader.rollouts.status()
    jobs = await reader.rollouts.jobs(everyone=status.role == "admin", limit=JOBS)
    return {**told(status), "listed": told(jobs)}


async def _history(operations: Any, after: float) -> dict[str, Any]:
    return told(await operations.history(after))


async def _asked(server: Asked | None, ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any] | None:
    """What a server answers, or that it does not; None if there is none.

    Raises:
        Error: It refuses.
    """
    if server is None:
        return None
    try:
        return await server.answer(ask())
    except errors.ServerUnavailable as error:
        return server.gone(error)
    except errors.Unimplemented as error:
        return {"without": error.message}


class Following(StreamingResponse):
    """A session turn by turn, as server-sent events. It ends with its reader, however early that one goes away.

    Args:
        first: What came first.
        turns: What comes.
        streams: Where a place was taken for it, which it gives back.
    """

    def __init__(self, first: Any, turns: AsyncGenerator[Any, None], streams: asyncio.Semaphore) -> None:
        super().__init__(_events(first, turns), media_type="text/event-stream")
        self._turns = turns
        self._streams = streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.release()
            await self._turns.aclose()


async def _events(first: Any, turns: AsyncGenerator[Any, None]) -> AsyncGenerator[str, None]:
    yield _event(followed(first))
    coming: asyncio.Future[Any] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(turns, None))
            done, _ = await asyncio.wait([coming], timeout=SIGN)
            if not done:
                yield ": still here\n\n"
                continue
            response, coming = coming.result(), None
            if response is None:
                return
            yield _event(followed(response))
    except errors.Error as error:
        yield _event({"turns": [], "missed": 0, "lost": error.message})
    finally:
        if coming is not None:
            coming.cancel()
            # Until it has ended nothing else may be done with what it waits for.
            await asyncio.wait([coming])


def _event(said: dict[str, Any]) -> str:
    return f"data: {json.dumps(said, allow_nan=False, separators=(',', ':'))}\n\n"


def _number(request: Request, name: str) -> float:
    """A number of the query; 0 where there is none."""
    try:
        found = float(request.query_params.get(name) or 0)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise errors.InvalidArgument(f"{name} is a number")
    return found


async def body_of(request: Request) -> dict[str, Any]:
    """What is sent with a request; nothing is an empty object.

    Raises:
        InvalidArgument: It is something else.
    """
    try:
        said: Any = await request.json() if await request.body() else {}
    except ValueError as error:
        raise errors.InvalidArgument(f"what was sent can't be read: {error}") from None
    if not isinstance(said, dict):
        raise errors.InvalidArgument("what is sent is an object")
    return cast(dict[str, Any], said)


def _said(words: str) -> Response:
    return JSONResponse({"said": words})


# Acts that go on while their readers look at something else.
_beside: set[asyncio.Future[Any]] = set()


def _ended(act: asyncio.Future[Any]) -> None:
    _beside.discard(act)
    if not act.cancelled():
        act.exception()
