"""Cases about topic aliases [3.3.2.3.4] in both directions, which only 5.0 has."""

from typing import Final

from semel.mqtt.packet_types import PUBACK, PUBCOMP, PUBREC
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    connect_kept,
    limits,
    listed,
    require_qos,
    require_wildcards,
    resume,
    subscribe_at,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import RECEIVE, SEND

# Aliases of a broker that are tried, if it allows so many.
TRIED: Final = 20


def alias(number: int) -> bytes:
    return wire.two_property(0x23, number)


def alias_maximum(number: int) -> bytes:
    return wire.two_property(0x22, number)


def require_aliases(trial: Trial, link: ProbeLink) -> int:
    """The broker's Topic Alias Maximum; end the case if it takes none."""
    maximum = limits(link).topic_alias_maximum
    if not maximum:
        trial.not_applicable("the broker said in CONNACK that it takes no topic aliases")
    return maximum


async def listener(trial: Trial, name: str = "sub", properties: bytes = b"") -> ProbeLink:
    """A subscriber to all topics of the trial."""
    link = await trial.connect(name, properties=properties)
    require_wildcards(trial, link)
    await trial.subscribe(link, (trial.topic("#"), usable_qos(link, 1)))
    return link


async def must_deliver(trial: Trial, link: ProbeLink, name: bytes, payload: bytes) -> None:
    """Claim that the next message is this one."""
    message = await trial.must_receive_message(link)
    trial.must(message.payload == payload, f"{message.payload.decode()} came")
    came = message.topic_name
    trial.must(came.encode() == name, f"a message to {name.decode()} was delivered as {came!r}")


# --- aliases of a client ---


async def publish_aliased(
    trial: Trial, link: ProbeLink, name: bytes, payload: bytes, number: int, qos: int
) -> None:
    """Publish with an alias; the claim is that the broker accepts it."""
    properties = alias(number)
    packet = wire.publish(
        trial.version, name, payload, qos=qos, packet_id=200, properties=properties
    )
    await link.send(packet)
    if qos:
        await trial.must_receive(link, PUBACK)


async def every_alias_is_accepted(trial: Trial) -> None:
    subscriber, publisher = await listener(trial), await trial.connect("pub")
    maximum = require_aliases(trial, publisher)
    qos = usable_qos(publisher, 1)
    numbers = sorted({*range(1, min(maximum, TRIED) + 1), maximum})
    for number in numbers:
        name = trial.topic(f"{number}")
        await publish_aliased(trial, publisher, name, b"with", number, qos)
        await must_deliver(trial, subscriber, name, b"with")
    for number in reversed(numbers):
        await publish_aliased(trial, publisher, b"", b"without", number, qos)
        await must_deliver(trial, subscriber, trial.topic(f"{number}"), b"without")


async def alias_at_every_qos(trial: Trial) -> None:
    subscriber, publisher = await listener(trial), await trial.connect("pub")
    require_aliases(trial, publisher)
    name = trial.topic("a")
    await trial.publish(publisher, name, b"first", properties=alias(1))
    await must_deliver(trial, subscriber, name, b"first")
    for qos in range(usable_qos(publisher, 2) + 1):
        payload = b"with QoS %d" % qos
        await trial.publish(publisher, b"", payload, qos=qos, properties=alias(1))
        await must_deliver(trial, subscriber, name, payload)


async def alias_can_be_mapped_again(trial: Trial) -> None:
    subscriber, publisher = await listener(trial), await trial.connect("pub")
    require_aliases(trial, publisher)
    qos = usable_qos(publisher, 1)
    for name in (trial.topic("a"), trial.topic("b"), trial.topic("a")):
        await trial.publish(publisher, name, b"with", qos=qos, properties=alias(1))
        await must_deliver(trial, subscriber, name, b"with")
        await trial.publish(publisher, b"", b"without", qos=qos, properties=alias(1))
        await must_deliver(trial, subscriber, name, b"without")


