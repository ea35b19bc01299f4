"""What servers say of themselves, as text and as JSON."""

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Generator
from typing import Any

import pytest

from gymhost.client import EnvironmentFault, SessionLost, connect
from gymhost.client.operations import Operations
from gymhost.server import logs
from support.server import ServerProcess, until

StartServer = Callable[..., ServerProcess]


def lines_of(server: ServerProcess) -> list[dict[str, Any]]:
    """The lines of a log in JSON, of which each must be some."""
    whole, _, _ = server.log.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def line_with(server: ServerProcess, words: str) -> dict[str, Any] | None:
    """The first line that says something."""
    return next((line for line in lines_of(server) if words in line["message"]), None)


async def test_a_line_of_json_has_what_it_is_about(start_server: StartServer) -> None:
    server = start_server(workers=1, log_format="json", log_level="debug", tokens={"use": "user"})
    async with connect(server.address, token="use", recovery_timeout=0) as remote:
        session = await remote.session("test/Noisy-v0").open()
        assert session._lane is not None
        name = f"0-{session._lane.number & 0xFFFFFFFF}"
        about = {"session": name, "environment": "test/Noisy-v0", "worker": 0, "identity": "user"}
        await session.reset(label='rollout\n"7"')
        await session.step("hello\nthere")
        said = await until(lambda: line_with(server, "said: hello"))
        assert set(said) == {"time", "level", "logger", "message", "rollout", *about}
        assert said["message"] == "said: hello"
        assert said["level"] == "INFO"
        assert said["rollout"] == repr('rollout\n"7"')  # in one line, whatever it is
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00", said["time"])
        assert about.items() <= said.items()
        assert (await until(lambda: line_with(server, "there")))["session"] == name
        # The next episode has a name of its own, or none.
        await session.reset()
        await session.step("again")
        assert "rollout" not in await until(lambda: line_with(server, "said: again"))
        await session.close()
        ended = await until(lambda: line_with(server, "a session of test/Noisy-v0 ended"))
        assert about.items() <= ended.items()
        async with remote.session("test/Raises-v0") as raising:
            await raising.reset(label="r9")
            with pytest.raises(EnvironmentFault):
                await raising.step("raise")
            failed = await until(lambda: line_with(server, "step of test/Raises-v0 failed"))
            assert (failed["rollout"], failed["environment"], failed["level"]) == ("r9", "test/Raises-v0", "DEBUG")
            os.kill(server.workers[0], signal.SIGKILL)
            with pytest.raises(SessionLost):
                await asyncio.wait_for(raising.step("on"), 20)
        died = await until(lambda: line_with(server, "worker 0 ended: it was killed by SIGKILL"))
        assert (died["level"], died["worker"]) == ("WARNING", 0)
        assert "speaker" not in died


async def test_nothing_is_said_of_single_sessions_and_steps_unless_it_is_asked_for(start_server: StartServer) -> None:
    server = start_server(workers=1)
    async with connect(server.address) as remote, Operations(server.address) as operations:
        for label in ("r1", "r2"):
            async with remote.session("test/Raises-v0") as session:
                await session.reset(label=label)
                await session.step("on")
                with pytest.raises(EnvironmentFault):
                    await session.step("raise")
                assert (await operations.live()).total == 1
        async with remote.session("test/Noisy-v0") as session:
            await session.reset(label="r3")
            await session.step("hello")
            assert session._lane is not None
            name = f"0-{session._lane.number & 0xFFFFFFFF}"
            await until(lambda: "complained: hello" in server.log)
    lines = [re.sub(r"^[0-9-]+ [0-9:,]+ ", "", line) for line in server.log.splitlines()]
    assert lines == [
        f"INFO [test/Noisy-v0 {name} r3] said: hello",
        f"INFO [test/Noisy-v0 {name} r3] complained: hello",
    ]


@contextlib.contextmanager
def configured(level: str, form: str) -> Generator[None]:
    """Has this process log as a server does, without the handlers of pytest."""
    root = logging.getLogger()
    before, handlers = root.level, list(root.handlers)
    levels = {name: logging.getLogger(name).level for name in ("asyncio", "grpc", "httpcore", "httpx", "uvicorn")}
    root.handlers.clear()
    try:
        logs.configure(level, form)
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(before)
        for name, level_before in levels.items():
            logging.getLogger(name).setLevel(level_before)


def test_text_ends_with_what_its_words_do_not_say(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("gymhost.server")
    with configured("info", "text"):
        about = {"environment": "Maze-v0", "rollout": "r1", "worker": 3, "identity": "", "job": None}
        log.info("a rollout of Maze-v0 failed", extra=about)
        log.warning("worker 3 ended", extra={"worker": 3})
        log.debug("not said")
        logging.getLogger("httpx").info("POST ...")
        try:
            raise ValueError("a fault")
        except ValueError:
            log.exception("it went wrong", extra={"session": "3-1"})
    lines = [re.sub(r"^[0-9-]+ [0-9:,]+ ", "", line) for line in capsys.readouterr().err.splitlines()]
    assert lines[:4] == [
        "INFO a rollout of Maze-v0 failed (rollout r1, worker 3)",
        "WARNING worker 3 ended",
        "ERROR it went wrong (session 3-1)",
        "Traceback (most recent call last):",
    ]
    assert lines[-1] == "ValueError: a fault"


def test_json_has_exceptions_in_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("gymhost.server")
    with configured("warning", "json"):
        log.info("not said")
        try:
            raise ValueError("a fault")
        except ValueError:
            log.exception("it went wrong", extra={"session": "3-1", "identity": None})
    [line] = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert list(told)[:4] == ["time", "level", "logger", "message"]
    assert (told["level"], told["logger"], told["message"], told["session"]) == (
        "ERROR",
        "gymhost.server",
        "it went wrong",
        "3-1",
    )
    assert told["exc_info"].endswith("ValueError: a fault")
    assert "identity" not in told
