"""Decides whether a CONNECT is accepted, and on what terms.

    CONNECT ─▶ decide_connect ─┬─▶ ConnectRefused      CONNACK with a reason code, then closed
                               ├─▶ ConnectAccepted     the terms, which CONNACK announces
    AUTH ─────▶ decide_step ───┴─▶ ConnectChallenged   AUTH 0x18: the authentication continues

This module decides and changes nothing: `Connecting` applies the decision. The limits in CONNACK
come from the same settings that the broker enforces. Features without a limit (QoS, retained
messages, wildcards, shared subscriptions, subscription identifiers) are not in CONNACK, which in
5.0 means that they are available.
"""

from collections.abc import Callable, Collection
from typing import Final, final

from semel.broker.authority import Authority, Challenge, Granted, ServerAuthentication, Step
from semel.broker.memory import Memory
from semel.broker.session_shares import SessionShares
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
    BAD_USER_NAME_OR_PASSWORD: REFUSED_BAD_USER_NAME_OR_PASSWORD,
}


@final
class ConnectRefused:
    """Send `connack`, then close the connection. `reason` is a 5.0 code, whatever the version."""

    reason: Final[int]
    # An explanation, if the code alone is not specific enough.
    detail: Final[str | None]
    connack: Final[ConnAck]

    def __init__(self, reason: int, detail: str | None, connack: ConnAck) -> None:
        self.reason = reason
        self.detail = detail
        self.connack = connack


@final
class ConnectChallenged:
    """Not decided yet: send `auth`, which asks the client for more data."""

    authentication: Final[ServerAuthentication]
    auth: Final[Auth]

    def __init__(self, authentication: ServerAuthentication, auth: Auth) -> None:
        self.authentication = authentication
        self.auth = auth


@final
class ConnectAccepted:
    """The terms of an accepted connection; `properties` announces them to the client."""

    client_id: Final[str]
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
        expiry_interval: int,
        keep_alive: int,
        receive_maximum: int,
        properties: Properties,
        authentication: ServerAuthentication | None,
    ) -> None:
        self.client_id = client_id
        self.expiry_interval = expiry_interval
        self.keep_alive = keep_alive
        self.receive_maximum = receive_maximum
        self.properties = properties
        self.authentication = authentication


ConnectDecision = ConnectRefused | ConnectChallenged | ConnectAccepted


