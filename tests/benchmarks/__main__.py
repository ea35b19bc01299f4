"""`python -m tests.benchmarks [WORKLOAD]`: runs a workload, or all, and writes a report."""

import argparse
import itertools
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks import idle, machine, report, rollouts, rounds, sandboxes, service, simulations, training
from tests.benchmarks.contenders import (
    BACKENDS,
    OBSERVE,
    OPENENV,
    OPENENV_SIZES,
    ROLLOUTS,
    ROUTING,
    SANDBOXES,
    SERVICE,
    STAGES,
    TRAINING,
    W1,
    W2,
    WATCHERS,
    Cell,
    Contender,
)
from tests.benchmarks.processes import ROOT

_WORKLOADS = (
    "w1",
    "w2",
    "observe",
    "openenv",
    "idle",
    "sandboxes",
    "rollouts",
    "training",
    "routing",
    "stages",
    "service",
)
_IDLE_USUAL = 15.0


def main() -> None:
    """Runs the benchmarks."""
    options = _options()
    # So that what was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    output: Path = options.output or ROOT / "build" / "benchmarks" / f"{options.what or 'all'}.jsonl"
    output.parent.mkdir(parents=True, exist_ok=True)
    cells = _cells(options)
    played: list[rollouts.Part] = []
    if options.what in (None, "rollouts"):
        played = rollouts.parts(options.rollouts, options.scale, lambda contender: _wanted(contender, options))
    trained: list[rollouts.Part] = []
    if options.what in (None, "training"):
        trained = training.parts(options.training, lambda contender: _wanted(contender, options))
    simulated = simulations.parts(options.what, options.simulated, lambda contender: _wanted(contender, options))
    served = [each for each in SERVICE if _wanted(each, options)] if options.what in (None, "service") else []
    if not (cells or played or trained or simulated or served or options.what == "idle"):
        known = (
            *W1,
            *(cell.contender for cell in (*W2, *OBSERVE, *SANDBOXES)),
            *OPENENV,
            *itertools.chain(*ROLLOUTS.values()),
            *TRAINING,
        )
        known += (*ROUTING, *STAGES, *SERVICE)
        names = {contender.name for contender in known}
        sys.exit(f"no contender has {' or '.join(options.only)} in its name; there are {'; '.join(sorted(names))}")
    usual = sum(rounds.estimate(each, options.rounds, options.seconds) for each in cells.values())
    idle_wanted = options.what in (None, "idle")
    usual += _IDLE_USUAL if idle_wanted else 0.0
    usual += rollouts.estimate(played, options.rounds, options.in_flight) if played else 0.0
    usual += training.estimate(trained, options.rounds)
    usual += simulations.estimate(simulated, options.rounds)
    usual += service.estimate(served, options.rounds, options.service) if served else 0.0
    print(f"this takes about {usual / 60:.1f} minutes on a quiet machine", file=sys.stderr)

    records: list[dict[str, Any]] = []
    with output.open("w") as lines:

        def note(record: dict[str, Any]) -> None:
            records.append(record)
            print(json.dumps(record), file=lines, flush=True)

        ready = {workload: rounds.installed(workload, each, note) for workload, each in cells.items()}
        taking_part = [cell.contender for each in ready.values() for cell in each]
        note(machine.describe({contender.peer for contender in taking_part if contender.peer is not None}))
        for workload, each in ready.items():
            if workload == "sandboxes":
                held = {name: count for name in BACKENDS if (count := getattr(options, f"{name}_sandboxes"))}
                sandboxes.run(each, held, options.rounds, options.seconds, note)
            else:
                rounds.run(workload, each, options.rounds, options.seconds, note, beside=WATCHERS)
        if idle_wanted:
            idle.run(options.sessions, note)
        if played:
            rollouts.run(played, options.rounds, options.in_flight, note)
        if trained:
            training.run(trained, options.rounds, note)
        if simulated:
            simulations.run(simulated, options.rounds, note)
        if served:
            service.run(served, options.rounds, options.service, note)
    text = report.render(records)
    output.with_suffix(".md").write_text(text)
    print(text)
    print(f"written to {output} and {output.with_suffix('.md')}", file=sys.stderr)


def _options() -> argparse.Namespace:
    about = "Compares throughput, rollouts and training with bare gRPC and with peers, and weighs what is idle."
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=about)
    parser.add_argument("what", nargs="?", choices=_WORKLOADS, help="run this alone")
    parser.add_argument("--rounds", type=int, help="how often each cell is run (5; of observe 7)")
    parser.add_argument("--seconds", type=float, help="the window of a cell (1; of observe 5)")
    parser.add_argument("--sizes", type=_numbers, default=[1, 64, 512], help="numbers of sessions of W1 (1,64,512)")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="contenders with this in their name; repeatable"
    )
    parser.add_argument("--sessions", type=int, default=10_000, help="idle sessions (10000)")
    parser.add_argument("--bubblewrap-sandboxes", type=int, default=1000, help="idle sandboxes of bubblewrap (1000)")
    parser.add_argument("--docker-sandboxes", type=int, default=50, help="idle sandboxes of Docker (50)")
    parser.add_argument(
        "--rollouts", type=_numbers, default=[256, 64, 1000], help="how many in each of three parts (256,64,1000)"
    )
    parser.add_argument("--scale", type=float, default=0.1, help="how long rollouts wait in the first part (0.1)")
    parser.add_argument(
        "--training", type=_numbers, default=[64, 64], help="rollouts of a training step in each of two parts (64,64)"
    )
    parser.add_argument(
        "--simulated", type=float, default=400.0, help="how long simulations last, in their own seconds (400)"
    )
    parser.add_argument(
        "--service",
        type=_numbers,
        default=[500, 2000, 256],
        help="rollouts of the service, and how many it queues and runs when it is full (500,2000,256)",
    )
    parser.add_argument("--in-flight", type=int, default=4096, help="rollouts that are held in flight (4096)")
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="the report goes beside it, to FILE.md")
    options = parser.parse_args()
    # What watching costs is little, and somebody looks every few seconds only.
    patient = options.what == "observe"
    options.rounds = options.rounds or (7 if patient else 5)
    options.seconds = options.seconds or (5.0 if patient else 1.0)
    return options


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _cells(options: argparse.Namespace) -> dict[str, list[Cell]]:
    """What is run, by workload."""
    of = {
        "w1": [Cell(contender, size) for size in options.sizes for contender in W1 if contender.plays(size)],
        "w2": list(W2),
        "observe": list(OBSERVE),
        "openenv": [Cell(contender, size) for size in OPENENV_SIZES for contender in OPENENV],
        "sandboxes": list(SANDBOXES),
    }

    chosen = {
        name: [cell for cell in cells if _wanted(cell.contender, options)]
        for name, cells in of.items()
        if options.what in (None, name)
    }
    return {name: cells for name, cells in chosen.items() if cells}


def _wanted(contender: Contender, options: argparse.Namespace) -> bool:
    return not options.only or any(part in contender.name for part in options.only)


main()
