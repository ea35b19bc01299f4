"""`python -m chaos.soak`: what takes long. Half an hour of play in flat memory, and three minutes of silence (S19)."""

import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import statistics
import sys
import time
from pathlib import Path

from chaos.arena import Arena
from chaos.faults import cut, kill_worker
from chaos.scenario import Report, run
from support.server import ServerProcess
from support.silence import KEEPALIVES, step_after_silence

# Seconds between two looks at the memory.
INTERVAL = 5.0
# How much the memory of a process may be above what it was: as a share, and in MiB for small ones.
GROWTH_SHARE = 0.05
GROWTH_MIB = 8.0
SILENCE = 180.0


@dataclasses.dataclass
class Memory:
    """The resident memory of the parts of an arena over time, in MiB."""

    seen: dict[str, list[float]] = dataclasses.field(default_factory=dict[str, list[float]])

    def look(self, arena: Arena) -> None:
        """Looks once."""
        workers = [_resident(pid) for pid in arena.workers]
        parts = {"front": _resident(arena.server.pid), "workers, mean": statistics.fmean(workers) if workers else 0.0}
        parts |= {f"player {number}": _resident(pid) for number, pid in enumerate(arena.players, 1)}
        for name, mib in parts.items():
            self.seen.setdefault(name, []).append(mib)

    def table(self) -> dict[str, tuple[float, float]]:
        """Of each part the median of the second quarter of the time, when all is warm, and of the last."""
        table: dict[str, tuple[float, float]] = {}
        for name, seen in self.seen.items():
            size = max(len(seen) // 4, 1)
            table[name] = statistics.median(seen[size : 2 * size] or seen), statistics.median(seen[-size:])
        return table

    def problems(self) -> list[str]:
        """The parts that have grown."""
        return [
            f"the memory of {name} went from {early:.0f} to {late:.0f} MiB"
            for name, (early, late) in self.table().items()
            if late - early > max(GROWTH_MIB, GROWTH_SHARE * early)
        ]


def play(seconds: float, seed: int) -> tuple[Report, Memory]:
    """Plays for a while, with a worker killed and connections cut now and then, and watches the memory."""
    memory = Memory()
    faults = {kill_worker: 1, cut: 1}
    report = run(seed, seconds, pause=30.0, faults=faults, watch=memory.look, interval=INTERVAL)
    return report, memory


def silence() -> list[str]:
    """Has clients say nothing but pings for three minutes, and then take a step."""
    # These raw clients send no heartbeats, so that nothing but pings keeps the connection.
    with ServerProcess(lease=2 * SILENCE) as server, concurrent.futures.ThreadPoolExecutor() as threads:
        steps = [threads.submit(step_after_silence, server.address, ms, SILENCE) for ms in KEEPALIVES]
        seen = [step.result(SILENCE + 60.0) for step in steps]
    return [] if seen == [1] * len(seen) else [f"after {SILENCE:g} s of silence the steps gave {seen}"]


def main() -> None:
    """Soaks."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0, help="of play (default: 1800)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="a file to write the report to, as JSON")
    options = parser.parse_args()
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as threads:
        silent = threads.submit(silence)
        report, memory = play(options.seconds, options.seed)
        problems = report.problems + memory.problems() + silent.result()
    table = {name: [round(mib, 1) for mib in pair] for name, pair in memory.table().items()}
    told = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "silence_seconds": SILENCE,
        "memory_mib_early_and_late": table,
        "play": report.to_dict() | {"problems": problems},
    }
    print(json.dumps(told, indent=1))
    if options.report is not None:
        options.report.write_text(json.dumps(told, indent=1) + "\n")
    if problems:
        sys.exit("soak: " + "; ".join(problems))


def _resident(pid: int) -> float:
    """The resident memory of a process in MiB; 0 for one that is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 2**20


if __name__ == "__main__":
    main()
