"""Measures what idle sessions cost: many of `gymhost/Echo-v0` open at once on one default server.

A fresh process has free room in its heap, left from its start, and the first sessions fill it. So as many again are
opened: what these add is what a session really takes.
"""

from collections.abc import Callable
from typing import Any

from tests.benchmarks.peers import python
from tests.benchmarks.processes import Failed, Process, private_kib, tree
from tests.benchmarks.servers import Server

_LIMIT = 300.0


def run(sessions: int, note: Callable[[dict[str, Any]], None]) -> None:
    """Opens the sessions, resets and steps each once, steps some of them again, opens as many again, and closes all.

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

    def read() -> dict[str, int]:
        return {name: private_kib(pids) for name, pids in parts.items()}

    client.json()
    memory = [read()]
    client.go_on()
    result = client.json()
    memory.append(read())
    client.go_on()
    result |= client.json()
    for _ in ("opened again", "closed"):
        client.go_on()
        result |= client.json()
        memory.append(read())
    client.go_on()
    client.wait()
    before, once, twice, closed = memory
    for name in parts:
        result |= {
            f"{name}_before_kib": before[name],
            f"{name}_once_kib": once[name],
            f"{name}_twice_kib": twice[name],
            f"{name}_closed_kib": closed[name],
            f"{name}_first_kib_a_session": (once[name] - before[name]) / sessions,
            f"{name}_second_kib_a_session": (twice[name] - once[name]) / sessions,
        }
    return result
