"""What `gymhost rollout` does, from its options to its exit code."""

import asyncio
import contextlib
import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import click
from gymnasium.spaces import Text
from rich.console import Console

from gymhost.cli.app import Failure
from gymhost.cli.rollout_model import Endpoint, LocalModel, VllmServers
from gymhost.cli.rollout_progress import Progress, progress
from gymhost.cli.rollout_report import Report, cause
from gymhost.cli.rollout_run import Ending, Job, play
from gymhost.cli.rollout_tasks import choose
from gymhost.client import EnvironmentDescription, RemoteServer, Tls, UnknownEnvironment, connect
from gymhost.rollout import Concurrency, Limits, RolloutRequest, Sampling
from gymhost.rollout.store import Store, StoreError, rollout_key
from gymhost.rollout.summary import Tally
from gymhost.rollout.trajectory import Trajectory
from gymhost.wire.chat_spaces import FreeText

__all__ = ["act"]

T = TypeVar("T")

_SAMPLING = ("temperature", "top_p", "top_k", "min_p")
_LIMITS = ("turns", "turn_tokens", "completion_tokens", "context_tokens", "episode_seconds")


def act(
    id: str,
    given: Mapping[str, Any],
    *,
    server: str | None,
    token: str | None,
    tls: Tls | None,
    modules: Sequence[str],
    stdout: IO[str],
) -> int:
    """Plays the environment.

    Args:
        id: The environment.
        given: The other options of the command, by their names.
        server: Where it is hosted; None is an embedded server.
        token: The server's token.
        tls: How TLS is spoken with it.
        modules: What an embedded server imports.
        stdout: Where the summary goes.

    Returns:
        The exit code.

    Raises:
        Failure: It can't be played as the options say.
    """
    who = _installed(lambda: _who(given))
    with progress(Console(stderr=True), quiet=given["quiet"]) as shown:
        shown.doing("starting an embedded server" if server is None else f"connecting to {server}")
        with connect(server, token=token, tls=tls, modules=modules) as remote:
            report = _play(remote, id, who, given, shown)
    if given["as_json"]:
        print(json.dumps(report.as_json(), indent=2), file=stdout)
    else:
        report.show(Console(file=stdout, highlight=False))
    stdout.flush()
    return _exit_code(report, given)


def _who(given: Mapping[str, Any]) -> LocalModel | VllmServers | Endpoint:
    key = os.environ[given["api_key_env"]] if given["api_key_env"] else None
    if given["endpoint"]:
        return Endpoint(given["endpoint"], given["endpoint_model"], key, given["endpoint_arguments"])
    how = {"tokenizer": given["tokenizer"], "renderer": given["renderer"]}
    if given["urls"]:
        return VllmServers(given["urls"], api_key=key, **how)
    return LocalModel(given["model"], given["backend"], given["model_arguments"], seed=given["seed"], **how)


def _play(
    remote: RemoteServer,
    id: str,
    who: LocalModel | VllmServers | Endpoint,
    given: Mapping[str, Any],
    shown: Progress,
) -> Report:
    environment = asyncio.run(_look(remote, id, given["kwargs"], shown))
    tasks = choose(environment, split=given["split"], number=given["tasks"], chosen=given["chosen"])
    requests = tasks.requests(id, kwargs=given["kwargs"], samples=given["samples"], seed=given["seed"])
    limits, sampling = _limits(given), _sampling(given)
    settings = {
        "environment": id,
        "kwargs": given["kwargs"],
        "split": tasks.split,
        "tasks": str(tasks),
        "samples": given["samples"],
        "seed": given["seed"],
        "sampling": {name: getattr(sampling, name) for name in _SAMPLING},
        "limits": {name: getattr(limits, name) for name in _LIMITS},
        **who.settings,
    }
    tally, ending = Tally(), Ending()
    with contextlib.ExitStack() as stack:
        store = None
        if given["store"] is not None:
            store = _kept(given["store"], settings, resume=given["resume"])
        left = requests if store is None else _left(requests, stack.enter_context(store), tally)
        resumed = len(tally)
        if left:
            shown.doing(f"getting ready: {who.title}")
            player = _installed(who.load)
            if store is None and given["store"] is not None:
                # Only now that there is somebody to play: what can't begin leaves nothing that must be taken away.
                store = stack.enter_context(_new(given["store"], settings))
            # Libraries such as torch leave a million objects behind, which the garbage collector would walk through
            # again and again, for longer than the engine takes for its own work.
            gc.collect()
            gc.freeze()
            job = Job(left, remote, player, sampling, limits, _concurrency(given["concurrency"]), tally, store)
            ending = asyncio.run(play(job, shown))
    split = "" if tasks.split is None else f", split {tasks.split}"
    return Report(
        title=f"{id}{split}, played by {who.title}",
        settings=settings,
        summary=tally.summary(threshold=given["threshold"]),
        ending=ending,
        resumed=resumed,
        wanted=len(requests),
        store=given["store"],
        trainable=not isinstance(who, Endpoint),
    )


