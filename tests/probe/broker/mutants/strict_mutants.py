"""Mutants that are too strict: they refuse what the standard allows.

The statements are those whose right packet is refused, or that give the client the right.
"""

from typing import Final

from tests.probe.broker.mutants.form import Also, BrokerMutant
from tests.probe.broker.mutants.source import Edit

TOPICS: Final = "mqtt.topics"
CONNECT: Final = "mqtt.packets.connect"
SUBSCRIBE: Final = "mqtt.packets.subscribe"
WILL_TOPIC: Final = Also(
    "a will with such a topic is refused, too", "3.1.2-9 3.1.2-14", "3.1.2-9 3.1.2-12"
)

MUTANTS: Final = (
    BrokerMutant(
        "star-refused",
        "A Topic Name with * is refused.",
        (
            Edit(
                TOPICS,
                'if "+" in topic_name or "#" in topic_name:',
                'if "+" in topic_name or "#" in topic_name or "*" in topic_name:',
            ),
        ),
        "4.7.1-1 3.3.2-2",
        "4.7.0-1 3.3.2-2",
        (WILL_TOPIC,),
    ),
    BrokerMutant(
        "short-topic-refused",
        "A Topic Name of one character is refused.",
        (
            Edit(TOPICS, "    return 0 < size <= _SHORT\n", "    return 1 < size <= _SHORT\n"),
            Edit(
                TOPICS,
                "    if not topic_name:\n        report",
                "    if len(topic_name) < 2:\n        report",
            ),
        ),
        "4.7.3-1",
        "4.7.3-1",
        (WILL_TOPIC,),
        undecided=("*",),
    ),
    BrokerMutant(
        "slash-refused",
        "A Topic Name of slashes is refused.",
        (
            Edit(
                TOPICS,
                "    if is_ordinary(topic_name):\n        return\n",
                "    if is_ordinary(topic_name) and topic_name.strip('/'):\n        return\n",
            ),
            Edit(
                TOPICS,
                "    if not topic_name:\n        report",
                "    if not topic_name.strip('/'):\n        report",
            ),
        ),
        "4.7.3-1",
        "4.7.3-1",
        (WILL_TOPIC, Also("a Response Topic of slashes is refused, too", mqtt5="3.3.2-15")),
    ),
    BrokerMutant(
        "byte-order-mark-refused",
        "A string with U+FEFF is refused.",
        (
            Edit(
                "mqtt.wire",
                '    if "\\0" in value:\n',
                '    if "\\ufeff" in value or "\\0" in value:\n',
            ),
            Edit("mqtt.wire", "value.index(chr(0))", "value.find(chr(0))"),
            Edit(
                TOPICS,
                "    return 0 < size <= _SHORT\n",
                "    return 0 < size <= _SHORT and topic.isascii()\n",
            ),
            Edit(
                TOPICS,
                "    if not is_text:\n",
                "    if not is_text or not topic_filter.isascii():\n",
            ),
        ),
        "1.5.3-3",
        "1.5.4-3",
        (
            Also(
                "U+FEFF is a well-formed character, and no NUL",
                "1.5.3-1 1.5.3-2 3.1.3-4",
                "1.5.4-1 1.5.4-2 3.1.3-4 1.5.7-1",
            ),
            Also("so are properties with it", mqtt5="3.3.2-15 3.3.2-17 3.3.2-18 3.3.2-20"),
        ),
    ),
    BrokerMutant(
        "client-id-of-23-refused",
        "A ClientID of 23 characters is refused.",
        (
            Edit(
                "broker.connecting",
                "        if refusal is None:\n            decision",
                "        if len(packet.client_id) == 23 and packet.client_id.isalnum():\n"
                "            refusal = refuse_connect(packet, 0x85)\n"
                "        if refusal is None:\n            decision",
            ),
        ),
        "3.1.3-5",
        "3.1.3-5",
    ),
    BrokerMutant(
        "password-alone-refused",
        "A password without a user name is refused in 5.0.",
        (
            Edit(
                CONNECT,
                "    check_properties_allowed(CONNECT, present, found)\n    if present >>",
                "    if version == MQTT5 and password is not None and user_name is None:\n"
                '        report(found, Violation(PASSWORD_NEEDS_USER_NAME, "alone", CONNECT))\n'
                "    check_properties_allowed(CONNECT, present, found)\n    if present >>",
            ),
        ),
        mqtt5="3.1.2-19",
        also=(Also("the packet has no user name, as its flag says", mqtt5="3.1.2-16"),),
    ),
    BrokerMutant(
        "ack-without-property-length-refused",
        "An acknowledgement with a code and without a Property Length is refused in 5.0.",
        (
            Edit(
                "mqtt.packets.acks",
                "        if reader.left():\n            section = read_section(reader)\n",
                "        section = read_section(reader)\n",
            ),
        ),
        mqtt5="3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1",
    ),
    BrokerMutant(
        "dup-with-unknown-id-refused",
        "A PUBLISH with DUP 1 and an unknown identifier ends the connection.",
        (
            Edit(
                "broker.core",
                "            if violation.rule.closes:\n                self._close",
                '            if violation.rule.closes or "DUP" in violation.rule.name:\n'
                "                self._close",
            ),
        ),
        "4.3.2-2 4.3.3-2",
        "4.3.2-5 4.3.3-12",
        (
            Also(
                "a message whose DUP might be copied is refused",
                "3.3.1-3 4.3.1-1 4.3.2-1 4.3.3-1",
                "3.3.1-3 4.3.1-1 4.3.2-2 4.3.3-2",
            ),
            Also(
                "a right PUBLISH with DUP 1 is refused",
                "3.3.1-2 3.3.1-4 2.3.1-1",
                "3.3.1-2 3.3.1-4 2.2.1-3 2.2.1-4",
            ),
            Also("a PUBLISH with DUP 1 gets no answer", "3.3.4-1", "3.3.4-1 4.3.2-4 4.3.3-8"),
        ),
    ),
    BrokerMutant(
        "dup-with-unknown-id-dropped",
        "A QoS 2 PUBLISH with DUP 1 and an unknown identifier is taken for a repeated one.",
        (
            Edit(
                "broker.core",
                "        if receipt is None:\n            return\n        if reason == SUCCESS and",
                "        if receipt is None:\n            return\n"
                "        if packet.dup and packet.qos == 2:\n"
                "            state.session.accept(receipt)\n            return\n"
                "        if reason == SUCCESS and",
            ),
        ),
        "4.3.3-2",
        "4.3.3-12 4.3.3-8",
        (
            Also("the message is the first of a new session", "3.1.2-6", "3.1.2-4"),
            Also("a message that the broker accepted is lost", "4.5.0-1", "4.5.0-1"),
        ),
    ),
    BrokerMutant(
        "empty-user-property-refused",
        "A User Property with an empty name or value is refused.",
        (
            Edit(
                "mqtt.properties",
                "                size += reader.at - value_start - 4\n",
                "                size += reader.at - value_start - 4\n"
                "                pair = reader.data[value_start : reader.at]\n"
                "                if pair[:2] == b'\\0\\0' or pair[2 + pair[1] :] == b'\\0\\0':\n"
                "                    _report_repeated(identifier, found)\n",
            ),
        ),
        mqtt5="1.5.7-1 3.3.2-17",
        also=(
            Also("what is refused is not sent on in order", mqtt5="3.3.2-18"),
            Also("the property is allowed in this packet", mqtt5="U5-03 1.5.4-1"),
        ),
    ),
    BrokerMutant(
        "repeated-user-property-refused",
        "A second User Property is refused.",
        (
            Edit(
                "mqtt.properties",
                "_REPEATABLE: Final = 1 << USER_PROPERTY | 1 << SUBSCRIPTION_IDENTIFIER",
                "_REPEATABLE: Final = 1 << SUBSCRIPTION_IDENTIFIER",
            ),
        ),
        mqtt5="3.3.2-17 3.3.2-18",
        also=(
            Also("so is every packet with two of them", mqtt5="3.14.1-1 3.14.2-1 3.3.2-20"),
            Also("a will's, too", mqtt5="3.1.3-10"),
        ),
    ),
    BrokerMutant(
        "empty-payload-refused",
        "A PUBLISH without a payload is refused.",
        (
            Edit(
                "mqtt.packets.publish",
                "section, payload = read_publish(reader, flags)\n    return Publish(",
                "section, payload = read_publish(reader, flags)\n"
                "    if not payload:\n"
                '        report(None, Violation(QOS_NOT_3, "empty payload", PUBLISH))\n'
                "    return Publish(",
            ),
        ),
        "3.3.1-10",
        "3.3.1-6",
        (
            Also(
                "cases that publish without a payload",
                "4.7.3-4",
                "4.7.3-4 3.3.2-15 3.3.2-16 3.3.2-20",
            ),
            Also(
                "an empty message deletes the retained one, and is not stored",
                "3.3.1-11",
                "3.3.1-7",
            ),
        ),
        undecided=("*",),
    ),
    BrokerMutant(
        "largest-subscription-identifier-refused",
        "The Subscription Identifier 268,435,455 is refused.",
        (
            Edit(
                "mqtt.properties",
                "                if not number:\n",
                "                if number == 268_435_455 and identifier == 11:\n"
                "                    _check_zero(identifier, found)\n"
                "                if not number:\n",
            ),
        ),
        mqtt5="U5-05 U5-65",
        also=(Also("the number takes four bytes, as it must", mqtt5="1.5.5-1"),),
        undecided=("subscription-identifier*",),
    ),
    BrokerMutant(
        "two-plus-refused",
        "A filter with two + is refused.",
        (
            Edit(
                TOPICS,
                "                if not _fills_level(topic_filter, at):\n"
                "                    plus_fills",
                "                many = topic_filter.count('+') > 1\n"
                "                if many or not _fills_level(topic_filter, at):\n"
                "                    plus_fills",
            ),
        ),
        "4.7.1-3",
        "4.7.1-2",
        undecided=("wildcards-together",),
    ),
    BrokerMutant(
        "hash-alone-refused",
        "The filter # is refused.",
        (
            Edit(
                TOPICS,
                "                if at + 1 < size or not _fills_level(topic_filter, at):\n",
                "                if at + 1 < size or at == 0 or not _fills_level(\n"
                "                    topic_filter, at\n                ):\n",
            ),
        ),
        "4.7.1-2",
        "4.7.1-1",
        undecided=("*",),
    ),
    BrokerMutant(
        "retain-handling-2-refused",
        "Retain Handling 2 is refused.",
        (
            Edit(
                SUBSCRIBE,
                "    if retain_handling < 0 or retain_handling > 2:\n",
                "    if retain_handling < 0 or retain_handling > 1:\n",
            ),
        ),
        mqtt5="U5-68 3.3.1-11",
    ),
    BrokerMutant(
        "no-local-refused",
        "No Local is refused on any subscription.",
        (Edit(SUBSCRIBE, "    if no_local and is_shared(topic_filter):\n", "    if no_local:\n"),),
        mqtt5="3.8.3-3 3.8.3-4",
        undecided=("*no-local*",),
    ),
    BrokerMutant(
        "will-qos-2-refused",
        "Will QoS 2 is refused.",
        (
            Edit(
                CONNECT,
                "    if qos < 0 or qos > 2:\n        report(found, Violation(WILL",
                "    if qos < 0 or qos > 1:\n        report(found, Violation(WILL",
            ),
        ),
        "3.1.2-14",
        "3.1.2-12",
        (
            Also("a will with QoS 2 is neither stored nor published", "3.1.2-8", "3.1.2-7 3.1.2-8"),
            Also("a right CONNECT is not accepted", "3.1.4-4", "3.1.4-5"),
        ),
        undecided=("*will*",),
    ),
    BrokerMutant(
        "empty-will-refused",
        "A will without a payload is refused.",
        (
            Edit(
                CONNECT,
                '    check_binary(payload, "will_payload", found)\n',
                "    if not payload:\n"
                '        report(found, Violation(WILL_QOS_NOT_3, "empty", CONNECT))\n'
                '    check_binary(payload, "will_payload", found)\n',
            ),
        ),
        "3.1.2-9",
        "3.1.2-9",
        undecided=("*will*",),
    ),
    BrokerMutant(
        "largest-packet-id-refused",
        "The Packet Identifier 65,535 is refused.",
        (
            Edit(
                "mqtt.packets.fields",
                "packet_id > MAXIMUM_TWO_BYTES",
                "packet_id >= MAXIMUM_TWO_BYTES",
            ),
        ),
        "2.3.1-1",
        "2.2.1-3",
        also=(
            Also(
                "what has this identifier gets no answer",
                "3.3.4-1 4.3.2-2 4.3.3-2 3.8.4-1 3.10.4-4",
                "3.3.4-1 4.3.2-4 4.3.3-8 3.8.4-1 3.10.4-4",
            ),
        ),
        undecided=("*",),
    ),
    BrokerMutant(
        "long-topic-refused",
        "A Topic Name or Filter of more than 32,767 bytes is refused.",
        (
            Edit(
                "mqtt.wire",
                "    if size > MAXIMUM_TWO_BYTES:\n        report(found, Violation(TEXT",
                "    if size > 32_767:\n        report(found, Violation(TEXT",
            ),
        ),
        "4.7.3-3",
        "4.7.3-3",
    ),
    BrokerMutant(
        "long-remaining-length-refused",
        "A Remaining Length with more bytes than needed is refused in 3.1.1.",
        (
            Edit(
                "mqtt.wire",
                "        if self.version == MQTT5:\n            report(self.found, Violation(VAR",
                "        if True:\n            report(self.found, Violation(VAR",
            ),
        ),
        "U3-03",
    ),
    BrokerMutant(
        "largest-alias-refused",
        "The Topic Alias that equals the announced maximum is refused.",
        (
            Edit(
                "mqtt.exchange",
                "            if alias > other.topic_alias_maximum:\n",
                "            if alias > other.topic_alias_maximum - (sender == CLIENT):\n",
            ),
        ),
        mqtt5="3.3.2-12",
        undecided=("*alias*",),
    ),
    BrokerMutant(
        "unsubscribe-of-unknown-filter-refused",
        "UNSUBSCRIBE for a filter without a subscription ends the connection.",
        (
            Edit(
                "broker.core",
                "            reasons.append(SUCCESS if existed else NO_SUBSCRIPTION_EXISTED)\n",
                "            reasons.append(SUCCESS if existed else NO_SUBSCRIPTION_EXISTED)\n"
                "            if not existed:\n"
                "                self._connections.drop(connection, 0.0)\n"
                "                return\n",
            ),
        ),
        "3.10.4-5",
        "3.10.4-5 3.10.4-4",
        (
            Also("it answers every UNSUBSCRIBE", "3.10.4-4 3.10.4-6", "3.10.4-6 3.11.3-1 3.11.3-2"),
            Also(
                "a right UNSUBSCRIBE ends the connection",
                "2.2.2-1 2.3.1-1 3.10.1-1 3.10.3-1 3.10.3-2 1.5.3-1 1.5.3-2 1.5.3-3 4.7.1-2 4.7.1-3"
                " 4.7.3-1 4.7.3-2 4.7.3-3 U3-03",
                "2.1.3-1 2.2.1-3 2.2.2-1 3.10.1-1 3.10.3-1 3.10.3-2 1.5.4-1 1.5.4-2 1.5.4-3 1.5.5-1"
                " 1.5.7-1 4.7.1-1 4.7.1-2 4.7.3-1 4.7.3-2 4.7.3-3 U5-03 U5-05 U5-06",
            ),
        ),
        undecided=("*",),
    ),
)
