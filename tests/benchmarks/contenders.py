"""Who takes part, in which workload, and how its client is run."""

from dataclasses import dataclass

# The sizes of W2's parts.
COPIES, PONGS = 64, 16
PONG = "ALE/Pong-v5"


@dataclass(frozen=True)
class Contender:
    """A contender.

    Attributes:
        name: Its name in the tables.
        server: The name of the server that it plays on; None for one that needs none.
        client: What follows `python -m` to run its client; address, sessions or copies, and seconds are added.
        most: The most sessions that it plays with; None for no limit.
        peer: The virtual environment that it runs in; None for the project's.
        slow: Whether it runs the tools of all rollouts one by one.
    """

    name: str
    server: str | None
    client: tuple[str, ...]
    most: int | None = None
    peer: str | None = None
    slow: bool = False

    def plays(self, sessions: int) -> bool:
        """Whether it plays with as many sessions."""
        return self.most is None or sessions <= self.most


@dataclass(frozen=True)
class Cell:
    """What a contender runs once in each round, with so many sessions or copies."""

    contender: Contender
    size: int


# -- W1 ----------------------------------------------------------------------------------------------------------------


def _gymhost(variant: str, id: str) -> tuple[str, ...]:
    return ("tests.benchmarks.gymhost_client", variant, id)


# By default a client on the server's host goes past gRPC; the others are kept from it, as on another host.
GYMHOST, GYMHOST_UVLOOP = "gymhost, asyncio", "gymhost, uvloop"
GYMHOST_GRPC, GYMHOST_GRPC_UVLOOP = "gymhost over gRPC, asyncio", "gymhost over gRPC, uvloop"
STREAM = "bare grpc.aio stream a session"
OPENENV_BEST = "OpenEnv, 2 workers + uvloop"

_STREAM = Contender(STREAM, "stream", ("tests.benchmarks.grpc_stream", "client"))

# What is compared stands next to each other, and so runs next to each other.
W1 = (
    Contender("raw TCP, uvloop", "raw", ("tests.benchmarks.raw_tcp", "client")),
    _STREAM,
    Contender(GYMHOST, "gymhost", _gymhost("asyncio", "benchmarks/Echo-v0")),
    Contender(GYMHOST_UVLOOP, "gymhost", _gymhost("uvloop", "benchmarks/Echo-v0")),
    Contender(GYMHOST_GRPC, "gymhost", _gymhost("asyncio-grpc", "benchmarks/Echo-v0")),
    Contender(GYMHOST_GRPC_UVLOOP, "gymhost", _gymhost("uvloop-grpc", "benchmarks/Echo-v0")),
    Contender(OPENENV_BEST, "openenv-best", ("tests.benchmarks.openenv_echo", "uvloop"), peer="openenv"),
    Contender("OpenEnv, defaults", "openenv", ("tests.benchmarks.openenv_echo", "asyncio"), peer="openenv"),
    Contender("gymhost RemoteEnv, threads", "gymhost", _gymhost("threads", "benchmarks/Echo-v0"), most=64),
    Contender("gymhost mode thread, asyncio", "gymhost", _gymhost("asyncio", "benchmarks/EchoThread-v0")),
    Contender("gymhost mode thread, uvloop", "gymhost", _gymhost("uvloop", "benchmarks/EchoThread-v0")),
)


# -- Watching ----------------------------------------------------------------------------------------------------------

# What is played, by whether somebody watches it: W1's clients on two servers.
OBSERVE_SESSIONS = 64
OBSERVE_PAIRS = tuple(
    (
        what,
        Contender(f"{what}, unwatched", "unwatched", _gymhost(variant, id)),
        Contender(f"{what}, watched", "watched", _gymhost(variant, id)),
    )
    for what, variant, id in (
        ("inline", "asyncio", "benchmarks/Echo-v0"),
        ("inline over gRPC", "asyncio-grpc", "benchmarks/Echo-v0"),
        ("thread", "asyncio", "benchmarks/EchoThread-v0"),
    )
)
OBSERVE = tuple(Cell(contender, OBSERVE_SESSIONS) for _, *pair in OBSERVE_PAIRS for contender in pair)
# Who watches, by the server.
WATCHERS = {"watched": ("tests.benchmarks.watcher",)}


# -- OpenEnv -----------------------------------------------------------------------------------------------------------

