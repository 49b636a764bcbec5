"""Mutants of what 5.0 adds: the properties of a message, and the limits that peers announce."""

from typing import Final

from tests.probe.broker.mutants.form import Also, BrokerMutant
from tests.probe.broker.mutants.source import Edit, RuleRemoval

MESSAGE: Final = "mqtt.message"
SENT_PROPERTIES: Final = "properties = self.properties if version == MQTT5 else NO_PROPERTIES"


def without_property(name: str, statement: str) -> BrokerMutant:
    """A mutant that does not send a property on; its name is that of the constant."""
    return BrokerMutant(
        f"{name.lower().replace('_', '-')}-dropped",
        f"The property {name.replace('_', ' ').title()} of a message is not sent on.",
        (
            Edit(
                MESSAGE,
                SENT_PROPERTIES,
                f"properties = _without(self.properties, 1 << {name}) if version == MQTT5"
                " else NO_PROPERTIES",
            ),
        ),
        mqtt5=statement,
    )


MUTANTS: Final = (
    without_property("PAYLOAD_FORMAT_INDICATOR", "3.3.2-4"),
    without_property("RESPONSE_TOPIC", "3.3.2-15"),
    without_property("CORRELATION_DATA", "3.3.2-16"),
    without_property("CONTENT_TYPE", "3.3.2-20"),
    BrokerMutant(
        "user-properties-dropped",
        "User Properties are not sent on.",
        (
            Edit(
                MESSAGE,
                SENT_PROPERTIES,
                "properties = _without(self.properties, 1 << USER_PROPERTY) if version == MQTT5"
                " else NO_PROPERTIES",
            ),
        ),
        mqtt5="3.3.2-17",
        also=(Also("what is not sent on has no order", mqtt5="3.3.2-18 3.1.3-10"),),
    ),
    BrokerMutant(
        "user-properties-reversed",
        "User Properties are sent on in reverse order.",
        (
            Edit(
                MESSAGE,
                SENT_PROPERTIES,
                "properties = Properties(list(self.properties.items)[::-1]) if version == MQTT5"
                " else NO_PROPERTIES",
            ),
        ),
        mqtt5="3.3.2-18",
        also=(Also("a will's, too", mqtt5="3.1.3-10"),),
    ),
    BrokerMutant(
        "expiry-not-counted-down",
        "The Message Expiry Interval is sent on as it was received.",
        (
            Edit(
                MESSAGE,
                "        expires_at = None if interval is None else now + interval\n    return",
                "        expires_at = None if interval is None else now + interval\n"
                "        _INTERVALS[expires_at] = interval\n    return",
            ),
            Edit(
                MESSAGE,
                "left = min(max(0, ceil(self.expires_at - now)), MAXIMUM_FOUR_BYTES)",
                "left = _INTERVALS.get(self.expires_at, 1)",
            ),
            Edit(
                MESSAGE,
                "\n\ndef message_properties(",
                "\n\n_INTERVALS = {}\n\n\ndef message_properties(",
            ),
        ),
        mqtt5="3.3.2-6",
        also=(Also("a retained message lives longer, too", mqtt5="3.3.2-5"),),
        slow=("*expir*",),
    ),
    BrokerMutant(
        "expired-delivered",
        "Messages are delivered after they have expired.",
        (
            Edit(
                MESSAGE,
                "return self.expires_at is not None and now >= self.expires_at",
                "return False",
            ),
        ),
        mqtt5="3.3.2-5",
        also=(Also("what is sent after its end has no time left", mqtt5="3.3.2-6"),),
        slow=("*expir*",),
    ),
    BrokerMutant(
        "receive-maximum-exceeded",
        "The broker ignores the Receive Maximum of its clients.",
        (
            Edit(
                "broker.connecting",
                "            receive_maximum=terms.receive_maximum,\n",
                "            receive_maximum=65_535,\n",
            ),
            Edit(
                "mqtt.exchange",
                "        if side.quota <= 0 and self.version == MQTT5:\n",
                "        if side.quota <= 0 and self.version == MQTT5 and sender == CLIENT:\n",
            ),
        ),
        mqtt5="3.3.4-9",
        also=(
            Also("the quota is the Receive Maximum in other words", mqtt5="4.9.0-1 4.9.0-2"),
            Also("the rule for the client has the same words", mqtt5="3.3.4-7"),
        ),
    ),
    BrokerMutant(
        "pingresp-waits-for-quota",
        "While a client's Receive Maximum is used up, its PINGREQ is not answered.",
        (
            Edit(
                "broker.core",
                "            self._connections.send(connection, PingResp())\n",
                "            if state.session._quota > 0:\n"
                "                self._connections.send(connection, PingResp())\n",
            ),
        ),
        mqtt5="3.3.4-10 4.9.0-3",
        also=(Also("every PINGREQ is answered", mqtt5="3.12.4-1"),),
        undecided=("receive-maximum-*",),
    ),
    BrokerMutant(
        "maximum-packet-size-exceeded",
        "The broker ignores the Maximum Packet Size of its clients.",
        (
            Edit(
                "broker.connecting",
                "            maximum_packet_size=client.maximum_packet_size,\n",
                "            maximum_packet_size=300_000_000,\n",
            ),
            Edit(
                "mqtt.exchange",
                "        check_packet_size(size, self._other(sender).maximum_packet_size, found)\n",
                "",
            ),
        ),
        mqtt5="3.1.2-24 3.1.2-25",
        also=(Also("the rule for the client has the same words", mqtt5="3.2.2-15"),),
    ),
    BrokerMutant(
        "alias-above-maximum",
        "The broker uses one Topic Alias more than the client accepts.",
        (
            Edit(
                "broker.connecting",
                "aliases = min(client.topic_alias_maximum, self._settings.client_topic_aliases)",
                "aliases = client.topic_alias_maximum + (client.topic_alias_maximum > 0)",
            ),
            Edit(
                "mqtt.exchange",
                "            if alias > other.topic_alias_maximum:\n",
                "            if alias > other.topic_alias_maximum and sender == CLIENT:\n",
            ),
        ),
        mqtt5="3.1.2-26 3.3.2-11",
        also=(
            Also(
                "the rule for any alias above the maximum has their words",
                mqtt5="3.1.2-27 3.2.2-17 3.2.2-18 3.3.2-9",
            ),
        ),
    ),
    BrokerMutant(
        "alias-without-maximum",
        "The broker uses a Topic Alias though the client accepts none.",
        (
            Edit(
                "broker.connecting",
                "aliases = min(client.topic_alias_maximum, self._settings.client_topic_aliases)",
                "aliases = client.topic_alias_maximum or int(packet.version == 5)",
            ),
            Edit(
                "mqtt.exchange",
                "            if alias > other.topic_alias_maximum:\n",
                "            if alias > other.topic_alias_maximum and sender == CLIENT:\n",
            ),
        ),
        mqtt5="3.1.2-27",
        also=(
            Also(
                "the rule for any alias above the maximum has their words",
                mqtt5="3.1.2-26 3.2.2-17 3.2.2-18 3.3.2-9 3.3.2-11",
            ),
        ),
        undecided=("*",),
    ),
    BrokerMutant(
        "response-information-unasked",
        "CONNACK has Response Information though the client did not ask for it.",
        (
            Edit(
                "broker.admission",
                "packet.properties.request_response_information != 1",
                "packet.properties.request_response_information == 2",
            ),
            RuleRemoval("RESPONSE_INFORMATION_ON_REQUEST"),
        ),
        mqtt5="3.1.2-28",
    ),
)
