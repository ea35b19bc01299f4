"""The environment of W1 on OpenEnv, written as the template of `openenv init` is. It needs no gymhost.

`uvicorn tests.benchmarks.openenv_echo:app --port PORT`
`python -m tests.benchmarks.openenv_echo {asyncio|uvloop} ADDRESS N SECONDS`
"""

# OpenEnv is not installed where types are checked.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportUnknownArgumentType=false

import asyncio
import sys
from typing import Any
from uuid import uuid4

from openenv.core import EnvClient
from openenv.core.client_types import StepResult
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from tests.benchmarks.driver import EchoEpisode, drive


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    text: str = ""


class EchoEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._episode = EchoEpisode()
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EchoObservation:
        self._state = State(episode_id=str(uuid4()), step_count=0)
        return EchoObservation(text=self._episode.reset(), done=False, reward=0.0)

    def step(self, action: EchoAction) -> EchoObservation:
        text, reward, done = self._episode.step(action.message)
        self._state.step_count += 1
        return EchoObservation(text=text, done=done, reward=reward)

    @property
    def state(self) -> State:
        return self._state


class EchoClient(EnvClient[EchoAction, EchoObservation, State]):
    def _step_payload(self, action: EchoAction) -> dict[str, Any]:
        return {"message": action.message}

    def _parse_result(self, payload: dict[str, Any]) -> StepResult:
        reward, done = payload.get("reward"), payload.get("done", False)
        text = payload.get("observation", {}).get("text", "")
        return StepResult(observation=EchoObservation(text=text, done=done, reward=reward), reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> State:
        return State(episode_id=payload.get("episode_id"), step_count=payload.get("step_count", 0))


class Async:
    """A session."""

    def __init__(self, client: EchoClient) -> None:
        self._client = client

    async def reset(self) -> None:
        await self._client.reset()

    async def step(self, text: str, /) -> tuple[str, float, bool]:
        result = await self._client.step(EchoAction(message=text))
        return result.observation.text, result.reward, result.done

    async def close(self) -> None:
        await self._client.close()


async def play(address: str, n: int, seconds: float) -> None:
    async def open_session(_: int) -> Async:
        client = EchoClient(base_url=f"http://{address}")
        await client.connect()
        return Async(client)

    await drive(open_session, n, seconds)


if __name__ == "__main__":
    if sys.argv[1] == "uvloop":
        import uvloop

        uvloop.install()
    asyncio.run(play(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
else:
    # The template's limit is a single session.
    app = create_app(EchoEnvironment, EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=2048)
