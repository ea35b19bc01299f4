"""Sessions one by one, by what an operator may call them."""

import asyncio
import collections
import heapq
import json
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from gymhost.server import link
from gymhost.server.front.lanes import name_of
from gymhost.server.front.sessions import Session, SessionTable
from gymhost.server.front.workers import Worker
from gymhost.v1 import operations_pb2 as pb
from gymhost.wire import errors

__all__ = ["STATES", "Live"]

STATES = ("making", "running", "waiting", "closing")
# How many are told where nobody says, and at most.
SOME, MOST = 100, 1000
# Seconds that a worker gets to say what its sessions do.
ANSWER_LIMIT = 2.0


class _Told(NamedTuple):
    """What a worker said of a session, and when."""

    label: str
    busy: bool
    seconds: float
    command: str
    commands: int
    at: float


class Live:
    """Looks at sessions.

    Args:
        table: The sessions.
    """

    def __init__(self, table: SessionTable) -> None:
        self._table = table
        # What each worker said last, for when it does not answer.
        self._said: weakref.WeakKeyDictionary[Worker, dict[int, _Told]] = weakref.WeakKeyDictionary()

    def states(self) -> dict[str, collections.Counter[str]]:
        """How many sessions there are in each state, by environment: from what the front sees by itself."""
        counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for session in self._table.by_id.values():
            counts[session.environment_id][_state(session)] += 1
        for making in self._table.making.values():
            counts[making.environment_id]["making"] += making.is_session
        for session in self._table.closing.values():
            counts[session.environment_id]["closing"] += 1
        return counts

    async def look(self, request: pb.ListLiveSessionsRequest, identity: str | None) -> pb.ListLiveSessionsResponse:
        """Lists sessions.

        Args:
            request: Which.
            identity: Only those of this identity; None for everybody's.

        Raises:
            InvalidArgument: There is no such state.
        """
        wanted, limit = request.state, min(request.limit or SOME, MOST)
        if wanted and wanted not in STATES:
            raise errors.InvalidArgument(f"a session is {', '.join(STATES)}, not {wanted!r}")

        def asked_for(owner: str, environment_id: str, state: str) -> bool:
            return (
                identity in (None, owner) and request.environment_id in ("", environment_id) and wanted in ("", state)
            )

        sessions = [
            each for each in self._table.by_id.values() if asked_for(each.identity, each.environment_id, _state(each))
        ]
        others = [each for each in self._others() if asked_for(each.identity, each.environment_id, each.state)]
        told = await self._ask(sessions, request.environment_id, wanted, limit, everybody=identity is None)
        now = asyncio.get_running_loop().time()
        found = [*others, *(self._live(session, told.get(session.lane), now) for session in sessions)]
        # One that ran as it was counted, and has ended since, is not told as what was not asked for.
        found = [each for each in found if wanted in ("", each.state)]
        first = heapq.nlargest(limit, found, key=lambda each: each.state_seconds)
        return pb.ListLiveSessionsResponse(sessions=first, total=len(found))

    async def one(self, session: Session) -> pb.LiveSession:
        """One session."""
        told = await self._ask([session], "", "", 1, everybody=False)
        return self._live(session, told.get(session.lane), asyncio.get_running_loop().time())

    def _others(self) -> Iterable[pb.LiveSession]:
        """Sessions that are being made or closed, of which the front knows all that there is."""
        now = asyncio.get_running_loop().time()
        for lane, making in self._table.making.items():
            if making.is_session:
                yield pb.LiveSession(
                    name=name_of(lane),
                    environment_id=making.environment_id,
                    identity=making.identity,
                    state="making",
                    state_seconds=now - making.since,
                    age_seconds=now - making.since,
                    worker=lane >> 32,
                    num_envs=making.num_envs,
                )
        for session in self._table.closing.values():
            live = self._live(session, self._said.get(session.worker, {}).get(session.lane), now)
            live.state, live.state_seconds, live.command = "closing", now - session.closed, ""
            yield live

    def _live(self, session: Session, told: _Told | None, now: float) -> pb.LiveSession:
        live = pb.LiveSession(
            name=session.name,
            environment_id=session.environment_id,
            identity=session.identity,
            state=_state(session),
            age_seconds=now - session.created,
            worker=session.worker.number,
            num_envs=session.num_envs,
        )
        if told is not None:
            live.state = "running" if told.busy else "waiting"
            live.label, live.command, live.commands = told.label, told.command, told.commands
            live.state_seconds = min(told.seconds + now - told.at, live.age_seconds)
        return live

    async def _ask(
        self, sessions: list[Session], environment_id: str, state: str, limit: int, *, everybody: bool
    ) -> dict[int, _Told]:
        """Asks the workers what sessions do: those whose state has lasted longest."""
        of_worker: dict[Worker, list[int]] = collections.defaultdict(list)
        for session in sessions:
            of_worker[session.worker].append(session.lane)
        busy = {"running": True, "waiting": False}.get(state)
        told: dict[int, _Told] = {}

        async def ask(worker: Worker, lanes: list[int]) -> None:
            asked = {
                "environment_id": environment_id,
                "busy": busy,
                "lanes": None if everybody else lanes,
                "limit": limit,
            }
            told.update(await self._told(worker, asked, lanes))

        await asyncio.gather(*(ask(worker, lanes) for worker, lanes in of_worker.items()))
        return told

    async def _told(self, worker: Worker, asked: dict[str, Any], lanes: Iterable[int]) -> dict[int, _Told]:
        said = self._said.setdefault(worker, {})
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                answer: dict[str, Any] = json.loads(await worker.request(link.LIVE, 0, json.dumps(asked).encode()))
                at = asyncio.get_running_loop().time()
                fresh = {int(lane): _read(row, at) for lane, row in answer.items()}
        except (TimeoutError, errors.Error, ValueError, TypeError, AttributeError):
            return {lane: said[lane] for lane in lanes if lane in said}
        said.update(fresh)
        for lane in [lane for lane in said if self._table.owner_of(lane) is None and lane not in self._table.closing]:
            del said[lane]
        return fresh


def _read(row: list[Any], at: float) -> _Told:
    """What a worker says of a session."""
    label, busy, seconds, command, commands = row
    return _Told(str(label)[:128], bool(busy), float(seconds), str(command)[:32], int(commands), at)


def _state(session: Session) -> str:
    return "running" if session.worker.is_busy(session.lane) else "waiting"
