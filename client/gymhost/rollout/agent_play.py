"""One rollout that an agent plays: what it asks for at its seat, and how it ends."""

import asyncio
import contextlib
import copy
import dataclasses
import logging
import traceback
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

from gymhost.rollout.agents import Seat
from gymhost.rollout.chat import Chat, Message, Tool
from gymhost.rollout.conversation import as_messages
from gymhost.rollout.endpoint.server import Endpoint, Endpoints
from gymhost.rollout.faults import Abandoned, AgentFault, LimitReached, RolloutOver, StageTimeout
from gymhost.rollout.generators.base import GeneratorError, Sampling
from gymhost.rollout.play import Play
from gymhost.rollout.requests import Limits, RolloutRequest
from gymhost.rollout.sessions import Session
from gymhost.rollout.speaking import Said, Speaker
from gymhost.rollout.threads import Threads
from gymhost.rollout.trajectory import Outcome, Trajectory
from gymhost.wire.openai import Ask, Reply

__all__ = ["AgentPlay"]

logger = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds that an agent has to come to an end, after a limit that it goes on in spite of
_GRACE = 10.0  # seconds that it has to end after it was cancelled

_stray: set[asyncio.Task[Any]] = set()  # what did not


class AgentPlay(Play):
    """Has an agent play one episode in a session that has been reset, and writes it into a trajectory.

    Args:
        agent: The agent, or its class.
        request: What was asked for.
        endpoints: Where the rollout may get endpoints.
        chat: As for `Play`, and so are the others.
        session: Where the steps are taken.
        trajectory: What is written.
        limits: What ends the episode.
        speaker: Has the model take turns.
    """

    def __init__(
        self,
        agent: Any,
        request: RolloutRequest,
        endpoints: Endpoints,
        chat: Chat | None,
        session: Session,
        trajectory: Trajectory,
        limits: Limits,
        speaker: Speaker,
    ) -> None:
        super().__init__(chat, session, trajectory, limits, speaker)
        self._agent = agent
        self._request = request
        self._endpoints = endpoints
        self._opened: set[Endpoint] = set()
        self._lane = asyncio.Lock()
        self._at_work: set[asyncio.Task[Any]] = set()
        self._over = False
        self._ended_as: Outcome | None = None
        self._reached: LimitReached | None = None
        self._refused: LimitReached | None = None
        self._raised: list[Exception] = []
        self._troubles: dict[str, Exception] = {}
        self._early: float | None = 0.0
        self._task: asyncio.Task[None]
        self._patience: asyncio.TimerHandle | None = None
        self._expelled = False

    # -- what happens at the seat --------------------------------------------------------------------------------------

    async def say(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        sampling: Sampling | None = None,
        stop: tuple[str, ...] = (),
    ) -> tuple[Said, int]:
        """Has the model answer a conversation, as `Seat.say` does.

        Returns:
            What it said, and how many tokens it was given.
        """
        if not messages or not all(map(_is_message, messages)) or messages[-1]["role"] == "assistant":
            raise ValueError("what the model answers is a list of messages, of which the last is not its own")
        try:
            with self._working("say", GeneratorError, StageTimeout):
                async with self._threads.turn(messages, tools) as thread:
                    said = await self._speaker.speak(thread.talk, sampling, stop=stop, salt=thread.number)
        except LimitReached as reached:
            self._refused = self._reached = reached
            if not self._over:
                self._patience = self._patience or asyncio.get_running_loop().call_later(_PATIENCE, self._expel)
            await asyncio.sleep(0)  # whoever asks again and again must not keep all others waiting
            raise
        self._refused = None
        self._reached = LimitReached(said.cut_by) if said.cut_by else None
        self._wait_no_longer()
        return said, thread.talk.context_tokens - said.turn.tokens

    async def step(self, action: Message | str) -> tuple[Any, float | None, bool, bool, dict[str, Any]]:
        """Takes a step in the environment, as `Seat.step` does."""
        message = {"role": "assistant", "content": action} if isinstance(action, str) else dict(action)
        async with self._lane:
            if self._ended:
                raise RuntimeError("the episode has ended")
            with self._working("step", Exception):
                try:
                    observation, reward, terminated, truncated, info = await self._step(message)
                except BaseException:
                    if not self._speaker.settled:
                        self._pay(None)  # nobody knows what it would have paid
                    raise
                self._pay(reward)
                self._ended_as = self._end(terminated, truncated, info)
                return _seen(observation), reward, terminated, truncated, info

    @asynccontextmanager
    async def endpoint(self, *, own_sampling: bool) -> AsyncGenerator[Endpoint]:
        """Opens an endpoint, as `Seat.endpoint` does."""
        endpoint = await self._endpoints.open(lambda ask: self._answer(ask, own_sampling))
        self._opened.add(endpoint)
        try:
            yield endpoint
        finally:
            self._opened.discard(endpoint)
            endpoint.close()

    async def _answer(self, ask: Ask, own_sampling: bool) -> Reply:
        sampling = self._speaker.sampling
        tokens = sampling.max_tokens if ask.max_tokens is None else min(ask.max_tokens, sampling.max_tokens)
        sampling = dataclasses.replace(sampling, max_tokens=tokens, **(ask.sampling if own_sampling else {}))
        said, given = await self.say(ask.messages, ask.tools, sampling, ask.stop)
        turn = said.turn
        return Reply(said.message, turn.finish_reason, given, turn.tokens, ask.model or "policy")

    @property
    def turns_left(self) -> int | None:
        """As `Seat.turns_left`."""
        turns = self._limits.turns
        return None if turns is None else max(0, turns - len(self._trajectory.turns))

    @property
    def tokens_left(self) -> int | None:
        """As `Seat.tokens_left`."""
        tokens = self._limits.sampled_tokens
        return None if tokens is None else max(0, tokens - self._trajectory.sampled_tokens)

    @property
    def seconds_left(self) -> float | None:
        """As `Seat.seconds_left`."""
        until = self._speaker.scope.when()
        return None if until is None else max(0.0, until - asyncio.get_running_loop().time())

    @contextmanager
    def _working(self, kind: str, *faults: type[Exception]) -> Generator[None]:
        """Has what is done at the seat end with the rollout, and keeps the faults there that are none of the agent."""
        if self._over:
            raise RolloutOver("the rollout has ended")
        self._speaker.still_on()
        task = cast(asyncio.Task[Any], asyncio.current_task())
        self._at_work.add(task)
        try:
            yield
            self._troubles.pop(kind, None)
        except asyncio.CancelledError as error:
            if task.cancelling() or self._speaker.settled:
                raise
            abandoned = Abandoned("what the rollout waited for was cancelled")
            self._keep(kind, abandoned)
            raise abandoned from error
        except faults as error:
            if not self._speaker.scope.expired():
                self._keep(kind, error)
            raise
        finally:
            self._at_work.discard(task)

    def _keep(self, kind: str, trouble: Exception) -> None:
        self._troubles[kind] = trouble
        self._raised.append(trouble)

    def _pay(self, reward: float | None) -> None:
        if turns := self._trajectory.turns:
            before = turns[-1].reward
            turns[-1].reward = None if before is None or reward is None else before + reward
        else:
            self._early = None if self._early is None or reward is None else self._early + reward

    def _sum_up(self, last: float | None) -> None:
        super()._sum_up(None if last is None or self._early is None else last + self._early)

    # -- how it ends ---------------------------------------------------------------------------------------------------

    async def _play(self, observation: Any, info: dict[str, Any]) -> Outcome:
        trajectory = self._trajectory
        seen: Any = _seen(observation)
        trajectory.messages = list(cast("list[Message]", seen)) if isinstance(seen, list) else []
        self._speaker.abandons = True
        self._threads = Threads(self._speaker, trajectory)
        seat = Seat(self, self._request, self._session, trajectory, copy.deepcopy(cast(Any, seen)), info)
        self._task = asyncio.create_task(self._run(seat))
        try:
            await asyncio.wait([self._task])
        finally:
            await self._clear()
        if self._task.cancelled():
            if self._expelled:
                return self._outcome()
            raise AgentFault("the agent was cancelled, but not by the engine") from asyncio.CancelledError()
        error = self._task.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        causes = [] if error is None else list(_behind(error))
        if trouble := next((cause for cause in causes if any(cause is raised for raised in self._raised)), None):
            raise cast(Exception, trouble)
        if self._troubles and (error or self._ended_as is None):
            # A harness hears of it over HTTP. Nobody knows what it would have done without it.
            raise next(reversed(self._troubles.values()))
        if error is None and self._ended_as is None and not trajectory.turns:
            raise AgentFault(
                "the agent returned having played nothing: neither has the model spoken nor the episode ended"
            )
        if error is None or self._expelled or self._refused or any(isinstance(cause, LimitReached) for cause in causes):
            return self._outcome()
        lines = "".join(traceback.format_exception(error))
        raise AgentFault(f"{error or type(error).__name__}\n\n{lines}") from error

    async def _play_led(self, observation: Any, info: dict[str, Any]) -> Outcome:
        return await self._play(observation, info)

    async def _run(self, seat: Seat) -> None:
        agent = self._agent() if isinstance(self._agent, type) else self._agent
        await agent.run(seat)

    def _outcome(self) -> Outcome:
        if self._ended_as is not None:
            return self._ended_as
        if (reached := self._reached) is not None:
            return Outcome(kind="truncated", limit=reached.limit, message=reached.detail)
        return Outcome(kind="terminated")

    async def _clear(self) -> None:
        """Ends what is left of the agent, and what it has begun."""
        self._over = True
        self._wait_no_longer()
        for endpoint in self._opened:
            endpoint.close()
        tasks = {task for task in (self._task, *self._at_work) if not task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            _stray.update(tasks)
            for task in tasks:
                task.add_done_callback(_forget)
            _, left = await asyncio.wait(tasks, timeout=_GRACE)
            if left:
                logger.warning("an agent of %s does not end when it is cancelled", self._trajectory.env_id)

    def _expel(self) -> None:
        self._expelled = True
        self._task.cancel()

    def _wait_no_longer(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _drop_unanswered(self) -> None:
        self._threads.drop_unanswered()


def _forget(task: asyncio.Task[Any]) -> None:
    _stray.discard(task)
    if not task.cancelled():
        task.exception()  # that of a rollout that has ended interests nobody


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(cast(Mapping[str, Any], value).get("role"), str)


def _seen(observation: Any) -> Any:
    """An observation as messages, if it can be any."""
    with contextlib.suppress(ValueError):
        return as_messages(observation)
    return observation


def _behind(error: BaseException) -> Iterator[BaseException]:
    """An exception, and what it was raised because of."""
    waiting, known = [error], set[int]()
    while waiting:
        error = waiting.pop(0)
        if id(error) in known:
            continue
        known.add(id(error))
        yield error
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", error).exceptions)
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            waiting.append(cause)
