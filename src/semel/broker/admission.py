"""Decides whether a CONNECT is accepted, and on what terms.

    CONNECT ─▶ decide_connect ─┬─▶ ConnectRefused      CONNACK with a reason code, then closed
    Proof ────▶ decide_proved ─┼─▶ ConnectAccepted     the terms, which CONNACK announces
    AUTH ─────▶ decide_step ───┼─▶ ConnectChallenged   AUTH 0x18: the authentication continues
                               └─▶ ConnectDeferred     a Proof decides in another thread

This module decides and changes nothing: `Connecting` applies the decision. The limits in CONNACK
come from the same settings that the broker enforces. Features without a limit (QoS, retained
messages, wildcards, shared subscriptions, subscription identifiers) are not in CONNACK, which in
5.0 means that they are available.
"""

from collections.abc import Callable
from typing import Final, final

from semel.broker.access_control import AccessControl
from semel.broker.arrivals import Arrivals
from semel.broker.authority import (
    Authority,
    Challenge,
    Denied,
    Granted,
    Proof,
    ServerAuthentication,
    Step,
)
from semel.broker.connection import Connection
from semel.broker.identity import Identity
from semel.broker.listener_limits import ListenerLimits
from semel.broker.memory import Memory
from semel.broker.session_shares import SessionShares
from semel.broker.session_state import SessionState
from semel.broker.settings import BrokerSettings
from semel.counts import count
from semel.mqtt.codec import encode
from semel.mqtt.packet_types import CONNACK, MQTT5, MQTT311
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    CONTINUE_AUTHENTICATION,
    MALFORMED_PACKET,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    REASONS_5,
    REFUSED_BAD_USER_NAME_OR_PASSWORD,
    REFUSED_IDENTIFIER_REJECTED,
    REFUSED_NOT_AUTHORIZED,
    REFUSED_PROTOCOL_VERSION,
    REFUSED_SERVER_UNAVAILABLE,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
    SUCCESS,
    UNSPECIFIED_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    USE_ANOTHER_SERVER,
)
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.side import DEFAULT_RECEIVE_MAXIMUM
from semel.mqtt.topics import check_levels
from semel.mqtt.violation import Violation
from semel.mqtt.wire import MAXIMUM_TWO_BYTES

# [3.1.1 §3.2.2.3] The return code of 3.1.1 for a reason code of 5.0; for any other code it is 5.
_RETURN_CODES: Final = {
    UNSUPPORTED_PROTOCOL_VERSION: REFUSED_PROTOCOL_VERSION,
    CLIENT_IDENTIFIER_NOT_VALID: REFUSED_IDENTIFIER_REJECTED,
    SERVER_UNAVAILABLE: REFUSED_SERVER_UNAVAILABLE,
    SERVER_BUSY: REFUSED_SERVER_UNAVAILABLE,
    QUOTA_EXCEEDED: REFUSED_SERVER_UNAVAILABLE,
    USE_ANOTHER_SERVER: REFUSED_SERVER_UNAVAILABLE,
    BAD_USER_NAME_OR_PASSWORD: REFUSED_BAD_USER_NAME_OR_PASSWORD,
}


# An Authority that logs its refusals logs those with these codes: others are of the broker.
_LOGGED_DENIALS: Final = (BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, QUOTA_EXCEEDED)


@final
class ConnectRefused:
    """Send `connack`, then close the connection. `reason` is a 5.0 code, whatever the version."""

    reason: Final[int]
    # An explanation, if the code alone is not specific enough.
    detail: Final[str | None]
    connack: Final[ConnAck]
    # Whether the authority has logged it.
    is_logged: bool

    def __init__(self, reason: int, detail: str | None, connack: ConnAck) -> None:
        self.reason = reason
        self.detail = detail
        self.connack = connack
        self.is_logged = False


@final
class ConnectDeferred:
    """Not decided yet: run `proof` in another thread, and decide by its result."""

    proof: Final[Proof]

    def __init__(self, proof: Proof) -> None:
        self.proof = proof


@final
class ConnectChallenged:
    """Not decided yet: send `auth`, which asks the client for more data."""

    authentication: Final[ServerAuthentication]
    # Who the client is, unless the authentication says otherwise.
    identity: Final[Identity]
    auth: Final[Auth]

    def __init__(
        self, authentication: ServerAuthentication, identity: Identity, auth: Auth
    ) -> None:
        self.authentication = authentication
        self.identity = identity
        self.auth = auth


