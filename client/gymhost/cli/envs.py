"""`gymhost envs`."""

import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
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
    from gymhost.client import EnvironmentDescription, RemoteServer, TaskList

__all__ = ["command"]

REMOTE, LOCAL, WHAT = "Of a server that runs elsewhere", "Else, of this machine", "What to show"


@click.command("envs", cls=GroupedCommand)
@click.argument("prefix", default="")
@server_options(REMOTE)
@module_options(LOCAL)
@option("--all", "everything", group=WHAT, is_flag=True, help="Also those that come with Gymnasium.")
@kwargs_option(WHAT, "With an exact id: keyword arguments of the environment.")
@option(
    "--tasks",
    is_flag=True,
    group=WHAT,
    help="With an exact id: its tasks, with what it declares public of them.",
)
@option("--split", group=WHAT, help="With --tasks: the split; without it, the first.")
@option("--start", type=click.IntRange(min=0), default=0, group=WHAT, help="With --tasks: the first task's index.")
@option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    group=WHAT,
    help="With --tasks: how many at most.",
)
@option(
    "--sample", type=click.IntRange(min=0), metavar="SEED", group=WHAT, help="With --tasks: at random, by this seed."
)
@option("--json", "as_json", group=WHAT, is_flag=True, help="Print JSON.")
def command(
    prefix: str,
    server: str | None,
    token: str | None,
    tls: Any,
    modules: Sequence[str],
    folders: Sequence[str],
    everything: bool,
    kwargs: dict[str, Any],
    tasks: bool,
    split: str | None,
    start: int,
    limit: int,
    sample: int | None,
    as_json: bool,
) -> None:
    """List environments whose ids begin with PREFIX, or describe the one whose id it is.

    \b
    Examples:
      gymhost envs                                        of this machine
      gymhost envs --module my_environments
      gymhost envs --server cpu7:50051                    of a server
      gymhost envs gymhost/GuessNumber-v0                 its spaces, tools, tasks and limits
      gymhost envs gymhost/GuessNumber-v0 --tasks --split test
    """  # noqa: D301 - click wants the character, not an escape
    if server is not None and (modules or folders):
        raise click.UsageError("--module and --app-dir are of this machine: leave them out, or leave --server out")
    if server is None:
        need("server", "gymhost envs without --server", "gymhost.envs", "gymhost.server.server")
        extend_import_path(folders)
    from gymhost.client import connect

    with connect(server, token=token, tls=tls, modules=modules) as connected:
        if tasks:
            listed = asyncio.run(
                connected.tasks(prefix, split=split, start=start, limit=limit, sample=sample, **kwargs)
            )
            show_tasks(listed, as_json=as_json)
            return
        found, described, problems = asyncio.run(_ask(connected, prefix, kwargs))
    for problem in problems:
        click.echo(f"gymhost: could not be loaded: {problem}", err=True)
    if described is not None:
        click.echo(json.dumps(as_dict(described), indent=2, default=str) if as_json else describe(described))
        return
    if not found:
        raise Failure(f"no environment's id begins with {prefix!r}")
    shown = found if everything or prefix else [one for one in found if not one.source.startswith("gymnasium ")]
    if as_json:
        click.echo(json.dumps([as_dict(one) for one in shown], indent=2, default=str))
        return
    for line in table(shown):
        click.echo(line)
    if len(shown) < len(found):
        click.echo(f"And {len(found) - len(shown)} that come with Gymnasium: --all lists them.", err=True)


async def _ask(
    server: "RemoteServer", prefix: str, kwargs: dict[str, Any]
) -> tuple[list["EnvironmentDescription"], "EnvironmentDescription | None", list[str]]:
    found = await server.environments(prefix)
    exact = any(one.id == prefix for one in found)
    return found, await server.describe(prefix, **kwargs) if exact else None, await server.problems()


