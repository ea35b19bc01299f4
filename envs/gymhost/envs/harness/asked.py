"""Environments in which a program asks the model by OpenAI's API, and is answered by the actions."""

import asyncio
from typing import Any, Protocol

from gymhost.envs.harness import api, history
from gymhost.envs.harness.link import Answer, Asked, Ended
from gymhost.envs.messages import CallRequest, text_of
from gymhost.envs.toolenv import Observation, ToolEnv
from gymhost.envs.tools import ToolSpec
from gymhost.envs.turns import Call, Turn
from gymhost.wire.chat_spaces import ChatMessage
from gymhost.wire.openai import Ask, Refused, Reply

__all__ = ["AskedEnv", "Line"]

# Requests in a row that can't be answered, after which something must be wrong.
_REFUSED = 50


class Line(Protocol):
    """The line to the program: its requests, and the answers to these. It can't be copied."""

    def answer(self, number: int, answer: Answer) -> None:
        """Answers a request. It may be sent only while something is waited for."""
        ...

    def has_gone(self, number: int) -> bool:
        """Whether the one who made a request has not waited for its answer, as far as is known."""
        ...

    async def next(self) -> Asked | Ended:
        """Waits for the next request, or for the end."""
        ...

    async def stop(self) -> None:
        """Ends the program, and waits until it has ended, bounded."""
        ...

    def close(self) -> None:
        """Closes the line, which ends the program too. May be called twice, from any thread."""
        ...


class AskedEnv(ToolEnv):
    """A program plays, which asks a model by OpenAI's API. Subclasses start it, and give its line to `_listen`.

    What it asks is the observation, a whole conversation, which the info says by `conversation` as "anew", and `tools`
    are the tools that it offers. An action is what it is answered; the next observation is what it says then beyond
    what was said before. Where that is not how it goes on (it has shortened its history, a second agent asks), the
    observation is a whole conversation again, with that in the info. Requests that wait at the same time are answered
    one after the other. How it would have the model sampled makes no difference, and the counts of tokens that it is
    told are estimates. The episode ends when the program does. It can't be forked.
    """

    _line: Line | None = None
    _asked: Asked
    _ask: Ask
    _reply: Reply | None = None
    _responses: dict[str, list[ChatMessage]]
    _spent = False

    # ------------------------------------------------------------------------------------------------------------------
    # What subclasses say

    _program = "program"
    _model = "policy"
    _first_seconds = 120.0
    _turn_seconds = 240.0

    def _end(self, ended: Ended) -> None:
        """Ends the episode, since the program has ended.

        Raises:
            RuntimeError: That is no ordinary end.
        """
        self.finish(**{self._program: {"exit_status": ended.status, "output": ended.output}})

    # ------------------------------------------------------------------------------------------------------------------

    @property
    def tools(self) -> list[ToolSpec]:
        """The tools that the program offers now; none before a reset."""
        return [ToolSpec(**tool) for tool in self._ask.tools] if self._line is not None else []

    async def aclose(self) -> None:
        """Frees what the environment holds, as `close` does."""
        line, self._line = self._line, None
        if line is not None:
            line.close()
        await super().aclose()

    async def _listen(self, line: Line) -> tuple[Observation, dict[str, Any]]:
        """Waits for the first request; returns it, and what the info tells.

        Raises:
            RuntimeError: The program ended before it asked.
            TimeoutError: It did not ask in time.
        """
        self._line, self._reply, self._spent, self._responses = line, None, False, {}
        try:
            async with asyncio.timeout(self._first_seconds):
                event = await self._next()
        except TimeoutError:
            raise TimeoutError(
                f"the {self._program} did not ask anything within {self._first_seconds:g} s (first_seconds)"
            ) from None
        if isinstance(event, Ended):
            raise RuntimeError(f"the {self._program} ended before it asked anything: {cause(event)}")
        self._characters = sum(len(text_of(message)) for message in self._ask.messages)
        return list(self._ask.messages), {"conversation": "anew", "tools": self._ask.tools}

    async def _respond(self, turn: Turn, requests: list[CallRequest]) -> tuple[Observation, dict[str, Any]]:
        line, ask = self._line, self._ask
        assert line is not None
        message = history.told(turn, requests)
        offered = {tool["name"] for tool in ask.tools}
        turn.calls = [
            Call(request.id, request.name, request.arguments, "", request.problem is None and request.name in offered)
            for request in requests
        ]
        self.calls += len(requests)
        before = [*ask.messages, message]
        self._reply = Reply(
            message,
            prompt_tokens=history.about_tokens(ask.messages),
            completion_tokens=history.about_tokens([message]),
            model=ask.model or self._model,
        )
        self._responses[f"resp_{self._reply.id}"] = before
        line.answer(self._asked.number, api.write(self._asked, ask, self._reply))
        try:
            async with asyncio.timeout(self._turn_seconds):
                event = await self._next()
        except TimeoutError:
            self._spent = True
            return [], {}
        if isinstance(event, Ended):
            self._end(event)
            return [], {}
        new = history.added(before, self._ask.messages)
        if new is not None and self._ask.tools == ask.tools:
            return new, {}
        return list(self._ask.messages), {"conversation": "anew", "tools": self._ask.tools}

    async def _leave(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.stop()

    def _spent_budget(self) -> str | None:
        return "turn_seconds" if self._spent else super()._spent_budget()

    async def _next(self) -> Asked | Ended:
        """Waits for a request that takes a turn of the model, or for the end; answers all else."""
        line = self._line
        assert line is not None
        path = ""
        for _ in range(_REFUSED):
            event = await line.next()
            if isinstance(event, Ended):
                return event
            path = event.path
            if line.has_gone(event.number):
                continue
            try:
                ask = api.read(event, self._responses)
            except Refused as refused:
                line.answer(event.number, api.refusal(refused))
                continue
            if self._reply is not None and self._repeats(ask):
                line.answer(event.number, api.write(event, ask, self._reply))
                self._asked = event
                continue
            self._asked, self._ask = event, ask
            return event
        raise RuntimeError(
            f"the {self._program} made {_REFUSED} requests in a row that took no turn, the last one of {path}"
        )

    def _repeats(self, ask: Ask) -> bool:
        """Whether a request is the one before, whose asker did not wait for the answer."""
        assert self._line is not None
        before = self._ask
        gone = self._line.has_gone(self._asked.number)
        return gone and ask.tools == before.tools and history.alike(ask.messages, before.messages)


def cause(ended: Ended) -> str:
    """Says how a program ended, and the last that it said."""
    how = "its process was lost"
    if ended.status is not None:
        how = f"exit status {ended.status}" if ended.status >= 0 else f"signal {-ended.status}"
    return f"{how}; it said: {ended.output.strip() or 'nothing'}"