@final
class ConnectAccepted:
    """The terms of an accepted connection; `properties` announces them to the client."""

    client_id: Final[str]
    identity: Final[Identity]
    # In seconds: how long the session outlives the connection, and the Keep Alive.
    expiry_interval: Final[int]
    keep_alive: Final[int]
    # How many QoS 1 and 2 messages may be sent to the client without an acknowledgement.
    receive_maximum: Final[int]
    properties: Final[Properties]
    # For re-authentication.
    authentication: Final[ServerAuthentication | None]

    def __init__(
        self,
        client_id: str,
        *,
        identity: Identity,
        expiry_interval: int,
        keep_alive: int,
        receive_maximum: int,
        properties: Properties,
        authentication: ServerAuthentication | None,
    ) -> None:
        self.client_id = client_id
        self.identity = identity
        self.expiry_interval = expiry_interval
        self.keep_alive = keep_alive
        self.receive_maximum = receive_maximum
        self.properties = properties
        self.authentication = authentication


ConnectDecision = ConnectRefused | ConnectDeferred | ConnectChallenged | ConnectAccepted


@final
class Admission:
    """Decides about every CONNECT by the settings and the Authority."""

    _settings: Final[BrokerSettings]
    _authority: Final[Authority]
    _access: Final[AccessControl]
    _new_client_id: Final[Callable[[], str]]
    _sessions: Final[dict[str, SessionState]]
    _arrivals: Final[Arrivals]
    _shares: Final[SessionShares]
    _memory: Final[Memory]

    def __init__(
        self,
        settings: BrokerSettings,
        authority: Authority,
        *,
        access: AccessControl,
        new_client_id: Callable[[], str],
        sessions: dict[str, SessionState],
        arrivals: Arrivals,
        shares: SessionShares,
        memory: Memory,
    ) -> None:
        """`sessions` has all sessions by client identifier; `shares` knows the idle ones."""
        self._settings = settings
        self._authority = authority
        self._access = access
        self._new_client_id = new_client_id
        self._sessions = sessions
        self._arrivals = arrivals
        self._shares = shares
        self._memory = memory

    def decide_connect(self, packet: Connect, connection: Connection) -> ConnectDecision:
        """Decide about a CONNECT."""
        refusal = self._refuse_connection(packet, connection)
        if refusal is not None:
            return refusal
        if packet.will is not None:
            try:
                check_levels(packet.will.topic_name, connection.limits.topic_levels)
            except Violation as violation:
                detail = f"{violation.rule.name} in the will: {violation.seen}"
                return refuse_connect(packet, violation.rule.reason, detail)
        decided = self._authority.connect(packet, connection.peer_info)
        if isinstance(decided, Proof):
            return ConnectDeferred(decided)
        return self.decide_proved(packet, connection, decided)

    def decide_proved(
        self, packet: Connect, connection: Connection, decided: Identity | Denied
    ) -> ConnectDecision:
        """Decide about a CONNECT after its Proof, or without one."""
        if isinstance(decided, Denied):
            return self._refuse_denied(packet, decided)
        method = packet.properties.authentication_method
        if method is None:
            return self._decide_identity(packet, connection, decided, None, None)
        refusal = self._refuse_without_room(packet)
        if refusal is not None:
            return refusal
        authentication = self._authority.begin_authentication(method, packet, connection.peer_info)
        if authentication is None:
            # [MQTT-4.12.0-1]
            return refuse_connect(packet, BAD_AUTHENTICATION_METHOD)
        step = authentication.start(packet.properties.authentication_data)
        return self.decide_step(packet, connection, decided, step, authentication)

    def decide_step(
        self,
        packet: Connect,
        connection: Connection,
        identity: Identity,
        step: Step,
        authentication: ServerAuthentication,
    ) -> ConnectDecision:
        """Decide about a CONNECT after the next step of its enhanced authentication."""
        if isinstance(step, Granted):
            proved = identity if step.identity is None else step.identity
            return self._decide_identity(packet, connection, proved, step.data, authentication)
        if isinstance(step, Challenge):
            method = packet.properties.authentication_method
            assert method is not None
            return ConnectChallenged(authentication, identity, next_auth(method, step))
        # [MQTT-4.12.0-4]
        return self._refuse_denied(packet, step)

    def _refuse_denied(self, packet: Connect, denied: Denied) -> ConnectRefused:
        refusal = refuse_connect(packet, denied.reason, denied.reason_string)
        refusal.is_logged = self._authority.logs_refusals and denied.reason in _LOGGED_DENIALS
        return refusal

    def _decide_identity(
        self,
        packet: Connect,
        connection: Connection,
        identity: Identity,
        data: bytes | None,
        authentication: ServerAuthentication | None,
    ) -> ConnectDecision:
        """Decide about a client that has proved who it is; `data` is for its CONNACK.

        This comes last, so that an unauthorized client cannot learn which sessions exist.
        """
        # Others may have connected meanwhile.
        refusal = self._refuse_connection(packet, connection)
        if refusal is not None:
            return refusal
        client_id = packet.client_id or self._assigned_id()
        if identity.client_id != client_id:
            identity = identity.with_client_id(client_id)
        existing = self._sessions.get(client_id)
        if existing is not None and not self.may_use_session(identity, existing):
            return refuse_connect(
                packet,
                CLIENT_IDENTIFIER_NOT_VALID,
                "the session with this client identifier belongs to another user",
            )
        refusal = self._refuse_for_user(packet, identity, existing)
        if refusal is not None:
            return refusal
        will = packet.will
        if will is not None:
            reason = self._access.publish(
                identity, will.topic_name, qos=will.qos, retain=will.retain
            )
            if reason != SUCCESS:
                return refuse_connect(packet, reason, "the client may not publish its will")
        refusal = self._refuse_without_room(packet)
        if refusal is not None:
            return refusal
        return self._accept(packet, connection.limits, identity, authentication, data)

    def may_use_session(self, identity: Identity, state: SessionState) -> bool:
        """Whether the client may resume, take over or discard this session."""
        return not state.has_known_owner or self._authority.may_use_session(
            identity, state.identity
        )

    def _refuse_without_room(self, packet: Connect) -> ConnectRefused | None:
        """Refuse a client that needs a new session if there is no room; None: there is."""
        if packet.client_id in self._sessions:
            return None
        if self._memory.is_short:
            return refuse_connect(packet, SERVER_BUSY, "the server is short of memory")
        maximum = self._settings.maximum_sessions
        # An idle session can be discarded for it.
        if len(self._sessions) >= maximum and not self._shares.has_idle():
            detail = f"no more than {count(maximum, 'session')} at a time"
            return refuse_connect(packet, QUOTA_EXCEEDED, detail)
        return None

    def _refuse_connection(self, packet: Connect, connection: Connection) -> ConnectRefused | None:
        """Refuse a client if there are too many connections; None: there are not.

        The limits are those of all connections, of its listener, and of its address there.
        """
        arrivals = self._arrivals
        limits = connection.limits
        listener = limits.listener
        limit = 0
        where = ""
        if arrivals.connected >= self._settings.maximum_connections:
            limit = self._settings.maximum_connections
        elif 0 < limits.maximum_connections <= arrivals.by_listener.get(listener, 0):
            limit, where = limits.maximum_connections, " of this listener"
        elif (
            0
            < limits.maximum_connections_per_address
            <= arrivals.by_address.get((listener, connection.address), 0)
        ):
            limit, where = limits.maximum_connections_per_address, " from one address"
        if not limit:
            return None
        detail = f"no more than {count(limit, 'connection')}{where} at a time"
        return refuse_connect(packet, SERVER_BUSY, detail)

    def _refuse_for_user(
        self, packet: Connect, identity: Identity, existing: SessionState | None
    ) -> ConnectRefused | None:
        """Refuse a client if its user has too many connections; None: the user has not."""
        limit = self._settings.maximum_connections_per_user
        user_name = identity.proved_user
        if not limit or user_name is None:
            return None
        connected = self._arrivals.by_user.get(user_name, 0)
        if existing is not None and existing.connection:
            # The client takes over its own connection.
            connected -= existing.identity.proved_user == user_name
        if connected < limit:
            return None
        detail = f"no more than {count(limit, 'connection')} of one user at a time"
        return refuse_connect(packet, QUOTA_EXCEEDED, detail)

    def _accept(
        self,
        packet: Connect,
        limits: ListenerLimits,
        identity: Identity,
        authentication: ServerAuthentication | None,
        data: bytes | None,
    ) -> ConnectAccepted:
        settings = self._settings
        client_id = identity.client_id
        requested = requested_expiry(packet)
        expiry = min(requested, settings.maximum_session_expiry)
        keep_alive = _keep_alive(packet, limits.maximum_keep_alive)
        receive_maximum = settings.inflight_window
        properties = NO_PROPERTIES
        if packet.version == MQTT5:
            receive_maximum = packet.properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
            properties = Properties(
                assigned_client_identifier=None if packet.client_id else client_id,
                session_expiry_interval=expiry if expiry != requested else None,
                server_keep_alive=keep_alive if keep_alive != packet.keep_alive else None,
                receive_maximum=limits.receive_maximum,
                maximum_packet_size=limits.maximum_packet_size,
                topic_alias_maximum=limits.topic_alias_maximum or None,
                # [MQTT-4.12.0-5] the method of CONNECT, or none
                authentication_method=packet.properties.authentication_method,
                authentication_data=data,
            )
            properties = self._with_response_information(packet, client_id, properties)
        return ConnectAccepted(
            client_id,
            identity=identity,
            expiry_interval=expiry,
            keep_alive=keep_alive,
            receive_maximum=receive_maximum,
            properties=properties,
            authentication=authentication,
        )

    def _with_response_information(
        self, packet: Connect, client_id: str, properties: Properties
    ) -> Properties:
        """Add Response Information if the client asked for it [MQTT-3.1.2-28] and it fits."""
        prefix = self._settings.response_topic_prefix
        if prefix is None or packet.properties.request_response_information != 1:
            return properties
        topic_name = response_topic(prefix, client_id)
        extended = Properties(properties.items, response_information=topic_name)
        return extended if _fits(ConnAck(properties=extended), packet) else properties

    def _assigned_id(self) -> str:
        """A client identifier that no session has [MQTT-3.2.2-16]."""
        while True:
            client_id = self._new_client_id()
            if client_id not in self._sessions:
                return client_id


