"""What an operator imposes on the broker, and is told by it: bans, draining, the audit log, and
violations."""

from typing import Final, final

from semel.broker.audit_events import AuditEvents
from semel.broker.bans import Bans
from semel.broker.recent_violations import RecentViolations
from semel.mqtt.reasons import SERVER_SHUTTING_DOWN, SERVER_UNAVAILABLE, USE_ANOTHER_SERVER


@final
class Draining:
    """Whether the broker refuses new clients, because it is about to be stopped."""

    is_active: bool
    # The Server Reference that clients of 5.0 get [4.11]; None: they are sent nowhere else.
    reference: str | None

    def __init__(self) -> None:
        self.is_active = False
        self.reference = None

    def start(self, reference: str | None) -> None:
        """Refuse new clients from now on."""
        self.is_active = True
        self.reference = reference

    def cancel(self) -> None:
        """Accept clients again."""
        self.is_active = False
        self.reference = None

    @property
    def connack_reason(self) -> int:
        """The reason code with which a new client is refused."""
        return SERVER_UNAVAILABLE if self.reference is None else USE_ANOTHER_SERVER

    @property
    def disconnect_reason(self) -> int:
        """The reason code with which a connected client is disconnected."""
        return SERVER_SHUTTING_DOWN if self.reference is None else USE_ANOTHER_SERVER


@final
class Oversight:
    """Bans, draining, audit events and violations of one broker."""

    bans: Final[Bans]
    draining: Final[Draining]
    audit: Final[AuditEvents]
    violations: Final[RecentViolations]

    def __init__(self) -> None:
        self.bans = Bans()
        self.draining = Draining()
        self.audit = AuditEvents()
        self.violations = RecentViolations()
