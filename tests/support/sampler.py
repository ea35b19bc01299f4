"""A stand-in for a vLLM server, on a thread of its own: for services that run in a process of theirs."""

from typing import Any, Self

from gymhost.rollout.loop_thread import LoopThread
from support.completions_server import CompletionsServer, choice
from support.tokenizers import call, encode

__all__ = ["Sampler"]

# The longest that prompt and completion may be together.
LENGTH = 16_384


class Sampler:
    """Plays `gymhost/GuessNumber-v0`: in each turn it guesses a number that the sampling's seed chooses.

    Attributes:
        server: The server; what is changed there while it runs is changed by `do`.
        url: Where it is.
    """

    def __init__(self) -> None:
        self._thread = LoopThread("sampler")
        self.server = CompletionsServer(_guess)
        self.server.max_model_len = LENGTH
        self.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return self.server.url

    def start(self, port: int = 0) -> None:
        """Starts it; again at the same port after it was killed."""
        self._thread.run(self.server.start(port))

    def kill(self) -> None:
        """Ends it at once."""
        self._thread.run(self.server.stop())

    def hold(self, held: bool) -> None:
        """Has it answer nothing for as long."""
        self._thread.call(self.server.hold.clear if held else self.server.hold.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(False)
        self.kill()
        self._thread.close()


def _guess(body: dict[str, Any]) -> dict[str, Any]:
    number = 1 + int(body.get("seed") or 0) % 7
    return choice(encode(call("guess", f'{{"number": {number}}}')))
