"""`gymhost bench`."""

import asyncio
import contextlib
import dataclasses
import importlib
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gymhost.cli.app import Failure
from gymhost.cli.extras import need
from gymhost.cli.options import (
    GroupedCommand,
    extend_import_path,
    kwargs_option,
    module_options,
    option,
    server_options,
)

if TYPE_CHECKING:
    from gymhost.cli.bench_runs import Figures, Plan

__all__ = ["command"]

REMOTE, LOCAL, WHAT, HOW = "Of a server that runs elsewhere", "Else, of this machine", "What to run", "How"
MODES = ("env", "sessions", "vector", "native")
_VERSIONS = ("gymhost", "gymnasium", "numpy", "grpcio", "protobuf")


def _read_modes(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:
    if text is None:
        return None
    modes = list(dict.fromkeys(mode.strip() for mode in text.split(",")))
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(MODES)}", ctx, parameter)
    return modes


@click.command("bench", cls=GroupedCommand)
@click.argument("id", metavar="[ENV]", default="CartPole-v1")
@server_options(REMOTE)
@module_options(LOCAL)
@kwargs_option(WHAT, "Keyword arguments of the environment.")
@option(
    "--modes",
    group=WHAT,
    metavar="MODE,...",
    callback=_read_modes,
    help="Some of env, sessions, vector, native; without it, all that the environment can.",
)
@option(
    "--num-envs",
    group=WHAT,
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="The copies of a vector environment.",
)
@option(
    "--sessions", group=WHAT, type=click.IntRange(min=1), default=64, show_default=True, help="The sessions at once."
)
@option("--grpc", is_flag=True, group=WHAT, help="Steps go through gRPC on the same host too, as between hosts.")
@option("--no-local", is_flag=True, group=WHAT, help="Leave out what is made in this process, to compare with.")
@option(
    "--seconds",
    group=HOW,
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="How long steps are counted in each run.",
)
@option(
    "--rounds",
    group=HOW,
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often each is run, in turn with the others.",
)
@option("--json", "as_json", is_flag=True, group=HOW, help="Print JSON, with the figures of every run.")
def command(
    id: str,
    server: str | None,
    token: str | None,
    tls: Any,
    modules: Sequence[str],
    folders: Sequence[str],
    kwargs: dict[str, Any],
    modes: list[str] | None,
    grpc: bool,
    no_local: bool,
    rounds: int,
    as_json: bool,
    **sizes: Any,
) -> None:
    """Measure how fast ENV runs, CartPole-v1 unless another is named, and print a table to paste into an issue.

    It is stepped with random actions on an embedded server, a fresh one for each run, or on a server that runs
    elsewhere; and, where it can be made here, in this process, which the column `/ local` divides by.

    \b
    Modes:
      env       one environment of gymhost.client.make, step after step
      sessions  independent async sessions at once, as rollouts use them
      vector    gymhost.client.make_vec, copies stepped together
      native    the same with the environment's own vector form, where it has one

    Conversations, whose actions are messages, are run as sessions alone.

    \b
    Examples:
      gymhost bench                                       CartPole-v1 on this machine
      gymhost bench ALE/Pong-v5 -m ale_py --num-envs 16
      gymhost bench my/Maze-v0 -m my_environments --modes vector --seconds 5
      gymhost bench --server cpu7:50051                   over a network
      gymhost bench --grpc --json > figures.json
    """  # noqa: D301 - click wants the character, not an escape
    extend_import_path(folders)
    if server is None:
        need("server", "gymhost bench without --server", "gymhost.envs", "gymhost.server.server")
    from gymhost.cli import bench_runs, usage

    plan = bench_runs.Plan(id, kwargs, server, token, tls, tuple(modules), not grpc, **sizes)
    progress = _Progress()
    progress("looking at the environment")
    found = asyncio.run(_look(plan))
    wanted = modes or found.modes
    if unable := [mode for mode in wanted if mode not in found.modes]:
        raise Failure(f"{id} can't be run as {unable[0]}: {found.why}")
    why_not_local = "--no-local was given" if no_local else _why_not_local(plan, wanted)
    runs: list[tuple[str, bool]] = []
    for mode in wanted:
        runs += [(mode, False)] if why_not_local is None and bench_runs.MODES[mode][1] else []
        runs += [(mode, True)]

    results: dict[tuple[str, bool], list[Figures]] = {run: [] for run in runs}
    for number in range(rounds):
        for mode, is_hosted in runs:
            name = bench_runs.MODES[mode][not is_hosted]
            progress(f"round {number + 1} of {rounds}: {name} x {plan.copies(mode)}")
            results[mode, is_hosted].append((bench_runs.hosted if is_hosted else bench_runs.local)(plan, mode))

    about = {
        "environment": id,
        "kwargs": kwargs,
        "machine": usage.machine(),
        "versions": _versions(),
        "server": "embedded" if server is None else server,
        "workers": found.workers,
        "path": found.path,
        "rounds": rounds,
        "seconds": plan.seconds,
        "not_local": why_not_local,
    }
    if as_json:
        told = [
            {"mode": mode, "hosted": is_hosted, "copies": plan.copies(mode)}
            | {"runs": [dataclasses.asdict(one) for one in figures]}
            for (mode, is_hosted), figures in results.items()
        ]
        click.echo(json.dumps(about | {"results": told}, indent=2))
    else:
        click.echo(render(about, plan, results))


