"""What a backend provides: containers, and streams to processes in them. All else is built on these, once for all."""

import abc
import os
from collections.abc import Callable, Mapping, Sequence

from gymhost.envs.sandbox.results import Usage
from gymhost.envs.sandbox.snapshots import Snapshot
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.wire.errors import InvalidArgument

__all__ = ["RUNNER", "Backend", "Container", "Stream", "StreamEnded", "Take"]

# Takes what a process wrote: 1 for standard output or 2 for standard error, and the bytes. True ends the exchange.
Take = Callable[[int, bytes], bool]

# The main process of every container: a shell without prompts that reads commands from its standard input.
RUNNER = ("bash", "--noprofile", "--norc")


class StreamEnded(Exception):
    """The process at the other end is gone, or closed its standard output."""


class Stream(abc.ABC):
    """The standard streams of a process in a container. It belongs to no event loop; one exchange at a time."""

    @abc.abstractmethod
    async def exchange(self, data: bytes, take: Take) -> None:
        """Sends bytes to the process, while what it writes is taken, until `take` says that it has all.

        Sending and taking go side by side, so neither can fill up. A cancelled exchange leaves the stream usable
        for another one, but what was not sent is lost.

        Raises:
            StreamEnded: The process closed its standard output, or is gone.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Closes this end of the streams. May be called twice, from any thread."""


class Container(abc.ABC):
    """A sandbox as a backend makes it: a process tree of its own whose first process is `RUNNER`.

    Attributes:
        id: A name that tells it from others in logs.
        spec: What was asked for.
        main: The streams of its first process.
        init: The process id inside of the first process, to which orphans fall; 1 where the backend has process
            namespaces. What has no part in its tree is never touched.
        limits_in_force: By the names of `Limits`' attributes, and `seccomp`, `user` and `network`: how each is held,
            such as `cgroup v2` or `rlimit, each process by itself`; what is not held has an empty text.
    """

    id: str
    spec: SandboxSpec
    main: Stream
    init: int = 1
    limits_in_force: Mapping[str, str]

    @property
    @abc.abstractmethod
    def alive(self) -> bool:
        """Whether its first process runs, as far as is known without asking."""

    @abc.abstractmethod
    async def open(self, argv: Sequence[str], env: Mapping[str, str]) -> Stream:
        """Starts another process, a session leader in the working folder with the sandbox's user and restrictions.

        Args:
            argv: The program, looked for in the PATH of `env`, and its arguments.
            env: Its whole environment.

        Raises:
            SandboxLost: The container is gone.
            SandboxUnavailable: The process could not be started.
        """

    @abc.abstractmethod
    async def control(self, script: str, *, timeout: float = 10.0) -> bytes:
        """Runs a bash script in the container out of band, and returns its standard output.

        It has the rights of the sandbox's user, and its own process limit does not keep it from running.

        Raises:
            SandboxLost: The container is gone, or does not answer in time.
        """

    @abc.abstractmethod
    async def usage(self) -> Usage:
        """Returns what it uses.

        Raises:
            SandboxLost: The container is gone.
        """

    def out_of_memory(self) -> int:
        """Returns how many of its processes were ended because its memory was used up; 0 where that is not known."""
        return 0

    async def snapshot(self) -> Snapshot | None:
        """Keeps what it has written, to make others that begin with it; None where that is done by reading all files.

        Raises:
            SandboxLost: The container is gone.
        """
        return None

    @abc.abstractmethod
    async def destroy(self) -> None:
        """Ends the whole process tree and removes all that is left. Bounded; may be called twice; never raises."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Begins what `destroy` does, from any thread and without waiting."""


class Backend(abc.ABC):
    """A way to make containers. It can be used from several threads and event loops.

    Attributes:
        name: What it is called in settings and messages.
        isolates: Whether what runs inside is kept from the host.
        builds: Whether it builds images.
    """

    name: str
    isolates: bool = True
    builds: bool = False

    @abc.abstractmethod
    async def problem(self) -> str | None:
        """Returns why this machine can't use it and what to install or set; None where it can."""

    @abc.abstractmethod
    async def create(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Container:
        """Makes a container; one attempt, bounded.

        Args:
            spec: What it is to be like.
            snapshot: What `Container.snapshot` of a container of this backend kept, to begin with.

        Raises:
            InvalidArgument: The backend can't do what the spec asks for.
            CapacityExhausted: Not now, but a later attempt may do.
            SandboxUnavailable: It could not be made.
        """

    async def build(self, folder: "str | os.PathLike[str]") -> str:
        """Builds the image that a folder's Dockerfile describes.

        Args:
            folder: The folder, whose files the Dockerfile may copy.

        Returns:
            What `SandboxSpec.image` calls it.

        Raises:
            InvalidArgument: The folder has no Dockerfile, or the backend builds no images.
            SandboxUnavailable: It could not be built.
        """
        raise InvalidArgument(f"the backend {self.name!r} builds no images: use 'docker'")

    @abc.abstractmethod
    async def close(self) -> None:
        """Destroys all that it made. Bounded; may be called twice."""
