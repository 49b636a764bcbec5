"""Tells the audit log who connected, who was refused, and who left, and why.

Events are values for JSON. They never contain passwords, tokens or authentication data. Names that
were not accepted are truncated: clients send tokens in place of a user name, and strangers must not
fill the disk.
"""

from collections.abc import Callable
from typing import Final, final

from semel.broker.connection import Connection
from semel.broker.session_state import SessionState
from semel.mqtt.packets.connect import Connect

# Characters of a user name and of a client identifier that were not accepted, and of the reason.
_USER_CHARACTERS: Final = 32
_CLIENT_CHARACTERS: Final = 64
_DETAIL_CHARACTERS: Final = 200

Event = dict[str, object]


@final
class AuditEvents:
    """Makes the events of connections. Without a receiver it does nothing."""

    # Receives each event, and never raises; None: there is no audit log.
    write: Callable[[Event], None] | None

    def __init__(self, write: Callable[[Event], None] | None = None) -> None:
        self.write = write

    def connected(self, connection: Connection, state: SessionState, version: str) -> None:
        """A CONNECT was accepted."""
        if self.write is not None:
            identity = state.identity
            event = _event("connected", connection)
            event["client"] = state.client_id
            event["user"] = identity.user_name
            event["proof"] = identity.proof
            event["certificate"] = identity.certificate
            event["groups"] = list(identity.groups)
            event["version"] = version
            self.write(event)

    def refused(
        self, connection: Connection, packet: Connect, reason: int, detail: str | None
    ) -> None:
        """A CONNECT was refused, with a reason code of 5.0."""
        if self.write is not None:
            event = _event("refused", connection)
            _add_claims(event, packet)
            event["reason"] = f"0x{reason:02x}"
            event["detail"] = shortened(detail, _DETAIL_CHARACTERS)
            self.write(event)

    def refused_early(self, connection: Connection, detail: str) -> None:
        """The broker closes a connection whose CONNECT it has neither accepted nor refused."""
        if self.write is not None:
            event = _event("refused", connection)
            if connection.pending_connect is not None:
                _add_claims(event, connection.pending_connect)
            event["detail"] = shortened(detail, _DETAIL_CHARACTERS)
            self.write(event)

    def refused_peer(self, peer: str, listener: str, detail: str) -> None:
        """A connection was closed before the handshakes of its transport were complete."""
        if self.write is not None:
            short = shortened(detail, _DETAIL_CHARACTERS)
            self.write({"event": "refused", "address": peer, "listener": listener, "detail": short})

    def disconnected(self, connection: Connection, state: SessionState) -> None:
        """A connected client has left, or was disconnected."""
        if self.write is not None:
            event = _event("disconnected", connection)
            event["client"] = state.client_id
            event["user"] = state.identity.user_name
            event["proof"] = state.identity.proof
            event["detail"] = connection.close_reason or "closed by the broker"
            self.write(event)

    def rights_changed(self) -> None:
        """The rights of users have changed."""
        if self.write is not None:
            self.write({"event": "rights_changed"})


def shortened(text: str | None, limit: int) -> str | None:
    """At most `limit` characters of a text."""
    if text is None or len(text) <= limit:
        return text
    return f"{text[:limit]}… of {len(text)} characters"


def _add_claims(event: Event, packet: Connect) -> None:
    """Add who a client claims to be in a CONNECT that was not accepted."""
    event["client"] = shortened(packet.client_id, _CLIENT_CHARACTERS)
    event["user"] = shortened(packet.user_name, _USER_CHARACTERS)


def _event(name: str, connection: Connection) -> Event:
    return {
        "event": name,
        "address": connection.peer,
        "listener": connection.peer_info.listener,
    }
