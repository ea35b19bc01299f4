"""The line to an episode that verifiers runs: an endpoint of OpenAI's API that is asked in place of a model's."""

import asyncio
import functools
import logging
import secrets
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from gymhost.envs.adapters.support import needed
from gymhost.envs.harness.link import Answer, Asked, Ended

__all__ = ["Playing"]

T = TypeVar("T")

# Bytes of a request.
_BODY = 64 * 2**20
# Seconds that the loop may take to listen, and an episode that is stopped to be scored.
_BEGIN, _STOP = 30.0, 240.0


class _Loop:
    """An event loop in a thread of its own, on which the episodes of this process run, and their endpoint.

    verifiers' episodes go on by themselves: they are nobody's who calls `step` now.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.playing: dict[str, Playing] = {}
        self.url = ""
        threading.Thread(target=self.loop.run_forever, name="verifiers", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result(_BEGIN)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop, for another one; where the caller is cancelled it is too."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    async def _listen(self) -> None:
        web: Any = needed("verifiers", "aiohttp.web")
        application = web.Application(client_max_size=_BODY)
        application.router.add_post("/{key}/{path:.*}", self._asked)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*runner.addresses[0])

    async def _asked(self, request: Any) -> Any:
        web: Any = needed("verifiers", "aiohttp.web")
        playing = self.playing.get(request.match_info["key"])
        if playing is None:
            return web.Response(status=404)
        answer = await playing.ask(f"/{request.match_info['path']}", await request.read())
        return web.Response(status=answer.status, body=answer.body, content_type=answer.type)


@functools.cache
def _loop() -> _Loop:
    return _Loop()


class Playing:
    """An episode that verifiers runs, as a whole and with its scoring.

    Args:
        environment: verifiers' environment, which runs no other episode.
        task: verifiers' task.
        model: What the model is called.

    Attributes:
        episode: What verifiers made of it; None while it runs.
    """

    def __init__(self, environment: Any, task: Any, model: str) -> None:
        self._environment = environment
        self._task = task
        self._model = model
        self._loop = _loop()
        self._key = secrets.token_urlsafe(16)
        self._come: deque[Asked] = deque()
        self._changed = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._gone: set[int] = set()
        self._number = 0
        self._traces: list[Any] = []
        self._stopped = False
        self._run: asyncio.Task[Any] | None = None
        self.episode: Any = None

    async def start(self) -> None:
        """Begins the episode."""
        await self._loop.run(self._start())

    async def ask(self, path: str, body: bytes) -> Answer:
        """Takes a request, and waits until it is answered. On the loop."""
        if self._stopped:
            return _stopped()
        number = self._number = self._number + 1
        answer = self._waiting[number] = self._loop.loop.create_future()
        self._come.append(Asked(number, path, body))
        self._changed.set()
        try:
            return await answer
        except asyncio.CancelledError:
            self._gone.add(number)
            raise
        finally:
            del self._waiting[number]

    def answer(self, number: int, answer: Answer) -> None:
        """Answers a request."""
        self._loop.loop.call_soon_threadsafe(self._answer, number, answer)

    def has_gone(self, number: int) -> bool:
        """Whether the one who made a request has not waited for its answer, as far as is known."""
        return number in self._gone

    async def next(self) -> Asked | Ended:
        """Waits for the next request, or for the end.

        Raises:
            RuntimeError: verifiers failed to run the episode, or to score it.
        """
        return await self._loop.run(self._next())

    async def stop(self) -> None:
        """Ends the agent's part of the episode, and waits until verifiers has scored what there is, bounded.

        Raises:
            RuntimeError: verifiers failed to.
            TimeoutError: It took too long.
        """
        await self._loop.run(self._stop())

    def close(self) -> None:
        """Ends the episode, wherever it is. May be called twice, from any thread."""
        self._loop.loop.call_soon_threadsafe(self._close)

    def __deepcopy__(self, memo: object) -> "Playing":
        raise TypeError("an episode that verifiers runs can't be copied")

    # ------------------------------------------------------------------------------------------------------------------
    # On the loop

    async def _start(self) -> None:
        self._loop.playing[self._key] = self
        self._run = asyncio.get_running_loop().create_task(self._play(), name="an episode of verifiers")
        self._run.add_done_callback(self._ended)

    async def _play(self) -> Any:
        clients: Any = needed("verifiers", "verifiers.v1.clients")
        client = clients.EvalClientConfig(base_url=f"{self._loop.url}/{self._key}/v1", api_key_var="GYMHOST_NO_KEY")
        context = clients.ModelContext(model=self._model, client=client)
        async with self._environment.serving():
            return await self._environment.run_episode(self._task, context, on_trace=self._traces.append)

    def _ended(self, run: asyncio.Task[Any]) -> None:
        self._loop.playing.pop(self._key, None)
        if run.cancelled():
            pass
        elif (error := run.exception()) is not None:
            logging.getLogger(__name__).debug("an episode of verifiers failed", exc_info=error)
        else:
            self.episode = run.result()
        self._changed.set()

    def _answer(self, number: int, answer: Answer) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _next(self) -> Asked | Ended:
        assert self._run is not None
        while not self._come:
            if self._run.done():
                self._check()
                return Ended(0, "")
            self._changed.clear()
            await self._changed.wait()
        return self._come.popleft()

    async def _stop(self) -> None:
        assert self._run is not None
        self._stopped = True
        for trace in self._traces:
            # It refuses the agent further turns, and is scored as it is.
            trace.stop("gymhost")
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(_stopped())
        _, late = await asyncio.wait([self._run], timeout=_STOP)
        if late:
            self._run.cancel()
            raise TimeoutError(f"verifiers took more than {_STOP:g} s to score an episode that was stopped")
        self._check()

    def _check(self) -> None:
        """Sees that the episode has ended well.

        Raises:
            RuntimeError: It has not.
        """
        run, episode = self._run, self.episode
        assert run is not None
        if run.cancelled():
            raise RuntimeError("the episode was cancelled")
        if (error := run.exception()) is not None:
            raise RuntimeError(f"verifiers could not run the episode: {type(error).__name__}: {error}") from error
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            said = "; ".join(f"{error.type}: {error.message}" for error in errors) or "it does not say why"
            traces = "\n".join(error.traceback for error in errors if error.traceback)
            raise RuntimeError(f"verifiers failed: {said}\n{traces}".rstrip())

    def _close(self) -> None:
        self._stopped = True
        if self._run is not None:
            self._run.cancel()


def _stopped() -> Answer:
    # No status for which a client would try again.
    return Answer(400, "application/json", b'{"error": {"message": "the episode has ended", "type": "gymhost"}}')
