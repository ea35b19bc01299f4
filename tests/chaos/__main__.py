"""`python -m chaos`: injects faults for as long as asked, and writes a report."""

import argparse
import datetime
import json
import secrets
import sys
import time
from pathlib import Path

from chaos import scenario


def main() -> None:
    """Runs scenarios, each with a seed of its own, until the time is up or one finds a problem."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for how long in all (default: an hour)")
    parser.add_argument("--seed", type=int, help="the seed of the first scenario: repeats its faults and their times")
    parser.add_argument("--each", type=float, default=120.0, help="seconds of faults in a scenario (default: 120)")
    parser.add_argument("--sessions", type=int, default=8, help="sessions of each environment a player (default: 8)")
    parser.add_argument("--report", type=Path, help="a file to write the reports to, as JSON")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    seed = options.seed if options.seed is not None else secrets.randbits(31)
    reports: list[scenario.Report] = []
    while (left := end - time.monotonic()) > 0:
        report = scenario.run(seed, min(options.each, left), sessions=options.sessions)
        reports.append(report)
        print(json.dumps(report.to_dict(), indent=2), flush=True)
        if options.report is not None:
            runs = [each.to_dict() for each in reports]
            date = datetime.datetime.now(datetime.UTC).date().isoformat()
            options.report.write_text(json.dumps({"date": date, "runs": runs}, indent=1) + "\n")
        if report.problems:
            sys.exit(f"chaos: problems with seed {seed}: make chaos ARGS='--seed {seed}' repeats it")
        seed += 1
    steps = sum(report.verdict.steps for report in reports)
    faults = sum(report.faults.total() for report in reports)
    recovered = sum(report.recoveries for report in reports)
    print(f"chaos: {faults} faults, {steps} steps, {recovered} recovered by replay, none lost of those that can be")


if __name__ == "__main__":
    main()
