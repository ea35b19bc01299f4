"""OpenAI-compatible endpoints of rollouts, over real HTTP: by OpenAI's own client where it can say it, and by hand."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from renderers import Qwen3RendererConfig

from gymhost.rollout import Chat, Concurrency, Endpoint, Endpoints, Limits, RolloutRequest, Sampling, Seat
from gymhost.rollout.generators import ScriptedGenerator
from gymhost.rollout.generators.base import Generation, GeneratorError
from support.agents import Doing, play
from support.local_source import LocalSource
from support.rollouts import ECHO, SAY, engine
from support.talk import Talk, end, user
from support.tokenizers import call, decode, encode, qwen3_tokenizer

pytestmark = pytest.mark.heavy

CHAT = Chat(qwen3_tokenizer(), Qwen3RendererConfig(thinking_retention="all"))
TOOL: Any = {"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}


@asynccontextmanager
async def client(endpoint: Endpoint, **settings: Any) -> AsyncGenerator[openai.AsyncOpenAI]:
    made = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0, **settings)
    async with made:
        yield made


def at(what: Callable[[Seat, Endpoint], Awaitable[None]], **how: Any) -> Callable[[Seat], Awaitable[None]]:
    """What an agent does at its endpoint."""

    async def at_seat(seat: Seat) -> None:
        async with seat.endpoint(**how) as endpoint:
            await what(seat, endpoint)

    return at_seat


async def post(endpoint: Endpoint, path: str = "/chat/completions", key: str = "", **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(verify=False) as http:  # there is no TLS, and certificates take long to load
        headers = {b"Authorization": f"Bearer {key or endpoint.api_key}".encode("latin-1")}
        return await http.post(endpoint.base_url + path, json={"messages": [user("a")]} | body, headers=headers)


async def test_chat_completions_are_recorded_token_by_token() -> None:
    said = [encode("<think>\nHm.\n</think>\n\nNow." + call("run", '{"cmd": "ls"}')), encode("Done.<|im_end|>")]
    answers = iter(said * 2)

    async def what(seat: Seat, endpoint: Endpoint) -> None:
        async with client(endpoint) as api:
            assert [model.id async for model in api.models.list()] == ["policy"]
            for stream in (False, True):
                messages: list[Any] = [{"role": "system", "content": "Be brief."}, user(f"stream: {stream}")]
                finish_reason, tokens = "", 0
                for _ in range(2):
                    message, finish_reason, tokens = await complete(api, messages, stream)
                    messages.append(message)
                    for asked in message.get("tool_calls") or ():
                        assert finish_reason == "tool_calls"
                        assert json.loads(asked["function"]["arguments"]) == {"cmd": "ls"}
                        messages.append({"role": "tool", "tool_call_id": asked["id"], "content": "README.md"})
                assert (messages[-1]["content"], finish_reason) == ("Done.", "stop")
                assert tokens == len(seat.trajectory.token_rows[-1])

    trajectory = await play(at(what), lambda *_: next(answers), chat=CHAT)
    assert (str(trajectory.outcome), [turn.row for turn in trajectory.turns]) == ("terminated", [0, 0, 1, 1])
    for row in trajectory.token_rows:
        text = decode(row.ids)
        assert text.startswith("<|im_start|>system\nBe brief.")
        assert '"name": "run"' in text.split("<|im_end|>")[0]
        assert "<tool_response>\nREADME.md\n</tool_response>" in text
        sampled = [token for token, mask in zip(row.completion_ids, row.mask, strict=True) if mask]
        assert sampled == [*said[0], *said[1]]
    assert [tool["name"] for tool in trajectory.tools] == ["run"]


async def complete(api: openai.AsyncOpenAI, messages: list[Any], stream: bool) -> tuple[dict[str, Any], str, int]:
    """One completion: its message, why it ended, and how many tokens there were in all."""
    if not stream:
        answer = await api.chat.completions.create(model="gpt-9", messages=messages, tools=[TOOL])
        choice = answer.choices[0]
        assert answer.model == "gpt-9"
        assert answer.usage is not None
        return choice.message.model_dump(exclude_none=True), choice.finish_reason, answer.usage.total_tokens
    async with api.chat.completions.stream(
        model="gpt-9", messages=messages, tools=[TOOL], stream_options={"include_usage": True}
    ) as events:
        final = await events.get_final_completion()
    assert final.usage is not None
    message = final.choices[0].message.model_dump(exclude_none=True)
    for asked in message.get("tool_calls") or ():
        asked["function"].pop("parsed_arguments", None)
    return message, final.choices[0].finish_reason, final.usage.total_tokens


async def test_responses_are_recorded_token_by_token() -> None:
    answers = iter([ECHO, SAY, ECHO, SAY])
    function: Any = {"type": "function", "strict": None, **TOOL["function"], "name": "echo"}

    async def what(_seat: Seat, endpoint: Endpoint) -> None:
        async with client(endpoint) as api:
            settings: Any = {"model": "gpt-9", "instructions": "Be brief.", "tools": [function]}
            # The whole conversation each time, streamed.
            asked: list[Any] = [user("a")]
            async with api.responses.stream(input=asked, **settings) as events:
                kinds = [event.type async for event in events]
                first = await events.get_final_response()
            assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
            [item] = first.output
            assert item.type == "function_call"
            asked += [item.to_dict(), {"type": "function_call_output", "call_id": item.call_id, "output": "abab"}]
            assert (await api.responses.create(input=asked, **settings)).output_text == "abab"
            # By the id of what was answered before.
            first = await api.responses.create(input="b", **settings)
            [item] = first.output
            assert item.type == "function_call"
            output: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "abab"}
            second = await api.responses.create(input=[output], previous_response_id=first.id, **settings)
            assert (second.output_text, second.previous_response_id) == ("abab", first.id)
            with pytest.raises(openai.BadRequestError, match="no response of this rollout"):
                await api.responses.create(input="c", previous_response_id="resp_0", **settings)

    trajectory = await play(at(what), lambda *_: next(answers), chat=CHAT)
    assert [turn.row for turn in trajectory.turns] == [0, 0, 1, 1]
    first, second = (decode(row.ids) for row in trajectory.token_rows)
    assert second == first.replace("user\na", "user\nb")


async def test_requests_at_once_are_conversations_of_their_own() -> None:
    async def what(_seat: Seat, endpoint: Endpoint) -> None:
        async with client(endpoint) as api:
            begun = await asyncio.gather(*(complete(api, [user(str(i))], False) for i in range(5)))
            await asyncio.gather(
                *(complete(api, [user(str(i)), begun[i][0], user("more")], bool(i % 2)) for i in range(5))
            )

    async def script(prompt_ids: Sequence[int], _name: str) -> list[int]:
        await asyncio.sleep(0.001)
        return SAY

    trajectory = await play(at(what), script, chat=CHAT)
    assert sorted(turn.row for turn in trajectory.turns) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_a_key_is_good_for_its_rollout_alone_and_dies_with_it() -> None:
    barrier = asyncio.Barrier(2)
    ended: list[Endpoint] = []

    async def what(seat: Seat, endpoint: Endpoint) -> None:
        ended.append(endpoint)
        await barrier.wait()
        other = next(item for item in ended if item is not endpoint)
        assert other.base_url == endpoint.base_url
        assert other.environ == {"OPENAI_BASE_URL": other.base_url, "OPENAI_API_KEY": other.api_key}
        for key in ("x", endpoint.name, f"{endpoint.name}.{other.api_key.partition('.')[2]}", "ö"):
            refused = await post(endpoint, key=key)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await post(endpoint)).status_code == 200
        await barrier.wait()
        assert len(seat.trajectory.turns) == 1

    source = LocalSource(lambda: Talk(lambda *_: end()))
    async with engine(source, lambda *_: SAY, agents={"doing": Doing(at(what))}) as rollouts:
        both = await rollouts.collect([RolloutRequest("Talk-v0", agent="doing")] * 2)
        assert [str(trajectory.outcome) for trajectory in both] == ["terminated"] * 2
        for endpoint in ended:
            refused = await post(endpoint)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            assert "its rollout has ended" in refused.json()["error"]["message"]
            async with client(endpoint) as api:
                with pytest.raises(openai.AuthenticationError):
                    await api.models.list()
    with pytest.raises(httpx.ConnectError):
        await post(ended[0])


async def test_what_goes_wrong_is_said_as_openai_says_it(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([GeneratorError("out of order"), SAY, SAY])

    def script(*_: Any) -> list[int]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def what(_seat: Seat, endpoint: Endpoint) -> None:
        async def refused(status: int, code: str | None, param: str | None = None, **how: Any) -> None:
            answer = await post(endpoint, **how)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
            assert error["message"]

        await refused(503, "generator_failed")
        await refused(400, "unsupported_parameter", "n", n=2)
        await refused(400, None, "messages", messages=[user("a"), {"role": "assistant", "content": "b"}])
        await refused(400, "context_length_exceeded", "messages", messages=[user("a " * 200)])
        await refused(400, "context_length_exceeded", "messages", messages=[user("a " * 200)], stream=True)
        await refused(404, None, path="/embeddings")
        async with httpx.AsyncClient() as http:
            headers = {"Authorization": f"bearer {endpoint.api_key}"}
            for body, status in ((b"{", 400), (b"[" * 100_000, 400), (b"[]", 400), (b" " * 110_001, 413)):
                answer = await http.post(f"{endpoint.base_url}/responses", content=body, headers=headers)
                assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
            assert (await http.get(f"{endpoint.base_url}/chat/completions", headers=headers)).status_code == 405
        assert (await post(endpoint)).status_code == 200
        assert (await post(endpoint)).status_code == 200
        await refused(403, "rollout_limit_reached")

    with caplog.at_level(logging.WARNING):
        trajectory = await play(
            at(what), script, limits=Limits(turns=3, context_tokens=200), endpoints=Endpoints(max_body=110_000)
        )
    assert str(trajectory.outcome) == "truncated by turns"
    assert not caplog.records


async def test_a_stream_is_kept_alive_and_says_what_goes_wrong_later() -> None:
    release = asyncio.Event()
    answers = iter([SAY, GeneratorError("out of order")])

    async def script(*_: Any) -> list[int]:
        await release.wait()
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def what(_seat: Seat, endpoint: Endpoint) -> None:
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        body = {"messages": [user("a")], "stream": True}
        url = f"{endpoint.base_url}/chat/completions"
        async with httpx.AsyncClient() as http, http.stream("POST", url, json=body, headers=headers) as told:
            assert (told.status_code, told.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
            lines = [line async for line in _releasing(told, release)]
        assert lines.count(": waiting for the model") >= 3
        assert lines[-2:] == ["data: [DONE]", ""]
        release.clear()
        async with client(endpoint) as api:
            stream = await api.chat.completions.create(model="x", messages=[user("b")], stream=True)  # pyright: ignore
            release.set()
            with pytest.raises(openai.APIError, match="out of order"):
                [chunk async for chunk in stream]
        raise KeyError("the harness gave up")

    trajectory = await play(at(what), script, endpoints=Endpoints(keep_alive=0.02), limits=Limits(retries=1, turns=2))
    # Whatever the harness makes of it, it was the generator's fault, and the rollout was tried again.
    assert trajectory.attempts == 2


async def _releasing(told: httpx.Response, release: asyncio.Event) -> AsyncIterator[str]:
    seen = 0
    async for line in told.aiter_lines():
        seen += line.startswith(":")
        if seen == 3:
            release.set()
        yield line


@pytest.mark.parametrize("stream", [False, True])
async def test_who_does_not_wait_for_an_answer_aborts_its_generation(stream: bool) -> None:
    begun, aborted = asyncio.Event(), asyncio.Event()

    async def script(prompt_ids: Sequence[int], _name: str) -> list[int]:
        if "slow" in decode(list(prompt_ids)):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                aborted.set()
        return SAY

    async def what(_seat: Seat, endpoint: Endpoint) -> None:
        slow = asyncio.create_task(post(endpoint, messages=[user("slow")], stream=stream))
        await begun.wait()
        slow.cancel()
        await aborted.wait()
        assert (await post(endpoint)).status_code == 200

    trajectory = await play(at(what), script, endpoints=Endpoints(keep_alive=0.02))
    assert (len(trajectory.turns), len(trajectory.token_rows)) == (1, 1)


async def test_cancelling_a_rollout_ends_its_requests() -> None:
    begun, answered = asyncio.Event(), list[httpx.Response]()
    outside: list[asyncio.Task[httpx.Response]] = []

    async def script(*_: Any) -> list[int]:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def what(_seat: Seat, endpoint: Endpoint) -> None:
        outside.append(asyncio.create_task(post(endpoint)))  # as a harness does that nobody tells of it
        await asyncio.Event().wait()

    source = LocalSource(lambda: Talk(lambda *_: end()))
    async with engine(source, script, agents={"doing": Doing(at(what))}) as rollouts:
        results = asyncio.ensure_future(rollouts.collect([RolloutRequest("Talk-v0", agent="doing")]))
        await begun.wait()
        rollouts.cancel()
        [trajectory] = await results
        answered.append(await outside[0])
    assert (str(trajectory.outcome), source.open) == ("cancelled", 0)
    assert (answered[0].status_code, answered[0].json()["error"]["code"]) == (401, "rollout_ended")


class Noting(ScriptedGenerator):
    """Keeps how it was asked to sample."""

    def __init__(self) -> None:
        super().__init__(lambda *_: SAY)
        self.asked: list[Sampling] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Generation:
        self.asked.append(sampling)
        return await super().generate(prompt_ids, sampling, request_id=request_id)


@pytest.mark.parametrize("own", [False, True])
async def test_how_is_sampled_is_for_the_trainer_to_say(own: bool) -> None:
    generator = Noting()

    async def what(_seat: Seat, endpoint: Endpoint) -> None:
        answer = await post(endpoint, temperature=0, top_p=0.5, max_tokens=2, seed=3)
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        answer = await post(endpoint, max_tokens=10_000, stop=["b"])
        assert answer.json()["choices"][0]["message"]["content"] == "a"

    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=100)
    trajectory = await play(at(what, own_sampling=own), generator, sampling=sampling)
    first, second = generator.asked
    assert (first.temperature, first.top_p, first.seed is not None) == ((0, 0.5, True) if own else (0.7, 0.9, False))
    assert (first.max_tokens, second.max_tokens) == (2, 100)
    assert second.temperature == 0.7
    assert str(trajectory.outcome) == "terminated"


async def test_many_rollouts_share_a_port() -> None:
    async def what(seat: Seat, endpoint: Endpoint) -> None:
        first = (await post(endpoint)).json()["choices"][0]["message"]
        await post(endpoint, messages=[user("a"), first, user(str(seat.request.task))])
        await seat.step("x")

    source = LocalSource(lambda: Talk(lambda *_: end()))
    agents = {"doing": Doing(at(what))}
    async with engine(source, lambda *_: SAY, agents=agents, concurrency=Concurrency(run=8), chat=CHAT) as rollouts:
        played = await rollouts.collect([RolloutRequest("Talk-v0", task=i, agent="doing") for i in range(16)])
    for number, trajectory in enumerate(played):
        [row] = trajectory.token_rows
        assert decode(row.completion_ids).count(f"user\n{number}<|im_end|>") == 1
        assert (trajectory.reward, len(trajectory.turns)) == (1.0, 2)


async def test_one_engine_after_another_may_serve_there() -> None:
    found: list[str] = []

    async def what(seat: Seat, endpoint: Endpoint) -> None:
        found.append(endpoint.base_url)
        await seat.say(seat.observation)

    endpoints = Endpoints(url="https://proxy.example/v1/")
    for _ in range(2):
        trajectory = await play(at(what), lambda *_: SAY, endpoints=endpoints)
        assert str(trajectory.outcome) == "terminated"
    assert found == ["https://proxy.example/v1"] * 2


async def test_a_port_that_is_taken_is_named() -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as taken:
        port = taken.sockets[0].getsockname()[1]

        async def what(seat: Seat) -> None:
            async with seat.endpoint():
                pass

        trajectory = await play(what, lambda *_: SAY, endpoints=Endpoints(port=port))
    assert f"can't be served on 127.0.0.1:{port}" in trajectory.outcome.message
    with pytest.raises(ValueError, match="keep_alive"):
        Endpoints(keep_alive=0)
