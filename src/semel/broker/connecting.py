"""Handles CONNECT and AUTH: applies the decisions of `Admission`.

CONNECT ─▶ Admission ─▶ refused      CONNACK with a reason code, and the connection is closed
                     ├▶ challenged   AUTH 0x18, and the CONNECT waits until the client answers
                     └▶ accepted     the session is taken over, resumed or created; CONNACK
"""

from collections.abc import Callable
from typing import Final, final

from semel.broker.admission import (
    Admission,
    ConnectAccepted,
    ConnectChallenged,
    ConnectDecision,
    ConnectRefused,
    next_auth,
    refuse_connect,
)
from semel.broker.authority import Challenge, Granted
from semel.broker.connection import Connection
from semel.broker.connections import Connections
from semel.broker.lifetimes import Lifetimes
from semel.broker.router import Router
from semel.broker.session_state import SessionState, client_label
from semel.broker.settings import BrokerSettings
from semel.broker.turns import RESUME_WORK
from semel.mqtt.exchange import Exchange
from semel.mqtt.packet_types import DISCONNECT, MQTT311
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.reasons import (
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    RE_AUTHENTICATE,
    REASONS_5,
    SERVER_UNAVAILABLE,
    SESSION_TAKEN_OVER,
)
from semel.mqtt.session import Session
from semel.mqtt.session_exchanges import open_deliveries
from semel.mqtt.side import CLIENT, SERVER
from semel.store.store import FULL

# The Reason String that clients get while the disk is full.
DISK_FULL: Final = "the disk of the server is full"


