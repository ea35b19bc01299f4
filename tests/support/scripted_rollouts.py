"""A rollout service without rollouts: what it sends, when, and how it fails are a test's to say."""

import asyncio
import collections
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Any

from gymhost.client.grpc_core import grpc
from gymhost.client.loop import loop_thread
from gymhost.rollout import Outcome, Trajectory
from gymhost.rollout.service.messages import from_task, to_result
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.v1 import rollouts_pb2_grpc as rpc
from gymhost.wire import errors

OVER = (pb.JOB_STATE_FINISHED, pb.JOB_STATE_CANCELLED, pb.JOB_STATE_EXPIRED)


class ScriptedService(rpc.RolloutServiceServicer):
    """Keeps jobs and results across restarts, as the real one does on disk.

    It runs on the loop of the process's gRPC, as its clients do; `start`, `stop` and `play` may be awaited on any.

    Attributes:
        tls: Files with its certificate and its key, as `Authority.server` gives them; none for no TLS.
        asked: The requests of each call, in their order.
        unanswered: How many of the coming calls are done, but answered with a connection that breaks.
        refusals: What the coming calls are refused with, before they are done.
        streams: Streams that are open.
    """

    def __init__(self) -> None:
        self.address = ""
        self.tls: dict[str, str] = {}
        self.asked: dict[str, list[Any]] = collections.defaultdict(list)
        self.unanswered: collections.Counter[str] = collections.Counter()
        self.refusals: dict[str, list[errors.Error]] = collections.defaultdict(list)
        self.streams = 0
        self.jobs: dict[str, pb.Job] = {}
        self.tasks: dict[str, list[pb.RolloutTask]] = {}
        self.results: dict[int, pb.Result] = {}
        self.acknowledged: list[int] = []
        self._cursor = 0
        self._server: grpc.aio.Server | None = None
        self._news = asyncio.Event()

    # -- from tests ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listens; again at the same address after it was stopped."""
        await loop_thread().acall(self._start())

    async def stop(self) -> None:
        """Breaks all connections."""
        await loop_thread().acall(self._stop())

    async def play(self, job_id: str, trajectories: Iterable[tuple[int, Trajectory]], *, end: bool = False) -> None:
        """Has rollouts of a job end: each with its group's number; the last of a group's samples completes it."""

        async def play() -> None:
            for number, trajectory in trajectories:
                self._add(job_id, number, trajectory)
            if end:
                self.jobs[job_id].state = pb.JOB_STATE_FINISHED
            self._tell()

        await loop_thread().acall(play())

    async def play_all(self, job_id: str, *, backwards: bool = False) -> None:
        """Has all rollouts of a job end."""
        samples = self.jobs[job_id].samples
        places = [(number, index) for number in range(len(self.tasks[job_id])) for index in range(samples)]
        played = [(number, self.trajectory(job_id, number, index)) for number, index in places]
        await self.play(job_id, played[::-1] if backwards else played, end=True)

    def trajectory(self, job_id: str, number: int, index: int) -> Trajectory:
        """What comes of a rollout."""
        request = from_task(self.tasks[job_id][number], number, index)
        return Trajectory(
            env_id=request.env_id,
            task=request.task,
            seed=request.seed,
            group=request.group,
            index=index,
            outcome=Outcome(kind="terminated"),
            reward=1.0 + index,
            labels=dict(request.labels),
        )

    async def until(self, what: Callable[[], Any]) -> None:
        """Waits until something has happened here."""

        async def until() -> None:
            while not what():
                await self._news.wait()

        await asyncio.wait_for(loop_thread().acall(until()), 30.0)

    # -- the service ---------------------------------------------------------------------------------------------------

    async def SubmitJob(self, request: pb.SubmitJobRequest, context: Any) -> pb.SubmitJobResponse:  # noqa: N802
        await self._begin("SubmitJob", request, context)
        job = next((job for job in self.jobs.values() if job.key == request.key), None)
        known = job is not None
        if job is None:
            job = pb.Job(
                id=f"job-{len(self.jobs)}",
                key=request.key,
                label=request.label,
                state=pb.JOB_STATE_RUNNING,
                samples=request.samples,
                open=request.open,
            )
            self.jobs[job.id] = job
            self.tasks[job.id] = list(request.tasks)
        return await self._end("SubmitJob", pb.SubmitJobResponse(job=job, known=known), context)

    async def ExtendJob(self, request: pb.ExtendJobRequest, context: Any) -> pb.ExtendJobResponse:  # noqa: N802
        await self._begin("ExtendJob", request, context)
        job = await self._job(request.job_id, "", context)
        if request.number == job.extensions + 1:
            job.extensions += 1
            job.open = not request.close
            job.target += request.more_groups
            self.tasks[job.id].extend(request.tasks)
        return await self._end("ExtendJob", pb.ExtendJobResponse(job=job), context)

    async def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.GetJobResponse:  # noqa: N802
        await self._begin("GetJob", request, context)
        job = await self._job(request.job_id, request.key, context)
        return await self._end("GetJob", pb.GetJobResponse(job=job), context)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:  # noqa: N802
        await self._begin("ListJobs", request, context)
        return await self._end("ListJobs", pb.ListJobsResponse(jobs=self.jobs.values()), context)

    async def CancelRollouts(  # noqa: N802
        self, request: pb.CancelRolloutsRequest, context: Any
    ) -> pb.CancelRolloutsResponse:
        await self._begin("CancelRollouts", request, context)
        for job in self.jobs.values():
            if (request.all or job.id in request.job_ids) and job.state not in OVER:
                job.state = pb.JOB_STATE_CANCELLED
        return await self._end("CancelRollouts", pb.CancelRolloutsResponse(cancelled=1), context)

    async def StreamResults(  # noqa: N802
        self, request: pb.StreamResultsRequest, context: Any
    ) -> AsyncGenerator[pb.StreamResultsResponse, None]:
        await self._begin("StreamResults", request, context)
        self.streams += 1
        try:
            after = request.after
            while True:
                ended = all(self.jobs[id].state in OVER for id in request.job_ids)
                mine = [one for one in self.results.values() if one.job_id in request.job_ids and one.cursor > after]
                for one in mine:
                    yield pb.StreamResultsResponse(results=[one])
                    after = one.cursor
                if ended:
                    return
                await self._news.wait()
        finally:
            self.streams -= 1
            self._tell()

    async def AcknowledgeResults(  # noqa: N802
        self, request: pb.AcknowledgeResultsRequest, context: Any
    ) -> pb.AcknowledgeResultsResponse:
        await self._begin("AcknowledgeResults", request, context)
        kept = [cursor for cursor in request.cursors if self.results.pop(cursor, None)]
        self.acknowledged += kept
        return await self._end("AcknowledgeResults", pb.AcknowledgeResultsResponse(acknowledged=len(kept)), context)

    # ------------------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        rpc.add_RolloutServiceServicer_to_server(self, self._server)
        address = self.address or "127.0.0.1:0"
        if self.tls:
            port = self._server.add_secure_port(address, _credentials(self.tls))
        else:
            port = self._server.add_insecure_port(address)
        self.address = self.address or f"127.0.0.1:{port}"
        await self._server.start()

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def _add(self, job_id: str, number: int, trajectory: Trajectory) -> None:
        self._cursor += 1
        result = to_result(trajectory)
        result.cursor, result.job_id, result.group_number = self._cursor, job_id, number
        there = sum(one.job_id == job_id and one.group_number == number for one in self.results.values())
        result.completes_group = there + 1 == self.jobs[job_id].samples
        self.results[self._cursor] = result

    async def _begin(self, method: str, request: Any, context: Any) -> None:
        self.asked[method].append(request)
        self._tell()
        if self.refusals[method]:
            await _abort(self.refusals[method].pop(0), context)

    async def _end(self, method: str, response: Any, context: Any) -> Any:
        self._tell()
        if self.unanswered[method]:
            self.unanswered[method] -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return response

    async def _job(self, id: str, key: str, context: Any) -> pb.Job:
        found = next((job for job in self.jobs.values() if job.id == id or (key and job.key == key)), None)
        if found is None:
            await _abort(errors.InvalidArgument(f"there is no job {id or key}"), context)
        assert found is not None
        return found

    def _tell(self) -> None:
        self._news.set()
        self._news.clear()


def _credentials(tls: dict[str, str]) -> Any:
    pair = Path(tls["tls_key"]).read_bytes(), Path(tls["tls_cert"]).read_bytes()
    return grpc.ssl_server_credentials([pair])


async def _abort(error: errors.Error, context: Any) -> None:
    code, message = errors.to_wire(error)
    status = next(each for each in grpc.StatusCode if each.value[0] == error.status)
    told = ((errors.CODE_KEY, str(code)), (errors.ERROR_KEY, message.SerializeToString()))
    await context.abort(status, error.message, told)
