"""A self-check for backends: whether a sandbox contains what runs in it, and does what it says."""

import asyncio
import time
from collections.abc import Callable, Sequence

from gymhost.envs.findings import Finding, Report
from gymhost.envs.sandbox.backend import Backend
from gymhost.envs.sandbox.check import decoding, files, fork, isolation, leaks, limits, shells, timeouts, trees
from gymhost.envs.sandbox.check.host import secrets_planted
from gymhost.envs.sandbox.check.trial import Case, Family, Trial, shown
from gymhost.envs.sandbox.pool import Pool
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.wire.errors import InvalidArgument, SandboxUnavailable

__all__ = ["FAMILIES", "check"]

_FAMILIES = {
    module.FAMILY.name: module.FAMILY
    for module in (isolation, limits, decoding, timeouts, trees, shells, files, fork, leaks)
}

FAMILIES = tuple(_FAMILIES)
"""The names of the families of checks, in their order."""

_NO_ISOLATION = Finding(
    "error",
    "isolation: none",
    "What runs inside has the rights of this process: the host's files, processes and network. It is for code that\n"
    "you trust, never for what a model wrote; use bubblewrap or docker for that. Its isolation was not tried.",
)


async def check(
    backend: Backend,
    *,
    spec: SandboxSpec | None = None,
    families: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Checks a backend on this machine, by making some dozens of sandboxes and by doing to them what a model might.

    What is tried does no harm where it is not contained, and a limit that is not in force is told of, not tried. The
    checks put made-up secrets into this process's environment and into files for as long as they run. A backend that
    does not isolate has an error for that; its other families are checked like those of any other.

    Args:
        backend: What to check; it is not closed.
        spec: What its sandboxes are to be like, such as their image.
        families: Which families to check, of `FAMILIES`, or which single checks, by the names that the report gives
            them, such as `files: odd names`; None for all.
        progress: Told what is checked next.

    Returns:
        What was found: a limit that is not in force is advice, what does not hold is an error.

    Raises:
        InvalidArgument: There is no such family or check.
        SandboxUnavailable: This machine can't use the backend; the message says what to install or set.
    """
    chosen = _choose(families)
    spec = SandboxSpec() if spec is None else spec
    pool = Pool(backend)
    report = Report(f"sandbox {backend.name}", purpose="run what a model wrote")
    if families is not None:
        report.purpose += f", as far as {' and '.join(families)} can tell"
    found: dict[str, list[Finding]] = {name: [] for name in chosen}

    def say(title: str) -> None:
        if progress is not None:
            progress(title)

    async def run(name: str) -> None:
        if name == isolation.FAMILY.name and not backend.isolates:
            found[name].append(_NO_ISOLATION)
            return
        for case in chosen[name]:
            title = f"{name}: {case.topic}"
            say(title)
            found[name].append(await Trial(pool, spec, secrets).run(title, case))

    with secrets_planted() as secrets:
        if problem := await backend.problem():
            raise SandboxUnavailable(problem)
        say("making one")
        report.findings.append(await _made(Trial(pool, spec, secrets)))
        if not report.ok:
            return report
        async with asyncio.TaskGroup() as together:
            for name in chosen:
                if not _FAMILIES[name].alone:
                    together.create_task(run(name))
        for name in chosen:
            if _FAMILIES[name].alone:
                await run(name)
    report.findings += [finding for findings in found.values() for finding in findings]
    return report


def _choose(names: Sequence[str] | None) -> dict[str, list[Case]]:
    """Returns the checks to run, by their families.

    Raises:
        InvalidArgument: A name is none.
    """
    known = {name for family in _FAMILIES.values() for name in (family.name, *_titles(family))}
    for name in names or ():
        if name not in known:
            raise InvalidArgument(
                f"there is no check {name!r}: it is one of {', '.join(FAMILIES)}, or a single one of them"
            )
    chosen: dict[str, list[Case]] = {}
    for family in _FAMILIES.values():
        for title, case in _titles(family).items():
            if names is None or family.name in names or title in names:
                chosen.setdefault(family.name, []).append(case)
    return chosen


def _titles(family: Family) -> dict[str, Case]:
    return {f"{family.name}: {case.topic}": case for case in family.cases}


async def _made(trial: Trial) -> Finding:
    """Makes one, so that what is wrong with all is told once."""
    started = time.monotonic()

    async def answers(trial: Trial) -> None:
        async with trial.sandbox() as sandbox:
            result = await sandbox.run("echo fine")
            trial.note(f"The first answer came after {1000 * (time.monotonic() - started):.0f} ms.")
        trial.expect(result.stdout == "fine\n", f"`echo fine` gave {shown(result)}")

    return await trial.run("making one", Case("making one", answers))
