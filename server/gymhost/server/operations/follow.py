"""Following a session: what its worker tells, as fast as whoever follows takes it."""

import asyncio
import itertools
from collections.abc import AsyncGenerator

from gymhost.server import link
from gymhost.server.front.sessions import Session, SessionTable
from gymhost.server.identity import Caller, Identities
from gymhost.server.operations.live import Live
from gymhost.v1 import operations_pb2 as pb
from gymhost.wire import errors

__all__ = ["Followers"]

# The most that follow at once, of all callers together.
MOST = 64
# Seconds in which turns gather before they are asked for, and that a worker gets to begin.
PAUSE = 0.05
ANSWER_LIMIT = 5.0
# Seconds for the last turns of a session that has ended.
LAST_TURNS = 1.0


class Followers:
    """Those who follow.

    Args:
        table: The sessions.
        live: Says how they stand.
    """

    def __init__(self, table: SessionTable, live: Live) -> None:
        self._table = table
        self._live = live
        self._numbers = itertools.count(1)
        # Done when they may follow no longer.
        self._callers: dict[int, tuple[Caller, asyncio.Future[errors.Error]]] = {}

    def revoke(self, identities: Identities) -> None:
        """Ends the following of those who are no longer let in."""
        for caller, cut in self._callers.values():
            if not identities.is_valid(caller) and not cut.done():
                cut.set_result(errors.Unauthenticated("the token was revoked on this server"))

    async def follow(self, caller: Caller, session: Session) -> AsyncGenerator[pb.FollowSessionResponse, None]:
        """Follows a session until it ends.

        Raises:
            CapacityExhausted: Too many follow already.
            ServerUnavailable: Its worker does not answer.
            Unauthenticated: The caller is no longer let in.
        """
        if len(self._callers) >= MOST:
            raise errors.CapacityExhausted(f"{MOST} follow sessions already, which is the most")
        number = next(self._numbers)
        cut: asyncio.Future[errors.Error] = asyncio.get_running_loop().create_future()
        ended = self._table.when_ended(session)
        self._callers[number] = caller, cut
        try:
            try:
                async with asyncio.timeout(ANSWER_LIMIT):
                    await self._ask(session, number)
            except TimeoutError:
                raise errors.ServerUnavailable(
                    f"worker {session.worker.number} did not answer within {ANSWER_LIMIT:g} s: a step may hold it"
                ) from None
            except errors.SessionError:
                pass  # it has just ended, which is told below
            yield pb.FollowSessionResponse(session=await self._live.one(session))
            async for response in self._turns(session, number, cut, ended):
                yield response
            yield pb.FollowSessionResponse(ended=ended.result().message)
        finally:
            del self._callers[number]
            ended.cancel()
            if not session.worker.dead:
                # Nobody waits for the answer, of which there is none where the session has ended.
                session.worker.tell(link.UNFOLLOW, session.lane, payload=str(number).encode())

    async def _turns(
        self, session: Session, number: int, cut: "asyncio.Future[errors.Error]", ended: "asyncio.Future[errors.Error]"
    ) -> AsyncGenerator[pb.FollowSessionResponse, None]:
        """What the worker tells, until the session has ended, and what is left then."""
        while True:
            last = ended.done()
            asked = self._ask(session, number)
            try:
                await asyncio.wait([asked, cut, ended], return_when=asyncio.FIRST_COMPLETED)
                if ended.done() and not asked.done():
                    # The worker tells what is left as it ends the session.
                    await asyncio.wait([asked, cut], timeout=LAST_TURNS, return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    raise cut.result()
                told = asked.result() if asked.done() and asked.exception() is None else None
                gave_up = asked.done() and told is None
            finally:
                asked.cancel()
            if told:
                yield pb.FollowSessionResponse.FromString(told)
            elif last:
                return
            elif gave_up:
                # The worker has given it up, or died: the front is about to hear why.
                await asyncio.wait([ended], timeout=ANSWER_LIMIT)
                if not ended.done():
                    raise errors.ServerUnavailable(f"worker {session.worker.number} follows the session no longer")
            if not ended.done():
                await asyncio.wait([cut, ended], timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)

    def _ask(self, session: Session, number: int) -> "asyncio.Future[bytes]":
        return session.worker.request(link.FOLLOW, session.lane, str(number).encode())
