"""Mutants of CONNECT, sessions and the Keep Alive.

The statements are those of the clause that the broker breaks by what it does.
"""

from typing import Final

from tests.probe.broker.mutants.form import RESUMED, Also, BrokerMutant
from tests.probe.broker.mutants.source import Edit, RuleRemoval

CORE: Final = "broker.core"
CONNECTING: Final = "broker.connecting"

MUTANTS: Final = (
    BrokerMutant(
        "session-present-never",
        "Session Present is 0 for a resumed session.",
        (Edit(CONNECTING, "present = existing is not None", "present = False"),),
        "3.2.2-2",
        "3.2.2-3",
        (
            RESUMED,
            Also(
                "what a resumed session sends is not allowed in a new one",
                "2.3.1-4 2.3.1-6",
                "2.2.1-4 2.2.1-5",
            ),
        ),
        # Many cases need a session that is resumed.
        undecided=("*",),
    ),
    BrokerMutant(
        "session-present-always",
        "Session Present is 1 for a new session, unless the client starts clean.",
        (Edit(CONNECTING, "present = existing is not None", "present = not packet.clean_start"),),
        "3.2.2-3",
        "3.2.2-3",
        (
            Also("the end of a session shows in Session Present", "3.1.2-6", "4.1.0-2 3.1.2-4"),
            Also(
                "so does the rule that was applied to CONNECT", "3.1.4-3 3.1.2-4", "3.1.4-4 3.1.2-6"
            ),
        ),
    ),
    BrokerMutant(
        "session-present-after-clean-start",
        "Session Present is 1 after a clean start.",
        (
            Edit(
                CONNECTING,
                "present = existing is not None",
                "present = existing is not None or packet.clean_start",
            ),
            RuleRemoval("SESSION_PRESENT_NEEDS_OLD_SESSION"),
        ),
        "3.2.2-1",
        "3.2.2-2",
        (
            Also(
                "the client must believe that its session was not discarded", "3.1.2-6", "3.1.2-4"
            ),
            # Better: the audit blames a statement of 3.1.1 in 3.1.1, whichever the case's version.
            Also("cases of 5.0 that use a connection of 3.1.1 see it there", mqtt5="3.2.2-1"),
        ),
    ),
    BrokerMutant(
        "clean-start-keeps-session",
        "A clean start keeps the old session and its subscriptions.",
        (
            Edit(CONNECTING, "if state is not None and packet.clean_start:", "if False:"),
            Edit(
                CONNECTING,
                "present = existing is not None",
                "present = existing is not None and not packet.clean_start",
            ),
        ),
        "3.1.2-6",
        "3.1.2-4",
        (Also("the rules of the clean start are applied after CONNECT", "3.1.4-3", "3.1.4-4"),),
        undecided=("shared-session-*",),
    ),
    BrokerMutant(
        "session-dropped-3.1.1",
        "In 3.1.1 every session ends with its connection.",
        (
            Edit(
                "broker.admission", "return 0 if packet.clean_start else NEVER_EXPIRES", "return 0"
            ),
        ),
        "3.1.2-4 3.1.2-5 3.2.2-2 4.1.0-1",
        also=(
            RESUMED,
            Also(
                "nothing of the session is sent again",
                "4.4.0-1 3.3.1-1 4.6.0-1 4.6.0-6 4.3.2-1 4.3.3-1",
            ),
            Also(
                "QoS 2 identifiers and deliveries belong to the session",
                "4.3.3-2 4.5.0-1 2.3.1-3 2.3.1-4",
            ),
            Also("the session is not found by its ClientId", "3.1.3-2"),
            Also("flag and topic are looked at in messages that waited", "3.3.1-9 3.3.2-3 3.1.2-8"),
        ),
        undecided=("*",),
        lost=("no PUBLISH came",),
    ),
    BrokerMutant(
        "session-dropped-5.0",
        "In 5.0 every session ends with its connection, though CONNACK does not say so.",
        (
            Edit(
                "broker.admission",
                "return packet.properties.session_expiry_interval or 0",
                "return 0",
            ),
        ),
        mqtt5="3.1.2-5 3.1.2-23 3.2.2-3",
        also=(
            RESUMED,
            Also(
                "nothing of the session is sent again",
                mqtt5="4.4.0-1 3.3.1-1 4.6.0-1 4.6.0-5 4.6.0-6 4.3.2-3 4.3.3-3 4.3.3-5 4.3.3-6"
                " 4.3.3-7",
            ),
            Also(
                "QoS 2 identifiers and deliveries belong to the session",
                mqtt5="4.3.3-10 4.3.3-11 4.5.0-1 4.8.2-4 2.2.1-4",
            ),
            Also("the session is not found by its ClientID", mqtt5="3.1.3-2"),
            Also(
                "flag, topic and properties are looked at in messages that waited",
                mqtt5="3.3.1-12 3.3.2-3 3.3.2-4 3.3.2-6",
            ),
            Also("the will is published when the session ends", mqtt5="3.1.3-9 3.1.2-8"),
        ),
        undecided=("*",),
        lost=("no PUBLISH came",),
    ),
    BrokerMutant(
        "takeover-leaves-old-connection",
        "The older connection stays open when another client takes its ClientID.",
        (
            Edit(
                CONNECTING,
                "self._connections.disconnect(other, SESSION_TAKEN_OVER, now)",
                "self._connections.detach_session(other, now)",
            ),
            Edit(
                CORE,
                "            self._connections.drop(connection, now)\n            return\n"
                "        if isinstance(packet, Disconnect):",
                "            if isinstance(packet, PingReq):\n"
                "                self._connections.send(connection, PingResp())\n"
                "            return\n        if isinstance(packet, Disconnect):",
            ),
        ),
        "3.1.4-2",
        "3.1.4-3",
    ),
    BrokerMutant(
        "assigned-id-not-told",
        "CONNACK does not have the ClientID that the broker assigned.",
        (
            Edit(
                "broker.admission",
                "assigned_client_identifier=None if packet.client_id else client_id,",
                "assigned_client_identifier=None,",
            ),
            RuleRemoval("CLIENT_ID_ASSIGNED"),
        ),
        mqtt5="3.1.3-7 3.2.2-16",
    ),
    BrokerMutant(
        "assigned-id-not-unique",
        "Every client without a ClientID is assigned the same.",
        (
            Edit(
                "broker.admission",
                "            client_id = self._new_client_id()\n"
                "            if client_id not in self._sessions:\n"
                "                return client_id",
                '            return "assigned"',
            ),
        ),
        "3.1.3-6",
        "3.1.3-6 3.2.2-16",
        (Also("one client takes the session of the other over", "3.1.4-2", "3.1.4-3 3.1.3-7"),),
    ),
    BrokerMutant(
        "connack-for-malformed-connect",
        "A malformed CONNECT of 3.1.1 is answered with CONNACK 0x05.",
        (
            Edit(
                "broker.admission",
                'encode(ConnAck(violation.rule.return_code), MQTT311)\n    return b""',
                "encode(ConnAck(violation.rule.return_code), MQTT311)\n"
                "    return encode(ConnAck(5), MQTT311)",
            ),
        ),
        "3.1.4-1",
        also=(
            Also(
                "the clause of the field that is malformed says the same",
                "1.5.3-1 1.5.3-2 3.1.0-1 3.1.2-1 3.1.2-3 3.1.2-14 3.1.3-4",
            ),
        ),
    ),
    BrokerMutant(
        "no-connack-for-refused-connect",
        "A CONNECT of 3.1.1 that is refused by its level or ClientId gets no CONNACK.",
        (Edit("broker.admission", "    if violation.rule.return_code:\n", "    if False:\n"),),
        "3.1.2-2 3.1.3-8",
        also=(Also("a rejected ClientId is answered by code 0x02", "3.1.3-9"),),
    ),
    BrokerMutant(
        "packets-after-refusal-processed",
        "A PUBLISH after a refused CONNECT is processed.",
        (
            Edit(
                CONNECTING,
                "        self._connections.send(connection, refusal.connack)\n"
                "        self._connections.drop(connection, now)\n\n    def _accept",
                "        self._connections.send(connection, refusal.connack)\n"
                "        from semel.mqtt.message import received_message\n"
                "        from semel.mqtt.packets.publish import Publish\n"
                "        item = connection.decoder.next()\n"
                "        while isinstance(item, Publish):\n"
                "            made = received_message(item, item.topic_name, now)\n"
                "            self._router.route(made, None, now)\n"
                "            item = connection.decoder.next()\n"
                "        self._connections.drop(connection, now)\n\n    def _accept",
            ),
        ),
        mqtt5="3.1.4-6",
    ),
    BrokerMutant(
        "keep-alive-ignored",
        "A silent client is never disconnected.",
        (Edit("broker.silence", "        elif connection.keep_alive:\n", "        elif False:\n"),),
        "3.1.2-24",
        "3.1.2-22 3.2.2-22",
        (Also("a silent client's will is published", "3.1.2-8", "3.1.2-8"),),
        slow=("*keep-alive*", "*silent*"),
    ),
    BrokerMutant(
        "keep-alive-by-bytes-sent",
        "What the broker sends counts for the Keep Alive of the client.",
        (
            Edit(
                "broker.connection",
                "        self.outgoing_size += len(data)\n",
                "        self.outgoing_size += len(data)\n"
                "        self.last_packet_at = __import__('time').time()\n",
            ),
        ),
        "3.1.2-24",
        "3.1.2-22",
        (Also("the Keep Alive is the client's own", mqtt5="3.2.2-22"),),
        slow=("*keep-alive*", "*silent*"),
    ),
)
