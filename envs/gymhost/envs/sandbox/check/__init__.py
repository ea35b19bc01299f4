"""A self-check for backends: whether a sandbox contains what runs in it, and does what it says."""

import asyncio
import time
from collections.abc import Callable, Sequence

from gymhost.envs.findings import Finding, Report
from gymhost.envs.sandbox.backend import Backend
from gymhost.envs.sandbox.check import decoding, files, fork, isolation, leaks, limits, shells, timeouts, trees
from gymhost.envs.sandbox.check.host import Secrets, secrets_planted
from gymhost.envs.sandbox.check.trial import Family, Trial
from gymhost.envs.sandbox.pool import Pool
from gymhost.envs.sandbox.spec import SandboxSpec
from gymhost.wire.errors import Error, InvalidArgument, SandboxUnavailable

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
        families: Which families to check, of `FAMILIES`; None for all.
        progress: Told what is checked next.

    Returns:
        What was found: a limit that is not in force is advice, what does not hold is an error.

    Raises:
        InvalidArgument: There is no such family.
        SandboxUnavailable: This machine can't use the backend; the message says what to install or set.
    """
    chosen = list(_FAMILIES) if families is None else [name for name in _FAMILIES if name in families]
    for name in families or ():
        if name not in _FAMILIES:
            raise InvalidArgument(f"there is no family {name!r}: it is one of {', '.join(_FAMILIES)}")
    if problem := await backend.problem():
        raise SandboxUnavailable(problem)
    spec = SandboxSpec() if spec is None else spec
    pool = Pool(backend)

    def say(title: str) -> None:
        if progress is not None:
            progress(title)

    report = Report(f"sandbox {backend.name}", purpose="run what a model wrote")
    if len(chosen) < len(_FAMILIES):
        report.purpose += f", as far as {' and '.join(chosen)} can tell"
    with secrets_planted() as secrets:
        say("making one")
        report.findings.append(await _made(pool, spec, secrets))
        if not report.ok:
            return report
        found: dict[str, list[Finding]] = {}

        async def run(family: Family) -> None:
            found[family.name] = [_NO_ISOLATION]
            if family is isolation.FAMILY and not backend.isolates:
                return
            found[family.name] = []
            for case in family.cases:
                say(f"{family.name}: {case.topic}")
                found[family.name].append(await Trial(pool, spec, secrets).run(family, case))

        async with asyncio.TaskGroup() as together:
            for name in chosen:
                if not _FAMILIES[name].alone:
                    together.create_task(run(_FAMILIES[name]))
        for name in chosen:
            if _FAMILIES[name].alone:
                await run(_FAMILIES[name])
    report.findings += [finding for name in chosen for finding in found[name]]
    return report


async def _made(pool: Pool, spec: SandboxSpec, secrets: Secrets) -> Finding:
    """Makes one, so that what is wrong with all is told once."""
    trial = Trial(pool, spec, secrets)
    started = time.monotonic()
    try:
        async with trial.sandbox() as sandbox:
            result = await sandbox.run("echo fine")
            seconds = time.monotonic() - started
    except (Error, OSError) as error:
        return Finding("error", "making one", f"{type(error).__name__}: {error}")
    if result.stdout != "fine\n":
        return Finding("error", "making one", f"`echo fine` gave {result}")
    return Finding("ok", "making one", f"The first answer came after {1000 * seconds:.0f} ms.")
