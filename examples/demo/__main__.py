"""`make demo`: a small model learns to play a game that is hosted by gymhost.

    python -m examples.demo [--seed 0] [--steps 150] [--output demo-output] [--quick]

An environment server is started as a process of its own. A scripted and careless player plays on it; a small
Qwen3-style model learns from these games how a tool is called, and then, by TRL's GRPO with vLLM generation over gRPC,
how the game is won.

It takes at most 10 minutes on two CPU cores. A GPU is used if there is one; that has not been tried.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from examples.demo.quiet import LIBRARIES, stderr_to

os.environ.update(LIBRARIES | os.environ)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="A small model learns a hosted game.")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random (default: 0)")
    parser.add_argument("--steps", type=int, default=150, help="the most steps of GRPO (default: 150)")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="a folder for what is kept")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything: it runs, and learns nothing")
    arguments = parser.parse_args()

    # Whoever ends the demo ends its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    arguments.output.mkdir(parents=True, exist_ok=True)
    try:
        with stderr_to(arguments.output / "libraries.log"):
            from examples.demo.run import Plan, run
        plan = Plan.quick() if arguments.quick else Plan(steps=arguments.steps)
        run(plan, seed=arguments.seed, output=arguments.output)
    except KeyboardInterrupt:
        sys.exit("Interrupted.")


if __name__ == "__main__":
    main()
