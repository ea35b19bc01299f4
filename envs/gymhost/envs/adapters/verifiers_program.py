"""verifiers' own chat program, that of its `null` and `bash` harnesses, run without a process of its own.

Those have the script's packages installed by uv first, for which they need a network; here they are there already.
"""

import argparse
import contextlib
import functools
import importlib.machinery
import sys
import traceback
import types
from typing import Any

from gymhost.envs.adapters.support import needed

__all__ = ["HARNESS", "install"]

HARNESS = "gymhost"
"""The id of the harness that verifiers knows once `install` was called."""

# Seconds in which servers of tools are to answer.
_CONNECT = 60.0


@functools.cache
def install() -> None:
    """Lets verifiers find the harness, by the name that it would have if it were one of its own.

    Raises:
        ModuleNotFoundError: verifiers is not installed.
    """
    name = f"{needed('verifiers', 'verifiers.v1.harnesses').__name__}.{HARNESS}"
    module: Any = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.InProcess = _harness()
    module.__all__ = ["InProcess"]
    sys.modules[name] = module


def _harness() -> type:
    """Makes the class of the harness."""
    null: Any = needed("verifiers", "verifiers.v1.harnesses.null")
    result: Any = needed("verifiers", "verifiers.v1.runtimes").ProgramResult

    class InProcess(null.NullHarness):
        """As `null`: a conversation with the task's tools, and no tools beside these."""

        async def setup(self, runtime: Any) -> None:
            _program()

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
            tool_interception_url: str | None = None,
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            told = needed("verifiers", "verifiers.v1.dialects.chat").message_to_wire
            messages = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            elif prompt is not None:
                messages += [told(message) for message in prompt]
            servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            try:
                await _converse(ctx.model, endpoint, secret, messages, servers, tool_interception_url)
            except SystemExit as ended:
                return result(int(ended.code or 0), "", "")
            except Exception:  # noqa: BLE001 - as a program that writes its traceback and ends
                return result(1, "", traceback.format_exc())
            return result(0, "", "")

    return InProcess


async def _converse(
    model: str,
    endpoint: str,
    secret: str,
    messages: list[dict[str, Any]],
    servers: dict[str, dict[str, Any]],
    gate: str | None,
) -> None:
    """Does what the program's `main` does."""
    program = _program()
    httpx: Any = needed("verifiers", "httpx")
    args = argparse.Namespace(
        api_key=secret, tool_interception_url=gate or "", bash=False, edit=False, search=False, serper_key=""
    )
    async with contextlib.AsyncExitStack() as stack:
        # All of it is on this machine: no certificates are needed, and no proxy is asked.
        plain = {"timeout": httpx.Timeout(None, connect=5.0), "verify": False, "trust_env": False}
        asking = await stack.enter_async_context(httpx.AsyncClient(**plain))
        client = program.AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=asking)
        tools: list[Any] = []
        dispatch: dict[str, Any] = {}
        connections: dict[str, Any] = {}
        if servers:
            async with program.asyncio.timeout(_CONNECT):
                tools, dispatch, connections = await program.connect_mcp({"mcpServers": servers}, stack, set())
        compactor = program.Compactor(client, model, tools, False, None)
        compactor.note_good(messages)
        await program.run_chat_loop(args, compactor, messages, dispatch, connections, asking if gate else None)


@functools.cache
def _program() -> Any:
    """The program, whose modules are whole only in one text; that does nothing unless it is `__main__`."""
    source: str = needed("verifiers", "verifiers.v1.harnesses.utils.launch").CHAT_PROGRAM_SOURCE
    module: Any = types.ModuleType("verifiers_chat_program")
    exec(compile(source, "<the chat program of verifiers>", "exec"), module.__dict__)
    return module
