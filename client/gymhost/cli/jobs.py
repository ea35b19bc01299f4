"""`gymhost jobs`."""

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gymhost.cli.app import Failure
from gymhost.cli.extras import need
from gymhost.cli.options import GroupedCommand, option, server_options
from gymhost.cli.words import print_table

if TYPE_CHECKING:
    from gymhost.rollout.service import Job, RolloutClient

__all__ = ["command"]

REMOTE, WHAT, HOW = "Which service", "What to show", "How"
STATES = ("queued", "running", "paused", "waiting", "finished", "cancelled", "expired")
SECONDS = click.FloatRange(min=0, min_open=True)


def service_options(function: Callable[..., Any]) -> Any:
    """The options that say which service it is; the command gets a client of it first."""

    @functools.wraps(function)
    def with_client(*args: Any, server: str | None, token: str | None, tls: Any, **given: Any) -> Any:
        if server is None:
            raise click.UsageError("say which rollout service: --server HOST:PORT, or GYMHOST_ROLLOUTS=HOST:PORT")
        [service] = need("rollout", "gymhost jobs", "gymhost.rollout.service")
        with service.RolloutClient(server, token, tls) as rollouts:
            return function(rollouts, *args, **given)

    return server_options(REMOTE, "GYMHOST_ROLLOUTS")(with_client)


def find(rollouts: "RolloutClient", name: str) -> "Job":
    """The job that is meant: by its id, as much of it as tells it from others, or by its key.

    Raises:
        Failure: There is none, or more than one.
    """
    from gymhost.wire.errors import UnknownJob

    listed = rollouts.call_sync(rollouts.jobs(limit=1000))
    ids = [each.id for each in listed if name in (each.id, each.key)] or [
        each.id for each in listed if len(name) >= 4 and each.id.startswith(name)
    ]
    if len(ids) > 1:
        raise Failure(f"{len(ids)} jobs have ids that begin with {name!r}: write more of it")
    by_id = bool(ids) or re.fullmatch("[0-9a-f]{32}", name) is not None  # of everybody, where the caller may
    try:
        return rollouts.call_sync(rollouts.job(id=ids[0] if ids else name) if by_id else rollouts.job(key=name))
    except UnknownJob:
        raise Failure(f"there is no job with the id or the key {name!r}: `gymhost jobs list` shows them") from None


@click.group("jobs", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def command() -> None:
    """Look after the jobs of a rollout service, and get their rollouts.

    A JOB is named by its key, by its id, or by the beginning of its id.

    \b
    Examples:
      export GYMHOST_ROLLOUTS=cpu7:50052
      gymhost jobs list
      gymhost jobs watch run-3/step-17              how it goes, until it has ended
      gymhost jobs fetch run-3/step-17 --output runs/3/17
      gymhost jobs cancel 5f0c1a9e
      gymhost jobs generators add http://gpu3:8000

    The service is started by `gymhost serve --rollouts`.
    """  # noqa: D301 - click wants the character, not an escape


@command.command("list", cls=GroupedCommand)
@service_options
@option("--all", "everyone", group=WHAT, is_flag=True, help="Everybody's jobs: for the role admin.")
@option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    group=WHAT,
    help="Those in this state. May be given several times.",
)
@option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    group=WHAT,
    help="How many at most, the latest first.",
)
@option("--json", "as_json", group=WHAT, is_flag=True, help="Print JSON.")
def list_jobs(rollouts: "RolloutClient", everyone: bool, states: Sequence[Any], limit: int, as_json: bool) -> None:
    """List jobs, the latest first.

    \b
    Examples:
      gymhost jobs list --server cpu7:50052
      gymhost jobs list --state running --state queued
      gymhost jobs list --all --json
    """  # noqa: D301
    from gymhost.cli import jobs_views

    found = rollouts.call_sync(rollouts.jobs(states=states, everyone=everyone, limit=limit))
    if as_json:
        click.echo(json.dumps([jobs_views.as_dict(job) for job in found], indent=2))
    else:
        print_table(jobs_views.job_rows(found, everyone=everyone))