@final
class Admission:
    """Decides about every CONNECT by the settings and the Authority."""

    _settings: Final[BrokerSettings]
    _authority: Final[Authority]
    _new_client_id: Final[Callable[[], str]]
    _known_client_ids: Final[Collection[str]]
    _shares: Final[SessionShares]
    _memory: Final[Memory]

    def __init__(
        self,
        settings: BrokerSettings,
        authority: Authority,
        *,
        new_client_id: Callable[[], str],
        known_client_ids: Collection[str],
        shares: SessionShares,
        memory: Memory,
    ) -> None:
        """`known_client_ids` has a client identifier for each session; `shares` knows idle ones."""
        self._settings = settings
        self._authority = authority
        self._new_client_id = new_client_id
        self._known_client_ids = known_client_ids
        self._shares = shares
        self._memory = memory

    def decide_connect(self, packet: Connect, peer: str, connections: int) -> ConnectDecision:
        """Decide about a CONNECT. `connections` is the number of clients, including this one."""
        settings = self._settings
        if connections > settings.maximum_connections:
            return self._refuse_connection(packet)
        if packet.will is not None:
            try:
                check_levels(packet.will.topic_name, settings.topic_levels)
            except Violation as violation:
                detail = f"{violation.rule.name} in the will: {violation.seen}"
                return refuse_connect(packet, violation.rule.reason, detail)
        reason = self._authority.connect(packet, peer)
        if reason != SUCCESS:
            return refuse_connect(packet, reason)
        # After the Authority, so that an unauthorized client cannot learn which sessions exist.
        if self._memory.is_short and packet.client_id not in self._known_client_ids:
            return refuse_connect(packet, SERVER_BUSY, "the server is short of memory")
        if self._is_full_for(packet):
            return self._refuse_session(packet)
        method = packet.properties.authentication_method
        if method is None:
            return self._accept(packet, None, None)
        authentication = self._authority.begin_authentication(method, packet, peer)
        if authentication is None:
            # [MQTT-4.12.0-1]
            return refuse_connect(packet, BAD_AUTHENTICATION_METHOD)
        step = authentication.start(packet.properties.authentication_data)
        return self.decide_step(packet, authentication, step, connections)

    def decide_step(
        self, packet: Connect, authentication: ServerAuthentication, step: Step, connections: int
    ) -> ConnectDecision:
        """Decide about a CONNECT after the next step of its enhanced authentication."""
        if isinstance(step, Granted):
            # Others may have connected meanwhile.
            if connections > self._settings.maximum_connections:
                return self._refuse_connection(packet)
            if self._is_full_for(packet):
                return self._refuse_session(packet)
            return self._accept(packet, authentication, step.data)
        if isinstance(step, Challenge):
            method = packet.properties.authentication_method
            assert method is not None
            return ConnectChallenged(authentication, next_auth(method, step))
        # [MQTT-4.12.0-4]
        return refuse_connect(packet, step.reason, step.reason_string)

    def _is_full_for(self, packet: Connect) -> bool:
        """Whether the client needs a new session, and no idle one can be discarded for it."""
        if len(self._known_client_ids) < self._settings.maximum_sessions or self._shares.has_idle():
            return False
        return packet.client_id not in self._known_client_ids

    def _refuse_connection(self, packet: Connect) -> ConnectRefused:
        detail = f"no more than {self._settings.maximum_connections} connections at a time"
        return refuse_connect(packet, SERVER_BUSY, detail)

    def _refuse_session(self, packet: Connect) -> ConnectRefused:
        limit = count(self._settings.maximum_sessions, "session")
        return refuse_connect(packet, QUOTA_EXCEEDED, f"no more than {limit} at a time")

    def _accept(
        self, packet: Connect, authentication: ServerAuthentication | None, data: bytes | None
    ) -> ConnectAccepted:
        settings = self._settings
        client_id = packet.client_id or self._assigned_id()
        requested = requested_expiry(packet)
        expiry = min(requested, settings.maximum_session_expiry)
        keep_alive = self._keep_alive(packet)
        receive_maximum = settings.inflight_window
        properties = NO_PROPERTIES
        if packet.version == MQTT5:
            receive_maximum = packet.properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
            properties = Properties(
                assigned_client_identifier=None if packet.client_id else client_id,
                session_expiry_interval=expiry if expiry != requested else None,
                server_keep_alive=keep_alive if keep_alive != packet.keep_alive else None,
                receive_maximum=settings.receive_maximum,
                maximum_packet_size=settings.maximum_packet_size,
                topic_alias_maximum=settings.topic_alias_maximum or None,
                # [MQTT-4.12.0-5] the method of CONNECT, or none
                authentication_method=packet.properties.authentication_method,
                authentication_data=data,
            )
            properties = self._with_response_information(packet, client_id, properties)
        return ConnectAccepted(
            client_id,
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
            if client_id not in self._known_client_ids:
                return client_id

    def _keep_alive(self, packet: Connect) -> int:
        """The client's Keep Alive, or the Server Keep Alive [3.2.2.3.14], which 3.1.1 lacks."""
        requested = packet.keep_alive
        maximum = self._settings.maximum_keep_alive
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


def refuse_connect(packet: Connect, reason: int, detail: str | None = None) -> ConnectRefused:
    """Refuse a CONNECT, with a CONNACK of its version."""
    if reason not in REASONS_5[CONNACK]:
        # The Authority returned a code that is not defined for CONNACK.
        reason = UNSPECIFIED_ERROR
    if packet.version == MQTT311:
        return ConnectRefused(
            reason, detail, ConnAck(_RETURN_CODES.get(reason, REFUSED_NOT_AUTHORIZED))
        )
    # [MQTT-3.1.2-29] CONNACK may have a Reason String even without Request Problem Information
    connack = ConnAck(reason, properties=Properties(reason_string=detail))
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
