"""Handles CONNECT and AUTH: applies the decisions of `Admission`.

CONNECT ─▶ Admission ─▶ refused      CONNACK with a reason code, and the connection is closed
                     ├▶ deferred     the CONNECT waits until a Proof has decided in another thread
                     ├▶ challenged   AUTH 0x18, and the CONNECT waits until the client answers
                     └▶ accepted     the session is taken over, resumed or created; CONNACK
"""

from typing import Final, final

from semel.broker.admission import (
    Admission,
    ConnectAccepted,
    ConnectDecision,
    ConnectDeferred,
    ConnectRefused,
    next_auth,
    refuse_connect,
)
from semel.broker.authority import Challenge, Denied, Granted, Proof
from semel.broker.broker_log import BrokerLog
from semel.broker.connection import Connection
from semel.broker.connections import Connections
from semel.broker.identity import Identity, fits
from semel.broker.lifetimes import Lifetimes
from semel.broker.oversight import Oversight
from semel.broker.revocation import Revocation
from semel.broker.router import Router
from semel.broker.session_state import SessionState, client_label
from semel.broker.settings import BrokerSettings
from semel.broker.turns import RESUME_WORK
from semel.mqtt.packet_types import DISCONNECT, MQTT311
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    BANNED,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    RE_AUTHENTICATE,
    REASONS_5,
    SERVER_UNAVAILABLE,
    SESSION_TAKEN_OVER,
)
from semel.mqtt.session import Session
from semel.mqtt.session_exchanges import open_deliveries
from semel.mqtt.side import SERVER
from semel.store.commit import MAXIMUM_IDENTITY_BYTES
from semel.store.store import FULL

# The Reason String that clients get while the disk is full.
DISK_FULL: Final = "the disk of the server is full"
# The same while the operator drains the broker.
DRAINING: Final = "the server is about to be stopped"
# The same for a client whose identity the store cannot keep.
IDENTITY_TOO_LONG: Final = "the identity of the client is too long for the server to store"