class _Progress:
    """Says on stderr what is run."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, what: str) -> None:
        click.echo(f"{time.monotonic() - self._started:6.1f} s  {what} ...", err=True)


@dataclasses.dataclass
class _Found:
    """What the server says of the environment, and how it is reached.

    Attributes:
        modes: How it can be run.
        why: Why not otherwise.
        workers: The worker processes of the server.
        path: How steps get there.
    """

    modes: list[str]
    why: str
    workers: int
    path: str


async def _look(plan: "Plan") -> _Found:
    from gymhost.client import EnvironmentFault

    async with plan.connect() as server:
        for problem in await server.problems():
            click.echo(f"gymhost: could not be loaded: {problem}", err=True)
        listed = {one.id: one for one in await server.environments(plan.id)}
        native = plan.id in listed and listed[plan.id].native_vector
        modes, why = ["env", "sessions", "vector"], "it has no vector form of its own"
        try:
            conversational = (await server.describe(plan.id, **plan.kwargs)).conversational
        except EnvironmentFault:
            # Some are vector environments alone; if it is not that, the run will say so.
            if not native:
                raise
            modes, conversational, why = [], False, "it can be made only as a vector environment"
        if conversational:
            modes, native, why = ["sessions"], False, "its actions are messages"
        connection = server.connection
        path = "straight to the workers" if connection.folder is not None else "through gRPC"
        return _Found([*modes, *(["native"] if native else [])], why, connection.welcome.workers, path)


def _why_not_local(plan: "Plan", modes: Sequence[str]) -> str | None:
    """Why the environment can't be made in this process; None where it can."""
    if modes == ["sessions"]:
        return "there is nothing in a process that sessions are to be compared with"
    import gymnasium

    try:
        for module in plan.modules:
            importlib.import_module(module)
        if plan.server is None:
            importlib.import_module("gymhost.envs.registration").load()
        if set(modes) - {"native"}:
            gymnasium.make(plan.id, **plan.kwargs).close()
        else:
            gymnasium.spec(plan.id)
    except Exception as error:  # noqa: BLE001 - it is told, and all else goes on
        return f"it can't be made here: {type(error).__name__}: {error}"
    return None


def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


# -- the table ---------------------------------------------------------------------------------------------------------


def render(about: dict[str, Any], plan: "Plan", results: "dict[tuple[str, bool], list[Figures]]") -> str:
    """The report in Markdown."""
    from gymhost.cli.bench_runs import MODES as NAMES

    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    with_kwargs = f" with {json.dumps(about['kwargs'])}" if about["kwargs"] else ""
    server = f"{'an embedded' if plan.server is None else 'a'} server with {about['workers']} workers"
    lines = [
        f"**{about['environment']}**{with_kwargs} on {server}, steps go {about['path']}: "
        f"{about['machine']}; {versions}. Rounds: {about['rounds']} of {about['seconds']:g} s; median [least-most].",
        "",
    ]
    columns = ["", "copies", "steps/s", "/ local", "p50 ms", "p99 ms", "client CPU us/step", "server CPU us/step"]
    columns += ["server KiB/copy", "ready ms"]
    rows: list[list[str]] = []
    for (mode, is_hosted), figures in results.items():
        rows.append(
            [
                NAMES[mode][0] if is_hosted else f"{NAMES[mode][1]}, in this process",
                f"{plan.copies(mode)}",
                _spread([one.steps_per_second for one in figures], "{:,.0f}".format),
                _ratio(figures, results.get((mode, False))) if is_hosted else "",
                _median([one.p50 * 1e3 for one in figures]),
                _median([one.p99 * 1e3 for one in figures]),
                _median([one.client_cpu * 1e6 for one in figures]),
                _median([one.server_cpu * 1e6 for one in figures if one.server_cpu is not None]),
                _median([one.memory for one in figures if one.memory is not None], _kib),
                _median([one.ready * 1e3 for one in figures]),
            ]
        )
    rule = ["---", *["---:"] * (len(columns) - 1)]
    lines += [f"| {' | '.join(row)} |" for row in (columns, rule, *rows)]
    starts = [one.start for figures in results.values() for one in figures if one.start is not None]
    notes = [
        "Latency is that of a step of one environment, or of all copies of a vector environment together; ready is "
        "from making it, or all sessions, to the first observations."
    ]
    if starts:
        notes.append(f"The embedded server started in {_median([start * 1e3 for start in starts])} ms.")
    else:
        notes.append("What the server uses is known of an embedded one alone.")
    if about["not_local"] is not None:
        notes.append(f"Not compared with this process: {about['not_local']}.")
    return "\n".join([*lines, "", " ".join(notes)])


def _ratio(hosted: "list[Figures]", local: "list[Figures] | None") -> str:
    """What is hosted over what is in this process, in the same round."""
    pairs = zip(hosted, local or [], strict=False)
    return _spread([one.steps_per_second / other.steps_per_second for one, other in pairs], _short)


def _median(values: Iterable[float], form: Callable[[float], str] | None = None) -> str:
    found = list(values)
    return (form or _short)(statistics.median(found)) if found else ""


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    if len(values) < 2:
        return "".join(map(form, values))
    return f"{form(statistics.median(values))} [{form(min(values))}-{form(max(values))}]"


def _short(value: float) -> str:
    """A number with the figures that tell."""
    if value >= 10:
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.2g}"


def _kib(size: float) -> str:
    # Small ones go into what the heap of a fresh process has left.
    return f"{size / 1024:,.0f}" if size >= 1024 else "<1"