def _keep_alive(packet: Connect, maximum: int) -> int:
    """The client's Keep Alive, or the Server Keep Alive [3.2.2.3.14], which 3.1.1 lacks."""
    requested = packet.keep_alive
    if packet.version == MQTT311 or maximum == 0 or maximum == MAXIMUM_TWO_BYTES:
        return requested
    return min(requested, maximum) if requested else maximum


def requested_expiry(packet: Connect) -> int:
    """The requested Session Expiry Interval [3.1.2.11.2]; in 3.1.1 it is either 0 or forever."""
    if packet.version == MQTT311:
        return 0 if packet.clean_start else NEVER_EXPIRES
    return packet.properties.session_expiry_interval or 0


def next_auth(method: str, step: Challenge | Granted) -> Auth:
    """The server's AUTH for a step: 0x18 [MQTT-4.12.0-2], or 0x00 after a re-authentication."""
    reason = CONTINUE_AUTHENTICATION if isinstance(step, Challenge) else SUCCESS
    properties = Properties(authentication_method=method, authentication_data=step.data)
    return Auth(reason, properties=properties)


def response_topic(prefix: str, client_id: str) -> str | None:
    """The topic for responses to this client [3.2.2.3.15], None if it cannot have one.

    A wildcard in the client identifier would make the topic name invalid; with a slash it could
    be the topic of another client.
    """
    if "+" in client_id or "#" in client_id or "/" in client_id:
        return None
    topic_name = f"{prefix}/{client_id}"
    return topic_name if len(topic_name.encode()) <= MAXIMUM_TWO_BYTES else None


