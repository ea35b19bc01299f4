"""What `gymhost doctor` finds, and how it looks without waiting longer than it must."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Literal

__all__ = ["Finding", "Probe", "look"]

Verdict = Literal["ok", "optional", "warning", "broken"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        verdict: `ok`; `optional` for what is not there and only some need; `warning` for what will do harm in some
            cases; `broken` for what gymhost can't do without.
        detail: What was found.
        advice: What to install or to set, where that is known.
    """

    name: str
    verdict: Verdict
    detail: str
    advice: str = ""


# Looks at something, and says what it found.
Probe = Callable[[], Sequence[Finding]]


def look(probes: Sequence[tuple[str, Probe]], limit: float) -> list[Finding]:
    """Runs probes beside each other.

    Args:
        probes: Each with the name that its finding has when it does not end well.
        limit: Seconds for all of them together.

    Returns:
        What they found, in their order.
    """
    found: list[Sequence[Finding] | None] = [None] * len(probes)

    def run(number: int, name: str, probe: Probe) -> None:
        try:
            found[number] = probe()
        except Exception as error:  # noqa: BLE001 - what one probe meets must not keep the others from telling
            found[number] = [Finding(name, "warning", f"could not be looked at: {type(error).__name__}: {error}")]

    # Daemons: one that hangs, such as on a file system that is gone, does not keep the command from ending.
    threads = [
        threading.Thread(target=run, args=(number, name, probe), daemon=True)
        for number, (name, probe) in enumerate(probes)
    ]
    for thread in threads:
        thread.start()
    done = threading.Event()
    timer = threading.Timer(limit, done.set)
    timer.daemon = True
    timer.start()
    for thread in threads:
        while thread.is_alive() and not done.is_set():
            thread.join(0.05)
    timer.cancel()
    late = f"did not answer within {limit:g} s"
    return [
        finding
        for (name, _), findings in zip(probes, found, strict=True)
        for finding in (findings if findings is not None else [Finding(name, "warning", late)])
    ]
