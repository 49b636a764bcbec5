"""Which clients broke which rules last, with the first bytes of the packet, for an operator.

A client that breaks the same rule again and again is one entry with a count: entries are
distinguished by rule and by source, which is a user or an address, and not by the client
identifier, which a client can choose anew each time. If there are too many, the entry that was
changed least recently is dropped; `BrokerCounters.violations` still counts it.

Until a client is connected, only the bytes up to the end of the first fields of a CONNECT are kept,
and of an AUTH only the fixed header, because what follows contains credentials.
"""

from typing import Final, final

from semel.broker.connection import Connection
from semel.mqtt.packet_types import AUTH, CONNECT
from semel.mqtt.violation import Rule, Violation

MAXIMUM_ENTRIES: Final = 500
# The fixed header, protocol name, version, flags and Keep Alive of a CONNECT, if its length is
# encoded in one byte.
CONNECT_BYTES: Final = 12
AUTH_BYTES: Final = 2
# Characters that are kept of a client identifier, and of what was seen.
_CLIENT_CHARACTERS: Final = 256
_SEEN_CHARACTERS: Final = 500


@final
class RecentViolation:
    """A rule that a source broke: how often, and how it did the last time."""

    rule: Final[Rule]
    address: str
    client_id: str | None
    user: str | None
    version: int
    packet_type: int
    statements: tuple[str, ...]
    seen: str
    data: bytes
    count: int
    last_at: float

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.address = ""
        self.client_id = None
        self.user = None
        self.version = 0
        self.packet_type = 0
        self.statements = ()
        self.seen = ""
        self.data = b""
        self.count = 0
        self.last_at = 0.0


@final
class RecentViolations:
    """The violations of all clients, at most `maximum_entries`."""

    maximum_entries: int
    # By source and rule; the entry that was changed last is the last one.
    _entries: Final[dict[tuple[str, str], RecentViolation]]

    def __init__(self) -> None:
        self.maximum_entries = MAXIMUM_ENTRIES
        self._entries = {}

    def add(self, connection: Connection, violation: Violation, data: bytes, now: float) -> None:
        """A client broke a rule with a packet that begins with these bytes."""
        key = (connection.log_source, violation.rule.name)
        entry = self._entries.pop(key, None)
        if entry is None:
            if len(self._entries) >= self.maximum_entries:
                self._entries.pop(next(iter(self._entries)))
            entry = RecentViolation(violation.rule)
        self._entries[key] = entry
        state = connection.state
        entry.address = connection.peer
        entry.client_id = None if state is None else state.client_id[:_CLIENT_CHARACTERS]
        entry.user = connection.counted_user
        entry.version = violation.version or connection.exchange.version
        entry.packet_type = violation.packet_type
        entry.statements = violation.statements
        entry.seen = violation.seen[:_SEEN_CHARACTERS]
        entry.data = without_credentials(data, is_connected=state is not None)
        entry.count += 1
        entry.last_at = now

    def newest_first(self) -> list[RecentViolation]:
        """All entries."""
        found = list(self._entries.values())
        found.reverse()
        return found


def without_credentials(data: bytes, *, is_connected: bool) -> bytes:
    """The first bytes of a packet, without what could be a password or authentication data."""
    packet_type = data[0] >> 4 if data else 0
    if packet_type == AUTH:
        return data[:AUTH_BYTES]
    if packet_type == CONNECT or not is_connected:
        return data[:CONNECT_BYTES]
    return data
