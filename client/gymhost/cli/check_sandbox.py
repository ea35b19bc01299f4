"""`gymhost check sandbox`."""

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from gymhost.cli.extras import need
from gymhost.cli.options import GroupedCommand, extend_import_path, kwargs_option, option

__all__ = ["command"]

WHAT, LIKE = "What is checked", "What its sandboxes are like"


@click.command("sandbox", cls=GroupedCommand)
@click.argument("backend")
@option(
    "--family",
    "families",
    metavar="FAMILY",
    multiple=True,
    group=WHAT,
    help="Checks of this family alone, or a single one by the name that the report gives it, such as 'files: odd "
    "names'. May be given several times.",
)
@kwargs_option(WHAT, "Keyword arguments of the backend.", "--option")
@option("--image", metavar="IMAGE", group=LIKE, help="Docker: an image. bubblewrap: the folder of a root file system.")
@option(
    "--mount",
    "mounts",
    metavar="SOURCE[:TARGET]",
    multiple=True,
    group=LIKE,
    help="A file or folder of this machine that is seen inside, read-only. May be given several times.",
)
@option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    backend: str,
    families: Sequence[str],
    kwargs: dict[str, Any],
    image: str | None,
    mounts: Sequence[str],
    as_json: bool,
) -> None:
    """Check whether sandboxes of BACKEND on this machine are fit to run what a model wrote, and say what to mend.

    BACKEND is bubblewrap, docker or local, or MODULE:CLASS for one of your own. Some dozens of sandboxes are made, and
    in them is done what a model might do: read the host's files, variables and processes, reach the network, fill
    memory, disk and the table of processes, write without end, leave processes behind. It takes a minute or so. What is
    tried does no harm where it is not contained; a limit that is not in force here is told of with what to do, and not
    tried.

    \b
    The families of checks:
      isolation  the host's files, variables and processes, rights, system calls, networks
      limits     memory, processes, disk, open files, output, processors
      decoding   output that is no text
      timeouts   a limit ends the work, not the wait alone; nothing else is taken for one
      trees      what was started ends with its command's time limit, and with its sandbox
      shells     the persistent shell and Python
      files      reading, writing, lists, trees of files; no way out
      fork       copies and snapshots
      leaks      what sandboxes leave on the host

    The report goes to standard output, the progress to standard error. The exit code is 0 where there is nothing to
    mend, and 1 otherwise: always so for `local`, which isolates nothing, unless --family
    leaves isolation out.

    \b
    Examples:
      gymhost check sandbox bubblewrap
      gymhost check sandbox docker --image python:3.12-slim --option runtime=runsc
      gymhost check sandbox docker --option base_url=unix:///run/podman/podman.sock
      gymhost check sandbox my_package.backends:Mine --family isolation --family limits
    """  # noqa: D301 - click wants the character, not an escape
    registry, specs, checks = need(
        "server",
        "gymhost check sandbox",
        "gymhost.envs.sandbox.registry",
        "gymhost.envs.sandbox.spec",
        "gymhost.envs.sandbox.check",
    )
    extend_import_path(())
    spec = specs.SandboxSpec(image=image, mounts=tuple(_mount(specs, text) for text in mounts))
    started = time.monotonic()

    def progress(title: str) -> None:
        click.echo(f"{time.monotonic() - started:6.1f} s  {title} ...", err=True)

    async def run() -> Any:
        made = registry.backend(backend, **kwargs)
        try:
            return await checks.check(made, spec=spec, families=families or None, progress=progress)
        finally:
            await made.close()

    report = asyncio.run(run())
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(report), "ok": report.ok}, indent=2))
    else:
        click.echo(report.render())
    sys.stdout.flush()
    ctx.exit(0 if report.ok else 1)


def _mount(specs: Any, text: str) -> Any:
    source, _, target = text.partition(":")
    return specs.Mount(source, target or None)
