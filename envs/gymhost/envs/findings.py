"""What checks find, and the report that it adds up to."""

from dataclasses import dataclass, field
from typing import Literal

Level = Literal["ok", "advice", "error"]

_MARKS = {"ok": "ok    ", "advice": "advice", "error": "ERROR "}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        level: `ok`, `advice` (better otherwise) or `error` (to be mended before it is used).
        title: What was found, in a line.
        detail: More about it, and what to mend.
    """

    level: Level
    title: str
    detail: str = ""


@dataclass(slots=True)
class Report:
    """What was found about an environment, or about something else that can be checked.

    Attributes:
        id: What was checked, such as the environment's id.
        findings: What was found, in the order of the checks.
        purpose: What it is to be fit for.
    """

    id: str
    findings: list[Finding] = field(default_factory=list[Finding])
    purpose: str = "be hosted"

    @property
    def ok(self) -> bool:
        """Whether there was no error; advice may be followed or not."""
        return not self.count("error")

    def count(self, level: Level) -> int:
        """Returns how many findings have a level."""
        return sum(finding.level == level for finding in self.findings)

    def render(self) -> str:
        """Returns the report as text."""
        lines = [self.id]
        for finding in self.findings:
            lines.append(f"  {_MARKS[finding.level]}  {finding.title}")
            lines += [f"          {line}" for line in finding.detail.splitlines()]
        errors, advice = self.count("error"), self.count("advice")
        verdict = f"Fit to {self.purpose}" if self.ok else f"Not fit to {self.purpose}: {errors} to mend"
        lines.append(f"{verdict}; {advice} {'piece' if advice == 1 else 'pieces'} of advice.")
        return "\n".join(lines)
