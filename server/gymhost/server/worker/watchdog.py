"""A thread that ends the worker when an inline step overruns its limit, and shows the front that the process lives.

An inline step blocks the event loop, so nothing on the loop could stop it; so does a coroutine that forgets to await. A
step that never lets go of the GIL blocks this thread too; then the byte that the front expects every second stays away,
and the front kills the worker.
"""

import faulthandler
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

from gymhost.server.link import EXIT_OVERRUN

if TYPE_CHECKING:
    from gymhost.server.worker.session import Session

# Seconds without a beat after which the loop is taken to stand still.
STILL = 2.0


class Watchdog:
    """Watches the event loop.

    Before an inline call the loop sets `session` and then `deadline`, and after it `deadline = 0.0`; plain attributes,
    since this is on the way of every inline step. `loop_beat` is set by a timer of the loop.

    Args:
        alive_fd: Where to write a byte every second.
        loop_limit: Seconds that the loop may stand still for anything else than an inline call.
    """

    def __init__(self, alive_fd: int, loop_limit: float) -> None:
        self.session: Session | None = None
        self.deadline = 0.0
        self.loop_beat = 0.0
        # Calls that have a deadline, by lane: the host's own table.
        self.watched: dict[int, Session] = {}
        self._alive_fd = alive_fd
        self._loop_limit = loop_limit
        os.set_blocking(alive_fd, False)
        threading.Thread(target=self._watch, name="gymhost-watchdog", daemon=True).start()

    def _watch(self) -> None:
        next_byte = 0.0
        while True:
            now = time.monotonic()
            if now >= next_byte:
                next_byte = now + 1.0
                if self.front_is_gone():
                    end_group()
            deadline, session = self.deadline, self.session
            if deadline:
                if now > deadline and session is not None:
                    session.blame()
                    self._end(session.overrun())
            elif self.loop_beat and now > self.loop_beat + STILL:
                # Nothing on the loop can stop what overran; a coroutine that blocks is what stands in its way.
                for blocked in list(self.watched.values()):
                    if 0 < blocked.deadline < now - STILL:
                        blocked.blame()
                        self._end(
                            f"{blocked.overrun()}, and the worker's event loop stood still (a coroutine that blocks?)"
                        )
            if self.loop_beat and not deadline and now > self.loop_beat + self._loop_limit:
                self._end(f"the worker's event loop stood still for {self._loop_limit:g} s (a coroutine that blocks?)")
            time.sleep(0.1)

    def front_is_gone(self) -> bool:
        """Shows the front that the process lives; whether there is none any more."""
        try:
            os.write(self._alive_fd, b".")
        except BlockingIOError:
            pass
        except OSError:
            return True
        return False

    def _end(self, why: str) -> None:
        faulthandler.dump_traceback(file=2, all_threads=True)
        # The last line is what the front reports.
        os.write(2, f"\n{why}\n".encode())
        os._exit(EXIT_OVERRUN)


def end_group() -> None:
    """Ends this worker, whose front is gone, with all that its environments have started: nobody else would."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EXIT_OVERRUN)
