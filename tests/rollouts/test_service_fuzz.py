"""Anything at all, sent to every RPC of a real rollout service: a clear status for each, and jobs beside go on (S33).

How long it goes on is said by GYMHOST_FUZZ_EXAMPLES: the number of examples, each of up to 12 calls.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymhost.v1 import environments_pb2 as environments_pb
from gymhost.v1 import rollouts_pb2 as pb
from gymhost.v1 import rollouts_pb2_grpc as rpc
from gymhost.wire import errors
from support.completions_server import CompletionsServer, choice
from support.fuzz import examples, messages
from support.raw import channel_to, trailing
from support.rollouts_process import guessing, service, submission
from support.server import ServerProcess

pytestmark = pytest.mark.heavy

SERVICE = pb.DESCRIPTOR.services_by_name["RolloutService"]
ENVIRONMENTS = environments_pb.DESCRIPTOR.services_by_name["EnvironmentService"]
FORWARDED = [ENVIRONMENTS.methods_by_name[name] for name in ("ListEnvironments", "GetEnvironment", "ListTasks")]
# Seconds within which everything is answered, on a machine that may be busy.
PATIENCE = 40.0


class World:
    """A service under fire, and a job beside that must not notice.

    Attributes:
        sent: How many calls were made.
    """

    def __init__(self, folder: Path, environments: str) -> None:
        self.sent = 0
        self._folder, self._environments = folder, environments
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        self._known: list[str] = [""]
        self._rounds = 0

    def __enter__(self) -> "World":
        self.run(self._open())
        return self

    def __exit__(self, *exc: object) -> None:
        self.run(self._stack.aclose())
        self._runner.close()

    def run(self, work: Any) -> Any:
        """Runs a coroutine on the service's event loop, for a bounded time."""
        return self._runner.run(asyncio.wait_for(work, 5 * PATIENCE))

    async def _open(self) -> None:
        said = guessing(4)
        self.vllm = await self._stack.enter_async_context(CompletionsServer(lambda _body: choice(said)))
        self.vllm.max_model_len = 4096
        settings = {"generators": [self.vllm.url], "quota_jobs": 30, "quota_rollouts": 500, "attempts": 2}
        self.service = await self._stack.enter_async_context(service(self._folder, self._environments, **settings))
        self.channel = await self._stack.enter_async_context(channel_to(self.service.address))
        self.stub: Any = rpc.RolloutServiceStub(self.channel)

    async def call(self, method: Any, request: Any, pick: int) -> None:
        """Makes a call; whatever it is answered, it must be clear."""
        if not isinstance(request, bytes):
            self._tame(method, request, pick)
            request = request.SerializeToString()
        path = f"/{method.containing_service.full_name}/{method.name}"
        try:
            if method.server_streaming:
                await self._stream(path, request)
            else:
                answer = await self.channel.unary_unary(path)(request, timeout=PATIENCE)
                if method.name == "SubmitJob":
                    self._known.append(pb.SubmitJobResponse.FromString(answer).job.id)
        except grpc.aio.AioRpcError as error:
            self._check(error, (method.name, request))
        self.sent += 1

    def _tame(self, method: Any, request: Any, pick: int) -> None:
        """Has most calls be about something that there is, and none of them wait for long, or end all that there is."""
        names = {field.name for field in method.input_type.fields}
        if "job_id" in names and pick % 3:
            request.job_id = self._known[pick % len(self._known)]
        if "job_ids" in names and pick % 2:
            request.job_ids.append(self._known[pick % len(self._known)])
        if "wait" in names:
            request.wait = min(request.wait, 0.1)
        if "patience" in names:
            request.patience = min(request.patience, 0.1)
        if method.name == "SubmitJob" and pick % 4:
            request.key = request.key or "key"
            request.agent = ""
            request.samples %= 4
            request.ClearField("agent_options")
            for task in request.tasks:
                task.environment_id = "gymhost/GuessNumber-v0"
                task.ClearField("kwargs")
                task.ClearField("options")
                task.ClearField("labels")
        if method.name == "AnnouncePolicy":
            request.version %= 3
        if method.name in ("RemoveGenerator", "DrainGenerator") and request.name == self.vllm.url:
            request.name += "/"

    async def _stream(self, path: str, request: bytes) -> None:
        call = self.channel.unary_stream(path)(request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                while await call.read() is not grpc.aio.EOF:
                    pass
        call.cancel()

    def _check(self, error: grpc.aio.AioRpcError, what: Any) -> None:
        detail = trailing(error)
        assert "gymhost-code" in detail, (error, what)
        message = environments_pb.Error.FromString(detail["gymhost-error-bin"])
        code = int(detail["gymhost-code"])
        assert code in errors.BY_CODE, (code, what)
        assert code != environments_pb.REPLY_CODE_SERVER_FAULT, (message, what)
        assert message.message, (code, what)

    async def settle(self) -> None:
        """What must hold after everything: a job is played to its end, by a generator that was there all along."""
        self._rounds += 1
        await self.stub.CancelRollouts(pb.CancelRolloutsRequest(all=True))
        for generator in (await self.stub.ListGenerators(pb.ListGeneratorsRequest())).generators:
            if generator.url != self.vllm.url:
                await self.stub.RemoveGenerator(pb.RemoveGeneratorRequest(name=generator.name))
        version = (await self.stub.ListGenerators(pb.ListGeneratorsRequest())).policy_version
        await self.stub.AnnouncePolicy(pb.AnnouncePolicyRequest(version=version))
        canary = submission(f"canary {self._rounds}", 1, priority=2**31 - 1)
        job = (await self.stub.SubmitJob(canary, timeout=PATIENCE)).job
        results: list[pb.Result] = []
        async for response in self.stub.StreamResults(pb.StreamResultsRequest(job_ids=[job.id]), timeout=PATIENCE):
            results.extend(response.results)
        assert len(results) == 1
        fetched = await self.stub.FetchResults(pb.FetchResultsRequest(limit=1000))
        cursors = pb.AcknowledgeResultsRequest(cursors=[each.cursor for each in fetched.results])
        await self.stub.AcknowledgeResults(cursors)
        self._known = ["", *self._known[-3:]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, server: ServerProcess) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("fuzz"), server.address) as made:
        yield made


CALLS = st.sampled_from([*SERVICE.methods, *FORWARDED]).flatmap(
    lambda method: st.tuples(
        st.just(method), messages(method.input_type) | st.binary(max_size=60), st.integers(0, 1000)
    )
)


@pytest.mark.timeout(240)
def test_anything_at_all_is_answered_clearly_and_harms_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    @examples(0.5)
    @given(st.lists(CALLS, min_size=1, max_size=12))
    def play(deeds: list[Any]) -> None:
        async def all_of_them() -> None:
            for method, request, pick in deeds:
                await world.call(method, request, pick)
            await world.settle()

        world.run(all_of_them())

    play()
    assert world.sent > 50
    assert "Traceback" not in caplog.text
