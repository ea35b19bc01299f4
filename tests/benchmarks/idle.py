"""Measures what idle sessions cost: many of `gymhost/Echo-v0` open at once on one default server."""

from collections.abc import Callable
from typing import Any

from tests.benchmarks.contenders import Server, python
from tests.benchmarks.processes import Failed, Process, private_kib, tree

_LIMIT = 300.0


def run(sessions: int, note: Callable[[dict[str, Any]], None]) -> None:
    """Opens the sessions, resets and steps each once, holds them, steps some again, and closes all.

    Args:
        sessions: How many.
        note: Gets the result.
    """
    command = [python(None), "-m", "tests.benchmarks.gymhost_idle"]
    try:
        with Server("gymhost") as server:
            server.wait_ready()
            with Process([*command, server.address, str(sessions)], limit=_LIMIT) as client:
                note({"kind": "idle", "sessions": sessions} | _measure(server, client, sessions))
    except (Failed, ValueError) as error:
        note({"kind": "idle", "sessions": sessions, "error": str(error)})


def _measure(server: Server, client: Process, sessions: int) -> dict[str, Any]:
    front, *workers = tree(server.pid)
    parts = {"front": [front], "workers": workers, "client": [client.pid]}

    def memory() -> dict[str, int]:
        return {name: private_kib(pids) for name, pids in parts.items()}

    client.json()
    before = memory()
    client.go_on()
    result = client.json()
    idle = memory()
    client.go_on()
    result |= client.json()
    client.go_on()
    result |= client.json()
    after = memory()
    client.go_on()
    client.wait()
    for name in parts:
        result |= {
            f"{name}_before_kib": before[name],
            f"{name}_idle_kib": idle[name],
            f"{name}_after_kib": after[name],
            f"{name}_kib_a_session": (idle[name] - before[name]) / sessions,
        }
    result["server_kib_a_session"] = result["front_kib_a_session"] + result["workers_kib_a_session"]
    return result
