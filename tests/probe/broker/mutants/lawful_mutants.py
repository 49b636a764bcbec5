"""Mutants that differ from our broker in what the standard leaves open: nothing may be blamed."""

from typing import Final

from tests.probe.broker.mutants.form import BrokerMutant
from tests.probe.broker.mutants.source import Edit, RuleRemoval

ROUTER: Final = "broker.router"

MUTANTS: Final = (
    BrokerMutant("unchanged", "Our broker without its hot path.", ()),
    BrokerMutant(
        "payload-format-unchecked",
        "A payload that is not UTF-8, as its indicator says, is accepted: a receiver MAY check it.",
        (RuleRemoval("PAYLOAD_IS_UTF8_AS_INDICATED"),),
    ),
    BrokerMutant(
        "client-id-of-24-refused",
        "A ClientID of more than 23 bytes is refused: a server MAY allow them.",
        (
            Edit(
                "broker.connecting",
                "        if refusal is None:\n            decision",
                "        if len(packet.client_id.encode()) > 23:\n"
                "            refusal = refuse_connect(packet, 0x85)\n"
                "        if refusal is None:\n            decision",
            ),
        ),
    ),
    BrokerMutant(
        "empty-client-id-refused",
        "An empty ClientID is refused: a server MAY assign one.",
        (
            Edit(
                "broker.connecting",
                "        if refusal is None:\n            decision",
                "        if not packet.client_id:\n"
                "            refusal = refuse_connect(packet, 0x85)\n"
                "        if refusal is None:\n            decision",
            ),
        ),
    ),
    BrokerMutant(
        "copy-for-each-subscription",
        "Each of the overlapping subscriptions of a client gets a copy.",
        (
            Edit(
                ROUTER,
                "        self.copies_for_each = copies_for_each\n",
                "        self.copies_for_each = True\n",
            ),
        ),
    ),
    BrokerMutant(
        "qos-1-granted",
        "At most QoS 1 is granted: a server MAY grant less than was requested.",
        (
            Edit(
                ROUTER,
                "subscription.topic_filter, qos=qos)\n",
                "subscription.topic_filter, qos=min(qos, 1))\n",
            ),
        ),
    ),
    BrokerMutant(
        "control-characters-refused",
        "A string with a control character is refused: a receiver MAY.",
        (
            Edit(
                "mqtt.wire",
                '    if "\\0" in value:\n',
                "    if any(ord(each) < 32 or 127 <= ord(each) < 160 for each in value):\n",
            ),
            Edit("mqtt.wire", "value.index(chr(0))", "value.find(chr(0))"),
            Edit(
                "mqtt.topics",
                "    return 0 < size <= _SHORT\n",
                "    return 0 < size <= _SHORT and topic.isprintable()\n",
            ),
        ),
    ),
    BrokerMutant(
        "no-disconnect-sent",
        "The broker closes without a DISCONNECT in 5.0: it SHOULD send one.",
        (
            Edit(
                "broker.connections",
                "        if exchange.version == MQTT5 and exchange.phase == CONNECTED:\n",
                "        if False:\n",
            ),
        ),
    ),
    BrokerMutant(
        "receive-maximum-1",
        "The broker announces the Receive Maximum 1.",
        (
            Edit(
                "broker.admission",
                "                receive_maximum=limits.receive_maximum,\n",
                "                receive_maximum=1,\n",
            ),
        ),
    ),
    BrokerMutant(
        "no-topic-aliases",
        "The broker accepts no Topic Aliases, and says so.",
        (
            Edit(
                "broker.admission",
                "topic_alias_maximum=limits.topic_alias_maximum or None,",
                "topic_alias_maximum=None,",
            ),
        ),
    ),
    BrokerMutant(
        "server-keep-alive",
        "The broker sets a Server Keep Alive of 50 s.",
        (
            Edit(
                "broker.admission",
                "    return min(requested, maximum) if requested else maximum\n",
                "    return 50\n",
            ),
        ),
    ),
    BrokerMutant(
        "keep-alive-0-limited",
        "A client with Keep Alive 0 is disconnected after 1.5 s: a server MAY do so at any time.",
        (
            Edit(
                "broker.connecting",
                "connection.keep_alive = terms.keep_alive\n",
                "connection.keep_alive = terms.keep_alive or 1\n",
            ),
        ),
        slow=("*keep-alive*",),
    ),
)

# Without PINGRESP the examiner cannot know whether a broker still answers.
MUTE: Final = BrokerMutant(
    "mute",
    "PINGREQ is not answered.",
    (
        Edit(
            "broker.core",
            "            self._connections.send(connection, PingResp())\n",
            "            return\n",
        ),
    ),
    "3.12.4-1",
    "3.12.4-1",
)
