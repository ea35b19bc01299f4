"""What `gymhost rollout` does, from its options to its exit code."""

import asyncio
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import click
from rich.console import Console

from gymhost.cli.app import Failure
from gymhost.cli.rollout_model import Endpoint, LocalModel, VllmServers
from gymhost.cli.rollout_progress import Progress, progress
from gymhost.cli.rollout_report import Report
from gymhost.cli.rollout_run import Ending, Job, play
from gymhost.cli.rollout_tasks import choose
from gymhost.client import EnvironmentDescription, RemoteServer, connect
from gymhost.rollout import Concurrency, Limits, RolloutRequest, Sampling
from gymhost.rollout.store import Store, StoreError, rollout_key
from gymhost.rollout.summary import Tally
from gymhost.rollout.trajectory import Trajectory

__all__ = ["act"]

T = TypeVar("T")


def act(
    id: str,
    given: Mapping[str, Any],
    *,
    server: str | None,
    token: str | None,
    modules: Sequence[str],
    stdout: IO[str],
) -> int:
    """Plays the environment.

    Args:
        id: The environment.
        given: The other options of the command, by their names.
        server: Where it is hosted; None is an embedded server.
        token: The server's token.
        modules: What an embedded server imports.
        stdout: Where the summary goes.

    Returns:
        The exit code.

    Raises:
        Failure: It can't be played as the options say.
    """
    console = Console(stderr=True)
    who = _installed(lambda: _who(given))
    with progress(console, quiet=given["quiet"]) as shown:
        shown.doing("starting an embedded server" if server is None else f"connecting to {server}")
        with connect(server, token=token, modules=modules) as remote:
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
        return Endpoint(given["endpoint"], given["endpoint_model"], key)
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
    environment = asyncio.run(_look(remote, id, given["kwargs"]))
    tasks = choose(environment, split=given["split"], number=given["tasks"], chosen=given["chosen"])
    requests = tasks.requests(id, kwargs=given["kwargs"], samples=given["samples"], seed=given["seed"])
    limits = Limits(
        turns=given["turns"],
        turn_tokens=given["turn_tokens"],
        completion_tokens=given["completion_tokens"],
        context_tokens=given["context_tokens"],
        episode_seconds=given["episode_seconds"],
        retries=given["retries"],
    )
    sampling = Sampling(
        temperature=given["temperature"],
        top_p=given["top_p"],
        top_k=given["top_k"],
        min_p=given["min_p"],
        max_tokens=given["turn_tokens"],
    )
    settings = {
        "environment": id,
        "kwargs": given["kwargs"],
        "split": tasks.split,
        "tasks": str(tasks),
        "samples": given["samples"],
        "seed": given["seed"],
        **who.settings,
        **{name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")},
        **{name: value for name, value in dataclasses.asdict(limits).items() if name in _COMPARED_LIMITS},
    }
    where = given["store"]
    tally = Tally()
    try:
        store = None if where is None else _store(where, settings, resume=given["resume"])
        try:
            left = requests if store is None else list(_left(requests, store, tally))
            resumed = len(tally)
            if left:
                shown.doing(f"loading {who.title}")
                player = _installed(who.load)
                places = given["concurrency"]
                concurrency = Concurrency(run=places, init=min(places, 32), eval=min(places, 64), ahead=min(places, 32))
                job = Job(left, remote, player, sampling, limits, concurrency, tally, store)
                ending = asyncio.run(play(job, shown))
            else:
                ending = Ending()
        finally:
            if store is not None:
                store.close()
    except (StoreError, OSError) as error:
        raise Failure(str(error)) from error
    split = "" if tasks.split is None else f", split {tasks.split}"
    return Report(
        title=f"{id}{split}, played by {who.title}",
        settings=settings,
        summary=tally.summary(threshold=given["threshold"]),
        ending=ending,
        resumed=resumed,
        wanted=len(requests),
        store=where,
        trainable=not isinstance(who, Endpoint),
    )
