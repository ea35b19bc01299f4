import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from support.chat_server import ChatServer


@pytest.fixture
def run_beside() -> Iterator[Callable[[ChatServer], ChatServer]]:
    """Runs servers on a loop of another thread, for tests that are not asynchronous."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    servers: list[ChatServer] = []

    def run(server: ChatServer) -> ChatServer:
        servers.append(server)
        return asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)

    yield run
    for server in servers:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