async def aliases_belong_to_a_connection(trial: Trial) -> None:
    subscriber = await listener(trial)
    one, two = await trial.connect("one"), await trial.connect("two")
    require_aliases(trial, one)
    qos = usable_qos(one, 1)
    for link, name in ((one, "a"), (two, "b")):
        await trial.publish(link, trial.topic(name), b"with", qos=qos, properties=alias(1))
        await must_deliver(trial, subscriber, trial.topic(name), b"with")
    for link, name in ((one, "a"), (two, "b")):
        await trial.publish(link, b"", b"without", qos=qos, properties=alias(1))
        await must_deliver(trial, subscriber, trial.topic(name), b"without")


async def alias_ends_with_its_connection(trial: Trial) -> None:
    subscriber, publisher = await listener(trial), await connect_kept(trial, "kept")
    require_aliases(trial, publisher)
    name = trial.topic("a")
    with trial.control():
        await trial.publish(publisher, name, b"with", properties=alias(1))
        await must_deliver(trial, subscriber, name, b"with")
        await trial.publish(publisher, b"", b"without", properties=alias(1))
        await must_deliver(trial, subscriber, name, b"without")
    await publisher.cut()
    publisher = await resume(trial, "kept")
    await publisher.send(wire.publish(trial.version, b"", b"again", properties=alias(1)))
    await trial.must_refuse(publisher, why=" for an alias of an earlier connection")
    found = await trial.messages_until(subscriber, name, await trial.connect("pub"))
    trial.must(not found, "a message with an alias of an earlier connection was delivered")


async def unmapped_alias_is_refused(trial: Trial) -> None:
    for qos in range(3):
        publisher = await trial.connect(f"p{qos}")
        require_aliases(trial, publisher)
        if usable_qos(publisher, qos) < qos:
            break
        with trial.control():
            await trial.publish(publisher, trial.topic("a"), b"x", properties=alias(1))
            await trial.must_stay_open(publisher)
        other = await trial.connect(f"o{qos}")
        packet = wire.publish(trial.version, b"", b"x", qos=qos, packet_id=7, properties=alias(1))
        await other.send(packet)
        await trial.must_refuse(other, why=f" for an alias without a topic at QoS {qos}")


async def alias_above_the_maximum_is_refused(trial: Trial) -> None:
    publisher = await trial.connect("right")
    maximum = require_aliases(trial, publisher)
    if maximum == 65_535:
        trial.not_applicable("the broker said in CONNACK that it takes every topic alias")
    with trial.control():
        await trial.publish(publisher, trial.topic("a"), b"x", properties=alias(maximum))
        await trial.must_stay_open(publisher)
    for number in sorted({maximum + 1, 65_535}):
        link = await trial.connect(f"n{number}")
        name = trial.topic("a")
        await link.send(wire.publish(trial.version, name, b"x", properties=alias(number)))
        why = f" for alias {number}, above its maximum {maximum}"
        await trial.must_refuse(link, why=why)


async def alias_without_support_is_refused(trial: Trial) -> None:
    publisher = await trial.connect("right")
    if limits(publisher).topic_alias_maximum:
        trial.not_applicable("this broker takes topic aliases")
    with trial.control():
        await trial.publish(publisher, trial.topic("a"), b"x")
        await trial.must_stay_open(publisher)
    link = await trial.connect("wrong")
    await link.send(wire.publish(trial.version, trial.topic("a"), b"x", properties=alias(1)))
    await trial.must_refuse(link, why=" for a topic alias, which it does not take")


# --- aliases of the broker ---


async def alias_is_not_forwarded(trial: Trial) -> None:
    subscriber, publisher = await listener(trial), await trial.connect("pub")
    qos = usable_qos(publisher, 1)
    maximum = limits(publisher).topic_alias_maximum or 0
    for _ in range(3):
        properties = alias(1) if maximum else b""
        await trial.publish(publisher, trial.topic("a"), b"x", qos=qos, properties=properties)
        message = await trial.must_receive_message(subscriber)
        value = message.properties.topic_alias
        trial.must(value is None, f"a client without Topic Alias Maximum got alias {value}")
        trial.must(message.topic_name, "a message without a topic name came")