# One environment, the class of `openenv_echo`, on OpenEnv's own server and hosted by gymhost.
OPENENV = (
    Contender(OPENENV_BEST, "openenv-best", ("tests.benchmarks.openenv_echo", "uvloop"), peer="openenv"),
    Contender(
        "hosted by gymhost, uvloop", "openenv-hosted", ("tests.benchmarks.openenv_hosted", "direct"), peer="openenv"
    ),
    Contender(
        "hosted by gymhost, over gRPC, uvloop",
        "openenv-hosted",
        ("tests.benchmarks.openenv_hosted", "grpc"),
        peer="openenv",
    ),
)
OPENENV_SIZES = (64, 512)


# -- W2 ----------------------------------------------------------------------------------------------------------------


def _vector(variant: str, id: str = "CartPole-v1") -> tuple[str, ...]:
    return ("tests.benchmarks.vector_client", variant, id)


SYNC, ASYNC, NATIVE = "SyncVectorEnv", "AsyncVectorEnv", "CartPoleVectorEnv"
VECTOR, VECTOR_GRPC = "gymhost make_vec", "gymhost make_vec over gRPC"
HOSTED_NATIVE, HOSTED_NATIVE_GRPC = "gymhost, CartPoleVectorEnv", "gymhost over gRPC, CartPoleVectorEnv"
PONG_SYNC, PONG_ASYNC = f"{SYNC}, Pong", f"{ASYNC}, Pong"
PONG_VECTOR, PONG_VECTOR_GRPC = f"{VECTOR}, Pong", f"{VECTOR_GRPC}, Pong"
LONE, LONE_GRPC = "gymhost RemoteEnv", "gymhost RemoteEnv over gRPC"

W2 = (
    Cell(Contender(SYNC, None, _vector("sync")), COPIES),
    Cell(Contender(VECTOR, "gymhost", _vector("gymhost")), COPIES),
    Cell(Contender(VECTOR_GRPC, "gymhost", _vector("gymhost-grpc")), COPIES),
    Cell(Contender(ASYNC, None, _vector("async")), COPIES),
    Cell(Contender("SB3 SubprocVecEnv, fork", None, _vector("sb3")), COPIES),
    Cell(Contender(NATIVE, None, _vector("native")), COPIES),
    Cell(Contender(HOSTED_NATIVE, "gymhost", _vector("gymhost-native")), COPIES),
    Cell(Contender(HOSTED_NATIVE_GRPC, "gymhost", _vector("gymhost-native-grpc")), COPIES),
    Cell(Contender("EnvPool", None, _vector("envpool"), peer="envpool"), COPIES),
    Cell(Contender(PONG_SYNC, None, _vector("sync", PONG)), PONGS),
    Cell(Contender(PONG_ASYNC, None, _vector("async", PONG)), PONGS),
    Cell(Contender(PONG_VECTOR, "gymhost", _vector("gymhost", PONG)), PONGS),
    Cell(Contender(PONG_VECTOR_GRPC, "gymhost", _vector("gymhost-grpc", PONG)), PONGS),
    Cell(_STREAM, 1),
    Cell(Contender(LONE_GRPC, "gymhost", _vector("lone-grpc")), 1),
    Cell(Contender(LONE, "gymhost", _vector("lone")), 1),
)


# -- Sandboxes ---------------------------------------------------------------------------------------------------------

BACKENDS = ("bubblewrap", "docker")

# What is done with a backend's sandboxes, by what the client calls it.
CREATE, RUN, SHELL, PYTHON = "create, first answer", "run", "echo in a shell", "1 + 1 in Python"
FORK, FORK_WRITTEN = "fork", "fork, 5 MiB written"
OPERATIONS = {
    "create": CREATE,
    "run": RUN,
    "shell": SHELL,
    "python": PYTHON,
    "fork": FORK,
    "fork-written": FORK_WRITTEN,
    "write-4k": "write 4 KiB",
    "read-4k": "read 4 KiB",
    "write-1m": "write 1 MiB",
    "read-1m": "read 1 MiB",
}
# So many are made at once, too.
AT_ONCE = 8

PIPE, BWRAP, DOCKER_EXEC = "bare bash, echo", "bare bwrap, first answer", "docker exec"
CLIENT_SHELL, CLIENT_SHELL_GRPC = "client, echo in a shell", "client over gRPC, echo in a shell"


def operation(backend: str, what: str) -> str:
    """What a contender is called that does something with a backend's sandboxes."""
    return f"{backend}, {what}"


def _sandbox(where: str, what: str) -> tuple[str, ...]:
    return ("tests.benchmarks.sandbox_client", where, what)


