"""Environments with one trait each, for tests of the server: importing this module registers them."""

import asyncio
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from numpy.typing import NDArray

from gymhost.envs import Task, Tasks, ToolEnv, register, rubric, tool
from gymhost.wire.chat_spaces import FreeText
from gymhost.wire.errors import SessionLost

Info = dict[str, Any]

_COUNT: Space[Any] = Discrete(2**31)
_TEXT: Space[Any] = FreeText()
_SECONDS: Space[Any] = Box(0.0, 600.0, (), np.float64)


class _Counting(gymnasium.Env[Any, Any]):
    """Counts steps; subclasses do something besides."""

    observation_space: Space[Any] = _COUNT
    action_space: Space[Any] = _TEXT
    count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.count += 1
        return self.count, 1.0, False, False, {}


class Counter(_Counting):
    """Adds 1 at each step and never ends."""

    action_space: Space[Any] = Discrete(2)


class Slow(_Counting):
    """Sleeps for as many seconds as the action says."""

    action_space: Space[Any] = _SECONDS

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        time.sleep(float(action))
        return super().step(action)


class Sqlite(_Counting):
    """Keeps a database connection, which may be used only on the thread that made it (S15)."""

    action_space: Space[Any] = Discrete(2)
    connection: sqlite3.Connection | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        self.close()
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("CREATE TABLE steps (number INTEGER)")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        assert self.connection is not None
        self.connection.execute("INSERT INTO steps VALUES (?)", (int(action),))
        (count,) = self.connection.execute("SELECT COUNT(*) FROM steps").fetchone()
        return count, 1.0, False, False, {"thread": threading.get_ident()}

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class Image(_Counting):
    """Has observations of 5.5 MiB, each made of the action of 6 MiB (S20)."""

    observation_space: Space[Any] = Box(0, 255, (1200, 1600, 3), np.uint8)
    action_space: Space[Any] = Box(0, 255, (6 * 1024 * 1024,), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self.np_random.integers(0, 256, (1200, 1600, 3), np.uint8), {}

    def step(self, action: NDArray[np.uint8]) -> tuple[Any, Any, Any, Any, Info]:
        digest = hashlib.sha256(action.tobytes()).hexdigest()
        return np.resize(action, (1200, 1600, 3)), 1.0, False, False, {"digest": digest}


class Picture(_Counting):
    """Has observations of 16 KiB that are full of the count; told 1, it raises after it has counted."""

    observation_space: Space[Any] = Box(0, 2**20, (64, 64), np.float32)
    action_space: Space[Any] = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return np.zeros((64, 64), np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.count += 1
        if action == 1:
            raise ValueError("told to")
        return np.full((64, 64), self.count, np.float32), 1.0, False, False, {}


class Fork(_Counting):
    """Forks a child by multiprocessing at each step (S16); the info has its process id."""

    action_space: Space[Any] = Discrete(2)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_send_pid, args=(there,))
        child.start()
        there.close()
        try:
            if not here.poll(20):
                raise RuntimeError("the forked child hangs")
            pid = here.recv()
        finally:
            child.kill()
            child.join()
            # Another thread's start of a child may have reaped this one, and is about to say so.
            while child.exitcode is None:
                time.sleep(0)
            child.close()
            here.close()
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"child": pid}


def _send_pid(there: multiprocessing.connection.Connection) -> None:
    there.send(os.getpid())


class ForkExec(_Counting):
    """Forks and executes a program at each step (S16); the info has its exit status."""

    action_space: Space[Any] = Discrete(2)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        pid = os.fork()
        if pid == 0:
            try:
                os.execv("/bin/sh", ["sh", "-c", "exit 7"])
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"status": os.waitstatus_to_exitcode(status)}


class Raises(_Counting):
    """Raises at the action `raise`, and at a reset with the option `raise`; at `lose` as a client of gymhost would."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        if options and options.get("raise"):
            raise ValueError("this reset was told to raise")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        if action == "raise":
            raise ValueError("this step was told to raise")
        if action == "lose":
            raise SessionLost("a session elsewhere is lost")
        return super().step(action)


class Hang(_Counting):
    """Computes for ever at the action `hang`."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        while action == "hang":
            pass
        return super().step(action)


