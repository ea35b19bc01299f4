"""`gymhost doctor`."""

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from gymhost.cli import doctor_machine, doctor_packages, doctor_server
from gymhost.cli.doctor_findings import Finding, Probe, look
from gymhost.cli.options import GroupedCommand, option, server_options

__all__ = ["command"]

# Seconds for all probes together, which run beside each other.
LIMIT = 12.0

_COLOURS = {"ok": "green", "optional": "cyan", "warning": "yellow", "broken": "red"}


@click.command("doctor", cls=GroupedCommand)
@server_options("A server to look at too")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, server: str | None, token: str | None, tls: Any, as_json: bool) -> None:
    """Say what works on this machine, what is missing, and what to install or to set.

    Each line has a verdict: ok; optional, for what is not there and only some need; warning, for what will do harm in
    some cases; broken, for what gymhost can't do without. The exit code is 1 where something is broken, a server that
    was named with --server included.

    \b
    Examples:
      gymhost doctor
      gymhost doctor --server cpu7:50051 --token ...
      gymhost doctor --json
    """  # noqa: D301 - click wants the character, not an escape
    probes: list[tuple[str, Probe]] = [
        ("Python", doctor_packages.python),
        ("packages", doctor_packages.base),
        ("machine", doctor_machine.memory),
        ("descriptors", doctor_machine.limits),
        ("sockets", doctor_machine.listening),
        ("disk", doctor_machine.space),
        ("clock", doctor_machine.clock),
        ("proxy", doctor_machine.proxies),
        ("leftovers", doctor_machine.leftovers),
        ("sandboxes", doctor_machine.sandboxes),
        ("Docker", doctor_machine.docker),
        ("GPU", doctor_machine.gpu),
        ("vLLM", doctor_packages.models),
        ("extras", doctor_packages.extras),
    ]
    if server is not None:
        probes += [
            ("reach", lambda: doctor_server.reach(server)),
            ("server", lambda: doctor_server.connection(server, token, tls)),
        ]
    found = look(probes, LIMIT)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
    else:
        for line in table(found):
            click.echo(line)
    sys.stdout.flush()
    broken = any(finding.verdict == "broken" for finding in found)
    ctx.exit(1 if broken else 0)


def table(found: Sequence[Finding]) -> list[str]:
    """The findings as lines, each with what to do below it."""
    width = max(60, min(shutil.get_terminal_size((120, 24)).columns, 160))
    first = max(len(finding.verdict) for finding in found) + 2
    second = max(len(finding.name) for finding in found) + 2
    lines: list[str] = []
    for finding in found:
        verdict = click.style(finding.verdict.ljust(first), fg=_COLOURS[finding.verdict])
        texts = [finding.detail, *([f"-> {finding.advice}"] if finding.advice else [])]
        wrapped = [line for text in texts for line in textwrap.wrap(text, width - first - second)]
        lines.append(f"{verdict}{finding.name.ljust(second)}{wrapped[0]}")
        lines += [" " * (first + second) + line for line in wrapped[1:]]
    return lines
