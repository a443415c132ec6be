"""Findings of an examination: one sentence each, its grade, and what would mend it."""

import enum
from dataclasses import dataclass

__all__ = ["Area", "Examination", "Finding", "Grade"]


class Grade(enum.StrEnum):
    """How a thing stands."""

    FINE = "fine"
    ABSENT = "absent"  # not there, and nothing but what it would give is missing
    POOR = "poor"  # works, and will trouble some people
    BROKEN = "broken"  # something essential does not work


class Area(enum.StrEnum):
    """Where a thing belongs."""

    INSTALLED = "installed"
    EXTRAS = "extras"
    DEVICES = "devices"
    ENGINES = "engines"
    FOLDER = "folder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at; `mend` is a command or an advice, empty where nothing needs one."""

    area: Area
    name: str
    state: Grade
    says: str
    mend: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """All findings, in the order in which they are told."""

    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing essential is broken."""
        return not self.of(Grade.BROKEN)

    def of(self, state: Grade) -> tuple[Finding, ...]:
        """Return the findings of one state."""
        return tuple(finding for finding in self.findings if finding.state is state)