class Async(_Counting):
    """Awaits for as many seconds as the action says."""

    action_space: Space[Any] = _SECONDS

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        return super().reset(seed=seed)

    async def astep(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        await asyncio.sleep(float(action))
        return super().step(action)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        return asyncio.run(self.astep(action))


class BlockingAsync(Async):
    """Forgets to await at the action `hang`, and computes for ever."""

    action_space: Space[Any] = _TEXT

    async def astep(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        while action == "hang":
            pass
        return _Counting.step(self, action)


class SlowToMake(Async):
    """Takes a second to be made."""

    def __init__(self) -> None:
        time.sleep(1.0)


class Exit(_Counting):
    """Ends its process at the action `exit`."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        if action == "exit":
            os._exit(3)
        return super().step(action)


class Noisy(_Counting):
    """Prints the action to both outputs."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        print(f"said: {action}")
        print(f"complained: {action}", file=sys.stderr)
        return super().step(action)


class Process(_Counting):
    """Observes the id of the process that it runs in."""

    action_space: Space[Any] = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return os.getpid(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        return os.getpid(), 1.0, False, False, {}


class Types(_Counting):
    """Returns NumPy's scalars where Python's are usual (S27)."""

    observation_space: Space[Any] = Box(-1.0, 1.0, (3,), np.float32)
    action_space: Space[Any] = Discrete(2)
    length: ClassVar[int] = 20

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.count += 1
        return self._observe(), np.float32(0.5), np.bool_(self.count >= self.length), np.bool_(False), self._info()

    def _observe(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)

    def _info(self) -> Info:
        return {"count": np.int64(self.count), "zero_dimensional": np.array(self.count, np.int16)}


class Parrot(ToolEnv):
    """Repeats what its tool is told, three times; task 5 raises in its third step."""

    tasks = {"train": Tasks.generate(lambda index: {"raises": index == 5}, 100)}

    def setup(self, task: Task) -> None:
        self.heard: list[str] = []
        self.raises = bool(task["raises"])

    def prompt(self, task: Task) -> str:
        return "Go."

    @tool
    def echo(self, text: str) -> str:
        """Returns the text.

        Args:
            text: What to return.
        """
        self.heard.append(text)
        if len(self.heard) == 3:
            if self.raises:
                raise RuntimeError("this step was told to raise")
            self.finish(heard=self.heard)
        return text

    @rubric
    def listened(self) -> float:
        """1 where it was told something three times."""
        return float(len(self.heard) == 3)


class Ends(_Counting):
    """Ends each episode in its third step, in the way or ways that it is told (S24)."""

    observation_space: Space[Any] = Box(-1.0, 1.0, (2,), np.float32)
    action_space: Space[Any] = Discrete(2)

    def __init__(self, *, terminates: bool, truncates: bool) -> None:
        self.terminates = terminates
        self.truncates = truncates

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.count += 1
        over = self.count == 3
        return self._observe(), 1.0, over and self.terminates, over and self.truncates, {}

    def _observe(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)


class Breaks(Ends):
    """Raises in its 50th step, counted over its episodes (S29)."""

    def __init__(self) -> None:
        super().__init__(terminates=True, truncates=False)
        self.steps = 0

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.steps += 1
        if self.steps == 50:
            raise RuntimeError("the simulator broke in its 50th step")
        return super().step(action)


class Telling(_Counting):
    """Has observations of several parts, and infos of all kinds that differ from step to step."""

    observation_space: Space[Any] = Dict(
        {
            "picture": Box(0, 255, (3, 4), np.uint8),
            "place": Box(-1.0, 1.0, (3,), np.float64),
            "kind": Discrete(5),
            "flags": MultiBinary(4),
        }
    )
    action_space: Space[Any] = MultiDiscrete([3, 4])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return self._observe(), {"told": (options or {}).get("tell", ""), "length": self._choose_length()}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.count += 1
        over = self.count >= self.length
        info: Info = {
            "count": self.count,
            "share": self.count / self.length,
            "over": over,
            "action": action,
            "name": f"step {self.count}",
            "nothing": None,
            "number": np.int64(self.count),
            "small": np.array(self.count, np.int16),
            "_hidden": self.count,
            "deep": {"count": self.count, "deeper": {"names": ["a", self.count]}},
        }
        if self.count % 3 == 0:
            info["third"] = np.full((2, 2), self.count, np.float32)
        return self._observe(), float(action[0]), over and self.length % 2 == 0, over and self.length % 3 == 0, info

    def extend(self, steps: int, *, twice: bool = False) -> int:
        self.length += steps * (2 if twice else 1)
        return self.length

    def _choose_length(self) -> int:
        self.length = int(self.np_random.choice([3, 4, 6, 8, 9, 12]))
        return self.length

    def _observe(self) -> dict[str, Any]:
        return {
            "picture": self.np_random.integers(0, 256, (3, 4), np.uint8),
            "place": self.np_random.uniform(-1.0, 1.0, 3),
            "kind": int(self.np_random.integers(5)),
            "flags": self.np_random.integers(0, 2, 4, np.int8),
        }


class Nested(_Counting):
    """Observes its count, two dictionaries deep."""

    observation_space: Space[Any] = Dict({"outer": Dict({"count": _COUNT})})
    action_space: Space[Any] = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        count, info = super().reset(seed=seed)
        return {"outer": {"count": count}}, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        count, reward, terminated, truncated, info = super().step(action)
        return {"outer": {"count": count}}, reward, terminated, truncated, info


class Fateful(_Counting):
    """Hangs in its 4th reset and raises in its 50th step, counted over all of its sessions (S29).

    Args:
        folder: Where the times of all resets and steps are kept, for the sessions after a failure to count on from.
    """

    observation_space: Space[Any] = Box(-1.0, 1.0, (3,), np.float32)
    action_space: Space[Any] = Discrete(2)
    length: ClassVar[int] = 20

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if self._number_of("resets") == 4:
            time.sleep(3600.0)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Info]:
        self.count += 1
        if self._number_of("steps") == 50:
            raise ValueError("this step was told to raise")
        return self._observe(), 1.0, self.count >= self.length, False, {}

    def _observe(self) -> NDArray[np.float32]:
        return self.np_random.uniform(-1.0, 1.0, 3).astype(np.float32)

    def _number_of(self, event: str) -> int:
        with open(self.folder / event, "ab", buffering=0) as file:
            file.write(np.float64(time.monotonic()).tobytes())
            return file.tell() // 8


class WithTasks(ToolEnv):
    """Has tasks with answers that nobody may see."""

    public_fields = ("question", "hint")
    tasks = {
        "train": Tasks({"question": f"q{index}", "answer": "secret"} for index in range(3)),
        "endless": Tasks.generate(lambda index: {"question": f"e{index}", "answer": "secret"}),
        "odd": Tasks([{"question": object()}]),
    }

    def prompt(self, task: Task) -> str:
        return task["question"]


def _register(name: str, of: type[gymnasium.Env[Any, Any]], **how: Any) -> None:
    register(id=f"test/{name}-v0", entry_point=f"{__name__}:{of.__name__}", **how)


_register("Counter", Counter, mode="inline")
_register("Slow", Slow)
_register("SlowWithin", Slow, step_timeout=2.0)
_register("Sqlite", Sqlite)
_register("Image", Image)
_register("Picture", Picture)
_register("Fork", Fork)
_register("ForkExec", ForkExec)
_register("Raises", Raises)
_register("Hang", Hang, mode="inline", step_timeout=2.0)
_register("HangThread", Hang, step_timeout=2.0)
_register("Async", Async, mode="async")
_register("BlockingAsync", BlockingAsync, mode="async", step_timeout=1.0)
_register("SlowToMake", SlowToMake, mode="async", reset_timeout=0.2)
_register("Exit", Exit)
_register("Noisy", Noisy)
_register("Process", Process, isolation="process")
_register("Types", Types)
_register("Parrot", Parrot, mode="inline")
_register("Terminates", Ends, kwargs={"terminates": True, "truncates": False})
_register("Truncates", Ends, kwargs={"terminates": False, "truncates": True})
_register("TerminatesAndTruncates", Ends, kwargs={"terminates": True, "truncates": True})
_register("Breaks", Breaks)
_register("Telling", Telling, attributes=("*",))
_register("Nested", Nested)
_register("Tasks", WithTasks)
_register("Fateful", Fateful, reset_timeout=2.0)
_register("FatefulInline", Fateful, mode="inline", reset_timeout=2.0)
