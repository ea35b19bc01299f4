"""Checks whether an environment is fit to be hosted, and says what to mend."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator
from typing import Any

import gymnasium

from gymhost.envs import checks, conversation_checks, fork_check
from gymhost.envs.faults import Fault, fault_of
from gymhost.envs.findings import Finding, Report
from gymhost.envs.registration import hosted, make

__all__ = ["Finding", "RemoteFactory", "Report", "check"]

RemoteFactory = Callable[[str, dict[str, Any]], "gymnasium.Env[Any, Any]"]
"""Makes an environment of an id with keyword arguments that runs behind a server."""


def check(
    id: str,
    kwargs: dict[str, Any] | None = None,
    *,
    remote_factory: RemoteFactory | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Checks an environment.

    It is made several times and played for some dozens of episodes. An expert, where a `ToolEnv` names one, chooses the
    actions; else they are random.

    Args:
        id: A registered id.
        kwargs: Keyword arguments to make it with.
        remote_factory: Makes the same environment behind a server; where given, local and remote play are compared, and
            whether it is replayable is found out.
        progress: Told the name of each check before it begins.

    Returns:
        What was found.

    Raises:
        gymnasium.error.UnregisteredEnv: No such id is registered.
    """
    report = Report(id)
    hosting = hosted(id)
    kwargs = kwargs or {}
    before = checks.surroundings()
    # The finding of each fault and the checks that it ended: one that ends several is told once.
    told: dict[Fault, tuple[int, list[str]]] = {}

    def new() -> gymnasium.Env[Any, Any]:
        return make(id, **kwargs)

    @contextlib.contextmanager
    def guarded(title: str) -> Generator[None, None, None]:
        """Makes a check that fails by an exception a finding, so that the others still run."""
        if progress is not None:
            progress(title)
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is a finding
            fault, trace = fault_of(error)
            if fault not in told:
                told[fault] = len(report.findings), [title]
                detail = f"{fault.message}\nRaised at {fault.place}\n\n{trace}"
                report.findings.append(Finding("error", f"{title}: it raised", detail))
            else:
                index, ended = told[fault]
                ended.append(title)
                first = report.findings[index]
                report.findings[index] = dataclasses.replace(first, title=f"{', '.join(ended)}: it raised")

    with guarded("Making it"):
        new().close()
    if not report.ok:
        return report
    with guarded("Gymnasium's checker"):
        report.findings += checks.gymnasium_rules(id, kwargs)
    with guarded("What travels"):
        report.findings += checks.travels(new)
    with guarded("Determinism"):
        report.findings += checks.is_deterministic(new)
    with guarded("Forks"):
        report.findings += fork_check.forks_go_on(new)
    with guarded("Conversation"):
        report.findings += conversation_checks.converses(new)
    with guarded("Expert, idler and cheats"):
        report.findings += conversation_checks.policies_play(new)
    with guarded("Leaks"):
        report.findings += checks.leaks_nothing(new)
    with guarded("How it runs"):
        report.findings += checks.runs_as_registered(new, hosting)
        report.findings += checks.keeps_surroundings(before, hosting)
    if remote_factory is not None:
        with guarded("Over the wire"):
            report.findings += checks.same_over_wire(new, lambda: remote_factory(id, kwargs))
        with guarded("Replay"):
            report.findings += checks.repeats_elsewhere(new, lambda: remote_factory(id, kwargs), hosting)
    return report
