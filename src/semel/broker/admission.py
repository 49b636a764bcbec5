"""Whether a CONNECT is taken, and on what terms.

    CONNECT ─▶ Doorkeeper.judge ─┬─▶ Refused    a CONNACK, then the end
                                 ├─▶ Accepted   what the CONNACK says and what the broker holds to
    AUTH ─▶ Doorkeeper.weigh ────┴─▶ Asked      AUTH 0x18: enhanced authentication goes on

It decides and changes nothing: the core carries a verdict out. What CONNACK tells a client is read
from the same settings by which the core serves it, so that it says exactly what is enforced. What
has no limit here (QoS, retained messages, wildcards, shared subscriptions, subscription
identifiers) is not mentioned, which means in 5.0 that it is there.
"""

from collections.abc import Callable, Collection
from typing import Final, final

from semel.broker.authority import Authentication, Authority, Challenge, Granted, Step
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

# [3.1.1 §3.2.2.3] the return code of 3.1.1 for a reason code of 5.0; any other means 5.
_RETURN_CODES: Final = {
    UNSUPPORTED_PROTOCOL_VERSION: REFUSED_PROTOCOL_VERSION,
    CLIENT_IDENTIFIER_NOT_VALID: REFUSED_IDENTIFIER_REJECTED,
    SERVER_UNAVAILABLE: REFUSED_SERVER_UNAVAILABLE,
    SERVER_BUSY: REFUSED_SERVER_UNAVAILABLE,
    QUOTA_EXCEEDED: REFUSED_SERVER_UNAVAILABLE,
    BAD_USER_NAME_OR_PASSWORD: REFUSED_BAD_USER_NAME_OR_PASSWORD,
}


@final
class Refused:
    """The client is told and closed. `reason` is 5.0's code, whatever the version."""

    reason: Final[int]
    # In words, where the code alone does not say enough.
    why: Final[str | None]
    connack: Final[ConnAck]

    def __init__(self, reason: int, why: str | None, connack: ConnAck) -> None:
        self.reason = reason
        self.why = why
        self.connack = connack


@final
class Asked:
    """The client is neither in nor out: `auth` asks it for more, and nothing has happened yet."""

    authentication: Final[Authentication]
    auth: Final[Auth]

    def __init__(self, authentication: Authentication, auth: Auth) -> None:
        self.authentication = authentication
        self.auth = auth


@final
class Accepted:
    """The terms of a connection: the core holds to them, and `properties` tell the client."""

    client_id: Final[str]
    # Seconds that the session outlives the connection, seconds of silence that it may keep.
    expiry_interval: Final[int]
    keep_alive: Final[int]
    # QoS 1 and 2 messages sent to it before it acknowledges any.
    window: Final[int]
    properties: Final[Properties]
    # By which it may authenticate again.
    authentication: Final[Authentication | None]

    def __init__(
        self,
        client_id: str,
        *,
        expiry_interval: int,
        keep_alive: int,
        window: int,
        properties: Properties,
        authentication: Authentication | None,
    ) -> None:
        self.client_id = client_id
        self.expiry_interval = expiry_interval
        self.keep_alive = keep_alive
        self.window = window
        self.properties = properties
        self.authentication = authentication


Verdict = Refused | Asked | Accepted


