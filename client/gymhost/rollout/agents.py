"""Agents: loops of one's own in place of the built-in one, each at a seat that records what the model says there."""

import copy
import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from gymhost.rollout.chat import Message, Tool
from gymhost.rollout.generators.base import Sampling
from gymhost.rollout.requests import RolloutRequest
from gymhost.rollout.sessions import Session
from gymhost.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from gymhost.rollout.agent_play import AgentPlay
    from gymhost.rollout.endpoint import Endpoint

__all__ = ["Agent", "Seat", "load_agent"]


@runtime_checkable
class Agent(Protocol):
    """What plays a rollout in place of the built-in loop.

        class PlanThenAct:
            async def run(self, seat):
                plan = await seat.say([{"role": "user", "content": "What is your plan?"}], tools=())
                messages = [*seat.observation, plan]
                ...

    How a rollout ends: when `run` returns, the environment scores what there is, as it does after any other end. The
    outcome is "terminated", unless the environment or a limit truncated the episode. What `run` raises is a fault of
    the agent, which is not tried again; but what the seat raised stays what it is: a limit truncates, and a fault of
    the environment, the infrastructure or a generator is theirs, even if the agent raises something else because of it,
    or nothing at all.
    """

    async def run(self, seat: "Seat") -> None:
        """Plays one rollout. It is cancelled if the rollout is, or its time is up."""
        ...


class Seat:
    """Where an agent sits in one rollout: an episode that has begun, and a model whose every turn is recorded.

    Its methods may be used at the same time, by tasks of the agent's. None of them works once the rollout has ended.

    Attributes:
        request: What was asked for.
        options: What the request has to tell the agent.
        observation: What the reset gave: messages, if it was text or messages.
        info: The info of the reset.
        session: The environment. A step that is taken past the seat is not recorded.
        trajectory: The record so far, to be read.
    """

    def __init__(
        self,
        play: "AgentPlay",
        request: RolloutRequest,
        session: Session,
        trajectory: Trajectory,
        observation: Any,
        info: Mapping[str, Any],
    ) -> None:
        self.request = request
        self.options: Mapping[str, Any] = request.agent_options
        self.observation = observation
        self.info = info
        self.session = session
        self.trajectory = trajectory
        self._play = play

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the environment lets the model call: name, description, parameters."""
        return self.session.tools

    async def say(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        sampling: Sampling | None = None,
    ) -> Message:
        """Has the model answer a conversation, and returns its message.

        The messages are always the whole conversation, the last of them not the model's. What the model said is found
        again by what it says, and stays the tokens that were sampled: pass the messages on as they were returned. A new
        conversation, or one that goes on from the middle of another, gets a training row of its own.

        Args:
            messages: The conversation.
            tools: What the model may call; those of the environment without any, none with an empty list.
            sampling: How to sample, if not as the rollout does.

        Raises:
            LimitReached: A limit of the rollout leaves no room for another turn, or none in this conversation. Whoever
                goes on in spite of it, and takes no other turn, has half a minute to come to an end.
            GeneratorError: The generator failed; another try may succeed.
            CannotRender: The model can't be shown one of the messages.
            ValueError: These are no messages to answer.
        """
        said, _ = await self._play.say(messages, self.tools if tools is None else tools, sampling)
        return copy.deepcopy(said.message)

    async def step(self, action: Message | str) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        """Takes a step in the environment, one at a time, and returns what Gymnasium's `step` does.

        An observation is a list of messages, if it was text or messages. The reward is None if it is not valid.

        Args:
            action: What the model said; for plain text a message is made of it.

        Raises:
            RuntimeError: The episode has ended.
            gymhost.wire.errors.Error: The step failed.
        """
        return await self._play.step(action)

    def endpoint(self, *, own_sampling: bool = False) -> "AbstractAsyncContextManager[Endpoint]":
        """Opens an OpenAI-compatible endpoint that is this seat's `say`, for a harness that speaks HTTP.

        Args:
            own_sampling: Whether the temperature and the like that a request of the harness names are followed.
                Otherwise what the rollout asks for holds, as training wants it; `max_tokens` and `stop` are followed in
                any case.

        Raises:
            ImportError: What serves HTTP is not installed.
        """
        return self._play.endpoint(own_sampling=own_sampling)

    @property
    def turns_left(self) -> int | None:
        """How many turns the model may still take; None for any number."""
        return self._play.turns_left

    @property
    def tokens_left(self) -> int | None:
        """How many tokens the model may still sample in all; None for any number."""
        return self._play.tokens_left

    @property
    def seconds_left(self) -> float | None:
        """How much time is left of `Limits.episode_seconds`; None for any, and while the rollout is paused."""
        return self._play.seconds_left


def load_agent(name: str) -> Any:
    """Imports an agent by its name, such as "my_package.agents:PlanThenAct".

    Raises:
        ValueError: It is no such name, nothing is there, or that is no agent.
    """
    module, _, path = name.partition(":")
    if not (module and path):
        raise ValueError(f"an agent is named 'module:Class', not {name!r}")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the agent {name!r} can't be loaded: {error}") from error
    return checked(found, name)


def checked(agent: Any, name: str) -> Any:
    """An agent, or a class of agents.

    Raises:
        ValueError: It is neither.
    """
    if not callable(getattr(cast(object, agent), "run", None)):
        raise ValueError(f"{name!r} is no agent: it has no method run(seat)")
    return agent
