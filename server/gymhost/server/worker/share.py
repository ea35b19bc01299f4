"""What the sandboxes of a session may have of its owner's memory: its front says so, who knows whose the session is."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

from gymhost.server.link import CLAIM
from gymhost.v1 import environments_pb2 as pb
from gymhost.wire import errors
from gymhost.wire.frames import FrameReader
from gymhost.wire.limits import ENVELOPE

__all__ = ["MemoryShare"]


class MemoryShare:
    """Asks the front for memory, from whichever thread and event loop makes a sandbox.

    Args:
        path: The front's socket.
        lane: The lane that the sandboxes are made on.
    """

    def __init__(self, path: str, lane: int) -> None:
        self._path = path
        self._lane = lane

    async def take(self, size: int, told: Callable[[str], object]) -> Callable[[], None]:
        """Waits for memory for a sandbox, until there is some or the wait is cancelled.

        Args:
            size: How many bytes.
            told: Is told why it has to wait, where it has to.

        Returns:
            What gives it back, from any thread; it may be called twice. The end of the process does that too.

        Raises:
            CapacityExhausted: It is more than its owner may ever have.
            SandboxLost: The session has ended, or its server is going away.
        """
        loop = asyncio.get_running_loop()
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)
        reader = FrameReader(ENVELOPE)
        try:
            await loop.sock_connect(end, self._path)
            await loop.sock_sendall(end, CLAIM.pack(self._lane, size))
            while data := await loop.sock_recv(end, ENVELOPE):
                for _, message in reader.feed(data):
                    reply = pb.Reply.FromString(message)
                    if not reply.code:
                        return lambda: _end(end)
                    error = errors.from_wire(reply.code, pb.Error.FromString(reply.payload))
                    if reply.sequence:
                        raise error
                    told(error.message)
            raise errors.SandboxLost("a sandbox was not made: its server is going away")
        except OSError as error:
            _end(end)
            raise errors.SandboxLost(f"a sandbox was not made: its server is going away ({error})") from None
        except BaseException:
            _end(end)
            raise


def _end(end: socket.socket) -> None:
    # Explicitly, for the sake of a copy of the descriptor in a process that was forked meanwhile.
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