@final
class Connecting:
    """Handles CONNECT and AUTH of all connections."""

    _settings: Final[BrokerSettings]
    _admission: Final[Admission]
    _connections: Final[Connections]
    _router: Final[Router]
    _lifetimes: Final[Lifetimes]
    _log: Final[Callable[[str], None]]
    _log_connection: Final[Callable[[str], None]]

    def __init__(
        self,
        settings: BrokerSettings,
        admission: Admission,
        connections: Connections,
        router: Router,
        lifetimes: Lifetimes,
        *,
        log: Callable[[str], None],
        log_connection: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._connections = connections
        self._router = router
        self._lifetimes = lifetimes
        self._log = log
        self._log_connection = log_connection

    def connect(self, connection: Connection, packet: Connect, now: float) -> None:
        """Handle a CONNECT."""
        connected = self._connections.arrivals.connected + 1
        decision = self._admission.decide_connect(packet, connection.peer, connected)
        self._apply(connection, packet, decision, now)

    def authenticate(self, connection: Connection, packet: Auth, now: float) -> None:
        """Handle an AUTH that the Exchange has allowed: one step of authentication [4.12]."""
        authentication = connection.authentication
        assert authentication is not None
        data = packet.properties.authentication_data
        if packet.reason == RE_AUTHENTICATE:
            step = authentication.start(data)
        else:
            step = authentication.answer(data)
        pending = connection.pending_connect
        if pending is not None:
            connected = self._connections.arrivals.connected + 1
            decision = self._admission.decide_step(pending, authentication, step, connected)
            self._apply(connection, pending, decision, now)
        elif isinstance(step, Challenge | Granted):
            method = packet.properties.authentication_method
            assert method is not None
            self._connections.send(connection, next_auth(method, step))
        else:
            # [MQTT-4.12.1-2]
            self._log(f"{connection.label} failed to re-authenticate: 0x{step.reason:02x}")
            reason = step.reason if step.reason in REASONS_5[DISCONNECT] else NOT_AUTHORIZED
            self._connections.disconnect(connection, reason, now, step.reason_string)

    def _apply(
        self, connection: Connection, packet: Connect, decision: ConnectDecision, now: float
    ) -> None:
        if isinstance(decision, ConnectAccepted):
            if self._router.store.condition == FULL and self._needs_store(decision, packet):
                refusal = refuse_connect(packet, QUOTA_EXCEEDED, DISK_FULL)
                self._refuse(connection, packet, refusal, now)
                return
            self._accept(connection, packet, decision, now)
        elif isinstance(decision, ConnectChallenged):
            connection.pending_connect = packet
            connection.authentication = decision.authentication
            # Until it is authenticated, the client may send small packets only.
            connection.decoder.before_connect = self._settings.before_connect_packet_size
            self._connections.send(connection, decision.auth)
        else:
            self._refuse(connection, packet, decision, now)

    def _needs_store(self, terms: ConnectAccepted, packet: Connect) -> bool:
        """Whether accepting the client requires a commit: of its session or its will."""
        if terms.expiry_interval or packet.will is not None:
            return True
        existing = self._router.sessions.get(terms.client_id)
        return existing is not None and existing.is_durable

    def _refuse(
        self, connection: Connection, packet: Connect, refusal: ConnectRefused, now: float
    ) -> None:
        detail = "" if refusal.detail is None else f", {refusal.detail!a}"
        code = f"0x{refusal.reason:02x}"
        who = f"{connection.peer} was refused as {client_label(packet.client_id)}"
        self._log(f"{who}: {code}{detail}")
        self._connections.send(connection, refusal.connack)
        self._connections.drop(connection, now)

    def _accept(
        self, connection: Connection, packet: Connect, terms: ConnectAccepted, now: float
    ) -> None:
        existing = self._existing_session(connection, packet, terms.client_id, now)
        state = existing
        if state is None:
            self._lifetimes.make_room(now)
            state = SessionState(terms.client_id, Session(), 0)
            self._router.sessions[terms.client_id] = state
        elif not self._router.is_readable(state):
            # Refused, rather than silently reset, so that the operator notices. A clean start
            # discards the session.
            refusal = refuse_connect(
                packet, SERVER_UNAVAILABLE, "the stored session cannot be read"
            )
            logged = ConnectRefused(refusal.reason, state.damage, refusal.connack)
            self._refuse(connection, packet, logged, now)
            return
        self._attach(connection, state, packet, terms)
        present = existing is not None
        connack = ConnAck(session_present=present, properties=terms.properties)
        self._connections.send(connection, connack)
        self._open_session(connection, state, packet, terms)
        version = "3.1.1" if packet.version == MQTT311 else "5.0"
        self._log_connection(f"{connection.label} connected with MQTT {version}")

    def _existing_session(
        self, connection: Connection, packet: Connect, client_id: str, now: float
    ) -> SessionState | None:
        """The session that the client resumes, or None.

        First closes an older connection of the client, publishes a will that is due, and ends the
        session if it has expired or the client starts clean.
        """
        state = self._router.sessions.get(client_id)
        if state is not None and state.connection:
            # [MQTT-3.1.4-3] the newer connection takes over
            other = self._connections.by_number[state.connection]
            self._log_connection(
                f"{other.label} taken over by a new connection from {connection.peer}"
            )
            self._connections.disconnect(other, SESSION_TAKEN_OVER, now)
            state = self._router.sessions.get(client_id)
        if state is not None:
            # A will or an expiry may be due that no sweep has handled yet.
            self._lifetimes.check(state, now)
            state = self._router.sessions.get(client_id)
        if state is not None and packet.clean_start:
            # [MQTT-3.1.2-4]
            self._lifetimes.end(state, now)
            state = None
        return state

    def _attach(
        self,
        connection: Connection,
        state: SessionState,
        packet: Connect,
        terms: ConnectAccepted,
    ) -> None:
        """Attach the session to this connection."""
        connection.state = state
        self._connections.arrivals.admitted(connection)
        connection.pending_connect = None
        connection.authentication = terms.authentication
        connection.decoder.before_connect = 0
        connection.keep_alive = terms.keep_alive
        state.connection = connection.number
        state.user_name = packet.user_name
        self._lifetimes.begin(state, terms.expiry_interval, packet.will, address=connection.address)
        self._router.gate.begin_session(state)
        self._router.work += RESUME_WORK * state.session.in_flight
        exchange = Exchange(open_deliveries(state.session, SERVER))
        exchange.client.carry_received(state.session.stored_ids)
        exchange.observe(CLIENT, packet, 0)
        connection.exchange = exchange

    def _open_session(
        self,
        connection: Connection,
        state: SessionState,
        packet: Connect,
        terms: ConnectAccepted,
    ) -> None:
        """Let the session send, within the limits of the client and of the settings."""
        client = connection.exchange.client
        state.session.connect(
            packet.version,
            receive_maximum=terms.receive_maximum,
            maximum_packet_size=client.maximum_packet_size,
        )
        self._router.subscriptions.set_connected(terms.client_id, True)
        state.session.room = self._settings.maximum_outgoing_bytes
        state.session.maximum_in_flight_bytes = self._settings.maximum_inflight_bytes
        state.session.maximum_in_flight = self._settings.maximum_inflight_messages
        aliases = min(client.topic_alias_maximum, self._settings.client_topic_aliases)
        connection.alias_maximum = aliases
        connection.maximum_alias_bytes = self._settings.maximum_alias_bytes
        connection.aliases = {} if aliases else None
        state.uses_aliases = aliases > 0
        self._router.mark_dirty(state)