async def _look(remote: RemoteServer, id: str, kwargs: Mapping[str, Any], shown: Progress) -> EnvironmentDescription:
    """The environment's description.

    Raises:
        Failure: A model can't play it.
    """
    for problem in await remote.problems():
        shown.say(f"could not be loaded: {problem}")
    try:
        environment = await remote.describe(id, **kwargs)
    except UnknownEnvironment as error:
        if remote.arguments["address"] is not None:
            raise
        raise Failure(
            f"no environment {id!r} is registered here: name the module that registers it with --module "
            "(`gymhost envs` lists those that are)"
        ) from error
    # A model also plays what takes plain texts and answers with such.
    if not environment.conversational and not isinstance(environment.action_space, FreeText | Text):
        raise Failure(f"a language model can't play {id}, whose actions are no messages: {environment.action_space}")
    return environment


def _limits(given: Mapping[str, Any]) -> Limits:
    return Limits(retries=given["retries"], **{name: given[name] for name in _LIMITS})


def _sampling(given: Mapping[str, Any]) -> Sampling:
    return Sampling(max_tokens=given["turn_tokens"], **{name: given[name] for name in _SAMPLING})


def _concurrency(places: int) -> Concurrency:
    return Concurrency(run=places, init=min(places, 32), eval=min(places, 64), ahead=min(places, 32))


def _installed(act: Callable[[], T]) -> T:
    """What `act` returns.

    Raises:
        Failure: It needs a package that is not installed.
    """
    try:
        return act()
    except ImportError as error:
        raise Failure(str(error)) from error


# -- the store ---------------------------------------------------------------------------------------------------------


def _new(path: Path, settings: Mapping[str, Any]) -> Store:
    """Makes a store.

    Raises:
        Failure: There is something, or it can't be written.
    """
    try:
        return Store.create(path, settings)
    except (StoreError, OSError) as error:
        raise Failure(str(error)) from error


def _kept(path: Path, settings: Mapping[str, Any], *, resume: bool) -> Store | None:
    """Opens the store to go on with; None if there is none, and one can be made.

    Raises:
        Failure: It is there and not to be resumed, or was made with other settings, or can't be written.
    """
    try:
        if not resume or not path.exists() or not any(path.iterdir()):
            Store.check_free(path)
            return None
        store = Store.open(path, writing=True)
    except (StoreError, OSError) as error:
        raise Failure(str(error) if resume else f"{error} (--resume goes on with a store)") from error
    there, here = dict(_flat(store.settings)), dict(_flat(json.loads(json.dumps(settings))))
    differences = [
        f"{name} was {there.get(name)}, and is {here.get(name)}"
        for name in dict.fromkeys((*there, *here))
        if there.get(name) != here.get(name)
    ]
    if differences:
        store.close()
        raise Failure(f"{path} was made with other settings, so it can't be resumed: {'; '.join(differences)}")
    return store


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and name in ("sampling", "limits"):
            yield from cast(Mapping[str, Any], value).items()
        else:
            yield name, value


def _left(requests: Sequence[RolloutRequest], store: Store, tally: Tally) -> list[RolloutRequest]:
    """What is still to be played; what was, goes into the tally.

    Raises:
        Failure: The store can't be read.
    """
    wanted = {rollout_key(request): request for request in requests}
    try:
        for trajectory in store:
            if _has_ended(trajectory) and wanted.pop(rollout_key(trajectory), None) is not None:
                tally.add(trajectory)
    except StoreError as error:
        raise Failure(str(error)) from error
    return list(wanted.values())


def _has_ended(trajectory: Trajectory) -> bool:
    """Whether it is not to be played again. A fault of the environment would come again; others may have passed."""
    outcome = trajectory.outcome
    return outcome.kind in ("terminated", "truncated") or (outcome.kind == "failed" and outcome.fault == "environment")


# -- the end -----------------------------------------------------------------------------------------------------------


def _exit_code(report: Report, given: Mapping[str, Any]) -> int:
    """Says what is still to be said, and returns the exit code."""
    summary, ending = report.summary, report.ending
    if ending.signal is not None:
        again = "nothing is kept, since no --store was named"
        if report.store is not None:
            again = f"the same command{'' if given['resume'] else ' with --resume'} goes on from there"
        click.echo(f"gymhost: ended after {summary.rollouts:,} of {report.wanted:,} rollouts; {again}", err=True)
        return 128 + ending.signal
    if summary.failures and sum(failed.count for failed in summary.failures) == summary.rollouts:
        most = summary.failures[0]
        click.echo(
            f"gymhost: none of {summary.rollouts:,} rollouts could be played, most often: {cause(most)}",
            err=True,
        )
        return 1
    return 0