@final
class Doorkeeper:
    """Judges every CONNECT by the settings and the Authority."""

    _settings: Final[BrokerSettings]
    _authority: Final[Authority]
    _new_client_id: Final[Callable[[], str]]
    _taken: Final[Collection[str]]
    _shares: Final[SessionShares]
    _memory: Final[Memory]

    def __init__(
        self,
        settings: BrokerSettings,
        authority: Authority,
        *,
        new_client_id: Callable[[], str],
        taken: Collection[str],
        shares: SessionShares,
        memory: Memory,
    ) -> None:
        """`taken` has the client identifiers of all sessions there are at the time, and `shares`
        knows which of them are idle."""
        self._settings = settings
        self._authority = authority
        self._new_client_id = new_client_id
        self._taken = taken
        self._shares = shares
        self._memory = memory

    def judge(self, packet: Connect, peer: str, connections: int) -> Verdict:
        """What becomes of a CONNECT, `connections` being open with its own."""
        settings = self._settings
        if connections > settings.maximum_connections:
            return self._too_many(packet)
        if packet.will is not None:
            try:
                check_levels(packet.will.topic_name, settings.topic_levels)
            except Violation as violation:
                why = f"{violation.rule.name} in the will: {violation.seen}"
                return refused(packet, violation.rule.reason, why)
        reason = self._authority.connect(packet, peer)
        if reason != SUCCESS:
            return refused(packet, reason)
        # After the Authority, so that no stranger learns which sessions there are.
        if self._memory.is_short and packet.client_id not in self._taken:
            return refused(packet, SERVER_BUSY, "the server is short of memory")
        if self._is_full_for(packet):
            return self._full(packet)
        method = packet.properties.authentication_method
        if method is None:
            return self._accepted(packet, None, None)
        authentication = self._authority.begin_authentication(method, packet, peer)
        if authentication is None:
            # [MQTT-4.12.0-1]
            return refused(packet, BAD_AUTHENTICATION_METHOD)
        step = authentication.start(packet.properties.authentication_data)
        return self.weigh(packet, authentication, step, connections)

    def weigh(
        self, packet: Connect, authentication: Authentication, step: Step, connections: int
    ) -> Verdict:
        """What becomes of a CONNECT whose enhanced authentication has got as far as `step`."""
        if isinstance(step, Granted):
            # Others came while it authenticated.
            if connections > self._settings.maximum_connections:
                return self._too_many(packet)
            if self._is_full_for(packet):
                return self._full(packet)
            return self._accepted(packet, authentication, step.data)
        if isinstance(step, Challenge):
            method = packet.properties.authentication_method
            assert method is not None
            return Asked(authentication, next_auth(method, step))
        # [MQTT-4.12.0-4]
        return refused(packet, step.reason, step.reason_string)

    def _is_full_for(self, packet: Connect) -> bool:
        """Whether this client would begin a session, and there is no room for it."""
        if len(self._taken) < self._settings.maximum_sessions or self._shares.has_idle():
            return False
        return packet.client_id not in self._taken

    def _too_many(self, packet: Connect) -> Refused:
        why = f"no more than {self._settings.maximum_connections} connections at a time"
        return refused(packet, SERVER_BUSY, why)

    def _full(self, packet: Connect) -> Refused:
        why = f"no more than {count(self._settings.maximum_sessions, 'session')} at a time"
        return refused(packet, QUOTA_EXCEEDED, why)

    def _accepted(
        self, packet: Connect, authentication: Authentication | None, data: bytes | None
    ) -> Accepted:
        settings = self._settings
        client_id = packet.client_id or self._assigned_id()
        asked = asked_expiry(packet)
        expiry = min(asked, settings.maximum_session_expiry)
        keep_alive = self._keep_alive(packet)
        window = settings.inflight_window
        properties = NO_PROPERTIES
        if packet.version == MQTT5:
            window = packet.properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
            properties = Properties(
                assigned_client_identifier=None if packet.client_id else client_id,
                session_expiry_interval=expiry if expiry != asked else None,
                server_keep_alive=keep_alive if keep_alive != packet.keep_alive else None,
                receive_maximum=settings.receive_maximum,
                maximum_packet_size=settings.maximum_packet_size,
                topic_alias_maximum=settings.topic_alias_maximum or None,
                # [MQTT-4.12.0-5] the method of CONNECT, or none
                authentication_method=packet.properties.authentication_method,
                authentication_data=data,
            )
            properties = self._with_response_information(packet, client_id, properties)
        return Accepted(
            client_id,
            expiry_interval=expiry,
            keep_alive=keep_alive,
            window=window,
            properties=properties,
            authentication=authentication,
        )

    def _with_response_information(
        self, packet: Connect, client_id: str, properties: Properties
    ) -> Properties:
        """[MQTT-3.1.2-28] only who asks is told; and rather nothing than what does not fit."""
        prefix = self._settings.response_topic_prefix
        if prefix is None or packet.properties.request_response_information != 1:
            return properties
        topic_name = response_topic(prefix, client_id)
        told = Properties(properties.items, response_information=topic_name)
        return told if _fits(ConnAck(properties=told), packet) else properties

    def _assigned_id(self) -> str:
        """[MQTT-3.2.2-16] an identifier that no session has."""
        while True:
            client_id = self._new_client_id()
            if client_id not in self._taken:
                return client_id

    def _keep_alive(self, packet: Connect) -> int:
        """The client's own Keep Alive, or ours [3.2.2.3.14]; 3.1.1 cannot be told of another."""
        asked = packet.keep_alive
        maximum = self._settings.maximum_keep_alive
        if packet.version == MQTT311 or maximum == 0 or maximum == MAXIMUM_TWO_BYTES:
            return asked
        return min(asked, maximum) if asked else maximum


