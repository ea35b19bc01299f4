"""Environments whose agent is an unmodified harness, with a model that it asks by OpenAI's API."""

import asyncio
import json
import shlex
import sys
from typing import Any

from gymhost.envs.harness import api, history
from gymhost.envs.harness.harness import Harness
from gymhost.envs.harness.link import Asked, Ended, Link
from gymhost.envs.harness.software import PACKAGES
from gymhost.envs.messages import CallRequest, text_of
from gymhost.envs.sandbox import Sandbox, SandboxSpec
from gymhost.envs.toolenv import Observation, ToolEnv
from gymhost.envs.tools import ToolSpec
from gymhost.envs.turns import Call, Turn
from gymhost.wire.chat_spaces import ChatMessage
from gymhost.wire.openai import Ask, Refused, Reply, models

__all__ = ["HarnessEnv"]

# The folder of its own that a harness has in a sandbox.
FOLDER = "/tmp/harness"
# Requests in a row that can't be answered, after which something must be wrong.
_REFUSED = 50
# Seconds that the harness's folder may take to make.
_PREPARE = 30.0


class HarnessEnv(ToolEnv):
    """Has a harness play an environment that works in a sandbox. It stands before that environment's class.

        class Mine(HarnessEnv, RepoRepair):
            harness = Harness(command=("{python}", "-m", "my_agent", "{prompt}"), packages=("my-agent",))

    The harness runs in the environment's sandbox, which has no network. A program of ours there listens on 127.0.0.1
    and passes its requests on through the sandbox's own streams, so nothing in it leads anywhere, and there is no
    secret. `reset` starts it and waits until it asks: what it asks is the observation, a whole conversation, which the
    info says by `conversation` as "anew", and `tools` are the tools that it offers. An action is what it is answered;
    the next observation is what it says then beyond what was said before. Where that is not how it goes on (it has
    shortened its history, a second agent asks), the observation is a whole conversation again, with that in the info.
    Requests that wait at the same time are answered one after the other. How it would have the model sampled makes no
    difference, and the counts of tokens that it is told are estimates.

    The episode ends when the harness does, which `info["harness"]` tells of, with the end of what it wrote. The
    environment's rubrics score it then, as they score one that is played by its own tools: the harness's processes
    have been ended, and others that it left are ended with the sandbox, or by rubrics that look at it.

    The environment makes its sandbox in `setup`, of `self.sandbox_spec`, and keeps it as `self.sandbox`. Its own tools
    are not offered, and what it says besides its prompt to the user is left out. It can't be forked.

    Attributes:
        harness: The harness.
        sandbox_spec: What the sandbox is like, which the environment says. An instance's has what the harness needs.
        sandbox: The sandbox.
    """

    harness: Harness
    sandbox_spec: SandboxSpec
    sandbox: Sandbox | None = None

    _link: Link | None = None
    _asked: Asked
    _ask: Ask
    _reply: Reply | None = None
    _responses: dict[str, list[ChatMessage]]
    _spent = False

    def __init__(self, *, task: int | None = None, split: str | None = None, **kwargs: Any) -> None:
        """Makes the environment.

        Args:
            task: See `ToolEnv`.
            split: See `ToolEnv`.
            **kwargs: Of the environment that it is.

        Raises:
            ModuleNotFoundError: A package of the harness's is not installed; the message says what to install.
        """
        super().__init__(task=task, split=split, **kwargs)
        self.harness.software()

    @property
    def tools(self) -> list[ToolSpec]:
        """The tools that the harness offers now; none before a reset."""
        return [ToolSpec(**tool) for tool in self._ask.tools] if self._link is not None else []

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode, as `reset` does: to where the harness asks for the first time.

        Raises:
            ModuleNotFoundError: A package of the harness's is not installed.
            RuntimeError: It ended before it asked.
            TimeoutError: It did not ask in time.
        """
        self.sandbox_spec = self.harness.spec(type(self).sandbox_spec)
        opening, info = await super().areset(seed=seed, options=options)
        self._state = "broken"
        self._reply, self._spent, self._responses = None, False, {}
        prompt = "\n\n".join(text_of(message) for message in opening if message["role"] == "user")
        self._link = await self._start(prompt)
        try:
            async with asyncio.timeout(self.harness.first_seconds):
                event = await self._next()
        except TimeoutError:
            raise TimeoutError(
                f"the harness did not ask anything within {self.harness.first_seconds:g} s (first_seconds)"
            ) from None
        if isinstance(event, Ended):
            raise RuntimeError(f"the harness ended before it asked anything: {_cause(event)}")
        self._characters = sum(len(text_of(message)) for message in self._ask.messages)
        self._state = "running"
        return list(self._ask.messages), {**info, "conversation": "anew", "tools": self._ask.tools}

    async def aclose(self) -> None:
        """Frees what the environment holds, as `close` does."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
        await super().aclose()

    async def _respond(self, turn: Turn, requests: list[CallRequest]) -> tuple[Observation, dict[str, Any]]:
        link, ask = self._link, self._ask
        assert link is not None
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
            model=ask.model or self.harness.model,
        )
        self._responses[f"resp_{self._reply.id}"] = before
        link.answer(self._asked.number, api.write(self._asked, ask, self._reply))
        try:
            async with asyncio.timeout(self.harness.turn_seconds):
                event = await self._next()
        except TimeoutError:
            self._spent = True
            return [], {}
        if isinstance(event, Ended):
            allowed = self.harness.statuses
            if allowed is not None and event.status is not None and event.status >= 0 and event.status not in allowed:
                raise RuntimeError(f"the harness failed: {_cause(event)}")
            self.finish(harness={"exit_status": event.status, "output": event.output})
            return [], {}
        new = history.added(before, self._ask.messages)
        if new is not None and self._ask.tools == ask.tools:
            return new, {}
        return list(self._ask.messages), {"conversation": "anew", "tools": self._ask.tools}

    async def _leave(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.stop()

    def _spent_budget(self) -> str | None:
        return "turn_seconds" if self._spent else super()._spent_budget()

    async def _start(self, prompt: str) -> Link:
        """Makes the harness's folder in the sandbox, and starts it."""
        sandbox, harness = self.sandbox, self.harness
        if sandbox is None:
            raise RuntimeError(f"{type(self).__name__}.setup made no self.sandbox for the harness to run in")
        software = harness.software()
        python = "python3" if software is None else software.python
        script = f"mkdir -p {FOLDER} && cd {FOLDER} || exit\n"
        if software is not None:
            # A virtual environment of its own, so that what the agent runs does not find the packages.
            site = f"venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
            script += (
                f"mkdir -p venv/bin {site}; ln -s {shlex.quote(python)} venv/bin/python\n"
                f"echo home = {shlex.quote(python.rpartition('/')[0])} >venv/pyvenv.cfg\n"
                f"echo {PACKAGES} >{site}/packages.pth\n"
            )
        made = await sandbox.run(script, timeout=_PREPARE)
        if not made.ok or made.stderr:
            raise RuntimeError(f"the harness's folder could not be made in the sandbox: {made.stderr}")
        await sandbox.upload({"prompt.txt": prompt, **harness.files}, FOLDER, timeout=_PREPARE)
        values = {
            "prompt": prompt,
            "model": harness.model,
            "folder": FOLDER,
            "python": python if software is None else f"{FOLDER}/venv/bin/python",
        }
        variables = {
            "OPENAI_BASE_URL": "{url}",
            "OPENAI_API_BASE": "{url}",
            "OPENAI_API_KEY": "in-sandbox",
            "HOME": "{folder}",
            **harness.env,
        }
        return await Link.start(sandbox, python, harness.command, variables, values, json.dumps(models(harness.model)))

    async def _next(self) -> Asked | Ended:
        """Waits for a request that takes a turn of the model, or for the end; answers all else."""
        link = self._link
        assert link is not None
        path = ""
        for _ in range(_REFUSED):
            event = await link.next()
            if isinstance(event, Ended):
                return event
            path = event.path
            if link.has_gone(event.number):
                continue
            try:
                ask = api.read(event, self._responses)
            except Refused as refused:
                link.answer(event.number, api.refusal(refused))
                continue
            if self._reply is not None and self._repeats(ask):
                link.answer(event.number, api.write(event, ask, self._reply))
                self._asked = event
                continue
            self._asked, self._ask = event, ask
            return event
        raise RuntimeError(f"the harness made {_REFUSED} requests in a row that took no turn, the last one of {path}")

    def _repeats(self, ask: Ask) -> bool:
        """Whether a request is the one before, whose asker did not wait for the answer."""
        assert self._link is not None
        before = self._ask
        gone = self._link.has_gone(self._asked.number)
        return gone and ask.tools == before.tools and history.alike(ask.messages, before.messages)


def _cause(ended: Ended) -> str:
    """Says how a harness ended, and the last that it said."""
    how = "its process was lost"
    if ended.status is not None:
        how = f"exit status {ended.status}" if ended.status >= 0 else f"signal {-ended.status}"
    return f"{how}; it said: {ended.output.strip() or 'nothing'}"
