"""Resources servers of NeMo Gym that run somewhere: `nemo:http://HOST:PORT?tasks=FILE`, with the rows of a data set.

A server with tools and a verifier plays as with NeMo Gym's `simple_agent`: an episode ends with a turn without calls,
and its verifier pays for it. One that is stepped plays as with `gymnasium_agent`, and pays each turn.
"""

import functools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from gymhost.envs.adapters.nemo_server import Offer, Session, offer_of
from gymhost.envs.adapters.support import add, needed
from gymhost.envs.harness import history
from gymhost.envs.messages import CallRequest, tool_result, user
from gymhost.envs.packages import Package
from gymhost.envs.rubrics import rubric
from gymhost.envs.tasks import Task, Tasks
from gymhost.envs.toolenv import Action, Observation, Step, ToolEnv
from gymhost.envs.tools import ToolSpec
from gymhost.envs.turns import Turn
from gymhost.wire import openai_responses
from gymhost.wire.chat_spaces import ChatMessage
from gymhost.wire.openai import Ask, Refused, Reply

__all__ = ["NemoSteps", "NemoTools", "about", "register"]

_TIMEOUT = 120.0
# Seconds that are added to what an answer may take, for a limit that fires where that one does not.
_MARGIN = 30.0
_PARAMETERS = "responses_create_params"
# What a verifier repeats of what it was asked.
_ECHOED = (_PARAMETERS, "response")


