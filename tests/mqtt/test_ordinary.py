"""The short cuts of an exchange do what `observe` does, or say that they cannot."""

import random
from collections.abc import Callable

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Violation,
)
from semel.mqtt.exchange import Exchange
from semel.mqtt.ordinary import ordinary_answer, ordinary_publish
from semel.mqtt.packet_types import PUBACK, PUBCOMP, PUBREC, PUBREL
from semel.mqtt.side import (
    CLIENT,
    MANY_OPEN,
    RECEIVED,
    RELEASED,
    SENT_QOS_1,
    SENT_QOS_2,
    SERVER,
    Open,
)
from tests.modes import repeats
from tests.mqtt.snapshots import exchange_snapshot

ANSWERS: dict[int, Callable[[int], Packet]] = {
    PUBACK: PubAck,
    PUBREC: PubRec,
    PUBREL: PubRel,
    PUBCOMP: PubComp,
}
BOTH = pytest.mark.parametrize("version", [MQTT311, MQTT5])


def connected(
    version: int,
    carried: list[Open] | None = None,
    *,
    receive_maximum: int | None = None,
    maximum_qos: int | None = None,
) -> Exchange:
    exchange = Exchange(carried or [])
    limits = Properties(receive_maximum=receive_maximum) if version == MQTT5 else Properties()
    offer = limits
    if maximum_qos is not None:
        offer = Properties(receive_maximum=receive_maximum, maximum_qos=maximum_qos)
    exchange.observe(
        CLIENT, Connect("a", clean_start=not carried, version=version, properties=limits), 0
    )
    exchange.observe(SERVER, ConnAck(session_present=bool(carried), properties=offer), 0)
    return exchange


def twins(version: int, seed: int) -> tuple[Exchange, Exchange]:
    """Two exchanges that know the same, some of them of a session that was resumed."""
    choose = random.Random(seed)
    carried: list[Open] = []
    if choose.random() < 0.5:
        stages = (SENT_QOS_1, SENT_QOS_2, RECEIVED, RELEASED)
        carried = [(choose.randrange(2), n, choose.choice(stages)) for n in range(1, 4)]
    maximum = choose.choice((None, 2))
    one = connected(version, carried, receive_maximum=maximum)
    two = connected(version, carried, receive_maximum=maximum)
    return one, two


def observed(exchange: Exchange, sender: int, packet: Packet) -> bool:
    try:
        exchange.observe(sender, packet, 0)
    except Violation:
        return False
    return True


@BOTH
def test_a_history_by_short_cuts_is_the_history(version: int) -> None:
    taken: dict[str | int, int] = {
        "publish": 0,
        PUBACK: 0,
        PUBREC: 0,
        PUBREL: 0,
        PUBCOMP: 0,
        "refused": 0,
    }
    for seed in range(repeats(150, 60)):
        choose = random.Random(seed)
        quick, plain = twins(version, seed)
        for _ in range(60):
            sender = choose.randrange(2)
            packet_id = choose.randrange(1, 7)
            if choose.random() < 0.3:
                qos = choose.randrange(1, 3)
                key: str | int = "publish"
                packet: Packet = Publish("t", qos=qos, packet_id=packet_id)
                ordinary = ordinary_publish(quick, sender, qos, packet_id)
            else:
                kind = choose.choice(list(ANSWERS))
                key = kind
                packet = ANSWERS[kind](packet_id)
                ordinary = ordinary_answer(quick, sender, kind, packet_id)
            allowed = observed(plain, sender, packet)
            if ordinary:
                assert allowed, f"seed {seed}: {packet}"
                taken[key] += 1
            else:
                taken["refused"] += 1
                assert observed(quick, sender, packet) == allowed
            assert exchange_snapshot(quick) == exchange_snapshot(plain), f"seed {seed}: {packet}"
    assert min(taken.values()) > repeats(50, 15)


