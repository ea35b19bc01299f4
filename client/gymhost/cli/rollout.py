"""`gymhost rollout`."""

import contextlib
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import IO, Any

import click

from gymhost.cli.extras import need
from gymhost.cli.options import (
    GroupedCommand,
    extend_import_path,
    kwargs_option,
    module_options,
    option,
    server_options,
)

__all__ = ["command"]


class _ModelFolder(click.Path):
    """A folder; where there is none, it may be the name of a model elsewhere that was given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads the option."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            hint = "A model of the Hub is brought by: hf download NAME --local-dir FOLDER"
            raise click.BadParameter(f"{error.message} {hint}", ctx, param) from None


WHO, WHAT = "Who plays: one of --model, --vllm, --endpoint", "What is played"
REMOTE, LOCAL = "On a server that runs elsewhere", "Else, on this machine"
LIMITS, SAMPLING, HOW, OUTPUT = "What ends a rollout", "How is sampled", "How it is run", "What comes of it"
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
MODEL = _ModelFolder(exists=True, file_okay=False, path_type=Path)
COUNT = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0, min_open=True)


def _read_tasks(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> list[range]:
    """Reads indices such as `3`, and ranges such as `0-9`, both ends of which belong to them."""
    found: list[range] = []
    for text in given:
        first, dash, last = text.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.BadParameter(f"{text!r} is no index such as 3, and no range such as 0-9", ctx, parameter)
        if dash and int(last) < int(first):
            raise click.BadParameter(f"{text!r} ends before it begins", ctx, parameter)
        found.append(range(int(first), int(last if dash else first) + 1))
    return found


@click.command("rollout", cls=GroupedCommand)
@click.argument("id", metavar="ENV")
@option("--model", type=MODEL, group=WHO, metavar="FOLDER", help="A model's folder; it is run in this process.")
@option(
    "--backend",
    type=click.Choice(["auto", "vllm", "transformers"]),
    default="auto",
    group=WHO,
    help="With --model: what runs it. auto, the default, is vLLM where it is installed, and else transformers.",
)
@kwargs_option(
    WHO,
    "With --model: a keyword argument of vllm.LLM, or of from_pretrained.",
    name="--model-arg",
    parameter="model_arguments",
)
@option(
    "--vllm",
    "urls",
    metavar="URL",
    multiple=True,
    group=WHO,
    help="A vLLM server such as http://gpu3:8000, started with --logprobs-mode processed_logprobs. Several share the "
    "rollouts, and those of one that dies go on at the others.",
)
@option(
    "--endpoint",
    metavar="URL",
    group=WHO,
    help="The base of an OpenAI-compatible chat endpoint such as http://gpu3:8000/v1. For evaluation only: it tells no "
    "token ids to train on.",
)
@option("--endpoint-model", metavar="NAME", group=WHO, help="With --endpoint: the model's name there.")
@kwargs_option(
    WHO,
    "With --endpoint: what else goes into each request, such as reasoning_effort=low; null takes something out.",
    name="--endpoint-arg",
    parameter="endpoint_arguments",
)
@option(
    "--api-key-env",
    metavar="VARIABLE",
    group=WHO,
    help="With --vllm or --endpoint: the environment variable that has the key, such as OPENAI_API_KEY.",
)
@option(
    "--tokenizer",
    type=FOLDER,
    metavar="FOLDER",
    group=WHO,
    help="With --vllm: a folder with the model's tokenizer, where the model itself is in no folder of this machine.",
)
@option(
    "--renderer",
    metavar="NAME",
    group=WHO,
    help="What turns messages into tokens, such as qwen3; without it, chosen by the tokenizer and its template.",
)
@option("--split", group=WHAT, help="The split of the tasks; without it, the first.")
@option("--tasks", type=COUNT, group=WHAT, help="How many tasks, from the first on; without it, 8.")
@option(
    "--task",
    "chosen",
    multiple=True,
    callback=_read_tasks,
    metavar="INDEX",
    group=WHAT,
    help="A task, or a range such as 0-9, instead of --tasks. May be given several times.",
)
@option("--samples", type=COUNT, default=1, show_default=True, group=WHAT, help="How many rollouts of each task.")
@option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    group=WHAT,
    help="Seeds the environments, and with --model the sampling.",
)
@kwargs_option(WHAT, "Keyword arguments of the environment.")
@server_options(REMOTE)
@module_options(LOCAL)
@option("--turns", type=COUNT, group=LIMITS, help="Turns of the model.")
@option("--turn-tokens", type=COUNT, default=512, show_default=True, group=LIMITS, help="Tokens sampled in one turn.")
@option(
    "--completion-tokens",
    type=COUNT,
    group=LIMITS,
    help="Tokens after the first prompt, those of the environment included.",
)
@option("--context-tokens", type=COUNT, group=LIMITS, help="Tokens in all, the first prompt included.")
@option("--episode-seconds", type=SECONDS, group=LIMITS, help="Seconds for all turns together.")
@option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    group=SAMPLING,
    help="0 takes the likeliest token.",
)
@option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    group=SAMPLING,
    help="Samples among the likeliest tokens that have this probability together.",
)
@option(
    "--top-k",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    group=SAMPLING,
    help="Samples among so many of the likeliest tokens; 0 is all.",
)
@option(
    "--min-p",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    group=SAMPLING,
    help="Samples among tokens that have at least this share of the likeliest one's probability.",
)
@option(
    "--concurrency",
    type=COUNT,
    default=64,
    show_default=True,
    group=HOW,
    help="How many rollouts take turns at once. More are begun ahead, so that none of the places is empty.",
)
@option(
    "--retries",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    group=HOW,
    help="How often a rollout is begun again after a fault that is not the environment's.",
)
@option("--quiet", "-q", is_flag=True, group=HOW, help="Show no progress.")
@option(
    "--pass-at",
    "threshold",
    type=float,
    default=1.0,
    show_default=True,
    group=OUTPUT,
    help="The reward from which on a rollout passes, for pass@k.",
)
@option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    group=OUTPUT,
    help="Keeps the rollouts there, each as it ends, with messages, tokens and log-probs.",
)
@option("--resume", is_flag=True, group=OUTPUT, help="Goes on with what --store has, of the same settings.")
@option("--json", "as_json", is_flag=True, group=OUTPUT, help="Print the summary as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    id: str,
    server: str | None,
    token: str | None,
    tls: Any,
    modules: Sequence[str],
    folders: Sequence[str],
    **given: Any,
) -> None:
    """Have a model play ENV, and say how well it does.

    Each task is played --samples times. At the end a summary says what they came to: reward, in all and by rubric,
    pass@k, turns, tokens, times, and what went wrong. A rollout whose reward is not known is left out and counted as
    left out, never as a 0.

    Means are over tasks, of each task's mean. Intervals are of 95 %: Student's t over tasks for rewards (errors
    clustered by task: Miller 2024, arXiv:2411.00640); pass@k is the unbiased estimate of Chen et al. (2021,
    arXiv:2107.03374), with Wilson's interval for as many trials as the spread between tasks is worth (Korn and
    Graubard 1998).

    Ctrl-C ends the rollouts in flight and shows the summary so far; a second one ends at once. The exit code is 0 when
    all rollouts have ended, 1 when none could be played, 130 after Ctrl-C.

    \b
    Examples:
      gymhost rollout gymhost/GuessNumber-v0 --model ./Qwen3-4B
      gymhost rollout gymhost/GuessNumber-v0 --split test --tasks 100 --samples 8 \\
          --vllm http://gpu3:8000 --vllm http://gpu4:8000 --store runs/1
      gymhost rollout acme/Maze-v0 -m my_environments --task 3 --task 10-19 --model ./Qwen3-4B --turns 8
      gymhost rollout gymhost/GuessNumber-v0 --endpoint http://gpu3:8000/v1 \\
          --endpoint-model Qwen/Qwen3-8B --api-key-env MY_KEY --json > figures.json

    \b
    The same command again goes on where it was ended:
      gymhost rollout ... --store runs/1 --resume
    """  # noqa: D301 - click wants the character, not an escape
    _check_usage(server, modules, folders, given)
    if server is None:
        need("server", "gymhost rollout without --server", "gymhost.envs", "gymhost.server.server")
        extend_import_path(folders)
    [acting] = need("rollout", "gymhost rollout", "gymhost.cli.rollout_act")
    with _stdout_apart() as stdout:
        try:
            code = acting.act(id, given, server=server, token=token, tls=tls, modules=modules, stdout=stdout)
        except KeyboardInterrupt:
            click.echo("gymhost: interrupted", err=True)
            code = 130
    ctx.exit(code)


def _check_usage(server: str | None, modules: Sequence[str], folders: Sequence[str], given: dict[str, Any]) -> None:
    """Refuses options that don't go together."""
    if server is not None and (modules or folders):
        raise click.UsageError("--module and --app-dir are of this machine: leave them out, or leave --server out")
    players = {"--model": given["model"], "--vllm": given["urls"], "--endpoint": given["endpoint"]}
    named = [name for name, value in players.items() if value]
    if len(named) != 1:
        raise click.UsageError(
            "say who plays: --model FOLDER, --vllm URL or --endpoint URL"
            if not named
            else f"{' and '.join(named)} don't go together: name one that plays"
        )
    [player] = named
    belongs = {
        "--backend": (given["backend"] != "auto", ("--model",)),
        "--model-arg": (given["model_arguments"], ("--model",)),
        "--endpoint-arg": (given["endpoint_arguments"], ("--endpoint",)),
        "--endpoint-model": (given["endpoint_model"], ("--endpoint",)),
        "--api-key-env": (given["api_key_env"], ("--vllm", "--endpoint")),
        "--tokenizer": (given["tokenizer"], ("--model", "--vllm")),
        "--renderer": (given["renderer"], ("--model", "--vllm")),
    }
    for name, (value, players_of_it) in belongs.items():
        if value and player not in players_of_it:
            raise click.UsageError(f"{name} goes with {' or '.join(players_of_it)}, not with {player}")
    if player == "--endpoint" and not given["endpoint_model"]:
        raise click.UsageError("--endpoint needs --endpoint-model, the model's name there")
    if given["api_key_env"] and not os.environ.get(given["api_key_env"]):
        raise click.UsageError(f"--api-key-env: the environment variable {given['api_key_env']} is not set")
    if given["tasks"] and given["chosen"]:
        raise click.UsageError("--tasks and --task don't go together: say how many tasks, or which")
    if given["resume"] and given["store"] is None:
        raise click.UsageError("--resume needs --store, the folder to go on with")


@contextlib.contextmanager
def _stdout_apart() -> Generator[IO[str]]:
    """Standard output for what this command says alone: what libraries and environments print goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding=sys.stdout.encoding) as stdout:
            yield stdout
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
