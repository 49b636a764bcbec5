"""Cases: CONNECT, what may come before and after it, and which are refused [3.1, 3.2]."""

from typing import Final

from semel.mqtt.packet_types import CONNACK, DISCONNECT, PINGRESP, SUBACK
from semel.mqtt.packets.connack import ConnAck
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.connect_steps import (
    UNKNOWN_METHOD,
    connack_code,
    connack_of,
    expect_refused,
    expiry,
    forget_session,
    leave,
    must_refuse_connect,
    refused_connect,
    watch,
)
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable, ControlFailed
from semel.probe.verdicts import RECEIVE, SEND

# Levels that no version of MQTT has, nor an extension that we know.
UNKNOWN_LEVELS: Final = (2, 9, 127)

# --- what is answered -----------------------------------------------------------------------------


async def connect_is_answered_with_success(trial: Trial) -> None:
    link = await trial.open()
    await link.send(trial.connect_bytes())
    await trial.must_receive(link, CONNACK)
    connack = link.connack
    trial.must(connack is not None and connack.reason == 0, "the CONNACK has no code 0")
    await trial.must_stay_open(link, " after the CONNACK")


async def connect_in_single_bytes_is_answered(trial: Trial) -> None:
    with trial.control():
        await trial.connect("c")
    link = await trial.open()
    data = trial.connect_bytes()
    for index in range(len(data)):
        await link.send(data[index : index + 1], "one byte of a CONNECT")
    packet = await trial.must_receive(link, CONNACK)
    assert isinstance(packet, ConnAck)
    trial.must(packet.reason == 0, f"the broker refused it with 0x{packet.reason:02x}")


async def packets_behind_connect_are_answered_in_order(trial: Trial) -> None:
    """[3.1.4] A client need not wait for CONNACK before it sends more."""
    topic = trial.topic()
    link = await trial.open()
    await link.send(
        trial.connect_bytes()
        + wire.subscribe(trial.version, [(topic, 0)], packet_id=10)
        + wire.publish(trial.version, topic, b"behind CONNECT")
        + wire.pingreq()
    )
    await trial.must_receive(link, PINGRESP)
    types = [observed.packet_type for observed in link.inbox]
    trial.must(types[:1] == [CONNACK], "the CONNACK was not the first packet")
    # It may come after the PINGRESP, too.
    if SUBACK not in types and await link.wait_for(SUBACK, trial.timeout) is None:
        trial.refute("the SUBSCRIBE behind CONNECT was not answered")
    message = await trial.must_receive_message(link)
    trial.must(message.payload == b"behind CONNECT", "another message was delivered")


