"""Hosted environments whose tools are those of an MCP server (case S18)."""

import asyncio
from collections.abc import Callable

import pytest

from gymhost.client import SessionExpired, connect
from support.server import ServerProcess, alive, until, until_sessions


@pytest.mark.parametrize("mode", ["Async", "Thread"])
@pytest.mark.parametrize("how", ["idle", "closed", "client gone"])
async def test_opened_called_and_reaped_in_different_tasks(
    mode: str, how: str, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server(workers=1, modules=["support.mcp_environments"], lease=2.0, heartbeat=0.5)
    remote = connect(server.address)
    session = remote.session(f"test/Mcp{mode}-v0", idle_timeout=1.0 if how == "idle" else None)
    await asyncio.create_task(session.open())
    await asyncio.create_task(session.reset())

    async def call() -> str:
        observation, *_ = await session.call_tool("increment", {})
        return observation[0]["content"]

    assert [await asyncio.create_task(call()) for _ in range(5)] == ["1", "2", "3", "4", "5"]
    observation, *_ = await session.call_tool("pid", {})
    program = int(observation[0]["content"])
    assert alive(program)
    if how == "closed":
        await session.close()
    elif how == "client gone":
        await asyncio.to_thread(remote.close)
    await until(lambda: not alive(program))
    if how == "idle":
        with pytest.raises(SessionExpired):
            await call()
    if how != "client gone":
        await until_sessions(remote, 0)
        await asyncio.to_thread(remote.close)
    server.stop()
    for complaint in ("Traceback", "cancel scope", "was destroyed but it is pending", "never awaited"):
        assert complaint not in server.log
