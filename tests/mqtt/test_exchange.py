"""Who may say what, when: traces that the standard allows or forbids, and every state tried."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.mqtt import (
    CLIENT,
    MQTT5,
    MQTT311,
    SERVER,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Exchange,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Rule,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Violation,
    decode,
    encode,
    exchange_rules,
    packet_type_of,
    rules,
)
from semel.mqtt.exchange import CONNECTED, CONNECTING, NEW, REFUSED
from semel.mqtt.packet_ids import PacketIds
from semel.mqtt.side import (
    MANY_OPEN,
    PLACE_UNKNOWN,
    RECEIVED,
    RELEASED,
    SENT_QOS_1,
    SENT_QOS_2,
    Open,
)
from semel.mqtt.wire import memory_size
from semel.vectors import EXCHANGE, load, parse_bytes
from tests.mqtt.snapshots import exchange_snapshot

TRACES: list[dict[str, Any]] = load(EXCHANGE)
VERSIONS = {"3.1.1": MQTT311, "5.0": MQTT5}
DIRECTIONS = {"C>S": CLIENT, "S>C": SERVER}
STAGES = {
    "PUBLISH_QOS_1": SENT_QOS_1,
    "PUBLISH_QOS_2": SENT_QOS_2,
    "PUBREC": RECEIVED,
    "PUBREL": RELEASED,
}

Step = tuple[int, Packet, int]


def begun(trace: dict[str, Any]) -> Exchange:
    """An Exchange that knows what the trace says was open before."""
    if "carried" not in trace:
        return Exchange()
    return Exchange(
        (DIRECTIONS[sender], packet_id, STAGES[stage])
        for sender, packet_id, stage in trace["carried"]
    )


def steps(trace: dict[str, Any]) -> list[Step]:
    result: list[Step] = []
    for direction, text in trace["steps"]:
        data = parse_bytes(text)
        decoded = decode(data, VERSIONS[trace["version"]])
        assert decoded is not None
        packet, end = decoded
        assert end == len(data)
        result.append((DIRECTIONS[direction], packet, len(data)))
    return result


@pytest.mark.parametrize("trace", TRACES, ids=[trace["name"] for trace in TRACES])
def test_a_trace_breaks_the_rule_that_it_names_or_none(trace: dict[str, Any]) -> None:
    exchange = begun(trace)
    *earlier, last = steps(trace)
    for step in earlier:
        exchange.observe(*step)
    before = exchange_snapshot(exchange)
    checked = exchange.check(*last)
    assert exchange_snapshot(exchange) == before
    if "rule" not in trace:
        assert checked == []
        exchange.observe(*last)
        return
    with pytest.raises(Violation) as caught:
        exchange.observe(*last)
    assert caught.value.rule.name == trace["rule"]
    assert str(checked[0]) == str(caught.value)
    assert caught.value.version == (VERSIONS[trace["version"]] if exchange.phase != NEW else 0)
    assert set(trace["statements"]) <= set(caught.value.rule.statements())
    assert exchange_snapshot(exchange) == before


@pytest.mark.parametrize("trace", TRACES, ids=[trace["name"] for trace in TRACES])
def test_an_auditor_sees_the_same_and_goes_on(trace: dict[str, Any]) -> None:
    exchange = begun(trace)
    found: list[Violation] = []
    for step in steps(trace):
        assert found == []
        exchange.observe(*step, found)
    for violation in found:
        assert violation.packet_type == packet_type_of(steps(trace)[-1][1])
        assert violation.version == exchange.version
    assert [violation.rule.name for violation in found][:1] == (
        [trace["rule"]] if "rule" in trace else []
    )


# --- every state, every sender, every packet ------------------------------------------------------

X = Properties(authentication_method="X")
LIMITS = Properties(
    receive_maximum=1,
    maximum_packet_size=40,
    topic_alias_maximum=1,
    maximum_qos=1,
    retain_available=0,
    wildcard_subscription_available=0,
    subscription_identifiers_available=0,
    shared_subscription_available=0,
)


def packets(version: int) -> list[Packet]:
    """One of every kind of packet, and the variants that rules tell apart."""
    result: list[Packet] = [
        Connect("a", version=version),
        ConnAck(),
        ConnAck(session_present=True),
        ConnAck(5 if version == MQTT311 else 0x87),
        Publish("t"),
        Publish("t", retain=True),
        *(
            Publish("t", qos=qos, packet_id=packet_id, dup=dup)
            for qos in (1, 2)
            for packet_id in (1, 2)
            for dup in (False, True)
        ),
        *(ack(packet_id) for ack in (PubAck, PubRec, PubRel, PubComp) for packet_id in (1, 2)),
        Subscribe(1, [Subscription("t")]),
        Subscribe(3, [Subscription("t/#"), Subscription("$share/g/t")]),
        Unsubscribe(1, ["t"]),
        Unsubscribe(4, ["t"]),
        SubAck(3, [0]),
        SubAck(3, [0, 0]),
        PingReq(),
        PingResp(),
        Disconnect(),
    ]
    if version == MQTT311:
        return [*result, UnsubAck(4)]
    return [
        *result,
        UnsubAck(4, [0]),
        UnsubAck(4, [0, 0]),
        ConnAck(properties=X),
        ConnAck(properties=Properties(response_information="r")),
        ConnAck(properties=LIMITS),
        PubRec(1, 0x80),
        PubAck(1, properties=Properties(reason_string="r")),
        Publish("t", properties=Properties(topic_alias=1)),
        Publish("", properties=Properties(topic_alias=1)),
        Publish("t", properties=Properties(topic_alias=2, subscription_identifiers=[1])),
        Publish("t", bytes(100)),
        Subscribe(3, [Subscription("t")], properties=Properties(subscription_identifiers=[1])),
        Disconnect(0x04),
        Disconnect(0x8E),
        Disconnect(properties=Properties(session_expiry_interval=5)),
        *(Auth(reason, properties=X) for reason in (0x00, 0x18, 0x19)),
        Auth(0x18, properties=Properties(authentication_method="Y")),
    ]


def opening(version: int) -> list[list[tuple[int, Packet]]]:
    """Ways in which a connection can begin, each ending in another state."""
    plain = Connect("a", version=version, clean_start=False)
    hello: list[tuple[int, Packet]] = [(CLIENT, plain), (SERVER, ConnAck())]
    result: list[list[tuple[int, Packet]]] = [
        [],
        [(CLIENT, plain)],
        hello,
        [(CLIENT, plain), (SERVER, ConnAck(session_present=True))],
        [(CLIENT, plain), (SERVER, ConnAck(5 if version == MQTT311 else 0x87))],
        [*hello, (CLIENT, Disconnect())],
        *(
            [*hello, (sender, Publish("t", qos=qos, packet_id=1))]
            for sender in (CLIENT, SERVER)
            for qos in (1, 2)
        ),
        *(
            [*hello, (sender, Publish("t", qos=2, packet_id=1)), (1 - sender, PubRec(1))]
            for sender in (CLIENT, SERVER)
        ),
        [
            *hello,
            (SERVER, Publish("t", qos=2, packet_id=1)),
            (CLIENT, PubRec(1)),
            (SERVER, PubRel(1)),
        ],
        [
            *hello,
            (CLIENT, Subscribe(3, [Subscription("t"), Subscription("u")])),
            (CLIENT, Unsubscribe(4, ["t"])),
        ],
    ]
    if version == MQTT5:
        method = Connect("a", properties=X)
        quiet = Connect("", properties=Properties(request_problem_information=0))
        named = ConnAck(properties=Properties(assigned_client_identifier="z"))
        result += [
            [(CLIENT, method)],
            [(CLIENT, method), (SERVER, Auth(0x18, properties=X))],
            [(CLIENT, method), (SERVER, ConnAck(properties=X))],
            [
                (CLIENT, method),
                (SERVER, ConnAck(properties=X)),
                (CLIENT, Auth(0x19, properties=X)),
            ],
            [(CLIENT, quiet)],
            [(CLIENT, quiet), (SERVER, named)],
            [(CLIENT, plain), (SERVER, ConnAck(properties=LIMITS))],
            [
                (CLIENT, plain),
                (SERVER, ConnAck(properties=LIMITS)),
                (CLIENT, Publish("t", qos=1, packet_id=1)),
            ],
            [*hello, (SERVER, Disconnect(0x8E))],
        ]
    return result


def size(packet: Packet, version: int) -> int:
    return len(encode(packet, version))


def at(version: int, start: list[tuple[int, Packet]], known: bool) -> Exchange:
    exchange = Exchange([(CLIENT, 2, RECEIVED), (SERVER, 2, SENT_QOS_1)] if known else None)
    for sender, packet in start:
        exchange.observe(sender, packet, size(packet, version))
    return exchange


def violation_of(exchange: Exchange, sender: int, packet: Packet, version: int) -> Violation | None:
    try:
        exchange.observe(sender, packet, size(packet, version))
    except Violation as violation:
        return violation
    return None


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("version", "number"),
    [(v, n) for v in (MQTT311, MQTT5) for n in range(len(opening(v)))],
)
def test_every_packet_in_every_state_is_legal_or_a_violation_that_changes_nothing(
    version: int, number: int, known: bool
) -> None:
    start = opening(version)[number]
    legal = 0
    for sender, packet in itertools.product((CLIENT, SERVER), packets(version)):
        exchange = at(version, start, known)
        before = exchange_snapshot(exchange)
        found: list[Violation] = []
        at(version, start, known).observe(sender, packet, size(packet, version), found)
        broken = violation_of(exchange, sender, packet, version)
        if broken is None:
            legal += 1
            assert found == []
        else:
            assert exchange_snapshot(exchange) == before
            assert found[0].rule is broken.rule
            assert broken.packet_type
    # A state in which nothing may be sent is that after DISCONNECT or refusal, for one side.
    assert legal > 0


@settings(max_examples=150, deadline=None)
@given(data=st.data(), version=st.sampled_from((MQTT311, MQTT5)))
def test_a_random_conversation_is_legal_or_a_violation_that_changes_nothing(
    data: st.DataObject, version: int
) -> None:
    sent = data.draw(
        st.lists(
            st.tuples(st.sampled_from((CLIENT, SERVER)), st.sampled_from(packets(version))),
            max_size=25,
        )
    )
    exchange = Exchange([])
    auditor = Exchange([])
    everything: list[Violation] = []
    hello: list[tuple[int, Packet]] = [
        (CLIENT, Connect("a", version=version)),
        (SERVER, ConnAck()),
    ]
    for sender, packet in hello + sent:
        before = exchange_snapshot(exchange)
        if violation_of(exchange, sender, packet, version) is not None:
            assert exchange_snapshot(exchange) == before
        auditor.observe(sender, packet, size(packet, version), everything)
    for side in (exchange.client, exchange.server):
        assert side.quota <= 65_535
        assert len(side.opened or ()) <= 2
        assert side.rare is None or set(side.rare.repeats) <= {1, 2}


# --- what traces do not show ----------------------------------------------------------------------


def connected(version: int = MQTT5) -> Exchange:
    return at(version, [(CLIENT, Connect("a", version=version)), (SERVER, ConnAck())], True)


def test_the_phase_follows_connect_and_connack() -> None:
    exchange = Exchange()
    assert (exchange.phase, exchange.version) == (NEW, 0)
    exchange.observe(CLIENT, Connect("a", version=MQTT311), 13)
    assert (exchange.phase, exchange.version) == (CONNECTING, MQTT311)
    exchange.observe(SERVER, ConnAck(), 4)
    assert exchange.phase == CONNECTED
    refused = at(MQTT5, [(CLIENT, Connect("a")), (SERVER, ConnAck(0x87))], True)
    assert refused.phase == REFUSED


def test_what_is_open_is_carried_to_the_next_connection_in_order() -> None:
    exchange = connected()
    for sender, packet in (
        (CLIENT, Publish("t", qos=2, packet_id=9)),
        (CLIENT, Publish("t", qos=1, packet_id=3)),
        (SERVER, Publish("t", qos=2, packet_id=5)),
        (SERVER, PubRec(9)),
        (CLIENT, PubRec(5)),
        (SERVER, PubRel(5)),
        (CLIENT, Subscribe(4, [Subscription("t")])),
    ):
        exchange.observe(sender, packet, size(packet, MQTT5))
    assert exchange.carry() == [
        (CLIENT, 9, RECEIVED),
        (CLIENT, 3, SENT_QOS_1),
        (SERVER, 5, RELEASED),
    ]


@pytest.mark.parametrize("clean", ["clean_start", "no session"])
def test_a_new_session_forgets_what_was_carried(clean: str) -> None:
    exchange = Exchange([(CLIENT, 1, SENT_QOS_1), (SERVER, 2, RELEASED)])
    exchange.observe(CLIENT, Connect("a", clean_start=clean == "clean_start"), 14)
    exchange.observe(SERVER, ConnAck(), 5)
    assert exchange.carry() == []
    exchange.observe(CLIENT, Publish("t", qos=1, packet_id=1), 8)


def test_a_resumed_session_whose_history_is_unknown_tolerates_unknown_identifiers() -> None:
    answers: list[Packet] = [PubAck(7), PubRec(7), PubRel(7), PubComp(7)]
    for sender, packet in itertools.product((CLIENT, SERVER), answers):
        resumed: list[tuple[int, Packet]] = [
            (CLIENT, Connect("a", clean_start=False)),
            (SERVER, ConnAck(session_present=True)),
        ]
        at(MQTT5, resumed, False).observe(sender, packet, 4)
        fresh = at(MQTT5, [(CLIENT, Connect("a")), (SERVER, ConnAck())], False)
        with pytest.raises(Violation):
            fresh.observe(sender, packet, 4)


def test_an_alias_is_resolved_by_what_its_sender_said() -> None:
    exchange = Exchange()
    limit = Properties(topic_alias_maximum=5)
    exchange.observe(CLIENT, Connect("a", properties=limit), 17)
    exchange.observe(SERVER, ConnAck(properties=limit), 8)
    short = Publish("", properties=Properties(topic_alias=5))
    for sender, topic in ((CLIENT, "a"), (SERVER, "b")):
        full = Publish(topic, properties=Properties(topic_alias=5))
        exchange.observe(sender, full, 8)
        assert exchange.topic_name(sender, full) == topic
        exchange.observe(sender, short, 7)
    assert exchange.topic_name(CLIENT, short) == "a"
    assert exchange.topic_name(SERVER, short) == "b"
    assert exchange.topic_name(CLIENT, Publish("plain")) == "plain"
    assert Exchange().topic_name(CLIENT, short) == ""


def test_the_bytes_of_topics_with_an_alias_are_counted_for_each_side() -> None:
    exchange = Exchange()
    limit = Properties(topic_alias_maximum=5)
    exchange.observe(CLIENT, Connect("a", properties=limit), 17)
    exchange.observe(SERVER, ConnAck(properties=limit), 8)
    for topic, alias in (("x" * 1_000, 1), ("y" * 500, 2), ("z" * 10, 1), ("", 1)):
        exchange.observe(CLIENT, Publish(topic, properties=Properties(topic_alias=alias)), 8)
    # The first was replaced.
    assert exchange.client.alias_bytes == memory_size("y" * 500) + memory_size("z" * 10)
    assert exchange.server.alias_bytes == 0


def test_packets_that_a_client_sends_before_connack_count_against_the_quota() -> None:
    exchange = Exchange([])
    exchange.observe(CLIENT, Connect("a"), 14)
    for packet_id in (1, 2, 3):
        exchange.observe(CLIENT, Publish("t", qos=1, packet_id=packet_id), 8)
    exchange.observe(SERVER, ConnAck(properties=Properties(receive_maximum=2)), 8)
    with pytest.raises(Violation) as caught:
        exchange.observe(CLIENT, Publish("t", qos=1, packet_id=4), 8)
    assert caught.value.rule is exchange_rules.RECEIVE_MAXIMUM_KEPT
    assert connected().client.quota == 65_535


@pytest.mark.parametrize(
    ("first", "repeat", "answer"),
    [
        (Publish("t", qos=1, packet_id=1), Publish("t", qos=1, packet_id=1, dup=True), PubAck(1)),
        (PubRel(1), PubRel(1), PubComp(1)),
    ],
)
def test_a_packet_sent_again_in_3_1_1_is_answered_again_and_no_more(
    first: Packet, repeat: Packet, answer: Packet
) -> None:
    exchange = connected(MQTT311)
    if isinstance(first, PubRel):
        exchange.observe(CLIENT, Publish("t", qos=2, packet_id=1), 7)
        exchange.observe(SERVER, PubRec(1), 4)
    for packet in (first, repeat, repeat):
        exchange.observe(CLIENT, packet, 7)
    for _ in range(3):
        exchange.observe(SERVER, answer, 4)
    with pytest.raises(Violation) as caught:
        exchange.observe(SERVER, answer, 4)
    assert caught.value.rule is exchange_rules.ANSWER_FITS_REQUEST


def test_a_publish_whose_acknowledgement_was_lost_has_no_place_in_the_order_of_resends() -> None:
    """What was seen to be acknowledged may come again, after all that was sent later."""

    def resumed(carried: list[Open]) -> Exchange:
        exchange = Exchange(carried)
        exchange.observe(CLIENT, Connect("a", clean_start=False), 14)
        exchange.observe(SERVER, ConnAck(session_present=True), 5)
        return exchange

    def resend(exchange: Exchange, *packet_ids: int) -> list[Open]:
        for packet_id in packet_ids:
            exchange.observe(CLIENT, Publish("t", qos=1, packet_id=packet_id, dup=True), 8)
        return exchange.carry()

    # 1 was acknowledged, so only 2 and 3 are carried; the client never got the PUBACK.
    second = resumed([(CLIENT, 2, SENT_QOS_1), (CLIENT, 3, SENT_QOS_1)])
    third = resumed(resend(second, 1, 2, 3))
    resend(third, 1, 2, 3)
    again = resumed([(CLIENT, 2, SENT_QOS_1), (CLIENT, 3, SENT_QOS_1)])
    with pytest.raises(Violation) as caught:
        resend(again, 1, 3, 2)
    assert caught.value.rule is exchange_rules.RESEND_IN_ORDER


def test_a_pubrec_once_more_has_no_place_in_the_order_of_answers() -> None:
    """In 3.1.1 a PUBLISH may come again at any time, and is answered again [MQTT-4.3.3-2]."""
    exchange = connected(MQTT311)
    first = Publish("t", qos=2, packet_id=1)
    for sender, packet in (
        (SERVER, first),
        (CLIENT, PubRec(1)),
        (SERVER, Publish("t", qos=2, packet_id=2)),
        (CLIENT, PubRec(2)),
        (SERVER, Publish("t", qos=2, packet_id=1, dup=True)),
        (CLIENT, PubRec(1)),
        (SERVER, PubRel(1)),
        (CLIENT, PubComp(1)),
    ):
        exchange.observe(sender, packet, size(packet, MQTT311))
    assert exchange.carry() == [(SERVER, 2, RECEIVED)]


def test_a_pubrel_once_more_has_no_place_in_the_order_of_answers() -> None:
    """In 3.1.1 a PUBREL may come again at any time; those for the first time keep their order."""

    def released(*packet_ids: int) -> Exchange:
        exchange = connected(MQTT311)
        for packet_id in (9, 1, 2):
            exchange.observe(CLIENT, Publish("t", qos=2, packet_id=packet_id), 7)
            exchange.observe(SERVER, PubRec(packet_id), 4)
            if packet_id == 9:
                exchange.observe(CLIENT, PubRel(9), 4)
        for packet_id in packet_ids:
            exchange.observe(CLIENT, PubRel(packet_id), 4)
        return exchange

    assert released(9, 1, 9, 2, 9).client.rare_steps().repeats == {9: 3}
    with pytest.raises(Violation) as caught:
        released(2, 9, 1)
    assert caught.value.rule is exchange_rules.ANSWERS_IN_ORDER


def test_what_a_server_does_not_take_it_may_still_send() -> None:
    """[MQTT-3.2.2-11] and [MQTT-3.2.2-14] bind the client alone."""
    limits = Properties(maximum_qos=0, retain_available=0)
    start: list[tuple[int, Packet]] = [
        (CLIENT, Connect("a")),
        (SERVER, ConnAck(properties=limits)),
    ]
    packet = Publish("t", qos=2, packet_id=1, retain=True)
    at(MQTT5, start, True).observe(SERVER, packet, 8)
    with pytest.raises(Violation) as caught:
        at(MQTT5, start, True).observe(CLIENT, packet, 8)
    assert caught.value.rule is exchange_rules.QOS_WITHIN_MAXIMUM


def test_a_repeated_qos_2_publish_earns_no_further_pubcomp() -> None:
    exchange = connected(MQTT311)
    for sender, packet in (
        (CLIENT, Publish("t", qos=2, packet_id=1)),
        (CLIENT, Publish("t", qos=2, packet_id=1, dup=True)),
        (SERVER, PubRec(1)),
        (SERVER, PubRec(1)),
        (CLIENT, PubRel(1)),
        (SERVER, PubComp(1)),
    ):
        exchange.observe(sender, packet, size(packet, MQTT311))
    with pytest.raises(Violation) as caught:
        exchange.observe(SERVER, PubComp(1), 4)
    assert caught.value.rule is exchange_rules.ANSWER_FITS_REQUEST


@pytest.mark.parametrize("last", [(CLIENT, 0x18), (SERVER, 0x00)])
def test_a_client_answers_each_auth_of_the_server_once(last: tuple[int, int]) -> None:
    """[MQTT-4.12.0-3]"""
    start: list[tuple[int, Packet]] = [
        (CLIENT, Connect("a", properties=X)),
        (SERVER, ConnAck(properties=X)),
        (CLIENT, Auth(0x19, properties=X)),
        (SERVER, Auth(0x18, properties=X)),
    ]
    at(MQTT5, start, True).observe(CLIENT, Auth(0x18, properties=X), 8)
    sender, reason = last
    answered = at(MQTT5, [*start, (sender, Auth(reason, properties=X))], True)
    with pytest.raises(Violation) as caught:
        answered.observe(CLIENT, Auth(0x18, properties=X), 8)
    assert caught.value.rule is exchange_rules.AUTH_IN_TURN


def test_an_auditor_takes_no_connect_but_the_clients_first_for_the_beginning() -> None:
    exchange = Exchange()
    found: list[Violation] = []
    exchange.observe(SERVER, Connect("s", version=MQTT311), 13, found)
    assert exchange.phase == NEW
    exchange.observe(CLIENT, Connect("a"), 14, found)
    exchange.observe(CLIENT, Connect("b", version=MQTT311), 13, found)
    assert (exchange.phase, exchange.version) == (CONNECTING, MQTT5)
    exchange.observe(SERVER, ConnAck(), 5, found)
    exchange.observe(CLIENT, Connect("b", version=MQTT311), 13, found)
    exchange.observe(SERVER, ConnAck(0x87), 5, found)
    exchange.observe(CLIENT, ConnAck(0x87), 5, found)
    assert (exchange.phase, exchange.version) == (CONNECTED, MQTT5)
    # Each keeps the packet that it was found in.
    assert [violation.packet_type for violation in found] == [1, 1, 1, 2, 2]
    assert [violation.rule.name for violation in found] == [
        "CONNECT_FIRST",
        "CONNECT_ONCE",
        "CONNECT_ONCE",
        "CONNACK_ONCE",
        "PACKET_FROM_ITS_SIDE",
    ]


def test_a_rule_that_does_not_close_is_one_that_the_receiver_must_answer() -> None:
    """[MQTT-4.3.3-10] obliges the receiver to answer what [MQTT-4.4.0-1] forbids the sender."""
    open_rules = [rule.name for rule in vars(exchange_rules).values() if is_open(rule)]
    assert open_rules == [
        "QOS_2_ID_NOT_IN_USE",
        "NO_RESEND_WHILE_CONNECTED",
        "FIRST_SEND_WITHOUT_DUP",
        "RESEND_SETS_DUP",
        "RELEASE_FITS_PUBLISH",
    ]
    assert not any(is_open(rule) for rule in vars(rules).values())


def is_open(thing: object) -> bool:
    return isinstance(thing, Rule) and not thing.closes


def test_all_identifiers_may_wait_for_pubrel_at_once() -> None:
    """In 3.1.1 nothing else bounds them; of very many, the order is forgotten."""
    exchange = Exchange([])
    exchange.observe(CLIENT, Connect("a", version=MQTT311), 0)
    exchange.observe(SERVER, ConnAck(), 0)
    for packet_id in range(1, 65_536):
        exchange.observe(CLIENT, Publish("t", qos=2, packet_id=packet_id), 0)
        exchange.observe(SERVER, PubRec(packet_id), 0)
    assert len(exchange.client.opened or ()) == MANY_OPEN
    with pytest.raises(Violation) as refused:
        exchange.observe(CLIENT, Subscribe(60_000, [Subscription("t")]), 0)
    assert refused.value.rule.name == "PACKET_ID_NOT_IN_USE"
    assert len(exchange.carry()) == 65_535
    again = Exchange(exchange.carry())
    assert set(again.carry()) == set(exchange.carry())
    # Whatever was forgotten, nothing that is right is refused.
    for packet_id in (60_000, 2, 59_000, 3):
        exchange.observe(CLIENT, PubRel(packet_id), 0)
        exchange.observe(SERVER, PubComp(packet_id), 0)
        exchange.observe(CLIENT, Publish("t", qos=2, packet_id=packet_id), 0)
    # The first of them are still known in their order.
    with pytest.raises(Violation) as refused:
        exchange.observe(CLIENT, PubRel(1), 0)
    assert refused.value.rule.name == "ANSWERS_IN_ORDER"
    again.observe(CLIENT, Connect("a", version=MQTT311), 0)
    again.observe(SERVER, ConnAck(), 0)
    assert again.carry() == []


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_a_pubrec_for_nothing_may_be_answered_to_its_end(version: int) -> None:
    """[MQTT-4.3.3-4] the sender answers it with PUBREL, and that is answered with PUBCOMP"""
    exchange = Exchange([])
    exchange.observe(CLIENT, Connect("a", version=version), 0)
    exchange.observe(SERVER, ConnAck(), 0)
    with pytest.raises(Violation) as noted:
        exchange.observe(CLIENT, PubRec(9), 0)
    assert noted.value.rule.name == "RELEASE_FITS_PUBLISH"
    with pytest.raises(Violation):
        exchange.observe(SERVER, PubRel(9), 0)
    exchange.observe(CLIENT, PubRec(9), 0, [])
    # [MQTT-4.3.3-5] PUBCOMP answers PUBREL: it does not come before.
    with pytest.raises(Violation) as early:
        exchange.observe(CLIENT, PubComp(9), 0)
    assert early.value.rule.name == "ANSWER_FITS_REQUEST"
    exchange.observe(SERVER, PubRel(9), 0)
    before = exchange_snapshot(exchange)
    # Meanwhile the identifier is as free as it was.
    exchange.observe(SERVER, Publish("t", qos=1, packet_id=9), 0)
    exchange.observe(CLIENT, PubAck(9), 0)
    exchange.observe(CLIENT, PubComp(9), 0)
    assert exchange_snapshot(exchange) != before
    with pytest.raises(Violation) as refused:
        exchange.observe(CLIENT, PubComp(9), 0)
    assert refused.value.rule.name == "ANSWER_FITS_REQUEST"


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_pubcomp_may_come_before_the_pubrel_that_answers_a_second_pubrec(
    version: int, resumed: bool, times: int
) -> None:
    """PUBREC and PUBCOMP in one piece: each PUBREL that leaves is right, each PUBCOMP is checked"""
    exchange = Exchange([(SERVER, 1, RELEASED)] if resumed else [])
    exchange.observe(CLIENT, Connect("a", version=version, clean_start=False), 0)
    exchange.observe(SERVER, ConnAck(session_present=resumed), 0)
    if not resumed:
        exchange.observe(SERVER, Publish("t", qos=2, packet_id=1), 0)
        exchange.observe(CLIENT, PubRec(1), 0)
    exchange.observe(SERVER, PubRel(1), 0)
    for _ in range(times):
        exchange.observe(CLIENT, PubRec(1), 0)
    exchange.observe(CLIENT, PubComp(1), 0)
    for _ in range(times):
        exchange.observe(SERVER, PubRel(1), 0)
    assert exchange.carry() == []
    exchange.observe(CLIENT, PubComp(1), 0)
    with pytest.raises(Violation) as refused:
        exchange.observe(CLIENT, PubComp(1), 0)
    assert refused.value.rule.name == "ANSWER_FITS_REQUEST"


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_each_of_two_pubrecs_is_answered_even_after_pubcomp(version: int) -> None:
    """[MQTT-4.3.3-4] both arrive before the first PUBREL leaves: a second one is no violation"""
    exchange = Exchange([])
    exchange.observe(CLIENT, Connect("a", version=version), 0)
    exchange.observe(SERVER, ConnAck(), 0)
    exchange.observe(CLIENT, Publish("t", qos=2, packet_id=1), 0)
    exchange.observe(SERVER, PubRec(1), 0)
    exchange.observe(SERVER, PubRec(1), 0)
    for _ in range(2):
        exchange.observe(CLIENT, PubRel(1), 0)
        exchange.observe(SERVER, PubComp(1), 0)
    with pytest.raises(Violation) as refused:
        exchange.observe(CLIENT, PubRel(1), 0)
    assert refused.value.rule.name == "RELEASE_FITS_PUBLISH"


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_the_pubcomp_of_a_repeated_pubrel_may_come_when_the_identifier_is_in_use_again(
    version: int,
) -> None:
    exchange = Exchange([])
    exchange.observe(CLIENT, Connect("a", version=version), 0)
    exchange.observe(SERVER, ConnAck(), 0)
    exchange.observe(CLIENT, Publish("t", qos=2, packet_id=1), 0)
    for _ in range(2):
        exchange.observe(SERVER, PubRec(1), 0)
    for _ in range(2):
        exchange.observe(CLIENT, PubRel(1), 0)
    exchange.observe(SERVER, PubComp(1), 0)
    exchange.observe(CLIENT, Publish("t", b"next", qos=2, packet_id=1), 0)
    exchange.observe(SERVER, PubComp(1), 0)
    with pytest.raises(Violation) as refused:
        exchange.observe(SERVER, PubComp(1), 0)
    assert refused.value.rule.name == "ANSWER_FITS_REQUEST"
    exchange.observe(SERVER, PubRec(1), 0)
    exchange.observe(CLIENT, PubRel(1), 0)
    exchange.observe(SERVER, PubComp(1), 0)


def test_a_second_pubrec_that_is_answered_in_its_turn_allows_one_pubcomp_more() -> None:
    exchange = Exchange([])
    exchange.observe(CLIENT, Connect("a"), 0)
    exchange.observe(SERVER, ConnAck(), 0)
    exchange.observe(SERVER, Publish("t", qos=2, packet_id=1), 0)
    for _ in range(2):
        exchange.observe(CLIENT, PubRec(1), 0)
        exchange.observe(SERVER, PubRel(1), 0)
    exchange.observe(CLIENT, PubComp(1), 0)
    exchange.observe(CLIENT, PubComp(1), 0)
    with pytest.raises(Violation) as refused:
        exchange.observe(SERVER, PubRel(1), 0)
    assert refused.value.rule.name == "RELEASE_FITS_PUBLISH"


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_all_of_very_many_carried_qos_2_messages_may_be_sent_again_once(version: int) -> None:
    """[MQTT-4.4.0-1] those whose order was forgotten too, and in any order then"""
    count = MANY_OPEN + 100
    exchange = Exchange([(CLIENT, packet_id, RECEIVED) for packet_id in range(1, count + 1)])
    exchange.observe(CLIENT, Connect("a", version=version, clean_start=False), 0)
    exchange.observe(SERVER, ConnAck(session_present=True), 0)
    found: list[Violation] = []
    again = [*range(1, MANY_OPEN + 1), *range(count, MANY_OPEN, -1)]
    for packet_id in again:
        exchange.observe(CLIENT, Publish("t", qos=2, packet_id=packet_id, dup=True), 0, found)
    assert found == []
    with pytest.raises(Violation) as refused:
        exchange.observe(CLIENT, Publish("t", qos=2, packet_id=count, dup=False), 0)
    assert refused.value.rule.name == "QOS_2_ID_NOT_IN_USE"
    for packet_id in again:
        exchange.observe(SERVER, PubRec(packet_id), 0)
        exchange.observe(CLIENT, PubRel(packet_id), 0, found)
        exchange.observe(SERVER, PubComp(packet_id), 0)
    assert found == []
    assert exchange.carry() == []


def test_a_carried_qos_2_message_whose_order_was_forgotten_is_sent_again_with_dup() -> None:
    count = MANY_OPEN + 100
    exchange = Exchange([(CLIENT, packet_id, RECEIVED) for packet_id in range(1, count + 1)])
    exchange.observe(CLIENT, Connect("a", clean_start=False), 0)
    exchange.observe(SERVER, ConnAck(session_present=True), 0)
    with pytest.raises(Violation) as refused:
        exchange.observe(CLIENT, Publish("t", qos=2, packet_id=count), 0)
    assert refused.value.rule.name == "RESEND_SETS_DUP"


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_open_exchanges_may_be_known_before_connect_or_after(version: int) -> None:
    carried: list[Open] = [(SERVER, 3, SENT_QOS_1), (SERVER, 1, RELEASED)]
    received = PacketIds()
    received.add(5)
    connect = Connect("a", version=version, clean_start=False)
    before = Exchange([*carried, (CLIENT, 5, RECEIVED | PLACE_UNKNOWN)])
    before.observe(CLIENT, connect, 0)
    after = Exchange()
    after.observe(CLIENT, connect, 0)
    assert exchange_snapshot(after) != exchange_snapshot(before)
    after.resume(carried, received)
    assert exchange_snapshot(after) == exchange_snapshot(before)
    for exchange in (before, after):
        exchange.observe(SERVER, ConnAck(session_present=True), 4)
        exchange.observe(SERVER, Publish("t", qos=1, packet_id=3, dup=True), 9)
        exchange.observe(CLIENT, PubRel(5), 4)
    assert exchange_snapshot(after) == exchange_snapshot(before)