def show_tasks(listed: "TaskList", *, as_json: bool) -> None:
    """Prints tasks: a line each, or an object each."""
    for index, fields in listed.tasks.items():
        text = json.dumps({"task": index, **fields} if as_json else fields, ensure_ascii=False, default=str)
        click.echo(text if as_json else f"{index:>8}  {text if fields else ''}".rstrip())
    size = "without end" if listed.count is None else f"{listed.count:,}"
    click.echo(f"{len(listed.tasks)} of the tasks of {listed.split!r} ({size})", err=True)


def as_dict(one: "EnvironmentDescription") -> dict[str, Any]:
    """What JSON says of an environment; what only a description knows is left out where there is none."""
    known: dict[str, Any] = {
        "id": one.id,
        "mode": one.mode,
        "isolation": one.isolation,
        "source": one.source,
        "licence": one.licence,
        "description": one.description,
        "step_timeout": one.step_timeout,
        "reset_timeout": one.reset_timeout,
        "memory_limit": one.memory_limit,
        "replayable": one.replayable,
    }
    if one.observation_space is not None:
        known |= {
            "observation_space": str(one.observation_space),
            "action_space": str(one.action_space),
            "conversational": one.conversational,
            "tools": list(one.tools),
            "splits": one.splits,
            "metadata": one.metadata,
        }
    return known


def table(environments: Sequence["EnvironmentDescription"]) -> list[str]:
    """A line an environment, under a line of headings; on a terminal none is wider than it."""
    rows = [("ID", "MODE", "ISOLATION", "SOURCE", "LICENCE", "DESCRIPTION")]
    rows += [
        (one.id, one.mode, one.isolation, one.source or "-", one.licence or "-", " ".join(one.description.split()))
        for one in environments
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10**6
    lines: list[str] = []
    for *cells, last in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        line = "  ".join([*padded, last]).rstrip()
        lines.append(line if len(line) <= limit else line[: limit - 1] + "…")
    return lines


def describe(one: "EnvironmentDescription") -> str:
    """All that is known of an environment, for people."""
    lines = [one.id]
    lines += [f"  {line}" for line in one.description.splitlines()]
    lines += ["", *_field("Source", ", ".join(filter(None, (one.source, one.licence))) or "not known")]
    lines += _field("Runs", f"mode {one.mode}, isolation {one.isolation}")
    memory = "" if one.memory_limit is None else f", its worker's memory {one.memory_limit / 2**20:,.0f} MiB"
    lines += _field("Limits", f"a step {_seconds(one.step_timeout)}, a reset {_seconds(one.reset_timeout)}{memory}")
    lines += _field("When lost", "recovered: it is replayable" if one.replayable else "lost: it is not replayable")
    lines += _field("Actions", "assistant messages" if one.conversational else str(one.action_space))
    lines += _field("Observations", "new messages" if one.conversational else str(one.observation_space))
    if one.splits:
        sizes = [f"{name} ({'without end' if size is None else f'{size:,}'})" for name, size in one.splits.items()]
        lines += _field("Tasks", ", ".join(sizes))
    for tool in one.tools:
        lines += ["", *_tool(tool)]
    return "\n".join(lines)


def _field(name: str, text: str) -> list[str]:
    first, *others = text.splitlines() or [""]
    return [f"  {name + ':':<14}{first}", *(" " * 16 + line for line in others)]


def _seconds(limit: float | None) -> str:
    return "has no limit" if limit is None else f"{limit:g} s"


def _tool(tool: dict[str, Any]) -> list[str]:
    schema: dict[str, Any] = tool["parameters"]
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    required = schema.get("required", ())
    signature = ", ".join(name if name in required else f"{name}=..." for name in properties)
    lines = [f"  Tool {tool['name']}({signature})"]
    lines += [f"    {line}" for line in str(tool["description"]).splitlines()]
    for name, of in properties.items():
        kind = str(of.get("type") or " or ".join(str(part.get("type", "...")) for part in of.get("anyOf", ())) or "any")
        default = f", {json.dumps(of['default'])} by default" if "default" in of else ""
        said = str(of.get("description", "")).replace("\n", " ")
        lines.append(f"    - {name} ({kind}{default}){': ' if said else ''}{said}")
    return lines
