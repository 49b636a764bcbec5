"""Mutants of subscriptions, and of which messages they get.

The statements are those of the clause that the broker breaks by what it does.
"""

from typing import Final

from tests.probe.broker.mutants.form import Also, BrokerMutant
from tests.probe.broker.mutants.source import Edit, RuleRemoval

CORE: Final = "broker.core"
ROUTER: Final = "broker.router"

MUTANTS: Final = (
    BrokerMutant(
        "published-qos-delivered",
        "Messages are delivered with the QoS of the publisher.",
        (Edit(ROUTER, "qos = min(message.qos, copy.qos)", "qos = message.qos"),),
        "3.8.4-6",
        "3.8.4-8",
        (
            Also("on a shared subscription, too", mqtt5="4.8.2-3"),
            Also(
                "the QoS of a delivery shows which subscription is in force, and what was queued",
                "3.8.4-3 3.1.2-5 3.1.2-8 4.1.0-1",
                "3.8.4-3 3.1.2-5 3.1.2-8 3.1.2-23 4.5.0-1",
            ),
        ),
        undecided=("dup-not-copied-*", "content-type", "response-topic", "correlation-data"),
    ),
    BrokerMutant(
        "granted-qos-delivered",
        "Messages are delivered with the QoS of the subscription.",
        (Edit(ROUTER, "qos = min(message.qos, copy.qos)", "qos = copy.qos"),),
        "3.8.4-6",
        "3.8.4-8",
        (
            Also("on a shared subscription, too", mqtt5="4.8.2-3"),
            Also(
                "the QoS of a delivery shows which subscription is in force, and what was queued",
                "3.8.4-3 3.1.2-5 3.1.2-8 4.1.0-1",
                "3.8.4-3 3.1.2-5 3.1.2-8 3.1.2-23 4.5.0-1",
            ),
        ),
        undecided=("dup-not-copied-*", "content-type", "response-topic", "correlation-data"),
    ),
    BrokerMutant(
        "lowest-qos-of-overlapping",
        "Of overlapping subscriptions the one with the lowest QoS counts.",
        (
            Edit("broker.copies", "        self.qos = 0\n", "        self.qos = 3\n"),
            Edit("broker.copies", "max(self.qos, entry.qos)", "min(self.qos, entry.qos)"),
        ),
        "3.3.5-1",
        "3.3.4-2",
    ),
    BrokerMutant(
        "suback-codes-reversed",
        "The codes of SUBACK are in reverse order.",
        (
            Edit(
                CORE,
                "suback(connection.exchange, packet, reasons, problems)",
                "suback(connection.exchange, packet, reasons[::-1], problems)",
            ),
        ),
        "3.9.3-1",
        "3.9.3-1",
        (Also("each code is the QoS that its filter is granted", "3.8.4-5", "3.8.4-7"),),
    ),
    BrokerMutant(
        "one-suback-per-filter",
        "Each filter of a SUBSCRIBE gets a SUBACK of its own.",
        (
            Edit(
                CORE,
                "        self._connections.send(connection, "
                "suback(connection.exchange, packet, reasons, problems))\n",
                "        if len(reasons) == 1:\n"
                "            made = suback(connection.exchange, packet, reasons, problems)\n"
                "            self._connections.send(connection, made)\n"
                "        else:\n"
                "            connection.exchange.client.end_request(packet.packet_id)\n"
                "            for reason in reasons:\n"
                "                section = b'\\0' if connection.exchange.version == 5 else b''\n"
                "                body = packet.packet_id.to_bytes(2, 'big') + section\n"
                "                body += bytes([reason])\n"
                "                connection.write(bytes([0x90, len(body)]) + body)\n"
                "            self._connections.with_output[connection.number] = connection\n",
            ),
        ),
        "3.8.4-4 3.8.4-5",
        "3.8.4-5 3.8.4-6",
        (
            Also(
                "the second SUBACK answers no request that is open",
                "2.3.1-7 3.8.4-2",
                "2.2.1-6 3.8.4-2",
            ),
        ),
        undecided=("*",),
    ),
    BrokerMutant(
        "suback-with-another-id",
        "SUBACK has the next Packet Identifier, for identifiers from 2 to 99.",
        (
            Edit(
                "broker.replay",
                "    plain = SubAck(packet.packet_id, reasons)",
                "    plain = SubAck(packet.packet_id + (1 < packet.packet_id < 100), reasons)",
            ),
            RuleRemoval("ANSWER_FITS_REQUEST"),
        ),
        "2.3.1-7 3.8.4-2",
        "2.2.1-6 3.8.4-2",
        (Also("the SUBACK of the request is missing", "3.8.4-1", "3.8.4-1"),),
    ),
    BrokerMutant(
        "dollar-topics-for-hash",
        "A filter that begins with a wildcard matches topics that begin with $.",
        (
            Edit(
                "broker.subscriptions",
                "        root = self._root_for(topic_name)\n        if not root",
                "        if topic_name.startswith('$'):\n"
                "            collect_from_tree(self._root, topic_name, matches)\n"
                "        root = self._root_for(topic_name)\n        if not root",
            ),
        ),
        "4.7.2-1",
        "4.7.2-1",
    ),
    BrokerMutant(
        "plus-matches-below",
        "A + at the end of a filter matches topics with further levels.",
        (
            Edit(
                "broker.subscriptions",
                "            if plus is not None:\n                following.append(plus)\n",
                "            if plus is not None:\n                following.append(plus)\n"
                "                if plus.here is not None and plus.below is None:\n"
                "                    if topic_name.rsplit('/', 1)[-1] != level:\n"
                "                        plus.here.collect(matches)\n",
            ),
        ),
        "3.3.2-3",
        "3.3.2-3",
    ),
    BrokerMutant(
        "topics-normalized",
        "Topic Names are normalized before they are compared with filters.",
        (
            Edit(
                "broker.subscriptions",
                "        matches = Matches()\n        leaf = self._exact.get(topic_name)\n",
                "        matches = Matches()\n"
                "        topic_name = __import__('unicodedata').normalize('NFC', topic_name)\n"
                "        leaf = self._exact.get(topic_name)\n",
            ),
        ),
        "4.7.3-4",
        "4.7.3-4",
        (Also("a filter that is not normalized never matches", "3.3.2-3", "3.3.2-3"),),
    ),
    BrokerMutant(
        "byte-order-mark-stripped",
        "U+FEFF at the beginning of a string is removed.",
        (
            Edit(
                "mqtt.wire",
                '            value = raw.decode("utf-8")\n',
                '            value = raw.decode("utf-8").lstrip("\\ufeff")\n',
            ),
        ),
        "1.5.3-3",
        "1.5.4-3",
        (
            Also(
                "without it the topic may be empty or another", "4.7.3-1 4.7.3-4", "4.7.3-1 4.7.3-4"
            ),
        ),
    ),
    BrokerMutant(
        "unsubscribe-expands-wildcards",
        "UNSUBSCRIBE removes every subscription that its filter matches.",
        (
            Edit(
                CORE,
                "            existed = self.router.unsubscribe(state, topic_filter)\n",
                "            from semel.mqtt.topics import topic_matches\n"
                "            existed = False\n"
                "            for entry in self.router.subscriptions.of(state.client_id):\n"
                "                if topic_filter == entry.topic_filter or topic_matches(\n"
                "                    topic_filter, entry.topic_filter\n"
                "                ):\n"
                "                    held = entry.topic_filter\n"
                "                    existed = self.router.unsubscribe(state, held)\n",
            ),
        ),
        "3.10.4-1",
        "3.10.4-1",
    ),
    BrokerMutant(
        "unsubscribe-without-effect",
        "UNSUBSCRIBE is acknowledged, but the subscription stays.",
        (Edit(CORE, "existed = self.router.unsubscribe(state, topic_filter)", "existed = True"),),
        "3.10.4-2",
        "3.10.4-1 3.10.4-2",
        (
            Also("the filter is not deleted", "3.10.4-1"),
            Also("every filter has this effect", "3.10.4-6", "3.10.4-6"),
            Also("cases that begin anew by UNSUBSCRIBE", mqtt5="3.3.1-10 4.8.2-1 4.8.2-2"),
            Also("the code says that a subscription existed", mqtt5="3.11.3-1 3.11.3-2"),
        ),
    ),
    BrokerMutant(
        "unsuback-only-if-deleted",
        "UNSUBACK is sent only if a subscription was deleted.",
        (
            Edit(
                CORE,
                "            reasons = []\n        self._connections.send(connection, UnsubAck",
                "            reasons = []\n"
                "        if not self._deleted:\n"
                "            connection.exchange.client.end_request(packet.packet_id)\n"
                "            return\n"
                "        self._connections.send(connection, UnsubAck",
            ),
            Edit(
                CORE,
                "            self.replays.unsubscribe(state, topic_filter)\n            reasons",
                "            self.replays.unsubscribe(state, topic_filter)\n"
                "            self._deleted = existed\n            reasons",
            ),
        ),
        "3.10.4-5",
        "3.10.4-5 3.10.4-4",
        (Also("it answers every UNSUBSCRIBE", "3.10.4-4 3.10.4-6", "3.10.4-6 3.11.3-1 3.11.3-2"),),
    ),
    BrokerMutant(
        "no-local-ignored",
        "No Local is ignored.",
        (
            Edit(
                ROUTER,
                "            if entry.no_local and publisher",
                "            if False and publisher",
            ),
        ),
        mqtt5="3.8.3-3",
    ),
    BrokerMutant(
        "subscription-identifiers-dropped",
        "Subscription Identifiers are not sent.",
        (
            Edit(
                "broker.copies",
                "            self.identifiers.append(entry.identifier)\n",
                "            pass\n",
            ),
        ),
        mqtt5="3.3.4-3 3.3.4-4",
        also=(Also("copies for each subscription have theirs", mqtt5="3.3.4-5 U5-60"),),
    ),
)
