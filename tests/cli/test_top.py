"""`gymhost top`, in a terminal as people see it."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import gymnasium
import pytest

from gymhost.client import make
from gymhost.wire.errors import EnvironmentFault, SessionClosed
from support.command import COMMAND, environment, gymhost
from support.server import PATIENCE, ServerProcess
from support.terminal import Terminal, terminal

TOKENS = {"read": "reader read-only", "rule": "ruler admin"}
ENTER, ESCAPE, END = "\r", "\x1b", "\x1b[F"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(workers=1, tokens=TOKENS) as process:
        yield process


class Load:
    """A client that steps all the time.

    Attributes:
        env: What is stepped.
        steps: How often.
        error: What ended it, if anything did.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.env: gymnasium.Env[object, object] = make("test/Counter-v0", server=server.address, token="rule")
        self.steps = 0
        self.error: Exception | None = None
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Load":
        self.env.reset()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.env.close()

    def stop(self) -> int:
        """Ends the stepping, and returns how often there was a step."""
        self._pause.set()
        self._thread.join(PATIENCE)
        return self.steps

    def _run(self) -> None:
        while not self._pause.wait(0.005):
            try:
                self.env.step(0)
            except SessionClosed as error:
                self.error = error
                return
            self.steps += 1


def top(
    server: ServerProcess, token: str = "rule", *arguments: str, size: tuple[int, int] = (100, 24)
) -> AbstractContextManager[Terminal]:
    command = [*COMMAND, "top", server.address, "--interval", "0.2", *arguments]
    return terminal(command, columns=size[0], rows=size[1], env=environment(GYMHOST_TOKEN=token))


def row(has: str) -> Callable[[str], list[str] | None]:
    """The cells of the first row that has something in it."""

    def find(text: str) -> list[str] | None:
        return next((line.split() for line in text.splitlines() if has in line), None)

    return find


def order(text: str) -> list[str]:
    """The sessions, in the order in which they stand there."""
    return re.findall(r"^ (\d+-\d+) ", text, re.MULTILINE)


def test_a_server_is_watched_and_looked_after(server: ServerProcess) -> None:
    failing = make("test/Raises-v0", server=server.address, token="rule")
    failing.reset()
    with pytest.raises(EnvironmentFault):
        failing.step("raise")
    with Load(server) as load, top(server) as screen:
        screen.until("taking sessions")
        # Figures: the steps of a second, while there are some; how many there were, once there are no more.
        screen.until(lambda text: re.search(r"test/Counter-v0 +[1-9]\d", text))
        screen.type("2")
        screen.until("2 sessions")

        # A session is followed turn by turn, and ended.
        screen.type("/")
        screen.until(lambda text: "s Sort" not in text)  # its keys are letters of the filter now
        screen.type("Counter")
        screen.until("1 session")
        name = order(screen.text)[0]
        screen.type(ENTER)
        screen.until("s Sort")
        screen.type(ENTER)
        screen.until(rf"session {name}  test/Counter-v0")
        screen.until(lambda text: len(re.findall(r"step +[\d.]+ [mu]?s  reward 1", text)) > 3)
        screen.type("e")
        screen.until(f"End the session {name}?")
        screen.type("n")
        screen.until(lambda text: "End the session" not in text)
        assert load.error is None
        screen.type("e")
        screen.until(f"End the session {name}?")
        screen.type("y")
        screen.until("the session has ended: ")
        assert "operator" in str(load.error)
        steps = load.stop()
        # The environment tells how often it was stepped; the answer to its last step may have come too late.
        seen = re.findall(r"seen +(\d+)", screen.text)
        assert int(seen[-1]) - steps in (0, 1)
        screen.type("q")
        screen.until("Nothing has 'Counter' in it.")
        screen.type(ESCAPE)
        screen.until("1 session")
        screen.type("1")
        screen.until("2 environments")

        # Sorting: by the next column, the other way round, by a click.
        screen.until("▼steps/s")
        screen.type("s")
        screen.until("▼run")
        screen.type("S")
        screen.until("▲run")
        screen.click(*screen.find("environment "))
        screen.until("environment▲")
        assert screen.find("test/Counter-v0")[1] < screen.find("test/Raises-v0")[1]
        screen.click(*screen.find("environment▲"))
        screen.until("environment▼")
        screen.until(lambda text: text.index("test/Raises-v0") < text.index("test/Counter-v0"))

        # A failure, with its traceback.
        screen.type("4")
        screen.until("ENVIRONMENT_FAULT")
        screen.type(ENTER)
        screen.until("ValueError: this step was told to raise")
        screen.type(END)
        screen.until('raise ValueError("this step was told to raise")')
        screen.type("q")

        # Draining, and taking it back.
        screen.until("ENVIRONMENT_FAULT")
        screen.type("D")
        screen.until("Take no new sessions?")
        screen.type("y")
        screen.until("draining: no new sessions")
        screen.type("D")
        screen.until("Take new sessions again?")
        screen.type("y")
        screen.until("taking sessions")
        screen.type("q")
        assert screen.end() == 0

    # Without a terminal, tables: what was counted is what the client counted.
    said = gymhost("top", server.address, "--interval", "0.2", GYMHOST_TOKEN="read")
    assert said.returncode == 0, said.stderr
    assert said.stderr == ""
    heads, counted = (row(has)(said.stdout) for has in ("steps/s  run", "test/Counter-v0"))
    assert heads is not None
    assert counted is not None
    assert "No sessions." in said.stdout  # of its own
    assert counted[-3] == f"{steps:,}"
    failing.close()


def test_on_a_small_screen_who_may_only_look_is_told_so_and_a_server_that_goes_comes_back(
    server: ServerProcess,
) -> None:
    with top(server, "read", size=(80, 24)) as screen:
        screen.until("taking sessions")
        screen.type("D")
        screen.until("Your role is read-only")
        screen.type("2")
        screen.until("No sessions.")
        screen.type("e")
        screen.until("Go to a session")
        assert "? Help" in screen.lines[-1]
        server.signal(signal.SIGKILL)
        server.wait()
        screen.until("gone since ")
        server.start()
        screen.until(lambda text: "taking sessions" in text and "gone" not in text)
        screen.type("?")
        screen.until("you are asked first")
        screen.type("qq")
        assert screen.end() == 0


@pytest.mark.parametrize(
    ("token", "message"),
    [("", "this server wants a token"), ("wrong", "the token is not valid on this server")],
)
def test_a_bad_token_ends_it_before_anything_is_drawn(server: ServerProcess, token: str, message: str) -> None:
    with top(server, token) as screen:
        screen.until(message)
        assert screen.end() == 1
        assert "Traceback" not in screen.text
        assert screen.text.startswith("gymhost: ")
