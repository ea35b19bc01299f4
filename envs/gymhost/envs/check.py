"""Checks whether an environment is fit to be hosted, and says what to mend."""

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium

from gymhost.envs import checks
from gymhost.envs.checks import Finding
from gymhost.envs.registration import hosted, make

RemoteFactory = Callable[[str, dict[str, Any]], "gymnasium.Env[Any, Any]"]
"""Makes an environment of an id with keyword arguments that runs behind a server."""

_MARKS = {"ok": "ok    ", "advice": "advice", "error": "ERROR "}


@dataclass(slots=True)
class Report:
    """What was found about an environment.

    Attributes:
        id: The environment's id.
        findings: What was found, in the order of the checks.
    """

    id: str
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def ok(self) -> bool:
        """Whether there was no error; advice may be followed or not."""
        return not self.count("error")

    def count(self, level: Literal["ok", "advice", "error"]) -> int:
        """Returns how many findings have a level."""
        return sum(finding.level == level for finding in self.findings)

    def render(self) -> str:
        """Returns the report as text."""
        lines = [self.id]
        for finding in self.findings:
            lines.append(f"  {_MARKS[finding.level]}  {finding.title}")
            lines += [f"          {line}" for line in finding.detail.splitlines()]
        errors, advice = self.count("error"), self.count("advice")
        verdict = "Fit to be hosted" if self.ok else f"Not fit to be hosted: {errors} to mend"
        lines.append(f"{verdict}; {advice} {'piece' if advice == 1 else 'pieces'} of advice.")
        return "\n".join(lines)


def check(id: str, kwargs: dict[str, Any] | None = None, *, remote_factory: RemoteFactory | None = None) -> Report:
    """Checks an environment.

    It is made several times and played for some dozens of episodes. An expert, where a `ToolEnv` names one, chooses the
    actions; else they are random.

    Args:
        id: A registered id.
        kwargs: Keyword arguments to make it with.
        remote_factory: Makes the same environment behind a server; where given, local and remote play are compared.

    Returns:
        What was found.

    Raises:
        gymnasium.error.UnregisteredEnv: No such id is registered.
    """
    report = Report(id)
    hosting = hosted(id)
    kwargs = kwargs or {}

    def new() -> gymnasium.Env[Any, Any]:
        return make(id, **kwargs)

    @contextlib.contextmanager
    def guarded(title: str) -> Iterator[None]:
        """Makes a check that fails by an exception a finding, so that the others still run."""
        try:
            yield
        except Exception:
            report.findings.append(Finding("error", f"{title}: it raised", traceback.format_exc().strip()))

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
    with guarded("Conversation"):
        report.findings += checks.converses(new)
    with guarded("Expert"):
        report.findings += checks.expert_plays(new)
    with guarded("Leaks"):
        report.findings += checks.leaks_nothing(new)
    with guarded("How it runs"):
        report.findings += checks.runs_as_registered(new, hosting)
    if remote_factory is not None:
        with guarded("Over the wire"):
            report.findings += checks.same_over_wire(new, lambda: remote_factory(id, kwargs))
    return report
