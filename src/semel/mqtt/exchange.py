"""Which side may send which packet, and when, on one connection.

An `Exchange` observes both directions. It knows who sent a packet, not who we are: broker, client
and auditor use the same object, so that the same rules bind all of them.

    NEW ──CONNECT──▶ CONNECTING ──CONNACK 0──▶ CONNECTED
                          └──────CONNACK >0──▶ REFUSED        DISCONNECT silences its sender

For each side it keeps the limits that the side announced (Receive Maximum and others), the topic
aliases that it has set, and the packet identifiers that it is using, each with its stage:

    SENT_QOS_1 ──PUBACK──▶ free
    SENT_QOS_2 ──PUBREC──▶ RECEIVED ──PUBREL──▶ RELEASED ──PUBCOMP──▶ free

`observe` checks a packet and then applies it. A packet that breaks a rule raises `Violation` and
changes nothing. If the caller passes a list for the violations, the packet is applied anyway, as
far as possible: an audit cannot stop the traffic that it reads.

Packet identifiers of PUBLISH packets outlive a connection. `carry` returns the open ones at its
end, for the next Exchange of the session; without them, the Exchange of a resumed session tolerates
identifiers that it cannot know.
"""

from collections.abc import Iterable
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.codec import LARGEST_PACKET, Packet, check_packet_size, packet_type_of
from semel.mqtt.exchange_rules import (
    ANSWER_FITS_QOS,
    ANSWER_FITS_REQUEST,
    ANSWERS_IN_ORDER,
    AUTH_AS_AGREED,
    AUTH_IN_TURN,
    AUTH_METHOD_KEPT,
    CLIENT_ID_ASSIGNED,
    CONNACK_FIRST,
    CONNACK_ONCE,
    CONNECT_FIRST,
    CONNECT_ONCE,
    FIRST_SEND_WITHOUT_DUP,
    NO_PUBLISH_AFTER_PUBREL,
    NO_RESEND_WHILE_CONNECTED,
    NOTHING_AFTER_DISCONNECT,
    NOTHING_AFTER_REFUSAL,
    ONE_REASON_CODE_EACH,
    ONLY_AUTH_UNTIL_CONNACK,
    PACKET_FROM_ITS_SIDE,
    PACKET_ID_NOT_IN_USE,
    PROBLEM_INFORMATION_ON_REQUEST,
    PUBREL_AFTER_PUBREC,
    QOS_2_ID_NOT_IN_USE,
    QOS_WITHIN_MAXIMUM,
    REASON_CODE_FROM_ITS_SIDE,
    RECEIVE_MAXIMUM_KEPT,
    RELEASE_FITS_PUBLISH,
    RESEND_IN_ORDER,
    RESEND_SETS_DUP,
    RESPONSE_INFORMATION_ON_REQUEST,
    SESSION_EXPIRY_FROM_CLIENT,
    SESSION_EXPIRY_NOT_REVIVED,
    SESSION_PRESENT_NEEDS_OLD_SESSION,
    SUBSCRIPTION_IDENTIFIER_FROM_SERVER,
    TOPIC_ALIAS_MAPPED,
    TOPIC_ALIAS_WITHIN_MAXIMUM,
)
from semel.mqtt.packet_ids import PacketIds
from semel.mqtt.packet_types import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MQTT5,
    PACKET_NAMES,
    PINGREQ,
    PINGRESP,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.ping import PingReq, PingResp
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck, Subscribe
from semel.mqtt.packets.unsubscribe import UnsubAck, Unsubscribe
from semel.mqtt.properties import (
    REASON_STRING,
    RESPONSE_INFORMATION,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    USER_PROPERTY,
)
from semel.mqtt.reasons import (
    CONTINUE_AUTHENTICATION,
    DISCONNECT_ONLY_CLIENT,
    DISCONNECT_ONLY_SERVER,
    FAILURE,
    RE_AUTHENTICATE,
    SUCCESS,
)
from semel.mqtt.server_features import ALL_FEATURES, ServerFeatures, server_features
from semel.mqtt.side import (
    CLIENT,
    DEFAULT_RECEIVE_MAXIMUM,
    PLACE_UNKNOWN,
    RECEIVED,
    RELEASED,
    SENT_QOS_1,
    SENT_QOS_2,
    SERVER,
    SIDES,
    Open,
    Side,
)
from semel.mqtt.topics import quoted
from semel.mqtt.violation import Violation, report

