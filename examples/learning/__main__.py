"""Learning curves of small models, on environments of several kinds, with TRL and vLLM over gRPC.

    python -m examples.learning [--runs guess_number text_game sandbox mix] [--seeds 0 1 2] [--output learning-output]

Each run begins with a model that has seen a careless scripted player, and that learns by GRPO to do better: a number is
guessed, things are found in a house, files are moved in a sandbox, and the last two are mixed. One seed of a run takes
some minutes on two CPU cores. What is there already, in the folder of the output, is not run again.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from examples.learning.report import plot_curves, table
from examples.learning.runs import RUNS

console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.learning", description="Learning curves.")
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), help="what is learned (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="(default: 0 1 2)")
    parser.add_argument("--output", type=Path, default=Path("learning-output"), help="a folder for what is kept")
    parser.add_argument("--mode", choices=("colocate", "server"), default="colocate", help="where TRL has vLLM")
    parser.add_argument(
        "--short", action="store_true", help="a few steps of GRPO, enough to see that something is learned"
    )
    arguments = parser.parse_args()

    # Whoever ends this ends the run that is under way.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    output: Path = arguments.output
    results: list[dict[str, Any]] = []
    todo = [(name, seed) for name in arguments.runs for seed in arguments.seeds]
    for number, (name, seed) in enumerate(todo, 1):
        console.rule(f"[bold]{number} of {len(todo)}: {RUNS[name].title}, seed {seed}")
        folder = output / f"{name}-{seed}-{arguments.mode}{'-short' if arguments.short else ''}"
        options = ["--mode", arguments.mode, *(["--short"] if arguments.short else [])]
        if not (folder / "result.json").exists():
            _run([name, str(seed), str(folder), *options])
        results.append(json.loads((folder / "result.json").read_text()))

    (output / "learning_curves.json").write_text(json.dumps({"results": results}, indent=1) + "\n")
    plot_curves(results, output / "learning_curves.png")
    text = table(results)
    (output / "table.md").write_text(text)
    console.print(text, markup=False, soft_wrap=True)
    console.print(f"The curves and their figures are in [bold]{output}/[/bold].")


def _run(arguments: list[str]) -> None:
    """Has one run done by a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "examples.learning.one", *arguments], stdin=subprocess.DEVNULL)
    try:
        status = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()  # it ends its own servers
            process.wait(60)
    if status:
        raise SystemExit(f"the run ended with exit status {status}; what was said is above and in {arguments[2]}")


if __name__ == "__main__":
    main()
