"""What the audit of a connection finds, whichever of its sides is examined."""

from dataclasses import dataclass

from semel.mqtt import Violation


@dataclass(frozen=True)
class AuditFinding:
    """A rule that the subject broke by sending `data`, whatever case was being run."""

    violation: Violation
    link: int
    data: bytes
