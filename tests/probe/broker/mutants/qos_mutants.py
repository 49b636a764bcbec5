"""Mutants of the handshakes: QoS 1 and 2, DUP, order, and what is sent again.

The statements are those of the clause that the broker breaks by what it does.
"""

from typing import Final

from tests.probe.broker.mutants.form import RESUMED, Also, BrokerMutant
from tests.probe.broker.mutants.source import Edit, RuleRemoval

CORE: Final = "broker.core"
ROUTER: Final = "broker.router"
SESSION: Final = "mqtt.session"
STORED_IDS: Final = "        self.stored_ids = with_id(self.stored_ids, packet_id)\n"

MUTANTS: Final = (
    BrokerMutant(
        "qos-2-repeat-forwarded",
        "A repeated QoS 2 PUBLISH is forwarded again before PUBREL (origin, case 4).",
        (
            Edit(
                SESSION,
                "if has_id(self.stored_ids, packet.packet_id):\n            # [MQTT-4.3.3-10]",
                "if False:\n            # [MQTT-4.3.3-10]",
            ),
        ),
        "4.3.3-2",
        "4.3.3-10",
        (RESUMED,),
    ),
    BrokerMutant(
        "qos-2-ids-never-stored",
        "The identifiers of QoS 2 messages are not stored (origin, case 5).",
        (Edit(SESSION, STORED_IDS, ""),),
        "4.3.3-2",
        "4.3.3-10",
        (
            RESUMED,
            Also("PUBCOMP then says that the identifier is unknown", mqtt5="4.3.3-11 4.3.3-13"),
        ),
    ),
    BrokerMutant(
        "qos-2-ids-lost-with-connection",
        "The identifiers of QoS 2 messages are forgotten when the connection ends (case 5).",
        (
            Edit(
                SESSION,
                "        self._pubrecs = None\n        self._requests = None\n",
                "        self._pubrecs = None\n        self._requests = None\n"
                "        self.stored_ids = None\n",
            ),
        ),
        "4.3.3-2 4.1.0-1",
        "4.3.3-10 3.1.2-23",
        (RESUMED, Also("PUBCOMP then says that the identifier is unknown", mqtt5="4.3.3-11")),
    ),
    BrokerMutant(
        "qos-2-id-never-freed",
        "The identifier of a QoS 2 message stays in use after PUBREL (origin, case 5).",
        (
            Edit(
                SESSION,
                "        self.stored_ids = without_id(self.stored_ids, packet_id)\n        # After",
                "        # After",
            ),
        ),
        "4.3.3-2",
        "4.3.3-12",
        (
            Also(
                "properties are looked at in several messages with one identifier",
                mqtt5="3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20",
            ),
        ),
        undecided=("*",),
        lost=("no PUBLISH came",),
    ),
    BrokerMutant(
        "qos-2-repeat-without-pubrec",
        "A repeated QoS 2 PUBLISH gets no PUBREC.",
        (
            Edit(
                SESSION,
                "            receipt.is_accepted = True\n            self._send_pubrecs()\n"
                "            return None\n",
                "            self._pubrecs.pop()\n            return None\n",
            ),
        ),
        "4.3.3-2",
        "4.3.3-10",
        (RESUMED,),
    ),
    BrokerMutant(
        "pubrel-of-unknown-id-unanswered",
        "A PUBREL with an unknown identifier gets no PUBCOMP.",
        (
            Edit(
                SESSION,
                "            self._send(PubComp(packet.packet_id, self._not_found()))\n",
                "            pass\n",
            ),
        ),
        "4.3.3-2",
        "4.3.3-11",
        undecided=("no-problem-information-*", "maximum-packet-size-*"),
    ),
    BrokerMutant(
        "qos-1-dup-dropped",
        "A QoS 1 PUBLISH with DUP 1 is acknowledged, but not forwarded.",
        (
            Edit(
                CORE,
                "        if receipt is None:\n            return\n        if reason == SUCCESS and",
                "        if receipt is None:\n            return\n"
                "        if packet.dup and packet.qos == 1:\n"
                "            state.session.accept(receipt)\n            return\n"
                "        if reason == SUCCESS and",
            ),
        ),
        "4.3.2-2",
        "4.3.2-5",
        (Also("a message that the broker accepted is lost", "4.5.0-1", "4.5.0-1"),),
    ),
    BrokerMutant(
        "dup-copied",
        "DUP of a received PUBLISH is copied to those that are sent on (origin, case 3).",
        (
            Edit(
                CORE,
                "        message = received_message(packet, topic_name, now)\n",
                "        message = received_message(packet, topic_name, now)\n"
                "        message.copied_dup = packet.dup\n",
            ),
            Edit(
                "mqtt.message",
                "            dup=dup,\n            properties=properties,\n        )\n\n\ndef",
                "            dup=dup or (self.qos > 0 and getattr(self, 'copied_dup', False)),\n"
                "            properties=properties,\n        )\n\n\ndef",
            ),
            RuleRemoval("FIRST_SEND_WITHOUT_DUP"),
        ),
        "3.3.1-3",
        "3.3.1-3",
        (Also("the first transmission has DUP 0", "4.3.2-1 4.3.3-1", "4.3.2-2 4.3.3-2"),),
    ),
    BrokerMutant(
        "resent-without-dup",
        "A PUBLISH is sent again with DUP 0.",
        (
            Edit(
                SESSION,
                "self._transmit(delivery, now, dup=True)",
                "self._transmit(delivery, now, dup=False)",
            ),
            RuleRemoval("RESEND_SETS_DUP"),
        ),
        "3.3.1-1",
        "3.3.1-1",
    ),
    BrokerMutant(
        "publish-not-resent",
        "Unacknowledged PUBLISH packets are not sent again after a reconnect.",
        (Edit(SESSION, "        self._resend = resend if resend else None\n", ""),),
        "4.4.0-1",
        "4.4.0-1",
        (
            RESUMED,
            Also(
                "a message counts as unacknowledged until it is",
                "4.3.2-1 4.3.3-1",
                "4.3.2-3 4.3.3-3",
            ),
            Also(
                "there is no resend whose DUP or order is right",
                "3.3.1-1 4.6.0-1",
                "3.3.1-1 4.6.0-1",
            ),
        ),
        lost=("no PUBLISH came",),
    ),
    BrokerMutant(
        "pubrel-not-resent",
        "Unacknowledged PUBREL packets are not sent again after a reconnect.",
        (
            Edit(
                SESSION,
                "            self._send(PubRel(delivery.packet_id))\n        self._resend",
                "            pass\n        self._resend",
            ),
        ),
        "4.4.0-1",
        "4.4.0-1",
        (RESUMED, Also("PUBREL is unacknowledged until PUBCOMP", "4.3.3-1", "4.3.3-5")),
        lost=("no PUBREL came",),
    ),
    BrokerMutant(
        "resent-in-reverse",
        "Unacknowledged PUBLISH packets are sent again in reverse order.",
        (
            Edit(
                SESSION,
                "                resend.append(delivery)",
                "                resend.appendleft(delivery)",
            ),
        ),
        "4.6.0-1 4.6.0-6",
        "4.6.0-1 4.6.0-5 4.6.0-6",
        (
            Also(
                "cases compare what came as a list",
                mqtt5="3.1.2-24 3.1.2-25 3.3.4-9 4.9.0-1 4.9.0-2",
            ),
            RESUMED,
            Also("the resend of a session", "4.4.0-1", "4.4.0-1"),
        ),
    ),
    BrokerMutant(
        "order-reversed",
        "Messages that arrive together are sent on in reverse order.",
        (
            Edit(
                SESSION,
                "        self._changes = None\n        self._packets = None\n        return []",
                "        self._changes = None\n        self._packets = None\n"
                "        if packets:\n"
                "            others = [p for p in packets if not isinstance(p, Publish)]\n"
                "            messages = [p for p in packets if isinstance(p, Publish)]\n"
                "            packets = others + messages[::-1]\n"
                "        return []",
            ),
        ),
        "4.6.0-5 4.6.0-6",
        "4.6.0-5 4.6.0-6",
        (
            Also(
                "cases compare what came as a list",
                mqtt5="3.1.2-24 3.1.2-25 3.3.4-9 4.9.0-1 4.9.0-2",
            ),
            Also("resends are reversed, too", "4.6.0-1", "4.6.0-1"),
        ),
    ),
    BrokerMutant(
        "queue-of-offline-clients-dropped",
        "Messages for a session without a connection are dropped.",
        (
            Edit(
                ROUTER,
                "        if message.qos:\n            self.gate.add_receiver(state)\n",
                "        if message.qos and not session.connected:\n            return\n"
                "        if message.qos:\n            self.gate.add_receiver(state)\n",
            ),
        ),
        "3.1.2-5 4.5.0-1",
        "4.5.0-1 3.1.2-23",
        (
            RESUMED,
            Also("a property is looked at in a message that waited", mqtt5="3.3.2-4 3.3.2-6"),
            Also("a message that waited has RETAIN 0", "3.3.1-9", "3.3.1-12"),
        ),
        lost=("no PUBLISH came",),
        undecided=("session-of-its-client-id",),
    ),
    BrokerMutant(
        "puback-with-another-id",
        "PUBACK has the next Packet Identifier, for identifiers below 100.",
        (
            Edit(
                SESSION,
                "            ack = PubAck(receipt.packet_id, receipt.reason,",
                "            wrong = receipt.packet_id < 100\n"
                "            ack = PubAck(receipt.packet_id + wrong, receipt.reason,",
            ),
            RuleRemoval("ANSWER_FITS_REQUEST"),
        ),
        "2.3.1-6 4.3.2-2",
        "2.2.1-5 4.3.2-4",
        (Also("the PUBACK of the message is missing", "3.3.4-1", "3.3.4-1 4.3.2-5"),),
        lost=("no PUBREC came", "no PUBACK came"),
        undecided=("*",),
    ),
)
