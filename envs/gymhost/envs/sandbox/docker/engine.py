"""The engine: its SDK, which blocks, in threads of its own, and its errors as errors of gymhost."""

import asyncio
import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from gymhost.envs.sandbox.docker.attach import AttachedStream, Refused, hand_over
from gymhost.wire.errors import CapacityExhausted, Error, InvalidArgument, SandboxUnavailable

__all__ = ["Engine", "Facts", "Gone", "NotFound"]

T = TypeVar("T")

_THREADS = 16


class NotFound(Exception):
    """The engine has no such container, process or image."""


class Gone(SandboxUnavailable):
    """The engine can't be reached."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine is and can do.

    Attributes:
        local: Whether it most likely runs on this machine, and sees its files.
        podman: Whether it is podman behind Docker's interface.
        cgroup: The version of its control groups; empty where it has none that it may use.
        memory: Whether it limits memory.
        swap: Whether it counts swap with it.
        processes: Whether it limits processes.
        cpus: Whether it limits processor time.
        seccomp: Whether it filters system calls.
        remaps: Whether users inside are others on the host.
        runtimes: The names of the runtimes that it knows; empty where it does not say.
        runtime: The one that it takes by default.
    """

    local: bool
    podman: bool
    cgroup: str
    memory: bool
    swap: bool
    processes: bool
    cpus: bool
    seccomp: bool
    remaps: bool
    runtimes: frozenset[str]
    runtime: str