def refuse_connect(
    packet: Connect, reason: int, detail: str | None = None, *, reference: str | None = None
) -> ConnectRefused:
    """Refuse a CONNECT, with a CONNACK of its version; `reference` is its Server Reference."""
    if reason not in REASONS_5[CONNACK]:
        # The Authority returned a code that is not defined for CONNACK.
        reason = UNSPECIFIED_ERROR
    if packet.version == MQTT311:
        return ConnectRefused(
            reason, detail, ConnAck(_RETURN_CODES.get(reason, REFUSED_NOT_AUTHORIZED))
        )
    # [MQTT-3.1.2-29] CONNACK may have a Reason String even without Request Problem Information
    properties = Properties(reason_string=detail, server_reference=reference)
    connack = ConnAck(reason, properties=properties)
    # [MQTT-3.2.2-19]
    if not _fits(connack, packet):
        connack = ConnAck(reason)
    return ConnectRefused(reason, detail, connack)


def refuse_for_violation(packet: Connect, violation: Violation) -> ConnectRefused:
    """Refuse a CONNECT whose client broke a rule while it authenticated."""
    # [MQTT-3.1.2-30] packets whose rules have other codes than CONNACK are not allowed here anyway
    return refuse_connect(packet, _code_of(violation, PROTOCOL_ERROR), violation.rule.name)


def _code_of(violation: Violation, default: int) -> int:
    """The reason code of the rule, or the default if it is not defined for CONNACK."""
    reason = violation.rule.reason
    return reason if reason in REASONS_5[CONNACK] else default


def _fits(connack: ConnAck, packet: Connect) -> bool:
    """Whether the client of this CONNECT accepts a packet of that size."""
    limit = packet.properties.maximum_packet_size
    return limit is None or len(encode(connack, MQTT5)) <= limit


def answer_to_broken_connect(violation: Violation) -> bytes:
    """The bytes of the CONNACK for a malformed CONNECT; empty if it gets no answer.

    3.1.1 has a return code for an unknown protocol level [MQTT-3.1.2-2] and for an invalid client
    identifier [MQTT-3.1.3-8]. Any other malformed CONNECT of 3.1.1 [MQTT-3.1.4-1], or one whose
    level cannot be read, gets no answer. There is no Reason String, because the client's Maximum
    Packet Size is unknown.
    """
    if violation.version == MQTT5:
        # [2.2.2.2] such a code belongs to a property that CONNECT must not have: malformed
        return encode(ConnAck(_code_of(violation, MALFORMED_PACKET)), MQTT5)
    if violation.rule.return_code:
        return encode(ConnAck(violation.rule.return_code), MQTT311)
    return b""