@command.command("show", cls=GroupedCommand, short_help="Show all that is known of a job.")
@click.argument("job", metavar="JOB")
@service_options
@option(
    "--rollouts",
    "limit",
    type=click.IntRange(1, 1000),
    metavar="N",
    group=WHAT,
    help="Also its rollouts that have not ended, so many at most.",
)
@option("--json", "as_json", group=WHAT, is_flag=True, help="Print JSON.")
def show(rollouts: "RolloutClient", job: str, limit: int | None, as_json: bool) -> None:
    """Show all that is known of a JOB.

    \b
    Examples:
      gymhost jobs show run-3/step-17
      gymhost jobs show 5f0c1a9e --rollouts 20
    """  # noqa: D301
    from gymhost.cli import jobs_views

    found = find(rollouts, job)
    status = rollouts.call_sync(found.status())
    flying = rollouts.call_sync(found.rollouts(limit)) if limit else []
    if as_json:
        said = jobs_views.as_dict(status)
        click.echo(
            json.dumps(said | ({"rollouts": [jobs_views.as_dict(each) for each in flying]} if limit else {}), indent=2)
        )
        return
    for line in jobs_views.describe(status):
        click.echo(line)
    if limit:
        click.echo()
        print_table(jobs_views.rollout_rows(flying))


@command.command("watch", cls=GroupedCommand, short_help="Watch a job until it has ended.")
@click.argument("job", metavar="JOB")
@service_options
@click.pass_context
def watch(ctx: click.Context, rollouts: "RolloutClient", job: str) -> None:
    """Watch a JOB until it has ended; Ctrl-C ends the watching alone.

    On a terminal the figures stay where they are; elsewhere there is a line every few seconds. The exit code is 0 when
    the job has finished, 1 when it was cancelled or has expired, 130 after Ctrl-C.

    \b
    Example:
      gymhost jobs watch run-3/step-17
    """  # noqa: D301
    from gymhost.cli import jobs_watch

    ctx.exit(jobs_watch.watch(rollouts, find(rollouts, job)))


@command.command("fetch", cls=GroupedCommand, short_help="Get a job's rollouts into a folder.")
@click.argument("job", metavar="JOB")
@service_options
@option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="FOLDER",
    group=HOW,
    help="Where they are kept, as `gymhost rollout --store` keeps them; with what an earlier fetch has kept there.",
)
@option("--no-wait", is_flag=True, group=HOW, help="Fetch what is there, and do not wait for the job to end.")
@click.pass_context
def fetch(ctx: click.Context, rollouts: "RolloutClient", job: str, output: Path, no_wait: bool) -> None:
    """Fetch the rollouts of a JOB into a folder, each as it ends, until the job has ended.

    Each is acknowledged once it is on this machine's disk: the service need not keep it any more. The same command
    again goes on where it was ended.

    \b
    Examples:
      gymhost jobs fetch run-3/step-17 --output runs/3/17
      gymhost view runs/3/17 --open
    """  # noqa: D301
    from gymhost.cli import jobs_fetch

    ctx.exit(jobs_fetch.fetch(rollouts, find(rollouts, job), output, wait=not no_wait))


@command.command("cancel", cls=GroupedCommand, short_help="Cancel jobs.")
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@service_options
@option("--all", "everything", is_flag=True, group=HOW, help="All jobs of your own.")
def cancel(rollouts: "RolloutClient", jobs: Sequence[str], everything: bool) -> None:
    """Cancel JOBs. What is in flight ends, and its rollouts say so; what had not begun is not played.

    \b
    Examples:
      gymhost jobs cancel run-3/step-17
      gymhost jobs cancel --all
    """  # noqa: D301
    if bool(jobs) == everything:
        raise click.UsageError("say which: one or more JOBs, or --all")
    if everything:
        ended = rollouts.call_sync(rollouts.cancel_all())
    else:
        ended = sum(rollouts.call_sync(find(rollouts, job).cancel()) for job in jobs)
    click.echo(f"{ended:,} rollouts were ended or are not begun")


@command.command("pause", cls=GroupedCommand, short_help="Begin no more rollouts of a job.")
@click.argument("job", metavar="JOB")
@service_options
@option("--in-flight", is_flag=True, group=HOW, help="Those in flight stop too, before their next turn.")
def pause(rollouts: "RolloutClient", job: str, in_flight: bool) -> None:
    """Begin no more rollouts of a JOB, until it is resumed.

    \b
    Example:
      gymhost jobs pause run-3/step-17 --in-flight
    """  # noqa: D301
    status = rollouts.call_sync(find(rollouts, job).pause(in_flight=in_flight))
    click.echo(f"{status.state}, {status.in_flight:,} in flight, {status.queued:,} to be begun")


@command.command("resume", cls=GroupedCommand, short_help="Go on with a job.")
@click.argument("job", metavar="JOB")
@service_options
def resume(rollouts: "RolloutClient", job: str) -> None:
    """Go on with a JOB that was paused.

    \b
    Example:
      gymhost jobs resume run-3/step-17
    """  # noqa: D301
    click.echo(rollouts.call_sync(find(rollouts, job).resume()).state)


