"""What `gymhost rollout` shows while it plays, on terminals and elsewhere."""

import io
import logging
import re

import pytest
from rich.console import Console

from gymhost.cli.rollout_progress import Lines, Panel, Standing, progress
from gymhost.cli.rollout_report import Report
from gymhost.cli.rollout_run import Ending
from gymhost.rollout.status import Counts
from gymhost.rollout.summary import Tally
from gymhost.rollout.trajectory import Outcome, Trajectory
from gymhost.rollout.turnstile import Turnstile

WIDTHS = [60, 80, 120]


def console(width: int = 80, *, terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)


def written(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def standing(*, failed: int = 0) -> Standing:
    """100 rollouts, of which 12 are in flight and some have ended."""
    tally, counts, turnstile = Tally(), Counts(), Turnstile()
    for reward in (1.0, 0.5, 0.0):
        tally.add(Trajectory(env_id="Game-v0", reward=reward, outcome=Outcome(kind="terminated")))
    for _ in range(failed):
        outcome = Outcome(kind="failed", fault="generator", cause="GeneratorGone", message="gpu3 is gone")
        tally.add(Trajectory(env_id="Game-v0", outcome=outcome))
    counts.stages |= {"init": 2, "ready": 1, "run": 8, "eval": 1}
    turnstile.generating, turnstile.tokens = 5, 1234
    return Standing(100, tally, counts.status(turnstile))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_terminal_shows_how_the_run_stands(width: int) -> None:
    terminal = console(width)
    with progress(terminal, quiet=False) as shown:
        assert isinstance(shown, Panel)
        shown.doing("starting an embedded server")
        shown.begin(standing())
        shown.show(standing(failed=7))
        lines = written(terminal).splitlines()
        shown.end(standing(failed=7))
    lines = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line) for line in lines]
    text = "\n".join(lines)
    assert "starting an embedded server" in text
    assert "10 of 100" in text
    assert "2 beginning, 1 ready, 5 generating, 3 stepping, 1 ending" in " ".join(text.split())
    assert "1,234 sampled" in text
    assert "0.500 so far, of 3 valid" in text
    assert "7 generator: GeneratorGone" in text
    assert max(map(len, lines[-6:])) <= width


def test_elsewhere_there_is_a_line_at_the_end_and_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    file = console(terminal=False)
    with progress(file, quiet=False) as shown:
        assert isinstance(shown, Lines)
        shown.doing("getting ready: tutor")
        shown.begin(standing())
        for _ in range(24):  # six seconds of four looks each
            now += 0.25
            shown.show(standing(failed=2))
        shown.end(standing(failed=2))
    begun, *lines = written(file).splitlines()
    assert begun == "   0.0 s  getting ready: tutor"
    flying = "2 beginning, 1 ready, 5 generating, 3 stepping, 1 ending"
    line = f"5/100 done; {flying}; 0 tokens/s; reward 0.500; failed: 2 generator: GeneratorGone"
    assert lines == [f"   5.0 s  {line}", f"   6.0 s  {line}"]


@pytest.mark.parametrize("quiet", [False, True])
def test_warnings_are_told_a_few_of_each_kind(quiet: bool) -> None:
    file = console(terminal=False)
    logger = logging.getLogger("gymhost.rollout.anything")
    with progress(file, quiet=quiet):
        for number in range(50):
            logger.warning("rollout %d failed", number)
        logger.error("the disk is full")
    logger.warning("not told any more")
    told = written(file).splitlines()
    if quiet:
        assert told == ["gymhost: the disk is full"]
    else:
        assert told == [
            "gymhost: rollout 0 failed",
            "gymhost: rollout 1 failed",
            "gymhost: rollout 2 failed; more of the kind are not shown",
            "gymhost: the disk is full",
        ]


def test_what_environments_say_gives_a_terminal_no_orders() -> None:
    orders = "\x1b[2J\x1b]0;name\x07\x9b2J [bold]x[/bold] [/no]"
    file = console(terminal=False)
    with progress(file, quiet=False):
        logging.getLogger("gymhost.rollout.anything").warning("a rollout failed: %s", orders)
    outcomes = [
        Outcome(kind="failed", fault="environment", cause="ValueError", message=orders),
        Outcome(kind="truncated", limit=orders),
    ]
    tally = Tally()
    for outcome in outcomes:
        tally.add(Trajectory(env_id="Talk-v0", outcome=outcome, reward=1.0, rewards={orders: 1.0}))
    Report("x", {}, tally.summary(), Ending(), 0, 2, None, trainable=True).show(file)
    told = written(file)
    assert told.count("[bold]x[/bold]") == 4
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", told)
