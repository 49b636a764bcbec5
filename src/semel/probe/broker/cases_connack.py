"""Cases: what CONNECT and CONNACK of 5.0 agree on [3.1.2.11, 3.2.2.3].

Statements that bind brokers without a feature apply to those that say so in CONNACK.
"""

from typing import Final

from semel.mqtt import PACKET_NAMES
from semel.mqtt.packet_types import (
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    SUBACK,
    UNSUBACK,
)
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.subscribe import SubAck
from semel.mqtt.packets.unsubscribe import UnsubAck
from semel.mqtt.trace import ObservedPacket
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.connect_steps import (
    METHOD,
    UNKNOWN_METHOD,
    connack_of,
    must_refuse_connect,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import RECEIVE, SEND

# [5.0 2.2.2.2] Identifiers of the properties that the cases write.
REQUEST_PROBLEM: Final = 0x17
REQUEST_RESPONSE: Final = 0x19
RECEIVE_MAXIMUM: Final = 0x21
ALIAS_MAXIMUM: Final = 0x22
ALIAS: Final = 0x23
PACKET_MAXIMUM: Final = 0x27
# More than this is not sent in order to be too large.
LARGEST_SENT: Final = 17 * 1024 * 1024

# --- what the client allows -----------------------------------------------------------------------


async def _deliver_around_a_large_message(trial: Trial, more: bytes = b"") -> None:
    """Claim that a message that is too large for the client is left out, and the next is not."""
    topic = trial.topic()
    limit = len(wire.publish(trial.version, topic, b"small", qos=1)) + 50
    link = await trial.connect(properties=wire.four_property(PACKET_MAXIMUM, limit) + more)
    await trial.subscribe(link, (topic, 1))
    publisher = await trial.connect("p")
    with trial.control():
        await trial.publish(publisher, topic, b"small", qos=1)
        await trial.must_receive_message(link)
    await trial.publish(publisher, topic, b"L" * (limit + 1), qos=1)
    await trial.publish(publisher, topic, b"next", qos=1)
    message = await trial.must_receive_message(link)
    trial.must(
        message.payload == b"next",
        f"a PUBLISH of more than {limit} bytes came, the Maximum Packet Size of the client",
    )
    await trial.must_stay_open(link, " after a message that is too large for the client")


async def message_too_large_for_the_client_is_left_out(trial: Trial) -> None:
    await _deliver_around_a_large_message(trial)


async def message_too_large_for_the_client_takes_no_place(trial: Trial) -> None:
    """A window of one message shows whether the broker acts as if it had completed sending it."""
    await _deliver_around_a_large_message(trial, wire.two_property(RECEIVE_MAXIMUM, 1))


async def answers_fit_the_maximum_packet_size(trial: Trial) -> None:
    limit = 20
    properties = wire.four_property(PACKET_MAXIMUM, limit)
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    link = await trial.open()
    method = wire.text_property(METHOD, UNKNOWN_METHOD)
    await link.send(trial.connect_bytes(properties=properties + method))
    await link.wait_closed(trial.timeout)
    for observed in link.inbox:
        trial.must(
            len(observed.data) <= limit,
            f"the broker sent a {PACKET_NAMES[observed.packet_type]} of {len(observed.data)} bytes"
            f" to a client whose Maximum Packet Size is {limit}",
        )


async def disconnect_and_limit(trial: Trial) -> tuple[ObservedPacket, int]:
    """A DISCONNECT of the broker, and the Maximum Packet Size of the client that it is sent to."""
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    # As small as the CONNACK of this broker allows.
    limit = await _connack_size(trial)
    link = await trial.connect(properties=wire.four_property(PACKET_MAXIMUM, limit))
    await link.send(trial.connect_bytes())
    await link.wait_closed(trial.timeout)
    last = [each for each in link.inbox if each.packet_type == DISCONNECT]
    if not last:
        trial.not_applicable("the broker closes without DISCONNECT, which is permitted")
    return last[0], limit


async def disconnect_fits_the_maximum_packet_size(trial: Trial) -> None:
    last, limit = await disconnect_and_limit(trial)
    size = len(last.data)
    trial.must(
        size <= limit, f"the DISCONNECT has {size} bytes, more than the Maximum Packet Size {limit}"
    )


async def disconnect_without_user_properties_that_do_not_fit(trial: Trial) -> None:
    last, limit = await disconnect_and_limit(trial)
    has_user_properties = (
        isinstance(last.packet, Disconnect) and last.packet.properties.user_properties
    )
    trial.must(
        len(last.data) <= limit or not has_user_properties,
        f"the DISCONNECT has User Properties and {len(last.data)} bytes, more than {limit}",
    )


async def _connack_size(trial: Trial) -> int:
    """How many bytes the CONNACK has for a client without a limit, and room for a SUBACK."""
    link = await trial.open()
    await link.send(trial.connect_bytes("size"))
    observed = await link.wait_for_observed(CONNACK, trial.timeout)
    trial.must(observed is not None, "no CONNACK came")
    assert observed is not None
    return max(len(observed.data), 8)


async def no_alias_without_topic_alias_maximum(trial: Trial) -> None:
    for name, properties in (("a", b""), ("b", wire.two_property(ALIAS_MAXIMUM, 0))):
        topic = trial.topic(name)
        link = await trial.connect(name, properties=properties)
        await trial.subscribe(link, (topic, 0))
        publisher = await trial.connect("p")
        for _ in range(3):
            await trial.publish(publisher, topic)
        for message in await trial.messages_until(link, topic, publisher):
            alias = message.properties.topic_alias
            trial.must(alias is None, f"a PUBLISH has the Topic Alias {alias}: none is allowed")


async def aliases_are_within_the_maximum_of_the_client(trial: Trial) -> None:
    maximum = 2
    link = await trial.connect(properties=wire.two_property(ALIAS_MAXIMUM, maximum))
    topics = [trial.topic(name) for name in "abcd"]
    await trial.subscribe(link, *((topic, 0) for topic in topics))
    publisher = await trial.connect("p")
    for topic in topics * 2:
        await trial.publish(publisher, topic)
    # The last one has the last topic, so that it is behind all others of one publisher.
    for message in await trial.messages_until(link, topics[-1], publisher):
        alias = message.properties.topic_alias
        trial.must(
            alias is None or 0 < alias <= maximum,
            f"a PUBLISH has the Topic Alias {alias}: the client allows {maximum}",
        )


async def no_response_information_unless_requested(trial: Trial) -> None:
    with trial.control():
        await trial.connect("c", properties=wire.byte_property(REQUEST_RESPONSE, 1))
    for name, properties in (("a", b""), ("b", wire.byte_property(REQUEST_RESPONSE, 0))):
        connack = connack_of(await trial.connect(name, properties=properties))
        found = connack.properties.response_information
        trial.must(found is None, f"the CONNACK has the Response Information {found!r}")


async def no_problem_information_if_not_wanted(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(properties=wire.byte_property(REQUEST_PROBLEM, 0))
    steps = (
        (wire.subscribe(trial.version, [(topic, 0)], packet_id=1), SUBACK),
        (wire.unsubscribe(trial.version, [topic + b"/none"], packet_id=2), UNSUBACK),
        (wire.publish(trial.version, topic + b"/none", qos=1, packet_id=3), PUBACK),
        (wire.publish(trial.version, topic + b"/none", qos=2, packet_id=4), PUBREC),
        (wire.pubrel(4), PUBCOMP),
        # An identifier that is not in use, which is a reason to explain something.
        (wire.pubrel(5), PUBCOMP),
    )
    for data, answer in steps:
        await link.send(data)
        packet = await trial.expect(link, answer)
        assert isinstance(packet, SubAck | UnsubAck | PubAck | PubRec | PubComp)
        properties = packet.properties
        trial.must(
            properties.reason_string is None and not properties.user_properties,
            f"the {PACKET_NAMES[answer]} has a Reason String or a User Property",
        )


# --- what the broker does not support, if it says so ----------------------------------------------


async def qos_that_is_not_excluded_is_supported(trial: Trial) -> None:
    link = await trial.connect()
    with trial.control():
        await trial.must_stay_open(link)
    maximum = connack_of(link).properties.maximum_qos
    highest = 2 if maximum is None else maximum
    topic = trial.topic()
    if highest >= 1:
        await link.send(wire.publish(trial.version, topic, qos=1, packet_id=1))
        await trial.must_receive(link, PUBACK)
    if highest == 2:
        await link.send(wire.publish(trial.version, topic, qos=2, packet_id=2))
        await trial.must_receive(link, PUBREC)
        await link.send(wire.pubrel(2))
        await trial.must_receive(link, PUBCOMP)


async def _with_maximum_qos(trial: Trial) -> tuple[ProbeLink, int]:
    link = await trial.connect()
    maximum = connack_of(link).properties.maximum_qos
    if maximum is None:
        trial.not_applicable("this broker supports QoS 2: its CONNACK has no Maximum QoS")
    return link, maximum


async def every_qos_may_be_subscribed(trial: Trial) -> None:
    link, maximum = await _with_maximum_qos(trial)
    await link.send(wire.subscribe(trial.version, [(trial.topic(), 2)]))
    packet = await trial.must_receive(link, SUBACK)
    assert isinstance(packet, SubAck)
    trial.must(
        packet.reasons[0] <= 2, f"a broker of QoS {maximum} refused a subscription with QoS 2"
    )


async def publish_above_the_maximum_qos_closes(trial: Trial) -> None:
    link, maximum = await _with_maximum_qos(trial)
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(wire.publish(trial.version, trial.topic(), qos=maximum + 1))
    await trial.must_refuse(link)


async def will_above_the_maximum_qos_is_refused(trial: Trial) -> None:
    _, maximum = await _with_maximum_qos(trial)
    link = await trial.open()
    will = (trial.topic(), b"will")
    await link.send(trial.connect_bytes("b", will=will, will_qos=maximum + 1))
    await must_refuse_connect(trial, link)


async def _without_retain(trial: Trial) -> ProbeLink:
    link = await trial.connect()
    if connack_of(link).properties.retain_available != 0:
        trial.not_applicable("this broker supports retained messages: it says nothing else")
    return link


async def will_retain_is_refused_without_retain(trial: Trial) -> None:
    await _without_retain(trial)
    link = await trial.open()
    await link.send(trial.connect_bytes("b", will=(trial.topic(), b"will"), will_retain=True))
    await must_refuse_connect(trial, link)


async def retain_closes_without_retain(trial: Trial) -> None:
    link = await _without_retain(trial)
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(wire.publish(trial.version, trial.topic(), retain=True))
    await trial.must_refuse(link)


async def packet_above_the_maximum_size_closes(trial: Trial) -> None:
    link = await trial.connect()
    with trial.control():
        await trial.must_stay_open(link)
    maximum = connack_of(link).properties.maximum_packet_size
    if maximum is None:
        trial.not_applicable("the broker has no Maximum Packet Size in CONNACK")
    if maximum > LARGEST_SENT:
        trial.not_applicable(f"the Maximum Packet Size in CONNACK is {maximum:,} bytes")
    await link.send(wire.publish(trial.version, trial.topic(), b"L" * maximum))
    await trial.must_refuse(link)


async def alias_above_the_maximum_closes(trial: Trial) -> None:
    link = await trial.connect()
    maximum = connack_of(link).properties.topic_alias_maximum or 0
    if maximum in (0, 0xFFFF):
        trial.not_applicable(f"the Topic Alias Maximum in CONNACK is {maximum}")
    with trial.control():
        alias = wire.two_property(ALIAS, maximum)
        await link.send(wire.publish(trial.version, trial.topic(), properties=alias))
        await trial.must_stay_open(link)
    alias = wire.two_property(ALIAS, maximum + 1)
    await link.send(wire.publish(trial.version, trial.topic(), properties=alias))
    await trial.must_refuse(link)


async def alias_without_a_maximum_closes(trial: Trial) -> None:
    link = await trial.connect()
    maximum = connack_of(link).properties.topic_alias_maximum
    if maximum:
        trial.not_applicable(f"the Topic Alias Maximum in CONNACK is {maximum}")
    with trial.control():
        await trial.must_stay_open(link)
    alias = wire.two_property(ALIAS, 1)
    await link.send(wire.publish(trial.version, trial.topic(), properties=alias))
    await trial.must_refuse(link)


async def wildcard_closes_without_wildcards(trial: Trial) -> None:
    link = await trial.connect()
    if connack_of(link).properties.wildcard_subscription_available != 0:
        trial.not_applicable("this broker supports wildcards: its CONNACK says nothing else")
    await _refuse_subscribe(trial, link, trial.topic() + b"/#")


async def subscription_identifier_closes_without_them(trial: Trial) -> None:
    link = await trial.connect()
    if connack_of(link).properties.subscription_identifiers_available != 0:
        trial.not_applicable("this broker supports Subscription Identifiers: it says nothing else")
    await _refuse_subscribe(trial, link, trial.topic(), properties=wire.subscription_identifier(1))


async def shared_subscription_closes_without_them(trial: Trial) -> None:
    link = await trial.connect()
    if connack_of(link).properties.shared_subscription_available != 0:
        trial.not_applicable("this broker supports shared subscriptions: it says nothing else")
    await _refuse_subscribe(trial, link, b"$share/g/" + trial.topic())


async def _refuse_subscribe(
    trial: Trial, link: ProbeLink, name: bytes, *, properties: bytes = b""
) -> None:
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(wire.subscribe(trial.version, [(name, 0)], properties=properties))
    await trial.must_refuse(link)


CASES: Final = (
    Case(
        "message-too-large-for-the-client",
        SEND,
        "A broker leaves out a message that is too large for a client, and goes on with the next.",
        message_too_large_for_the_client_is_left_out,
        mqtt5="3.1.2-24 3.1.2-25",
    ),
    Case(
        "message-too-large-takes-no-place",
        SEND,
        "A message that is too large for a client takes no place in its Receive Maximum.",
        message_too_large_for_the_client_takes_no_place,
        mqtt5="3.1.2-25",
    ),
    Case(
        "refusal-fits-the-maximum-packet-size",
        SEND,
        "A CONNACK that refuses is no larger than the Maximum Packet Size of the client.",
        answers_fit_the_maximum_packet_size,
        mqtt5="3.1.2-24 3.2.2-19 3.2.2-20",
    ),
    Case(
        "disconnect-fits-the-maximum-packet-size",
        SEND,
        "A DISCONNECT is no larger than the Maximum Packet Size of the client.",
        disconnect_fits_the_maximum_packet_size,
        mqtt5="3.1.2-24 3.14.2-3",
    ),
    Case(
        "disconnect-user-properties-fit",
        SEND,
        "A DISCONNECT has no User Properties that make it larger than the client accepts.",
        disconnect_without_user_properties_that_do_not_fit,
        mqtt5="3.14.2-4",
    ),
    Case(
        "no-topic-alias-unless-allowed",
        SEND,
        "A broker uses no Topic Alias for a client that allows none.",
        no_alias_without_topic_alias_maximum,
        mqtt5="3.1.2-27",
    ),
    Case(
        "topic-alias-within-the-clients-maximum",
        SEND,
        "A broker uses no Topic Alias above the Topic Alias Maximum of the client.",
        aliases_are_within_the_maximum_of_the_client,
        mqtt5="3.1.2-26",
    ),
    Case(
        "no-response-information-unless-requested",
        SEND,
        "A CONNACK has Response Information only if the client has requested it.",
        no_response_information_unless_requested,
        mqtt5="3.1.2-28",
    ),
    Case(
        "no-problem-information-if-not-wanted",
        SEND,
        "Acknowledgements have no Reason String or User Property if the client wants none.",
        no_problem_information_if_not_wanted,
        mqtt5="3.1.2-29",
    ),
    Case(
        "qos-not-excluded-is-supported",
        RECEIVE,
        "A broker supports each QoS that its Maximum QoS does not exclude.",
        qos_that_is_not_excluded_is_supported,
        mqtt5="3.2.2-9",
    ),
    Case(
        "maximum-qos-and-subscriptions",
        SEND,
        "A broker with a Maximum QoS grants subscriptions with any QoS.",
        every_qos_may_be_subscribed,
        mqtt5="3.2.2-10",
    ),
    Case(
        "publish-above-the-maximum-qos",
        RECEIVE,
        "A broker closes the connection for a PUBLISH above its Maximum QoS.",
        publish_above_the_maximum_qos_closes,
        mqtt5="3.2.2-11",
    ),
    Case(
        "will-above-the-maximum-qos",
        RECEIVE,
        "A broker refuses a CONNECT with a Will QoS above its Maximum QoS.",
        will_above_the_maximum_qos_is_refused,
        mqtt5="3.2.2-12",
    ),
    Case(
        "will-retain-without-retain",
        RECEIVE,
        "A broker without retained messages refuses a CONNECT with Will Retain 1.",
        will_retain_is_refused_without_retain,
        mqtt5="3.2.2-13",
    ),
    Case(
        "retain-without-retain",
        RECEIVE,
        "A broker without retained messages closes the connection for a PUBLISH with RETAIN 1.",
        retain_closes_without_retain,
        mqtt5="3.2.2-14",
    ),
    Case(
        "packet-above-the-brokers-maximum",
        RECEIVE,
        "A broker closes the connection for a packet above its Maximum Packet Size.",
        packet_above_the_maximum_size_closes,
        mqtt5="3.2.2-15",
    ),
    Case(
        "topic-alias-above-the-brokers-maximum",
        RECEIVE,
        "A broker closes the connection for a Topic Alias above its Topic Alias Maximum.",
        alias_above_the_maximum_closes,
        mqtt5="3.2.2-17",
    ),
    Case(
        "topic-alias-not-allowed-by-the-broker",
        RECEIVE,
        "A broker without Topic Alias Maximum closes the connection for a Topic Alias.",
        alias_without_a_maximum_closes,
        mqtt5="3.2.2-18",
    ),
    Case(
        "wildcard-not-available",
        RECEIVE,
        "A broker without wildcards closes the connection for a subscription with one.",
        wildcard_closes_without_wildcards,
        mqtt5="U5-47",
    ),
    Case(
        "subscription-identifier-not-available",
        RECEIVE,
        "A broker without Subscription Identifiers closes the connection for one.",
        subscription_identifier_closes_without_them,
        mqtt5="U5-48",
    ),
    Case(
        "shared-subscription-not-available",
        RECEIVE,
        "A broker without shared subscriptions closes the connection for one.",
        shared_subscription_closes_without_them,
        mqtt5="U5-49",
    ),
)