@final
class Connecting:
    """Handles CONNECT and AUTH of all connections."""

    # Proofs to run in another thread, with the connections that wait for them.
    proofs: list[tuple[Connection, Proof]]
    _settings: Final[BrokerSettings]
    _admission: Final[Admission]
    _connections: Final[Connections]
    _router: Final[Router]
    _lifetimes: Final[Lifetimes]
    _revocation: Final[Revocation]
    _oversight: Final[Oversight]
    _log: Final[BrokerLog]

    def __init__(
        self,
        settings: BrokerSettings,
        admission: Admission,
        connections: Connections,
        router: Router,
        lifetimes: Lifetimes,
        revocation: Revocation,
        *,
        oversight: Oversight,
        log: BrokerLog,
    ) -> None:
        self.proofs = []
        self._settings = settings
        self._admission = admission
        self._connections = connections
        self._router = router
        self._lifetimes = lifetimes
        self._revocation = revocation
        self._oversight = oversight
        self._log = log

    def connect(self, connection: Connection, packet: Connect, now: float) -> None:
        """Handle a CONNECT."""
        # Before the client may prove who it is, because that may be slow.
        refusal = self._refuse_for_operator(connection, packet, packet.client_id, None, now)
        if refusal is None:
            decision = self._admission.decide_connect(packet, connection)
            self._apply(connection, packet, decision, now)
        else:
            self._refuse(connection, packet, refusal, now)

    def proved(self, connection: Connection, decided: Identity | Denied, now: float) -> None:
        """Handle the CONNECT that awaited a Proof, which has decided."""
        packet = connection.pending_connect
        assert packet is not None
        connection.awaits_proof = False
        decision = self._admission.decide_proved(packet, connection, decided)
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
            identity = connection.claimed_identity
            assert identity is not None
            decision = self._admission.decide_step(
                pending, connection, identity, step, authentication
            )
            self._apply(connection, pending, decision, now)
        elif isinstance(step, Challenge | Granted):
            if isinstance(step, Granted) and step.identity is not None:
                if not self._renew(connection, step.identity, now):
                    line = f"{connection.label} authenticated again as another user: closed"
                    self._log.problem(connection.log_source, line, now)
                    self._router.counters.reauthentication_failures += 1
                    self._connections.disconnect(connection, NOT_AUTHORIZED, now)
                    return
            method = packet.properties.authentication_method
            assert method is not None
            self._connections.send(connection, next_auth(method, step))
        else:
            # [MQTT-4.12.1-2]
            line = f"{connection.label} failed to re-authenticate: 0x{step.reason:02x}"
            self._log.problem(connection.log_source, line, now)
            self._router.counters.reauthentication_failures += 1
            reason = step.reason if step.reason in REASONS_5[DISCONNECT] else NOT_AUTHORIZED
            self._connections.disconnect(connection, reason, now, step.reason_string)

    def _apply(
        self, connection: Connection, packet: Connect, decision: ConnectDecision, now: float
    ) -> None:
        if isinstance(decision, ConnectAccepted):
            banned = self._refuse_for_operator(
                connection, packet, decision.client_id, decision.identity.user_name, now
            )
            if banned is not None:
                self._refuse(connection, packet, banned, now)
                return
            if self._router.store.condition == FULL and self._needs_store(decision, packet):
                refusal = refuse_connect(packet, QUOTA_EXCEEDED, DISK_FULL)
                self._refuse(connection, packet, refusal, now)
                return
            if not fits(decision.identity, MAXIMUM_IDENTITY_BYTES):
                refusal = refuse_connect(packet, BAD_USER_NAME_OR_PASSWORD, IDENTITY_TOO_LONG)
                self._refuse(connection, packet, refusal, now)
                return
            self._accept(connection, packet, decision, now)
        elif isinstance(decision, ConnectRefused):
            self._refuse(connection, packet, decision, now)
        else:
            connection.pending_connect = packet
            # Until it is authenticated, the client may send small packets only.
            connection.decoder.before_connect = connection.limits.before_connect_packet_size
            if isinstance(decision, ConnectDeferred):
                connection.awaits_proof = True
                self.proofs.append((connection, decision.proof))
                return
            connection.authentication = decision.authentication
            connection.claimed_identity = decision.identity
            self._connections.send(connection, decision.auth)

    def _renew(self, connection: Connection, identity: Identity, now: float) -> bool:
        """A connected client has authenticated again, perhaps with other groups or claims.

        Returns False if it is now somebody else, to whom the session does not belong.
        """
        state = connection.state
        assert state is not None
        identity = identity.with_client_id(state.client_id)
        if not self._admission.may_use_session(identity, state):
            return False
        self._revocation.change_owner(state, identity, now)
        self._router.subscription_shares.set_owner(state)
        self._lifetimes.store_owner(state)
        return True

    def _refuse_for_operator(
        self,
        connection: Connection,
        packet: Connect,
        client_id: str,
        user_name: str | None,
        now: float,
    ) -> ConnectRefused | None:
        """Refuse a client that is banned, or any client while the broker is drained."""
        ban = self._oversight.bans.find(client_id, user_name, connection.peer, now=now)
        if ban is not None:
            return refuse_connect(packet, BANNED, ban.sentence)
        draining = self._oversight.draining
        if draining.is_active:
            reason = draining.connack_reason
            return refuse_connect(packet, reason, DRAINING, reference=draining.reference)
        return None

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
        if not refusal.is_logged:
            self._log.problem(connection.log_source, f"{who}: {code}{detail}", now)
        self._router.counters.refuse_connect(refusal.reason)
        self._connections.audit.refused(connection, packet, refusal.reason, refusal.detail)
        self._connections.send(connection, refusal.connack)
        self._connections.drop(connection, now)

    def _accept(
        self,
        connection: Connection,
        packet: Connect,
        terms: ConnectAccepted,
        now: float,
    ) -> None:
        existing = self._existing_session(connection, packet, terms.client_id, now)
        state = existing
        if state is None:
            self._lifetimes.make_room(now)
            state = SessionState(terms.identity, Session(), 0)
            self._router.sessions[terms.client_id] = state
        elif not self._router.is_readable(state, now):
            # Refused, rather than silently reset, so that the operator notices. A clean start
            # discards the session.
            refusal = refuse_connect(
                packet, SERVER_UNAVAILABLE, "the stored session cannot be read"
            )
            logged = ConnectRefused(refusal.reason, state.damage, refusal.connack)
            self._refuse(connection, packet, logged, now)
            return
        # Before anything else changes, because this may fail; and before the Exchange begins,
        # because it may drop messages in flight.
        self._revocation.change_owner(state, terms.identity, now)
        self._router.subscription_shares.set_owner(state)
        self._attach(connection, state, packet, terms)
        present = existing is not None
        connack = ConnAck(session_present=present, properties=terms.properties)
        self._connections.send(connection, connack)
        self._open_session(connection, state, packet, terms)
        version = "3.1.1" if packet.version == MQTT311 else "5.0"
        line = f"{connection.label} connected with MQTT {version}"
        self._log.connection(connection.log_source, line, now)
        self._connections.audit.connected(connection, state, version)

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
            line = f"{other.label} taken over by a new connection from {connection.peer}"
            self._log.connection(other.log_source, line, now)
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
        state.maximum_subscriptions = connection.limits.maximum_subscriptions
        state.messages_sent = 0
        self._lifetimes.begin(state, terms.expiry_interval, packet.will, address=connection.address)
        self._router.gate.begin_session(state)
        self._router.work += RESUME_WORK * state.session.in_flight
        session = state.session
        connection.exchange.resume(open_deliveries(session, SERVER), session.stored_ids)

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
        self._router.subscriptions.set_connected(terms.client_id, is_connected=True)
        state.session.room = self._settings.maximum_outgoing_bytes
        state.session.maximum_in_flight_bytes = self._settings.maximum_inflight_bytes
        state.session.maximum_in_flight = connection.limits.maximum_inflight_messages
        aliases = min(client.topic_alias_maximum, self._settings.client_topic_aliases)
        connection.alias_maximum = aliases
        connection.maximum_alias_bytes = self._settings.maximum_alias_bytes
        connection.aliases = {} if aliases else None
        state.uses_aliases = aliases > 0
        self._router.mark_dirty(state)