@command.command("announce", cls=GroupedCommand, short_help="Say which weights the generators have.")
@click.argument("version", type=click.IntRange(min=0))
@service_options
@option(
    "--weights",
    metavar="FOLDER",
    group=HOW,
    help="Has the generators load these: a folder, where they see it, with safetensors "
    "files. Without it they have the weights already.",
)
@option(
    "--in-flight",
    type=click.Choice(["wait", "cut", "keep"]),
    default="wait",
    show_default=True,
    group=HOW,
    help="With --weights: generations in flight end first, are cut and go on under the new weights, or go on across.",
)
@option("--patience", type=SECONDS, default=300.0, show_default=True, group=HOW, help="Seconds for those to end.")
def announce(rollouts: "RolloutClient", version: int, weights: str | None, in_flight: Any, patience: float) -> None:
    """Say that the generators have the weights of VERSION from now on: for the role admin.

    \b
    Examples:
      gymhost jobs announce 18
      gymhost jobs announce 18 --weights /shared/run-3/18 --in-flight cut
    """  # noqa: D301
    names = rollouts.call_sync(rollouts.announce(version, weights, in_flight, patience))
    click.echo(f"version {version}: {', '.join(names) or 'no generator has it'}")


@command.group("generators", short_help="Look after the vLLM servers that sample.")
def generators() -> None:
    """Look after the service's generators: vLLM servers.

    \b
    Examples:
      gymhost jobs generators list
      gymhost jobs generators add http://gpu3:8000 --name gpu3
      gymhost jobs generators drain gpu3            send it nothing more, and wait until it is idle
      gymhost jobs generators remove gpu3
    """  # noqa: D301


@generators.command("list", cls=GroupedCommand, short_help="List them.")
@service_options
@option("--json", "as_json", group=WHAT, is_flag=True, help="Print JSON.")
def list_generators(rollouts: "RolloutClient", as_json: bool) -> None:
    """List the generators, with their load and health at this moment."""
    from gymhost.cli import jobs_views

    found = rollouts.call_sync(rollouts.generators())
    if as_json:
        click.echo(json.dumps([jobs_views.as_dict(each) for each in found], indent=2))
    else:
        print_table(jobs_views.generator_rows(found))


@generators.command("add", cls=GroupedCommand, short_help="Take one in.")
@click.argument("url")
@service_options
@option("--name", default="", group=HOW, help="What tells it from others; without it, the URL.")
@option(
    "--model", default="", group=HOW, help="The name under which the model is served there; without it, the first one."
)
@option("--api-key-env", metavar="VARIABLE", group=HOW, help="The environment variable that has the server's key.")
def add(rollouts: "RolloutClient", url: str, name: str, model: str, api_key_env: str | None) -> None:
    """Take in the vLLM server at URL: for the role admin.

    It is started with --logprobs-mode processed_logprobs.

    \b
    Example:
      gymhost jobs generators add http://gpu3:8000 --name gpu3
    """  # noqa: D301
    key = os.environ.get(api_key_env) if api_key_env else ""
    if key is None:
        raise click.UsageError(f"--api-key-env: the environment variable {api_key_env} is not set")
    added = rollouts.call_sync(rollouts.add_generator(url, name=name, model=model, api_key=key))
    click.echo(f"{added.name}: {added.why or 'in use'}")


@generators.command("drain", cls=GroupedCommand, short_help="Send one nothing more, and wait until it is idle.")
@click.argument("name")
@service_options
@option(
    "--patience",
    type=SECONDS,
    default=300.0,
    show_default=True,
    group=HOW,
    help="Seconds after which what is in flight goes on elsewhere.",
)
def drain(rollouts: "RolloutClient", name: str, patience: float) -> None:
    """Send the generator NAME nothing more, and wait until it has nothing in flight: for the role admin."""
    rollouts.call_sync(rollouts.drain_generator(name, patience))
    click.echo(f"{name} has nothing in flight: it may be removed; once it is, it may be added again")


@generators.command("remove", cls=GroupedCommand, short_help="Take one out at once.")
@click.argument("name")
@service_options
def remove(rollouts: "RolloutClient", name: str) -> None:
    """Take the generator NAME out at once: for the role admin. What is in flight there goes on elsewhere."""
    rollouts.call_sync(rollouts.remove_generator(name))
