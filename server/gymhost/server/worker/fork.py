"""Forking a session: others that go on from its present state, made in the place where its own code runs."""

import contextlib
import contextvars
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from gymhost.envs import forking
from gymhost.server.worker.calls import Call, nothing
from gymhost.server.worker.output import current_session
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors

if TYPE_CHECKING:
    from gymhost.server.worker.host import Host
    from gymhost.server.worker.session import Session

# On a session's thread a fork ends by itself so many seconds before its limit, which would take the sandboxes of the
# session that is forked.
MARGIN = 0.5


class Forking:
    """One FORK that runs. As a member of its session's scope it ends with what the session has: its sandboxes.

    Args:
        session: The session that is forked.
        result: What the front says of the new sessions: their ids, lanes and tokens. It has promised their lanes to its
            client: those that are made are in the tables when the command is answered, of the others it is told.
    """

    def __init__(self, session: "Session", result: pb.ForkResult) -> None:
        self._session = session
        self._host: Host = session.host
        self._result = result
        self._twins: list[Session] = []
        self._began = time.monotonic()
        self.alive = True
        self._host.promised.update(made.lanes[0] for made in result.sessions)

    @property
    def call(self) -> Call:
        """The command as a call of the environment."""
        return Call("reset", nothing, self._run, self._arun, self._encode)

    def kill(self) -> None:
        """Breaks off the making of sandboxes. From any thread."""
        for twin in list(self._twins):
            twin.sandboxes.kill()

    # -- where the session's code runs ---------------------------------------------------------------------------------

    def _run(self, env: Any, _: None) -> None:
        session = self._session
        left = max(0.0, session.deadline - time.monotonic() - MARGIN) if session.deadline else None
        with self._under_way() as contexts:
            try:
                copies = forking.fork(env, contexts, timeout=left)
            except TimeoutError:
                raise errors.CommandTimeout(session.overrun(), limit=session.limit) from None
            try:
                unwanted = session.on_loop(lambda: self._settle(copies))
            except BaseException:
                forking.discard(copies)
                raise
            forking.discard(unwanted)

    async def _arun(self, env: Any, _: None) -> None:
        with self._under_way() as contexts:
            copies = await forking.afork(env, contexts)
            try:
                unwanted = self._settle(copies)
            except BaseException:
                await forking.adiscard(copies)
                raise
            await forking.adiscard(unwanted)

    @contextlib.contextmanager
    def _under_way(self) -> Generator[list[contextvars.Context]]:
        """Yields what each environment is to be copied in: as the code of the session that it is for."""
        try:
            if self._session.is_vector:
                raise errors.Unimplemented("a vector session can't be forked: fork sessions of single environments")
            self._session.sandboxes.add(self)
            contexts: list[contextvars.Context] = []
            for made in self._result.sessions:
                twin = self._session.twin(made.lanes[0], bytes.fromhex(made.direct_token))
                self._twins.append(twin)
                contexts.append(contextvars.copy_context())
                contexts[-1].run(current_session.set, twin)
            yield contexts
        finally:
            self.alive = False
            self._host.post(self._end, None)

    def _encode(self, _: None) -> bytes:
        return self._result.SerializeToString()

    # -- on the event loop ---------------------------------------------------------------------------------------------

    def _settle(self, copies: list[Any]) -> list[Any]:
        """Puts the new sessions into the tables; returns the environments of those that were closed meanwhile.

        Raises:
            Cancelled: The session that is forked has ended, of which its client is told in another way.
        """
        session, host = self._session, self._host
        if host.sessions.get(session.lane) is not session or not session.unwatch():
            raise errors.Cancelled("the session ended as it was forked")
        # No limit ends the session any more: the client is certain to be told of what is made.
        session.deadline = 0.0
        took = round((time.monotonic() - self._began) * 1000)
        unwanted: list[Any] = []
        for made, twin, env in zip(self._result.sessions, self._twins, copies, strict=True):
            made.made_ms = took
            if twin.lane in host.promised:
                twin.env = env
                host.sessions[twin.lane] = twin
                host.by_token[twin.token] = twin
            else:
                unwanted.append(env)
        return unwanted

    def _end(self, _: None) -> None:
        """Lets go of what was not made, and tells the front."""
        host = self._host
        for twin in self._twins:
            if host.sessions.get(twin.lane) is not twin:
                twin.abandon()
        for made in self._result.sessions:
            host.promised.discard(made.lanes[0])
        give_back(host, self._result)


def give_back(host: "Host", result: pb.ForkResult) -> None:
    """Tells the front of those sessions of a fork that there are not, and will not be."""
    for made in result.sessions:
        lane = made.lanes[0]
        if lane not in host.sessions and lane not in host.promised:
            host.tell_front(lane, errors.SessionClosed("the session was not forked"))