@BOTH
def test_before_connack_nothing_is_ordinary(version: int) -> None:
    exchange = Exchange([])
    exchange.observe(CLIENT, Connect("a", version=version), 0)
    before = exchange_snapshot(exchange)
    assert not ordinary_publish(exchange, CLIENT, 1, 1)
    assert not ordinary_answer(exchange, CLIENT, PUBACK, 1)
    assert exchange_snapshot(exchange) == before
    exchange.observe(SERVER, ConnAck(), 0)
    assert ordinary_publish(exchange, CLIENT, 1, 1)
    assert ordinary_answer(exchange, SERVER, PUBACK, 1)


@BOTH
def test_after_disconnect_nothing_is_ordinary(version: int) -> None:
    exchange = connected(version)
    assert ordinary_publish(exchange, SERVER, 1, 1)
    exchange.observe(CLIENT, Disconnect(), 0)
    assert not ordinary_publish(exchange, CLIENT, 1, 1)
    assert not ordinary_answer(exchange, CLIENT, PUBACK, 1)


@BOTH
def test_the_identifier_of_an_open_subscribe_is_not_free(version: int) -> None:
    exchange = connected(version)
    exchange.observe(CLIENT, Subscribe(1, [Subscription("t")]), 0)
    assert not ordinary_publish(exchange, CLIENT, 1, 1)
    assert ordinary_publish(exchange, CLIENT, 1, 2)
    # The server's identifiers are its own.
    assert ordinary_publish(exchange, SERVER, 1, 1)


def test_a_qos_above_what_the_server_offers_is_not_ordinary() -> None:
    exchange = connected(MQTT5, maximum_qos=1)
    assert not ordinary_publish(exchange, CLIENT, 2, 1)
    assert ordinary_publish(exchange, CLIENT, 1, 1)


def test_the_receive_maximum_bounds_5_0_only() -> None:
    exchange = connected(MQTT5, receive_maximum=1)
    assert ordinary_publish(exchange, CLIENT, 1, 1)
    before = exchange_snapshot(exchange)
    assert not ordinary_publish(exchange, CLIENT, 1, 2)
    assert exchange_snapshot(exchange) == before
    assert ordinary_answer(exchange, SERVER, PUBACK, 1)
    assert ordinary_publish(exchange, CLIENT, 1, 2)


@BOTH
def test_what_an_earlier_connection_left_open_is_not_ordinary(version: int) -> None:
    exchange = connected(version, [(SERVER, 1, SENT_QOS_1), (CLIENT, 2, RECEIVED)])
    assert not ordinary_answer(exchange, CLIENT, PUBACK, 1)
    assert not ordinary_answer(exchange, CLIENT, PUBREL, 2)
    assert not ordinary_publish(exchange, CLIENT, 2, 2)


@BOTH
def test_an_answer_out_of_order_is_not_ordinary(version: int) -> None:
    """[MQTT-4.6.0-2]"""
    exchange = connected(version)
    assert ordinary_publish(exchange, SERVER, 1, 1)
    assert ordinary_publish(exchange, SERVER, 1, 2)
    assert ordinary_answer(exchange, CLIENT, PUBACK, 2)
    assert not ordinary_answer(exchange, CLIENT, PUBACK, 1)


def test_of_very_many_open_exchanges_the_short_cut_keeps_no_more_than_observe() -> None:
    quick, plain = connected(MQTT311), connected(MQTT311)
    for packet_id in range(1, MANY_OPEN + 50):
        assert ordinary_publish(quick, CLIENT, 2, packet_id)
        assert ordinary_answer(quick, SERVER, PUBREC, packet_id)
        plain.observe(CLIENT, Publish("t", qos=2, packet_id=packet_id), 0)
        plain.observe(SERVER, PubRec(packet_id), 0)
    assert exchange_snapshot(quick) == exchange_snapshot(plain)
    assert not ordinary_publish(quick, CLIENT, 2, MANY_OPEN + 49)
    assert not ordinary_answer(quick, CLIENT, PUBREL, MANY_OPEN + 49)
