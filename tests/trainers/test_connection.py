"""The connection of a trainer's script, which nobody closes."""

import asyncio

from gymhost.client import RemoteServer, connect
from gymhost.trainers.connection import Connection
from support.server import ServerProcess


def test_one_that_is_collected_on_its_own_loop_holds_nothing_up() -> None:
    with ServerProcess(workers=1) as server:
        held = [Connection(server.address)]
        source = held[0].source
        assert isinstance(source, RemoteServer)

        async def drop() -> None:
            held.clear()

        # A close here would wait for the very loop that it runs on.
        source.connection.thread.call(drop(), 5.0)
        with connect(server.address) as other:
            assert asyncio.run(other.sessions()) == []