class Engine:
    """A Docker engine, or what speaks like one.

    Args:
        base_url: Where it listens: `unix://PATH` or `tcp://HOST:PORT`.
        timeout: Seconds that it may take for an answer.

    Raises:
        InvalidArgument: The address is of another kind.
        SandboxUnavailable: The SDK is not installed.
    """

    def __init__(self, base_url: str, timeout: float) -> None:
        scheme, _, rest = base_url.partition("://")
        if scheme not in ("unix", "tcp") or not rest:
            raise InvalidArgument(
                f"Docker is reached at unix://PATH or tcp://HOST:PORT, not {base_url!r}; for an engine elsewhere, "
                "forward its socket, such as by `ssh -L`"
            )
        if os.environ.get("DOCKER_TLS_VERIFY") and scheme == "tcp":
            raise InvalidArgument("Docker over TLS (DOCKER_TLS_VERIFY) is not known here: forward the engine's socket")
        try:
            docker: Any = importlib.import_module("docker")
            failures: Any = importlib.import_module("requests.exceptions")
        except ModuleNotFoundError as error:
            raise SandboxUnavailable("the Docker backend needs Docker's SDK: pip install 'gymhost[docker]'") from error
        # The unix form of the address with one slash too few or many is the SDK's to mend, not the sockets'.
        self.base_url = f"unix:///{rest.lstrip('/')}" if scheme == "unix" else base_url
        self.timeout = timeout
        self.errors: Any = docker.errors
        self._docker = docker
        self._failures = failures
        self._client: Any = None
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gymhost-docker")

    @property
    def local(self) -> bool:
        """Whether it most likely runs on this machine, and sees its files."""
        return self.base_url.startswith("unix:")

    def api(self) -> Any:
        """Returns the SDK's client, made at the first call; for use within `call` and `submit`."""
        with self._lock:
            if self._client is None:
                self._client = self._docker.APIClient(
                    base_url=self.base_url, version="auto", timeout=self.timeout, max_pool_size=_THREADS
                )
            return self._client

    @contextlib.contextmanager
    def client(self, timeout: float) -> Generator[Any]:
        """A client of its own for what may be silent for longer; for use within `call` and `submit`."""
        api = self._docker.APIClient(base_url=self.base_url, version="auto", timeout=timeout)
        try:
            yield api
        finally:
            api.close()

    def facts(self) -> Facts:
        """Asks it what it is; blocks."""
        info: Mapping[str, Any] = self.api().info()
        parts: list[Mapping[str, Any]] = self.api().version().get("Components") or []
        security = " ".join(info.get("SecurityOptions") or ())
        return Facts(
            local=self.local,
            podman=any("podman" in str(part.get("Name", "")).lower() for part in parts),
            cgroup=str(info.get("CgroupVersion") or "1") if info.get("CgroupDriver") != "none" else "",
            memory=bool(info.get("MemoryLimit")),
            swap=bool(info.get("SwapLimit")),
            processes=bool(info.get("PidsLimit")),
            cpus=bool(info.get("CpuCfsQuota")),
            seccomp="seccomp" in security,
            remaps="userns" in security or "rootless" in security,
            runtimes=frozenset(info.get("Runtimes") or ()),
            runtime=PurePath(info.get("DefaultRuntime") or "runc").name,
        )

    def hand_over(self, path: str, body: Mapping[str, Any] | None = None) -> AttachedStream:
        """Sends a request that ends with the connection handed over; blocks."""
        return hand_over(self.base_url, f"/v{self.api().api_version}{path}", body, self.timeout)

    def remove(self, container: str) -> None:
        """Ends and removes a container, and waits until it is gone; blocks."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                self.api().remove_container(container, force=True, v=True)
                return
            except self.errors.NotFound:
                return
            except self.errors.APIError as error:
                # The engine removes it already, of itself or for another caller.
                if error.status_code != 409 or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    async def call(self, function: Callable[[], T], *, late: Callable[[T], object] | None = None) -> T:
        """Runs what blocks in a thread, bounded by the engine's time limit for each answer.

        Args:
            function: What to run.
            late: What to do, in that thread, with a result that its caller does not wait for any more.

        Raises:
            NotFound: The engine has no such thing.
            Gone: The engine can't be reached.
            CapacityExhausted: The engine did not answer in time.
            InvalidArgument: The engine took the request for a mistake.
            SandboxUnavailable: The engine failed.
        """
        lock = threading.Lock()
        abandoned = False
        results: list[T] = []

        def run() -> T:
            result = function()
            with lock:
                results.append(result)
                unwanted = abandoned
            if unwanted and late is not None:
                late(result)
            return result

        try:
            return await asyncio.wrap_future(self.submit(run))
        except asyncio.CancelledError:
            with lock:
                abandoned = True
            if results and late is not None:
                self.submit(lambda: late(results[0]))
            raise

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Runs what blocks in a thread, without waiting for it. Raises as `call` does, when asked for its result."""

        def run() -> T:
            try:
                return function()
            except Exception as error:
                raise self._translated(error) from error

        try:
            return self._threads.submit(run)
        except RuntimeError:
            closed: Future[T] = Future()
            closed.set_exception(SandboxUnavailable("the Docker backend was closed"))
            return closed

    def close(self) -> None:
        """Ends its threads once what they do is done, and its connections. Blocks, bounded by the time limit."""
        self.closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _translated(self, error: Exception) -> Exception:
        """Turns what a call raised into what `call` raises."""
        if isinstance(error, (Error, NotFound)):
            return error
        if isinstance(error, Refused):
            status, message = error.status, error.message
        elif isinstance(error, self.errors.APIError):
            found: Any = error
            status, message = found.status_code or 500, str(found.explanation or found)
        elif isinstance(error, (TimeoutError, self._failures.Timeout)):
            return CapacityExhausted(f"Docker did not answer within {self.timeout:g} s (setting: timeout)")
        elif isinstance(error, (OSError, self.errors.DockerException)):
            return Gone(f"can't reach Docker at {self.base_url}: is it running? (DOCKER_HOST) ({error})")
        else:
            return error
        if status == 404:
            return NotFound(message)
        if 400 <= status < 500 and status != 409:
            return InvalidArgument(f"Docker refused: {message}")
        return SandboxUnavailable(f"Docker failed: {message}")