async def resolve(
    trial: Trial, link: ProbeLink, known: dict[int, str], maximum: int
) -> tuple[str, Publish]:
    """The topic of the next message, by the aliases of its connection, which it may change."""
    message = await trial.must_receive_message(link)
    number = message.properties.topic_alias
    if number is not None:
        trial.must(1 <= number <= maximum, f"alias {number} came, the maximum is {maximum}")
        if message.topic_name:
            known[number] = message.topic_name
        elif number not in known:
            trial.refute(f"alias {number} came without a topic, and was not mapped before")
        return known[number], message
    return message.topic_name, message


async def aliases_stay_below_the_maximum(trial: Trial, maximum: int) -> None:
    subscriber = await listener(trial, properties=alias_maximum(maximum))
    publisher = await trial.connect("pub")
    qos = usable_qos(publisher, 1)
    known: dict[int, str] = {}
    for number in range(15):
        name = trial.topic(f"{number % 5}")
        await trial.publish(publisher, name, b"%d" % number, qos=qos)
        topic_name, message = await resolve(trial, subscriber, known, maximum)
        trial.must(message.payload == b"%d" % number, "another message came")
        trial.must(topic_name.encode() == name, f"{name.decode()} came as {topic_name}")


async def aliases_stay_below_2(trial: Trial) -> None:
    await aliases_stay_below_the_maximum(trial, 2)


async def aliases_stay_below_65535(trial: Trial) -> None:
    await aliases_stay_below_the_maximum(trial, 65_535)


async def alias_maximum_0_is_none(trial: Trial) -> None:
    await aliases_stay_below_the_maximum(trial, 0)


async def aliases_end_with_the_connection(trial: Trial) -> None:
    """The mappings of the broker end with a connection, the session does not."""
    properties = alias_maximum(5)
    subscriber = await connect_kept(trial, "kept", properties=properties)
    publisher = await trial.connect("pub")
    require_qos(trial, publisher, 1)
    await subscribe_at(trial, subscriber, trial.topic("a"), 1)
    for _ in range(2):
        known: dict[int, str] = {}
        for number in range(3):
            await trial.publish(publisher, trial.topic("a"), b"%d" % number, qos=1)
            topic_name, _ = await resolve(trial, subscriber, known, 5)
            trial.must(topic_name.encode() == trial.topic("a"), f"{topic_name} came")
        await subscriber.cut()
        subscriber = await resume(trial, "kept", properties=properties)


async def resent_message_has_its_topic(trial: Trial) -> None:
    """What is sent again on a new connection cannot rely on an alias of the old one."""
    properties = alias_maximum(5)
    subscriber = await connect_kept(trial, "kept", properties=properties)
    publisher = await trial.connect("pub")
    require_qos(trial, publisher, 1)
    await subscribe_at(trial, subscriber, trial.topic("a"), 1)
    for number in range(2):
        await trial.publish(publisher, trial.topic("a"), b"%d" % number, qos=1)
    first = await trial.message(subscriber, acknowledge=False)
    with trial.control():
        trial.must(first is not None, "the broker delivered nothing")
    await subscriber.cut()
    # The new connection takes no aliases at all.
    subscriber = await resume(trial, "kept")
    names = []
    for _ in range(2):
        message = await trial.must_receive_message(subscriber)
        names.append(message.topic_name)
    trial.must(set(names) == {trial.topic("a").decode()}, f"sent again to {listed(names)}")


