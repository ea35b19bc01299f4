"""Memory that a worker shares with a client on the same host: a file without a name, whose descriptor is sent."""

import fcntl
import mmap
import os


class SharedMemory:
    """So many bytes, which last as long as somebody has them mapped.

    Args:
        size: How many bytes.

    Attributes:
        map: The bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor = os.memfd_create("gymhost", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            # A client that cut it off would have this process killed at the next access.
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self.map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise

    def copy(self) -> bytes:
        """What is in it now."""
        return self.map[:]

    def close(self) -> None:
        """Closes the descriptor; the mapping goes with those who use it."""
        os.close(self.descriptor)