def _operations(backend: str) -> list[Cell]:
    cells = [
        Cell(Contender(operation(backend, name), None, _sandbox(backend, key)), 1) for key, name in OPERATIONS.items()
    ]
    return [cells[0], Cell(cells[0].contender, AT_ONCE), *cells[1:]]


SANDBOXES = (
    Cell(Contender(BWRAP, None, _sandbox("bare", "bwrap")), 1),
    Cell(Contender(PIPE, None, _sandbox("bare", "bash")), 1),
    *_operations("bubblewrap"),
    Cell(Contender(CLIENT_SHELL, "sandboxes", _sandbox("client", "direct")), 1),
    Cell(Contender(CLIENT_SHELL_GRPC, "sandboxes", _sandbox("client", "grpc")), 1),
    Cell(Contender(DOCKER_EXEC, None, _sandbox("bare", "docker-exec")), 1),
    *_operations("docker"),
)


# -- Rollouts ----------------------------------------------------------------------------------------------------------

ENGINE, ENGINE_GRPC = "gymhost engine", "gymhost engine over gRPC"
ENGINE_LOCAL = "gymhost engine, environments in its process"
LOCK_STEP, UNDELAYED = "lock-step batches", "no overhead at all (computed)"
TRL, TRL_ASYNC = "TRL's tool loop", "TRL's tool loop, async tools"


def _plays(variant: str) -> tuple[str, ...]:
    return ("tests.benchmarks.rollout_client", variant)


_ENGINE = Contender(ENGINE, "rollouts", _plays("engine"))
_TRL = Contender(TRL, None, ("tests.benchmarks.rollout_trl", "sync"), slow=True)
_TRL_ASYNC = Contender(TRL_ASYNC, None, ("tests.benchmarks.rollout_trl", "async"), slow=True)

# By part. With one call a turn TRL's loop runs async tools one by one too: where it takes minutes, one stands for both.
ROLLOUTS = {
    "slots": (_ENGINE, Contender(LOCK_STEP, "rollouts", _plays("lock-step")), _TRL_ASYNC),
    "turn": (_ENGINE, _TRL, _TRL_ASYNC),
    "overhead": (
        Contender(ENGINE_LOCAL, None, _plays("local")),
        _ENGINE,
        Contender(ENGINE_GRPC, "rollouts", _plays("engine-grpc")),
        _TRL,
    ),
}


# -- Training steps ----------------------------------------------------------------------------------------------------

TRAIN_LOCAL = "TRL's environment_factory"
TRAIN_REMOTE = "gymhost remote_environment in its place"
TRAIN_ROLLOUTS = "gymhost Environments"


def _trains(variant: str) -> tuple[str, ...]:
    return ("tests.benchmarks.training_client", variant)


TRAINING = (
    Contender(TRAIN_LOCAL, None, _trains("local"), slow=True),
    Contender(TRAIN_REMOTE, "rollouts", _trains("remote"), slow=True),
    Contender(TRAIN_ROLLOUTS, "rollouts", _trains("rollouts")),
)


# -- Simulations -------------------------------------------------------------------------------------------------------

ROUTED = "gymhost GeneratorPool: least load, affinity"
COUNTED, COUNTED_LONG = "assignment counter", "assignment counter, 1,000 rollouts later"
STAGED, ONE_POOL = "gymhost engine: stages with places of their own", "one pool of as many places"


def _simulated(module: str, names: dict[str, str]) -> tuple[Contender, ...]:
    """Who is run in one process, by the words that tell it who is meant."""
    return tuple(Contender(name, None, (f"tests.benchmarks.{module}", words)) for words, name in names.items())


ROUTING = _simulated(
    "routing_client",
    {
        "pool": ROUTED,
        "rollouts": "round robin of rollouts",
        "requests": "round robin of requests",
        "counter-0": COUNTED,
        "counter-1000": COUNTED_LONG,
    },
)
STAGES = _simulated(
    "stages_client",
    {
        "stages": STAGED,
        "one": ONE_POOL,
        "one-64": "one pool of 64 places, as RUN has",
        "one-96": "one pool of 96 places",
    },
)


# -- The rollout service -----------------------------------------------------------------------------------------------

IN_PROCESS, SERVED = "gymhost engine in the trainer's process", "gymhost rollout service"

SERVICE = (
    Contender(IN_PROCESS, None, ("tests.benchmarks.service_engine",)),
    Contender(SERVED, None, ("tests.benchmarks.service_client",)),
)