def asked_expiry(packet: Connect) -> int:
    """How long the client wants its session kept [3.1.2.11.2]; 3.1.1 knows all or nothing."""
    if packet.version == MQTT311:
        return 0 if packet.clean_start else NEVER_EXPIRES
    return packet.properties.session_expiry_interval or 0


def next_auth(method: str, step: Challenge | Granted) -> Auth:
    """The server's AUTH for a step: 0x18 [MQTT-4.12.0-2], or 0x00 after a re-authentication."""
    reason = CONTINUE_AUTHENTICATION if isinstance(step, Challenge) else SUCCESS
    properties = Properties(authentication_method=method, authentication_data=step.data)
    return Auth(reason, properties=properties)


def response_topic(prefix: str, client_id: str) -> str | None:
    """The topic at which this client receives answers [3.2.2.3.15], or None if there is none.

    A wildcard in the identifier would make it no topic, a slash perhaps another client's.
    """
    if "+" in client_id or "#" in client_id or "/" in client_id:
        return None
    topic_name = f"{prefix}/{client_id}"
    return topic_name if len(topic_name.encode()) <= MAXIMUM_TWO_BYTES else None


def refused(packet: Connect, reason: int, why: str | None = None) -> Refused:
    """The refusal of a CONNECT, in the words of its version."""
    if reason not in REASONS_5[CONNACK]:
        # An Authority's code that CONNACK has not: it means no all the same.
        reason = UNSPECIFIED_ERROR
    if packet.version == MQTT311:
        return Refused(reason, why, ConnAck(_RETURN_CODES.get(reason, REFUSED_NOT_AUTHORIZED)))
    # [MQTT-3.1.2-29] in CONNACK whether or not the client asked for Problem Information
    told = ConnAck(reason, properties=Properties(reason_string=why))
    # [MQTT-3.2.2-19]
    return Refused(reason, why, told if _fits(told, packet) else ConnAck(reason))


def refused_by_rule(packet: Connect, violation: Violation) -> Refused:
    """The refusal of a CONNECT whose client then broke a rule before it was in."""
    # [MQTT-3.1.2-30] a packet whose own code CONNACK does not have may not come now anyway
    return refused(packet, _code_of(violation, PROTOCOL_ERROR), violation.rule.name)


def _code_of(violation: Violation, otherwise: int) -> int:
    """The code of the rule, or another if CONNACK does not have it."""
    reason = violation.rule.reason
    return reason if reason in REASONS_5[CONNACK] else otherwise


def _fits(connack: ConnAck, packet: Connect) -> bool:
    """Whether the client of this CONNECT takes a packet of that size."""
    limit = packet.properties.maximum_packet_size
    return limit is None or len(encode(connack, MQTT5)) <= limit


def answer_to_broken_connect(violation: Violation) -> bytes:
    """A CONNACK for a CONNECT that cannot be understood, where its version has one; or nothing.

    3.1.1 has two [MQTT-3.1.2-2] [MQTT-3.1.3-8], and for a level that nobody knows we use its
    form. Anything else malformed in 3.1.1 [MQTT-3.1.4-1], or before the level could be read,
    gets no answer. There is no Reason String: nobody knows how much this client takes.
    """
    if violation.version == MQTT5:
        # [2.2.2.2] a property whose own code CONNACK does not have has no place in CONNECT
        return encode(ConnAck(_code_of(violation, MALFORMED_PACKET)), MQTT5)
    if violation.rule.return_code:
        return encode(ConnAck(violation.rule.return_code), MQTT311)
    return b""
