"""`gymhost view`."""

import webbrowser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gymhost.cli.app import Failure
from gymhost.cli.extras import need
from gymhost.cli.options import GroupedCommand, option

if TYPE_CHECKING:
    from gymhost.rollout.trajectory import Trajectory

__all__ = ["command"]

CHOICE, PAGE = "Which rollouts", "The page"


@click.command("view", cls=GroupedCommand)
@click.argument("store", type=click.Path(path_type=Path))
@option(
    "--outcome",
    "outcomes",
    type=click.Choice(["terminated", "truncated", "failed", "cancelled"]),
    multiple=True,
    group=CHOICE,
    help="Those that ended so. May be given several times.",
)
@option("--min-reward", type=float, group=CHOICE, help="Those with this reward or a higher one.")
@option("--max-reward", type=float, group=CHOICE, help="Those with this reward or a lower one.")
@option("--env", "env_id", metavar="ID", group=CHOICE, help="Those of one environment.")
@option("--task", type=int, group=CHOICE, help="Those of one task.")
@option("--group", "group", group=CHOICE, help="Those of one group.")
@option("--limit", type=click.IntRange(min=1), group=CHOICE, help="So many at most, the first ones.")
@option("--out", type=click.Path(dir_okay=False, path_type=Path), group=PAGE, help="The file; else STORE/view.html.")
@option(
    "--max-size",
    type=click.FloatRange(min=0, min_open=True),
    default=200.0,
    show_default=True,
    metavar="MB",
    group=PAGE,
    help="How large its data may become: what does not fit is left out, and that is said.",
)
@option("--open/--no-open", "opens", default=False, group=PAGE, help="Open it in the browser.")
def command(
    store: Path,
    outcomes: Sequence[str],
    min_reward: float | None,
    max_reward: float | None,
    env_id: str | None,
    task: int | None,
    group: str | None,
    limit: int | None,
    out: Path | None,
    max_size: float,
    opens: bool,
) -> None:
    """Write rollouts as one HTML page: messages, tool calls, tokens by mask and log-prob, rewards, timings, groups.

    STORE is the folder of a run, as `gymhost rollout` writes it, or a Parquet file of trajectories. The page needs no
    network and no server: it can be opened where it is, kept, and sent.

    \b
    Examples:
      gymhost view runs/first --open
      gymhost view runs/first --outcome failed
      gymhost view runs/first --max-reward 0.2 --limit 200 --out worst.html
    """  # noqa: D301 - click wants the character, not an escape
    (view,) = need("rollout", "gymhost view", "gymhost.rollout.view")

    def wanted(trajectory: "Trajectory") -> bool:
        reward = trajectory.reward
        return (
            (not outcomes or trajectory.outcome.kind in outcomes)
            and (min_reward is None or (reward is not None and reward >= min_reward))
            and (max_reward is None or (reward is not None and reward <= max_reward))
            and (env_id is None or trajectory.env_id == env_id)
            and (task is None or trajectory.task == task)
            and (group is None or trajectory.group == group)
        )

    trajectories, settings, pieces = _open(store)
    target = out or (store / "view.html" if store.is_dir() else store.with_suffix(".html"))
    try:
        written = view.write_page(
            target,
            filter(wanted, _reading(trajectories)),
            title=store.resolve().name,
            settings=settings,
            pieces=pieces,
            limit=limit,
            max_bytes=int(max_size * 1_000_000),
        )
    except OSError as error:
        raise Failure(f"{target} can't be written: {error.strerror or error}; name another file (--out)") from None
    click.echo(target)
    room = f"more than {max_size:g} MB have room for: choose with --outcome, --min-reward, --task or --limit, or raise "
    for count, why in ((written.too_many, f"beyond --limit {limit}"), (written.too_large, f"{room}--max-size")):
        if count:
            click.echo(f"{count:,} rollouts are left out, {why}", err=True)
    if not written.rollouts:
        click.echo("no rollout is in it: the store is empty, or what you chose by left all of them out", err=True)
    if opens and not webbrowser.open(target.resolve().as_uri()):
        click.echo(f"no browser could be opened: open {target} yourself", err=True)


def _open(path: Path) -> tuple[Iterable["Trajectory"], Mapping[str, Any], Mapping[int, str]]:
    """The trajectories of a store or file, with what is known of the run and of its tokens."""
    from gymhost.rollout.parquet import read_parquet
    from gymhost.rollout.store import Store, StoreError

    if not path.exists():
        raise Failure(f"{path} is not there: name the folder of a run, as gymhost rollout writes it")
    if path.is_dir():
        try:
            store = Store.open(path)
            return store, store.settings, store.pieces
        except StoreError as error:
            raise Failure(str(error)) from None
    if path.suffix == ".parquet":
        return read_parquet(path), {}, {}
    raise Failure(f"{path} is neither the folder of a run nor a .parquet file: of a run, name the folder")


def _reading(trajectories: Iterable["Trajectory"]) -> Iterator["Trajectory"]:
    """The trajectories; what can't be read ends the command, and is no error of the page's."""
    from gymhost.rollout.store import StoreError

    try:
        yield from trajectories
    except (StoreError, ValueError, ImportError, OSError) as error:
        raise Failure(str(error)) from None