class RemoteTool:
    """A tool of a server, which checks its arguments itself: its complaint is the tool's answer."""

    parallel = False
    is_async = True

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec

    def check(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments as they are."""
        return arguments

    async def call(self, owner: "Nemo", arguments: dict[str, Any]) -> str:
        """Calls it, and returns what the server says, be it that the call was wrong."""
        assert owner.session is not None
        _, said = await owner.session.post(self.spec.name, arguments)
        return said


class Nemo(ToolEnv):
    """What both kinds of servers have in common.

    Args:
        offer: What the server offers.
        rows: The rows of a data set, each a task.
        timeout: Seconds that an answer of the server may take.
        task: See `ToolEnv`.
        split: See `ToolEnv`.

    Attributes:
        session: The server's session.
    """

    session: Session | None = None
    _row: Mapping[str, Any]
    _ask: Ask
    _opening: list[ChatMessage]
    _offered: Mapping[str, RemoteTool]
    _response: dict[str, Any]
    _reply: Mapping[str, Any]

    def __init__(
        self, offer: Offer, rows: Tasks, timeout: float, /, *, task: int | None = None, split: str | None = None
    ) -> None:
        self._offer = offer
        self._rows = rows
        self._timeout = timeout
        self._offered = {tool.name: RemoteTool(tool) for tool in offer.tools}
        super().__init__(task=task, split=split)

    def tasks(self) -> dict[str, Tasks]:
        """Returns the one split."""
        return {"tasks": self._rows}

    async def setup(self, task: Task) -> None:
        """Opens a session of the server, and begins its episode."""
        self._row, self._reply = task, {}
        parameters: dict[str, Any] = dict(task.get(_PARAMETERS) or {})
        given = parameters.get("input")
        try:
            # A stepped server's first observation may be all that there is to say.
            self._ask = openai_responses.parse({**parameters, "input": given or "-"})
        except Refused as refused:
            raise ValueError(f"the task's {_PARAMETERS} can't be had here: {refused}") from None
        self._opening = list(self._ask.messages) if given else self._ask.messages[:-1]
        tools = [ToolSpec(**tool) for tool in self._ask.tools] or self._offer.tools
        self._offered = {tool.name: RemoteTool(tool) for tool in tools}
        self.session = Session(self._offer.url, self._timeout)
        await self._begin(self.session)

    async def teardown(self) -> None:
        """Closes the session."""
        session, self.session = self.session, None
        if session is not None:
            try:
                await self._close(session)
            finally:
                await session.close()

    def prompt(self, task: Task) -> Iterable[ChatMessage]:
        """Tells what the task says, and the server."""
        return self._opening

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode, as `reset` does. Where the task has tools of its own, the info has them."""
        observation, info = await super().areset(seed=seed, options=options)
        if self._ask.tools:
            info |= {"conversation": "anew", "tools": self._ask.tools}
        return observation, info

    async def _begin(self, session: Session) -> None:
        raise NotImplementedError

    async def _close(self, session: Session) -> None:
        raise NotImplementedError

    def _all_tools(self) -> Any:
        return self._offered

    def _body(self) -> dict[str, Any]:
        """Returns what a server is asked with: the row, with what is missing of its parameters."""
        return {**self._row, _PARAMETERS: {"input": [], **(self._row.get(_PARAMETERS) or {})}}

    def _said(self, turn: Turn, requests: list[CallRequest]) -> dict[str, Any]:
        """Returns what the model said as a response of OpenAI's API. The counts of tokens are estimates."""
        message = history.told(turn, requests)
        asked, said = history.about_tokens(self._opening), history.about_tokens([message])
        reply = Reply(message, prompt_tokens=asked, completion_tokens=said, model=self._ask.model or "policy")
        return openai_responses.response(reply, self._ask)


class NemoTools(Nemo):
    """A server with tools and a verifier. The last step's info has what the verifier says, as `nemo`."""

    without_call = "end"
    _outputs: list[dict[str, Any]]

    async def _begin(self, session: Session) -> None:
        self._outputs, self._response = [], {}
        await session.ask("seed_session", self._body())

    async def _close(self, session: Session) -> None:
        if self._offer.closes:
            await session.post("close_session", {})

    async def _respond(self, turn: Turn, requests: list[CallRequest]) -> tuple[Observation, dict[str, Any]]:
        self._response = self._said(turn, requests)
        self._outputs += self._response["output"]
        observation, info = await super()._respond(turn, requests)
        self._outputs += [
            {"type": "function_call_output", "call_id": call.id, "output": str(call.result)} for call in turn.calls
        ]
        return observation, info

    async def astep(self, action: Action) -> Step:
        """Plays a turn, as `step` does."""
        return self._told(await super().astep(action))

    async def aevaluate(self, limit: str | None = None) -> Step:
        """Scores the episode, as `evaluate` does."""
        return self._told(await super().aevaluate(limit))

    def _told(self, step: Step) -> Step:
        if self._reply:
            step[-1]["nemo"] = {key: said for key, said in self._reply.items() if key not in (*self._row, *_ECHOED)}
        return step

    @rubric(low=-math.inf, high=math.inf)
    async def verify(self) -> float:
        """What the server's verifier pays."""
        assert self.session is not None
        self._reply = await self.session.ask(
            "verify", {**self._body(), "response": {**self._response, "output": self._outputs}}
        )
        if self._reply.get("mask_sample"):
            why = self._reply.get("failure_reason") or self._reply.get("failure_kind") or "it does not say why"
            raise RuntimeError(f"the verifier says that its reward does not count: {why}")
        return _reward(self._reply)


class NemoSteps(Nemo):
    """A server that is stepped. A step's info has the server's, as `nemo`."""

    async def _begin(self, session: Session) -> None:
        self._reply = await session.ask("reset", self._body())
        if observation := self._reply.get("observation"):
            self._opening.append(user(str(observation)))
        self._closes = self._info().get("supports_explicit_close") is True

    async def _close(self, session: Session) -> None:
        if self._closes:
            await session.post("close", {})

    async def _respond(self, turn: Turn, requests: list[CallRequest]) -> tuple[Observation, dict[str, Any]]:
        assert self.session is not None
        self.calls += len(requests)
        response = self._said(turn, requests)
        self._reply = reply = await self.session.ask("step", {**self._body(), "response": response})
        names = {request.id: request.name for request in requests}
        observation: Observation = [
            tool_result(str(output["call_id"]), names.get(output["call_id"], ""), str(output["output"]))
            for output in self._info().get("tool_outputs") or ()
        ]
        if said := reply.get("observation"):
            observation.append(user(str(said)))
        if reply.get("terminated"):
            self.finish()
        return observation, {"nemo": self._info()}

    @rubric(per_turn=True, low=-math.inf, high=math.inf)
    def step_reward(self) -> float:
        """What the server pays for the turn."""
        return _reward(self._reply)

    def _spent_budget(self) -> str | None:
        return "environment" if self._reply.get("truncated") else super()._spent_budget()

    def _info(self) -> dict[str, Any]:
        info: object = self._reply.get("info")
        return cast("dict[str, Any]", info) if isinstance(info, dict) else {}

    def _place_info(self) -> dict[str, Any]:
        return super()._place_info() | {"nemo": self._info()}


def register(name: str, **options: str) -> list[str]:
    """Registers a resources server.

    Args:
        name: Its URL.
        **options: `tasks`: a file with rows of a data set, a JSON object on each line, as NeMo Gym has them; `id`: what
            it is called; `timeout`: seconds that an answer of the server may take (120).

    Raises:
        ConnectionError: It does not answer.
        ModuleNotFoundError: httpx is not installed.
        ValueError: What answers is no resources server, an option is none, or the file has no rows.
    """
    tasks, id, timeout = options.pop("tasks", None), options.pop("id", None), options.pop("timeout", f"{_TIMEOUT:g}")
    if options:
        raise ValueError(f"nemo has no option {next(iter(options))!r}: there are id, tasks and timeout")
    try:
        seconds = float(timeout)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
    if urlsplit(name).scheme not in ("http", "https"):
        raise ValueError(f"{name!r} is to be the URL of a resources server, such as http://127.0.0.1:8000")
    needed("nemo", "httpx")
    offer = offer_of(name)
    rows = Tasks([{}]) if tasks is None else Tasks.jsonl(Path(tasks).expanduser())
    if not rows:
        raise ValueError(f"{tasks} has no rows")
    return [
        add(
            "nemo",
            id or urlsplit(name).netloc,
            functools.partial(NemoSteps if offer.steps else NemoTools, offer, rows, seconds),
            description=f"The resources server of NeMo Gym at {offer.url}.",
            package=Package("nemo-gym", url=offer.url),
            mode="async",
            order_enforce=False,
            step_timeout=4 * seconds + _MARGIN,
            reset_timeout=4 * seconds + _MARGIN,
        )
    ]


def about() -> Package:
    """Returns whose servers they are; the package itself is where the server runs."""
    return Package("nemo-gym", licence="Apache-2.0", url="https://github.com/NVIDIA-NeMo/Gym")


def _reward(reply: Mapping[str, Any]) -> float:
    reward: object = reply.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ValueError(f"the server gives the reward {json.dumps(reward)}, which is no number")
    return float(reward)