# Phases of the connection.
NEW: Final = 0
CONNECTING: Final = 1
CONNECTED: Final = 2
REFUSED: Final = 3

# Packet types that only one side sends [Table 2-1].
_ONLY_CLIENT: Final = frozenset((CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ))
_ONLY_SERVER: Final = frozenset((CONNACK, SUBACK, UNSUBACK, PINGRESP))

# [MQTT-3.1.2-29] Packets that may carry a reason even if the client asked for none.
_MAY_EXPLAIN: Final = frozenset((CONNACK, DISCONNECT, PUBLISH))


def _present(packet: Packet) -> int:
    """The properties of a packet, as bits."""
    if isinstance(packet, PingReq | PingResp):
        return 0
    return packet.properties.present


@final
@mypyc_attr(acyclic=True)
class Exchange:
    """The state of one connection, which decides what each side may send next.

    `carried` lists the exchanges that earlier connections of the session left open (see `carry`);
    None: unknown.
    """

    phase: int
    version: int
    client: Final[Side]
    server: Final[Side]
    session_expiry_interval: int
    authentication_method: str | None
    # Re-authentications in progress.
    authenticating: int
    # What the server's CONNACK offers.
    maximum_qos: int
    server_features: ServerFeatures
    session_present: bool
    clean_start: bool
    # Whether all open exchanges of the session are known: then any other identifier is a violation.
    history_known: bool
    assigns_client_id: bool
    wants_response_information: bool
    wants_problem_information: bool
    # Whether the client must answer an AUTH of the server.
    client_owes_auth: bool

    def __init__(self, carried: Iterable[Open] | None = None) -> None:
        self.phase = NEW
        self.version = 0
        self.client = Side()
        self.server = Side()
        self.session_expiry_interval = 0
        self.authentication_method = None
        self.authenticating = 0
        self.maximum_qos = 2
        self.server_features = ALL_FEATURES
        self.session_present = False
        self.clean_start = False
        self.history_known = False
        self.assigns_client_id = False
        self.wants_response_information = False
        self.wants_problem_information = True
        self.client_owes_auth = False
        if carried is not None:
            self.resume(carried)

    def resume(self, carried: Iterable[Open], received: PacketIds | None = None) -> None:
        """Start with the exchanges that earlier connections of the session left open: all of them.

        A server knows them when it knows the client, between CONNECT and CONNACK. `received` are
        further QoS 2 messages of the client that await PUBREL, in unknown order.
        """
        self.history_known = True
        for sender, packet_id, stage in carried:
            self._side(sender).move(packet_id, stage)
        if received is not None:
            self.client.carry_received(received)
        self.client.begin()
        self.server.begin()

    def observe(
        self, sender: int, packet: Packet, size: int, found: list[Violation] | None = None
    ) -> None:
        """Check and apply `packet`, of `size` bytes, which `sender` (CLIENT or SERVER) sends.

        Raises `Violation` and changes nothing if the packet breaks a rule. With `found`, appends
        all violations to it instead, and applies the packet.
        """
        kind = packet_type_of(packet)
        try:
            self._check(sender, packet, kind, size, found)
        except Violation as violation:
            self._sign(violation, kind)
            raise
        if found:
            for noted in found:
                self._sign(noted, kind)
        self._apply(sender, packet)

    def check(self, sender: int, packet: Packet, size: int) -> list[Violation]:
        """The violations of `packet` if `sender` sent it now; changes nothing."""
        found: list[Violation] = []
        self._check(sender, packet, packet_type_of(packet), size, found)
        for violation in found:
            self._sign(violation, packet_type_of(packet))
        return found

    def _sign(self, violation: Violation, kind: int) -> None:
        if not violation.packet_type:
            violation.packet_type = kind
            violation.version = self.version

    def carry(self) -> list[Open]:
        """The PUBLISH exchanges that are open, for the session's next connection."""
        return self.client.carry(CLIENT) + self.server.carry(SERVER)

    def topic_name(self, sender: int, packet: Publish) -> str:
        """The Topic Name of an observed PUBLISH, with its alias resolved."""
        if packet.topic_name:
            return packet.topic_name
        return self._side(sender).aliased_topic(packet.properties.topic_alias or 0)

    def _side(self, sender: int) -> Side:
        return self.client if sender == CLIENT else self.server

    def _other(self, sender: int) -> Side:
        return self.server if sender == CLIENT else self.client

    # --- checking: reports violations, changes nothing --------------------------------------------

    def _check(
        self, sender: int, packet: Packet, kind: int, size: int, found: list[Violation] | None
    ) -> None:
        if self.phase == NEW:
            if sender != CLIENT or kind != CONNECT:
                seen = f"{PACKET_NAMES[kind]} from the {SIDES[sender]} first"
                report(found, Violation(CONNECT_FIRST, seen))
            return
        self._check_turn(sender, kind, found)
        check_packet_size(size, self._other(sender).maximum_packet_size, found)
        if isinstance(packet, Publish):
            self._check_publish(sender, packet, found)
        elif isinstance(packet, PubAck):
            self._check_puback(sender, packet.packet_id, found)
        elif isinstance(packet, PubRec):
            self._check_pubrec(sender, packet.packet_id, found)
        elif isinstance(packet, PubRel):
            self._check_pubrel(sender, packet.packet_id, found)
        elif isinstance(packet, PubComp):
            self._check_pubcomp(sender, packet.packet_id, found)
        elif isinstance(packet, Subscribe):
            self._check_subscribe(packet, found)
        elif isinstance(packet, Unsubscribe):
            self._check_new_id(packet.packet_id, found)
        elif isinstance(packet, SubAck):
            self._check_answers(SUBACK, packet.packet_id, len(packet.reasons), found)
        elif isinstance(packet, UnsubAck):
            self._check_answers(UNSUBACK, packet.packet_id, len(packet.reasons), found)
        elif isinstance(packet, ConnAck):
            self._check_connack(packet, found)
        elif isinstance(packet, Disconnect):
            self._check_disconnect(sender, packet, found)
        elif isinstance(packet, Auth):
            self._check_auth(sender, packet, found)
        if sender == SERVER and not self.wants_problem_information and kind not in _MAY_EXPLAIN:
            if _present(packet) & (1 << REASON_STRING | 1 << USER_PROPERTY):
                seen = f"reason_string or user_properties in {PACKET_NAMES[kind]}"
                report(found, Violation(PROBLEM_INFORMATION_ON_REQUEST, seen))

    def _check_turn(self, sender: int, kind: int, found: list[Violation] | None) -> None:
        """Check that this side may send a packet of this type now."""
        name = PACKET_NAMES[kind]
        if self._side(sender).disconnected:
            report(found, Violation(NOTHING_AFTER_DISCONNECT, f"{name} after DISCONNECT"))
        if self._is_from_other_side(sender, kind):
            report(found, Violation(PACKET_FROM_ITS_SIDE, f"{name} from the {SIDES[sender]}"))
        if sender == SERVER:
            if self.phase == REFUSED:
                report(found, Violation(NOTHING_AFTER_REFUSAL, f"{name} after CONNACK"))
            elif self.phase == CONNECTED:
                if kind == CONNACK:
                    report(found, Violation(CONNACK_ONCE, "a second CONNACK"))
            elif kind != CONNACK and kind != AUTH:
                report(found, Violation(CONNACK_FIRST, f"{name} before CONNACK"))
        else:
            if kind == CONNECT:
                report(found, Violation(CONNECT_ONCE, "a second CONNECT"))
            if self.phase == CONNECTING and self.authentication_method is not None:
                if kind != AUTH and kind != DISCONNECT:
                    report(found, Violation(ONLY_AUTH_UNTIL_CONNACK, f"{name} before CONNACK"))

    def _is_from_other_side(self, sender: int, kind: int) -> bool:
        """Whether only the other side sends packets of this type."""
        if sender == CLIENT:
            return kind in _ONLY_SERVER
        # [3.1.1 §3.14] There, only a client sends DISCONNECT.
        return kind in _ONLY_CLIENT or (kind == DISCONNECT and self.version != MQTT5)

    def _check_connack(self, packet: ConnAck, found: list[Violation] | None) -> None:
        if packet.session_present and self.clean_start:
            seen = "session_present after clean_start"
            report(found, Violation(SESSION_PRESENT_NEEDS_OLD_SESSION, seen))
        if self.version != MQTT5:
            return
        properties = packet.properties
        accepted = packet.reason == SUCCESS
        if accepted and self.assigns_client_id and not properties.assigned_client_identifier:
            report(found, Violation(CLIENT_ID_ASSIGNED, "no assigned_client_identifier"))
        if properties.has(RESPONSE_INFORMATION) and not self.wants_response_information:
            seen = "response_information not asked for"
            report(found, Violation(RESPONSE_INFORMATION_ON_REQUEST, seen))
        if accepted or properties.authentication_method is not None:
            self._check_method(properties.authentication_method, found)

    def _check_method(self, method: str | None, found: list[Violation] | None) -> None:
        """Check the Authentication Method of an AUTH or CONNACK."""
        if self.authentication_method is None:
            if method is not None:
                seen = f"authentication_method {quoted(method)}, none in CONNECT"
                report(found, Violation(AUTH_AS_AGREED, seen))
        elif method != self.authentication_method:
            seen = "no authentication_method" if method is None else quoted(method)
            report(found, Violation(AUTH_METHOD_KEPT, seen))

    def _check_auth(self, sender: int, packet: Auth, found: list[Violation] | None) -> None:
        self._check_method(packet.properties.authentication_method, found)
        reason = packet.reason
        if reason == (RE_AUTHENTICATE if sender == SERVER else SUCCESS):
            self._report_reason_side(AUTH, sender, reason, found)
            return
        if sender == SERVER:
            if self.phase == CONNECTING:
                in_turn = reason == CONTINUE_AUTHENTICATION
            else:
                in_turn = self.authenticating > 0
        elif reason == RE_AUTHENTICATE:
            in_turn = self.phase == CONNECTED
        else:
            in_turn = self.client_owes_auth
        if not in_turn:
            seen = f"AUTH 0x{reason:02x} from the {SIDES[sender]} out of turn"
            report(found, Violation(AUTH_IN_TURN, seen))

    def _report_reason_side(
        self, kind: int, sender: int, reason: int, found: list[Violation] | None
    ) -> None:
        seen = f"{PACKET_NAMES[kind]} 0x{reason:02x} from the {SIDES[sender]}"
        report(found, Violation(REASON_CODE_FROM_ITS_SIDE, seen))

    def _check_disconnect(
        self, sender: int, packet: Disconnect, found: list[Violation] | None
    ) -> None:
        forbidden = DISCONNECT_ONLY_SERVER if sender == CLIENT else DISCONNECT_ONLY_CLIENT
        if packet.reason in forbidden:
            self._report_reason_side(DISCONNECT, sender, packet.reason, found)
        if sender == SERVER:
            if packet.properties.has(SESSION_EXPIRY_INTERVAL):
                seen = "session_expiry_interval from the server"
                report(found, Violation(SESSION_EXPIRY_FROM_CLIENT, seen))
        elif self.session_expiry_interval == 0 and packet.properties.session_expiry_interval:
            seen = f"0 in CONNECT, {packet.properties.session_expiry_interval} now"
            report(found, Violation(SESSION_EXPIRY_NOT_REVIVED, seen))

    def _check_publish(self, sender: int, packet: Publish, found: list[Violation] | None) -> None:
        side = self._side(sender)
        if sender == CLIENT:
            if packet.qos > self.maximum_qos:
                seen = f"QoS {packet.qos}, at most {self.maximum_qos}"
                report(found, Violation(QOS_WITHIN_MAXIMUM, seen))
            self.server_features.check_publish(packet, found)
        if packet.properties.present:
            self._check_publish_properties(sender, packet, found)
        if packet.qos == 0:
            return
        packet_id = packet.packet_id
        if sender == CLIENT and side.request(packet_id):
            self._report_in_use(packet_id, found)
        stage = side.stage(packet_id)
        if side.quota <= 0 and self.version == MQTT5:
            # A PUBLISH of an earlier connection counts when it is sent again [4.9].
            if stage == 0 or side.is_carried(packet_id):
                seen = f"more than {self._other(sender).receive_maximum} open"
                report(found, Violation(RECEIVE_MAXIMUM_KEPT, seen))
        if stage == 0:
            # In 3.1.1 a PUBLISH may be sent again while its PUBACK is in transit.
            new = not self.session_present and self.phase == CONNECTED
            if packet.dup and new and not side.has_used(packet_id):
                report(found, Violation(FIRST_SEND_WITHOUT_DUP, f"packet_id {packet_id}"))
        elif stage == RELEASED:
            report(found, Violation(NO_PUBLISH_AFTER_PUBREL, f"packet_id {packet_id}"))
        elif (stage == SENT_QOS_1) != (packet.qos == 1):
            self._report_in_use(packet_id, found)
        elif side.is_carried(packet_id):
            if not packet.dup:
                report(found, Violation(RESEND_SETS_DUP, f"packet_id {packet_id} with DUP 0"))
            if sender == CLIENT and not side.resends_in_order(packet_id):
                report(found, Violation(RESEND_IN_ORDER, f"packet_id {packet_id}"))
        elif not packet.dup:
            if packet.qos == 1:
                self._report_in_use(packet_id, found)
            else:
                # [MQTT-4.3.3-10] The receiver answers a repeated PUBLISH whatever its DUP flag is.
                report(found, Violation(QOS_2_ID_NOT_IN_USE, f"packet_id {packet_id}"))
        elif self.version == MQTT5:
            report(found, Violation(NO_RESEND_WHILE_CONNECTED, f"packet_id {packet_id}"))

    def _check_publish_properties(
        self, sender: int, packet: Publish, found: list[Violation] | None
    ) -> None:
        alias = packet.properties.topic_alias
        if alias is not None:
            other = self._other(sender)
            if alias > other.topic_alias_maximum:
                seen = f"topic_alias {alias}, at most {other.topic_alias_maximum}"
                report(found, Violation(TOPIC_ALIAS_WITHIN_MAXIMUM, seen))
            if not packet.topic_name and not self._side(sender).aliased_topic(alias):
                report(found, Violation(TOPIC_ALIAS_MAPPED, f"topic_alias {alias}"))
        if sender == CLIENT and packet.properties.has(SUBSCRIPTION_IDENTIFIER):
            seen = "subscription_identifier from the client"
            report(found, Violation(SUBSCRIPTION_IDENTIFIER_FROM_SERVER, seen))

    def _report_in_use(self, packet_id: int, found: list[Violation] | None) -> None:
        report(found, Violation(PACKET_ID_NOT_IN_USE, f"packet_id {packet_id}"))

    def _check_new_id(self, packet_id: int, found: list[Violation] | None) -> None:
        """Check the identifier of a SUBSCRIBE or UNSUBSCRIBE.

        A client's requests and PUBLISH packets share one set of identifiers.
        """
        if self.client.request(packet_id) or self.client.stage(packet_id):
            self._report_in_use(packet_id, found)

    def _check_subscribe(self, packet: Subscribe, found: list[Violation] | None) -> None:
        self._check_new_id(packet.packet_id, found)
        self.server_features.check_subscribe(packet, found)

    def _check_answers(
        self, kind: int, packet_id: int, count: int, found: list[Violation] | None
    ) -> None:
        """Check that a SUBACK or UNSUBACK answers an open request."""
        filters = self.client.request(packet_id)
        if filters == 0 or (filters > 0) != (kind == SUBACK):
            self._report_no_request(packet_id, found)
        elif kind == SUBACK or self.version == MQTT5:
            if count != abs(filters):
                seen = f"reason codes: {count}, filters: {abs(filters)}"
                report(found, Violation(ONE_REASON_CODE_EACH, seen))

    def _report_no_request(self, packet_id: int, found: list[Violation] | None) -> None:
        report(found, Violation(ANSWER_FITS_REQUEST, f"packet_id {packet_id}"))

    def _check_order(
        self, sender: int, side: Side, packet_id: int, last: int, found: list[Violation] | None
    ) -> None:
        """Check that a client answers packets in the order in which they were sent [4.6].

        Exchanges that an earlier connection left open are not part of this connection's order.
        """
        order = side.order(packet_id)
        if sender == CLIENT and not side.is_carried(packet_id) and 0 < order < last:
            report(found, Violation(ANSWERS_IN_ORDER, f"packet_id {packet_id}"))

    def _check_puback(self, sender: int, packet_id: int, found: list[Violation] | None) -> None:
        publisher = self._other(sender)
        stage = publisher.stage(packet_id)
        if stage == 0:
            if self.history_known and not publisher.is_repeated(packet_id):
                self._report_no_request(packet_id, found)
        elif stage != SENT_QOS_1:
            self._report_wrong_qos(packet_id, found)
        else:
            self._check_order(sender, publisher, packet_id, publisher.last_puback, found)

    def _report_wrong_qos(self, packet_id: int, found: list[Violation] | None) -> None:
        report(found, Violation(ANSWER_FITS_QOS, f"packet_id {packet_id}"))

    def _check_pubrec(self, sender: int, packet_id: int, found: list[Violation] | None) -> None:
        publisher = self._other(sender)
        stage = publisher.stage(packet_id)
        if stage == 0:
            if self.history_known:
                self._report_no_publish(packet_id, found)
        elif stage == SENT_QOS_1:
            self._report_wrong_qos(packet_id, found)
        elif stage == SENT_QOS_2:
            self._check_order(sender, publisher, packet_id, publisher.last_pubrec, found)

    def _report_no_publish(self, packet_id: int, found: list[Violation] | None) -> None:
        report(found, Violation(RELEASE_FITS_PUBLISH, f"packet_id {packet_id}"))

    def _check_pubrel(self, sender: int, packet_id: int, found: list[Violation] | None) -> None:
        side = self._side(sender)
        stage = side.stage(packet_id)
        if stage == 0:
            # In a resumed session, the PUBCOMP that was observed may have been lost in transit.
            known = self.history_known and not self.session_present
            if known and not side.answers_stray(packet_id):
                self._report_no_publish(packet_id, found)
        elif stage == SENT_QOS_1 or stage == SENT_QOS_2:
            report(found, Violation(PUBREL_AFTER_PUBREC, f"packet_id {packet_id}"))
        elif stage == RECEIVED:
            self._check_order(sender, side, packet_id, side.last_pubrel, found)

    def _check_pubcomp(self, sender: int, packet_id: int, found: list[Violation] | None) -> None:
        publisher = self._other(sender)
        stage = publisher.stage(packet_id)
        answered = publisher.is_repeated(packet_id) or publisher.has_stray_pubrel(packet_id)
        # The identifier may be in use again before the answer to a repeated PUBREL arrives.
        if answered or (stage == 0 and not self.history_known):
            return
        if stage != RELEASED:
            self._report_no_request(packet_id, found)

    # --- applying: a packet that is allowed, or that an audit observed anyway ---------------------

    def _apply(self, sender: int, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._apply_publish(sender, packet)
        elif isinstance(packet, PubAck):
            self._apply_puback(sender, packet.packet_id)
        elif isinstance(packet, PubRec):
            self._apply_pubrec(sender, packet)
        elif isinstance(packet, PubRel):
            self._apply_pubrel(sender, packet.packet_id)
        elif isinstance(packet, PubComp):
            self._apply_pubcomp(sender, packet.packet_id)
        elif isinstance(packet, Subscribe):
            self.client.begin_request(packet.packet_id, len(packet.subscriptions))
        elif isinstance(packet, Unsubscribe):
            self.client.begin_request(packet.packet_id, -len(packet.topic_filters))
        elif isinstance(packet, SubAck | UnsubAck):
            self.client.end_request(packet.packet_id)
        elif isinstance(packet, Connect):
            if self.phase == NEW and sender == CLIENT:
                self._apply_connect(packet)
        elif isinstance(packet, ConnAck):
            if self.phase == CONNECTING and sender == SERVER:
                self._apply_connack(packet)
        elif isinstance(packet, Disconnect):
            self._side(sender).disconnected = True
        elif isinstance(packet, Auth):
            self.client_owes_auth = sender == SERVER and packet.reason == CONTINUE_AUTHENTICATION
            if self.phase == CONNECTED:
                # [4.12.1] A client may re-authenticate at any time, even while it already does.
                if packet.reason == RE_AUTHENTICATE:
                    self.authenticating += 1
                elif packet.reason == SUCCESS and self.authenticating:
                    self.authenticating -= 1

    def _apply_connect(self, packet: Connect) -> None:
        properties = packet.properties
        self.phase = CONNECTING
        self.version = packet.version
        self.clean_start = packet.clean_start
        self.assigns_client_id = not packet.client_id
        self.session_expiry_interval = properties.session_expiry_interval or 0
        self.wants_response_information = properties.request_response_information == 1
        self.wants_problem_information = properties.request_problem_information != 0
        self.authentication_method = properties.authentication_method
        client = self.client
        client.receive_maximum = properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        client.maximum_packet_size = properties.maximum_packet_size or LARGEST_PACKET
        client.topic_alias_maximum = properties.topic_alias_maximum or 0
        self.server.quota = client.receive_maximum
        if packet.clean_start:
            self._forget_session()

    def _forget_session(self) -> None:
        self.history_known = True
        self.client.forget_carried()
        self.server.forget_carried()

    def _apply_connack(self, packet: ConnAck) -> None:
        if packet.reason != SUCCESS:
            self.phase = REFUSED
            return
        properties = packet.properties
        self.phase = CONNECTED
        self.client_owes_auth = False
        self.session_present = packet.session_present
        if not packet.session_present:
            self._forget_session()
        server = self.server
        server.receive_maximum = properties.receive_maximum or DEFAULT_RECEIVE_MAXIMUM
        server.maximum_packet_size = properties.maximum_packet_size or LARGEST_PACKET
        server.topic_alias_maximum = properties.topic_alias_maximum or 0
        # A client need not wait for CONNACK. What it has sent since CONNECT counts, and may have
        # exceeded a limit that it could not know.
        self.client.quota = server.receive_maximum - self.client.sent_here()
        if properties.maximum_qos is not None:
            self.maximum_qos = properties.maximum_qos
        self.server_features = server_features(properties)

    def _apply_publish(self, sender: int, packet: Publish) -> None:
        side = self._side(sender)
        alias = packet.properties.topic_alias if packet.properties.present else None
        if alias is not None and packet.topic_name:
            side.set_alias(alias, packet.topic_name)
        packet_id = packet.packet_id
        if packet.qos == 0:
            return
        stage = side.stage(packet_id)
        following = SENT_QOS_1 if packet.qos == 1 else SENT_QOS_2
        if side.is_carried(packet_id):
            side.resend(packet_id)
        elif stage:
            if stage == SENT_QOS_1:
                side.repeat(packet_id)
            return
        elif packet.dup:
            following |= PLACE_UNKNOWN
        if self.version != MQTT5:
            side.use(packet_id)
        side.quota -= 1
        side.move(packet_id, following)

    def _apply_puback(self, sender: int, packet_id: int) -> None:
        publisher = self._other(sender)
        if publisher.stage(packet_id) == SENT_QOS_1:
            publisher.last_puback = publisher.order(packet_id)
            publisher.free(packet_id, self._side(sender).receive_maximum)
        else:
            publisher.answer_repeat(packet_id)

    def _apply_pubrec(self, sender: int, packet: PubRec) -> None:
        publisher = self._other(sender)
        packet_id = packet.packet_id
        stage = publisher.stage(packet_id)
        if stage == SENT_QOS_2:
            publisher.last_pubrec = publisher.order(packet_id)
            if packet.reason >= FAILURE:
                publisher.free(packet_id, self._side(sender).receive_maximum)
            else:
                publisher.move(packet_id, RECEIVED)
        elif stage != SENT_QOS_1:
            # A repeated PUBREC. PUBCOMP may arrive before the PUBREL that answers it is sent.
            publisher.add_stray(packet_id)

    def _apply_pubrel(self, sender: int, packet_id: int) -> None:
        side = self._side(sender)
        stage = side.stage(packet_id)
        if stage == RECEIVED and side.order(packet_id):
            side.last_pubrel = side.order(packet_id)
        if stage == RELEASED and not side.is_carried(packet_id):
            side.repeat(packet_id)
            side.answer_stray(packet_id)
        elif stage == 0 and side.answers_stray(packet_id):
            side.add_stray_pubrel(packet_id)
        elif stage != SENT_QOS_1:
            side.move(packet_id, RELEASED)

    def _apply_pubcomp(self, sender: int, packet_id: int) -> None:
        publisher = self._other(sender)
        if publisher.stage(packet_id) == RELEASED:
            publisher.free(packet_id, self._side(sender).receive_maximum)
        elif publisher.has_stray_pubrel(packet_id):
            publisher.complete_stray(packet_id)
        else:
            publisher.answer_repeat(packet_id)
