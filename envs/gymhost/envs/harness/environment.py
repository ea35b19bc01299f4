"""Environments whose agent is an unmodified harness, with a model that it asks by OpenAI's API."""

import json
import shlex
import sys
from typing import Any

from gymhost.envs.harness.asked import AskedEnv, cause
from gymhost.envs.harness.harness import Harness
from gymhost.envs.harness.link import Ended, Link
from gymhost.envs.harness.software import PACKAGES
from gymhost.envs.messages import text_of
from gymhost.envs.sandbox import Sandbox, SandboxSpec
from gymhost.envs.toolenv import Observation
from gymhost.wire.openai import models

__all__ = ["HarnessEnv"]

# The folder of its own that a harness has in a sandbox.
FOLDER = "/tmp/harness"
# Seconds that the harness's folder may take to make.
_PREPARE = 30.0


class HarnessEnv(AskedEnv):
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

    _program = "harness"

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
        self._model, self._first_seconds = self.harness.model, self.harness.first_seconds
        self._turn_seconds = self.harness.turn_seconds
        opening, info = await super().areset(seed=seed, options=options)
        self._state = "broken"
        prompt = "\n\n".join(text_of(message) for message in opening if message["role"] == "user")
        observation, told = await self._listen(await self._start(prompt))
        self._state = "running"
        return observation, info | told

    def _end(self, ended: Ended) -> None:
        allowed = self.harness.statuses
        if allowed is not None and ended.status is not None and ended.status >= 0 and ended.status not in allowed:
            raise RuntimeError(f"the harness failed: {cause(ended)}")
        super()._end(ended)

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
