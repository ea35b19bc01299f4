"""`python -m tests.benchmarks [w1|idle]`: runs what is asked for, or all, and writes figures and a report."""

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks import idle, machine, report, w1
from tests.benchmarks.contenders import CONTENDERS
from tests.benchmarks.processes import ROOT

_IDLE_USUAL = 15.0


def main() -> None:
    """Runs the benchmarks."""
    options = _options()
    # So that what was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    output: Path = options.output or ROOT / "build" / "benchmarks" / f"{options.what or 'all'}.jsonl"
    output.parent.mkdir(parents=True, exist_ok=True)
    contenders = [c for c in CONTENDERS if not options.only or any(name in c.name for name in options.only)]
    if not contenders:
        sys.exit(f"no contender has {' or '.join(options.only)} in its name; there are " + "; ".join(_names()))

    w1_wanted, idle_wanted = options.what in (None, "w1"), options.what in (None, "idle")
    usual = w1.estimate(contenders, options.sizes, options.rounds, options.seconds) if w1_wanted else 0.0
    usual += _IDLE_USUAL if idle_wanted else 0.0
    print(f"this takes about {usual / 60:.1f} minutes on a quiet machine", file=sys.stderr)

    records: list[dict[str, Any]] = []
    with output.open("w") as lines:

        def note(record: dict[str, Any]) -> None:
            records.append(record)
            print(json.dumps(record), file=lines, flush=True)

        if w1_wanted:
            contenders = w1.installed(contenders, note)
        note(machine.describe({c.peer for c in contenders if c.peer and w1_wanted}))
        if w1_wanted:
            w1.run(contenders, options.sizes, options.rounds, options.seconds, note)
        if idle_wanted:
            idle.run(options.sessions, note)
    text = report.render(records)
    output.with_suffix(".md").write_text(text)
    print(text)
    print(f"written to {output} and {output.with_suffix('.md')}", file=sys.stderr)


def _options() -> argparse.Namespace:
    about = "Compares throughput with bare gRPC and with peers, and weighs idle sessions."
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=about)
    parser.add_argument("what", nargs="?", choices=("w1", "idle"), help="run this alone")
    parser.add_argument("--rounds", type=int, default=5, help="how often each cell of W1 is run (5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="the window of a cell (1)")
    parser.add_argument("--sizes", type=_numbers, default=[1, 64, 512], help="numbers of sessions (1,64,512)")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="contenders with this in their name; repeatable"
    )
    parser.add_argument("--sessions", type=int, default=10_000, help="idle sessions (10000)")
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="the report goes beside it, to FILE.md")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _names() -> list[str]:
    return [contender.name for contender in CONTENDERS]


main()