async def connack_comes_before_queued_messages(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect_durable()
    try:
        await trial.subscribe(link, (topic, 1))
        await leave(trial, link)
        publisher = await trial.connect("p")
        await trial.publish(publisher, topic, b"queued", qos=1)
        again = await trial.open()
        await again.send(
            trial.connect_bytes(clean=False, properties=expiry(300) if trial.is_5 else b"")
        )
        await trial.expect_message(again)
        first = again.inbox[0].packet_type if again.inbox else 0
        trial.must(first == CONNACK, "a PUBLISH came before the CONNACK")
    finally:
        await forget_session(trial)


async def only_one_connack_is_sent(trial: Trial) -> None:
    link = await trial.connect()
    await trial.subscribe(link, (trial.topic(), 0))
    await trial.must_stay_open(link)
    types = [observed.packet_type for observed in link.inbox]
    trial.must(CONNACK not in types, "a second CONNACK came")


async def ping_is_answered(trial: Trial) -> None:
    link = await trial.connect()
    await link.send(wire.pingreq())
    await trial.must_receive(link, PINGRESP)


async def each_ping_is_answered(trial: Trial) -> None:
    link = await trial.connect()
    await trial.must_stay_open(link)
    await link.send(wire.pingreq() * 3)
    for _ in range(3):
        await trial.must_receive(link, PINGRESP)


# --- before CONNECT, and a second one -------------------------------------------------------------


async def _refuse_as_first(trial: Trial, data: bytes) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    link = await trial.open()
    await link.send(data)
    await must_refuse_connect(trial, link, why=", although no CONNECT was sent")


async def pingreq_before_connect_closes(trial: Trial) -> None:
    await _refuse_as_first(trial, wire.pingreq())


async def subscribe_before_connect_closes(trial: Trial) -> None:
    await _refuse_as_first(trial, wire.subscribe(trial.version, [(trial.topic(), 0)]))


async def acknowledgement_before_connect_closes(trial: Trial) -> None:
    await _refuse_as_first(trial, wire.puback(1))


async def publish_before_connect_is_not_delivered(trial: Trial) -> None:
    topic = trial.topic()
    watcher = await watch(trial, topic)
    publisher = await trial.connect("p")
    with trial.control():
        await trial.publish(publisher, topic, b"from a client")
        await trial.must_receive_message(watcher)
    link = await trial.open()
    await link.send(wire.publish(trial.version, topic, b"from nobody"))
    await must_refuse_connect(trial, link, why=", although no CONNECT was sent")
    found = await trial.messages_until(watcher, topic, publisher)
    trial.must(not found, "the broker delivered a message that came before CONNECT")


async def second_connect_closes(trial: Trial) -> None:
    link = await trial.connect()
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(trial.connect_bytes())
    await trial.must_refuse(link, allowed=(DISCONNECT,) if trial.is_5 else ())


async def second_connect_with_another_client_id_closes(trial: Trial) -> None:
    link = await trial.connect()
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(trial.connect_bytes("b"))
    await trial.must_refuse(link, allowed=(DISCONNECT,) if trial.is_5 else ())


async def second_connect_in_the_same_segment_closes(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    link = await trial.open()
    await link.send(trial.connect_bytes() * 2)
    await trial.must_refuse(link, allowed=(CONNACK, DISCONNECT) if trial.is_5 else (CONNACK,))
    connacks = [each for each in link.inbox if each.packet_type == CONNACK]
    trial.must(len(connacks) < 2, "the broker sent two CONNACKs")


# --- protocol name and level ----------------------------------------------------------------------


async def _serves_5(trial: Trial) -> bool:
    """Whether the broker accepts a CONNECT of 5.0."""
    link = await trial.open()
    await link.send(wire.connect(wire.MQTT5, trial.client_id("five")))
    observed = await link.wait_for_observed(CONNACK, trial.timeout)
    await link.close()
    return observed is not None and len(observed.data) > 4


async def unknown_level_gets_return_code_1(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    for level in UNKNOWN_LEVELS:
        link = await trial.open()
        await link.send(wire.connect(trial.version, trial.client_id(), level=level))
        await must_refuse_connect(trial, link, why=f" for protocol level {level}")
        codes = [each.data for each in link.inbox if each.packet_type == CONNACK]
        if codes and len(codes[0]) == 4 and codes[0][3] == 1:
            continue
        seen = f"the CONNACK {codes[0].hex()}" if codes else "no CONNACK"
        if await _serves_5(trial):
            raise ClaimArguable(
                f"protocol level {level} was refused with {seen}: a broker that serves 5.0, too,"
                " may follow MQTT-3.1.2-2 of 5.0, which permits this"
            )
        trial.refute(f"protocol level {level} was refused with {seen}, not with return code 0x01")


async def unknown_level_closes(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    for level in (6, 9, 127):
        link = await trial.open()
        await link.send(wire.connect(trial.version, trial.client_id(), level=level))
        await must_refuse_connect(trial, link, why=f" for protocol level {level}")


async def other_protocol_name_is_not_accepted(trial: Trial) -> None:
    """3.1.1 lets a broker go on by another specification, 5.0 does not."""
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    for name in (b"MQTX", b"mqtt", b"MQTTS", b""):
        link = await trial.open()
        await link.send(wire.connect(trial.version, trial.client_id(), protocol_name=name))
        why = f" for the protocol name {name.decode()!r}"
        if trial.is_5:
            await must_refuse_connect(trial, link, why=why)
            continue
        await link.send(wire.pingreq())
        await link.wait_closed(trial.timeout)
        for observed in link.inbox:
            if observed.packet_type == CONNACK and connack_code(observed) == 0:
                trial.refute(f"the broker accepted the CONNECT{why}")
            if observed.packet_type == PINGRESP:
                trial.refute(f"the broker answered PINGREQ{why}")


# --- CONNECTs that are not as they should be ------------------------------------------------------


def _malformed_connects(trial: Trial) -> dict[str, bytes]:
    """CONNECTs that break the form, by what is wrong with them."""
    version, client_id = trial.version, trial.client_id()
    right = wire.connect(version, client_id)
    return {
        "with the reserved flag": wire.connect(version, client_id, flags=0x03),
        "with Will QoS 3": wire.connect(
            version, client_id, will=(trial.topic(), b"will"), flags=0x1E
        ),
        "with a Will Flag and no will": wire.connect(version, client_id, flags=0x06),
        "with a user name flag and no user name": wire.connect(version, client_id, flags=0x82),
        "with Will Retain and no Will Flag": wire.connect(version, client_id, flags=0x22),
        "with a byte after its payload": wire.frame(0x10, right[2:], b"\x00"),
        "without a payload": wire.frame(
            0x10, wire.text(b"MQTT"), bytes([version, 2]), wire.two(60), wire.section(version)
        ),
    }


async def malformed_connect_closes(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    for wrong, data in _malformed_connects(trial).items():
        link = await trial.open()
        await link.send(data)
        await must_refuse_connect(
            trial, link, connack_allowed=trial.is_5, why=f" for a CONNECT {wrong}"
        )


async def no_disconnect_before_connack(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    wrong = _malformed_connects(trial) | {
        "that is a PINGREQ": wire.pingreq(),
        "of an unknown Authentication Method": refused_connect(trial),
    }
    for name, data in wrong.items():
        link = await trial.open()
        await link.send(data)
        await link.wait_closed(trial.timeout)
        types = [observed.packet_type for observed in link.inbox]
        trial.must(DISCONNECT not in types, f"DISCONNECT was the answer to a CONNECT {name}")


async def refused_connect_closes(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    link = await trial.open()
    await link.send(refused_connect(trial))
    packet = await link.wait_for(CONNACK, trial.timeout)
    if not isinstance(packet, ConnAck):
        trial.not_applicable("the broker closed without a CONNACK, which is permitted")
    if not packet.reason:
        raise ControlFailed("the broker accepted a CONNECT that it must refuse")
    await trial.must_refuse(link)


async def refused_connect_has_session_present_0(trial: Trial) -> None:
    link = await trial.connect_durable()
    try:
        await leave(trial, link)
        with trial.control():
            again = await trial.connect_durable()
            trial.must(connack_of(again).session_present, "there is no session")
            await leave(trial, again)
        refused = await trial.open()
        if trial.is_5:
            method = wire.text_property(0x15, UNKNOWN_METHOD)
            await refused.send(trial.connect_bytes(clean=False, properties=expiry(300) + method))
        else:
            await refused.send(wire.connect(trial.version, trial.client_id(), level=9, clean=False))
        observed = await refused.wait_for_observed(CONNACK, trial.timeout)
        if observed is None:
            trial.not_applicable("the broker closed without a CONNACK")
        if not connack_code(observed):
            raise ControlFailed("the broker accepted a CONNECT that it must refuse")
        trial.must(not observed.data[2] & 1, "the refusal has Session Present 1")
    finally:
        await forget_session(trial)


async def packets_behind_a_refused_connect_are_ignored(trial: Trial) -> None:
    topic = trial.topic()
    watcher = await watch(trial, topic)
    publisher = await trial.connect("p")
    with trial.control():
        link = await trial.open()
        behind = wire.publish(trial.version, topic, b"behind an accepted CONNECT")
        await link.send(trial.connect_bytes() + behind)
        await trial.must_receive_message(watcher)
    link = await trial.open()
    behind = wire.publish(trial.version, topic, b"behind a refused CONNECT")
    await link.send(refused_connect(trial) + behind)
    await expect_refused(link)
    found = await trial.messages_until(watcher, topic, publisher)
    trial.must(not found, "the broker delivered a message that came behind a refused CONNECT")


async def packets_behind_a_malformed_connect_are_ignored(trial: Trial) -> None:
    topic = trial.topic()
    watcher = await watch(trial, topic)
    publisher = await trial.connect("p")
    with trial.control():
        await trial.publish(publisher, topic)
        await trial.must_receive_message(watcher)
    link = await trial.open()
    behind = wire.publish(trial.version, topic, b"behind a malformed CONNECT")
    await link.send(wire.connect(trial.version, trial.client_id(), flags=0x03) + behind)
    await expect_refused(link)
    found = await trial.messages_until(watcher, topic, publisher)
    trial.must(not found, "the broker delivered a message that came behind a malformed CONNECT")


async def failed_authentication_closes(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("c"))
    user_name = trial.subject.user_name or b"semel-probe-nobody"
    link = await trial.open()
    await link.send(
        wire.connect(
            trial.version, trial.client_id(), user_name=user_name, password=b"semel-probe-wrong"
        )
    )
    packet = await link.wait_for(CONNACK, trial.timeout)
    if isinstance(packet, ConnAck) and packet.reason == 0:
        trial.not_applicable("the broker accepts every user name and password")
    await trial.must_refuse(link, allowed=())


CASES: Final = (
    Case(
        "connect-is-answered",
        SEND,
        "A broker answers a valid CONNECT with CONNACK and code 0.",
        connect_is_answered_with_success,
        mqtt311="3.1.4-4",
        mqtt5="3.1.4-5",
    ),
    Case(
        "connect-in-single-bytes",
        RECEIVE,
        "A broker accepts a CONNECT that comes byte by byte.",
        connect_in_single_bytes_is_answered,
        mqtt311="3.1.4-4",
        mqtt5="3.1.4-5",
    ),
    Case(
        "packets-behind-connect",
        SEND,
        "A broker sends CONNACK first, and then handles what came in the segment of CONNECT.",
        packets_behind_connect_are_answered_in_order,
        mqtt311="3.1.4-4 3.2.0-1",
        mqtt5="3.1.4-5 3.2.0-1",
    ),
    Case(
        "connack-before-queued-messages",
        SEND,
        "A broker sends the queued messages of a session after the CONNACK.",
        connack_comes_before_queued_messages,
        mqtt311="3.2.0-1",
        mqtt5="3.2.0-1",
    ),
    Case(
        "one-connack",
        SEND,
        "A broker sends one CONNACK on a connection.",
        only_one_connack_is_sent,
        mqtt5="3.2.0-2",
    ),
    Case(
        "ping-is-answered",
        SEND,
        "A broker answers PINGREQ with PINGRESP.",
        ping_is_answered,
        mqtt311="3.12.4-1",
        mqtt5="3.12.4-1",
    ),
    Case(
        "each-ping-is-answered",
        SEND,
        "A broker answers each of three PINGREQs that come together.",
        each_ping_is_answered,
        mqtt311="3.12.4-1",
        mqtt5="3.12.4-1",
    ),
    Case(
        "pingreq-before-connect",
        RECEIVE,
        "A broker closes a connection whose first packet is PINGREQ.",
        pingreq_before_connect_closes,
        mqtt311="3.1.0-1 4.8.0-1",
        mqtt5="3.1.0-1 4.13.1-1",
    ),
    Case(
        "subscribe-before-connect",
        RECEIVE,
        "A broker closes a connection whose first packet is SUBSCRIBE.",
        subscribe_before_connect_closes,
        mqtt311="3.1.0-1 4.8.0-1",
        mqtt5="3.1.0-1 4.13.1-1",
    ),
    Case(
        "acknowledgement-before-connect",
        RECEIVE,
        "A broker closes a connection whose first packet is PUBACK.",
        acknowledgement_before_connect_closes,
        mqtt311="3.1.0-1 4.8.0-1",
        mqtt5="3.1.0-1 4.13.1-1",
    ),
    Case(
        "publish-before-connect",
        RECEIVE,
        "A broker closes a connection whose first packet is PUBLISH, and does not deliver it.",
        publish_before_connect_is_not_delivered,
        mqtt311="3.1.0-1 4.8.0-1",
        mqtt5="3.1.0-1 4.13.1-1",
    ),
    Case(
        "second-connect",
        RECEIVE,
        "A broker closes the connection for a second CONNECT.",
        second_connect_closes,
        mqtt311="3.1.0-2",
        mqtt5="3.1.0-2",
    ),
    Case(
        "second-connect-of-another-client",
        RECEIVE,
        "A broker closes the connection for a second CONNECT with another client identifier.",
        second_connect_with_another_client_id_closes,
        mqtt311="3.1.0-2",
        mqtt5="3.1.0-2",
    ),
    Case(
        "second-connect-in-one-segment",
        RECEIVE,
        "A broker closes the connection for two CONNECTs that come together.",
        second_connect_in_the_same_segment_closes,
        mqtt311="3.1.0-2",
        mqtt5="3.1.0-2",
    ),
    Case(
        "unknown-protocol-level-return-code",
        RECEIVE,
        "A broker answers an unknown protocol level with return code 0x01 and closes.",
        unknown_level_gets_return_code_1,
        mqtt311="3.1.2-2",
    ),
    Case(
        "unknown-protocol-version",
        RECEIVE,
        "A broker closes the connection for a protocol version that it does not serve.",
        unknown_level_closes,
        mqtt5="3.1.2-2",
    ),
    Case(
        "other-protocol-name",
        RECEIVE,
        "A broker does not accept a CONNECT with a protocol name other than MQTT.",
        other_protocol_name_is_not_accepted,
        mqtt311="3.1.2-1",
        mqtt5="3.1.2-1",
    ),
    Case(
        "malformed-connect",
        RECEIVE,
        "A broker closes the connection for a malformed CONNECT: in 3.1.1 without a CONNACK.",
        malformed_connect_closes,
        mqtt311="3.1.4-1",
        mqtt5="3.1.4-1",
    ),
    Case(
        "no-disconnect-before-connack",
        SEND,
        "A broker sends no DISCONNECT before it has accepted a CONNECT.",
        no_disconnect_before_connack,
        mqtt5="3.14.0-1",
    ),
    Case(
        "refused-connect-closes",
        SEND,
        "A broker closes the connection after a CONNACK that refuses.",
        refused_connect_closes,
        mqtt311="3.2.2-5",
        mqtt5="3.2.2-7 4.13.2-1",
    ),
    Case(
        "refused-connect-session-present",
        SEND,
        "A CONNACK that refuses has Session Present 0, although there is a session.",
        refused_connect_has_session_present_0,
        mqtt311="3.2.2-4",
        mqtt5="3.2.2-6",
    ),
    Case(
        "packets-behind-a-refused-connect",
        RECEIVE,
        "A broker does not act on a PUBLISH that comes behind a refused CONNECT.",
        packets_behind_a_refused_connect_are_ignored,
        mqtt311="3.1.4-5",
        mqtt5="3.1.4-6",
    ),
    Case(
        "packets-behind-a-malformed-connect",
        RECEIVE,
        "A broker does not act on a PUBLISH that comes behind a malformed CONNECT.",
        packets_behind_a_malformed_connect_are_ignored,
        mqtt311="3.1.4-5",
        mqtt5="3.1.4-6",
    ),
    Case(
        "failed-authentication",
        RECEIVE,
        "A broker closes the connection for a wrong user name or password.",
        failed_authentication_closes,
        mqtt311="U3-06",
        mqtt5="3.1.4-2",
    ),
)