async def repeated_qos_2_with_an_alias(trial: Trial) -> None:
    """The message of an alias is complete: its QoS 2 exchange goes on without it."""
    subscriber, publisher = await listener(trial), await connect_kept(trial, "kept")
    require_aliases(trial, publisher)
    require_qos(trial, publisher, 2)
    name = trial.topic("a")
    await trial.publish(publisher, name, b"first", qos=1, properties=alias(1))
    await must_deliver(trial, subscriber, name, b"first")
    await publisher.send(
        wire.publish(trial.version, b"", b"second", qos=2, packet_id=7, properties=alias(1))
    )
    await trial.must_receive(publisher, PUBREC)
    await publisher.cut()
    publisher = await resume(trial, "kept")
    await publisher.send(wire.publish(trial.version, name, b"second", qos=2, packet_id=7, dup=True))
    await trial.must_receive(publisher, PUBREC)
    await publisher.send(wire.pubrel(7))
    await trial.must_receive(publisher, PUBCOMP)
    await must_deliver(trial, subscriber, name, b"second")
    await publisher.send(wire.publish(trial.version, name, b"third", qos=1, packet_id=8))
    await trial.must_receive(publisher, PUBACK)
    await must_deliver(trial, subscriber, name, b"third")


CASES: Final = (
    Case(
        "alias-up-to-the-maximum",
        SEND,
        "The broker takes every alias from 1 to its Topic Alias Maximum, and delivers by it.",
        every_alias_is_accepted,
        mqtt5="3.3.2-12",
    ),
    Case(
        "alias-at-every-qos",
        SEND,
        "A topic alias stands for its topic at every QoS.",
        alias_at_every_qos,
        mqtt5="3.3.2-12",
    ),
    Case(
        "alias-mapped-anew",
        SEND,
        "A topic alias can be mapped to another topic.",
        alias_can_be_mapped_again,
        mqtt5="3.3.2-12",
    ),
    Case(
        "alias-of-one-connection",
        SEND,
        "The topic aliases of two connections are independent.",
        aliases_belong_to_a_connection,
        mqtt5="3.3.2-12",
    ),
    Case(
        "alias-ends-with-its-connection",
        RECEIVE,
        "A topic alias of an earlier connection of the session is unknown.",
        alias_ends_with_its_connection,
        mqtt5="3.3.2-7",
    ),
    Case(
        "alias-unmapped",
        RECEIVE,
        "A PUBLISH with an unmapped topic alias and no topic ends the connection.",
        unmapped_alias_is_refused,
        mqtt5="U5-59",
    ),
    Case(
        "alias-above-the-maximum",
        RECEIVE,
        "A topic alias above the broker's Topic Alias Maximum ends the connection.",
        alias_above_the_maximum_is_refused,
        mqtt5="3.3.2-9 3.2.2-17",
    ),
    Case(
        "alias-unavailable",
        RECEIVE,
        "A topic alias for a broker that takes none ends the connection.",
        alias_without_support_is_refused,
        mqtt5="3.2.2-18",
    ),
    Case(
        "alias-not-forwarded",
        SEND,
        "A client without Topic Alias Maximum gets no topic alias.",
        alias_is_not_forwarded,
        mqtt5="3.1.2-27 3.3.2-11",
    ),
    Case(
        "alias-maximum-0",
        SEND,
        "A client with Topic Alias Maximum 0 gets no topic alias.",
        alias_maximum_0_is_none,
        mqtt5="3.1.2-27 3.3.2-11",
    ),
    Case(
        "alias-maximum-2",
        SEND,
        "The broker uses no topic alias above the client's Topic Alias Maximum.",
        aliases_stay_below_2,
        mqtt5="3.3.2-11 3.1.2-26",
    ),
    Case(
        "alias-maximum-65535",
        SEND,
        "What the broker sends with topic aliases has the right topics.",
        aliases_stay_below_65535,
        mqtt5="3.3.2-11 3.1.2-26",
    ),
    Case(
        "alias-begins-anew",
        SEND,
        "The broker maps its topic aliases anew on each connection.",
        aliases_end_with_the_connection,
        mqtt5="3.3.2-7",
    ),
    Case(
        "alias-not-in-what-is-sent-again",
        SEND,
        "What is sent again on a new connection has its topic name.",
        resent_message_has_its_topic,
        mqtt5="3.3.2-7",
    ),
    Case(
        "alias-and-qos-2-repeat",
        SEND,
        "A QoS 2 message that came with an alias is the same when it is repeated with its topic.",
        repeated_qos_2_with_an_alias,
        mqtt5="4.3.3-10",
    ),
)
