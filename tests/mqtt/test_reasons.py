"""The reason codes against the standard's tables, typed out again in standard_tables.py."""

from collections.abc import Callable

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    PACKET_NAMES,
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
    encode,
    reasons,
    rules,
)
from tests.mqtt.standard_tables import (
    DISCONNECT_SENT_BY,
    REASON_CODES_5,
    REASON_CODES_311,
    REASON_NAMES_5,
    REASON_NAMES_311,
)
from tests.mqtt.verdicts import check_refused, framed, refuses

# How a packet with a reason code is built, and its bytes in 5.0 and 3.1.1 ("" if it has no code).
BUILD: dict[str, tuple[Callable[[int], Packet], str, str]] = {
    "CONNACK": (lambda reason: ConnAck(reason), "20: 00 {} 00", "20: 00 {}"),
    "PUBACK": (lambda reason: PubAck(7, reason), "40: 0007 {}", ""),
    "PUBREC": (lambda reason: PubRec(7, reason), "50: 0007 {}", ""),
    "PUBREL": (lambda reason: PubRel(7, reason), "62: 0007 {}", ""),
    "PUBCOMP": (lambda reason: PubComp(7, reason), "70: 0007 {}", ""),
    "SUBACK": (lambda reason: SubAck(7, [reason]), "90: 0007 00 {}", "90: 0007 {}"),
    "UNSUBACK": (lambda reason: UnsubAck(7, [reason]), "b0: 0007 00 {}", ""),
    "DISCONNECT": (lambda reason: Disconnect(reason), "e0: {}", ""),
    "AUTH": (
        lambda reason: Auth(reason, properties=Properties(authentication_method="m")),
        "f0: {} 04 15 0001 6d",
        "",
    ),
}


def packet_bytes(pattern: str, reason: int) -> bytes:
    first, body = pattern.format(f"{reason:02x}").split(":")
    return framed(int(first, 16), body.replace(" ", ""))


@pytest.mark.parametrize(("name", "value"), REASON_NAMES_5 + REASON_NAMES_311)
def test_a_reason_code_has_the_value_of_its_name(name: str, value: int) -> None:
    assert getattr(reasons, name) == value


def test_no_reason_code_is_without_a_name() -> None:
    named = {value for _, value in REASON_NAMES_5}
    assert set().union(*REASON_CODES_5.values()) == named


def test_a_code_from_0x80_on_is_a_failure() -> None:
    assert reasons.FAILURE == 0x80


@pytest.mark.parametrize("packet_type", range(16))
def test_the_tables_list_the_codes_of_the_standard(packet_type: int) -> None:
    name = PACKET_NAMES[packet_type]
    assert reasons.REASONS_5[packet_type] == REASON_CODES_5.get(name, frozenset())
    if name in REASON_CODES_311:
        assert reasons.REASONS_311[packet_type] == REASON_CODES_311[name]
    else:
        # Without a code in its bytes a packet can only mean success, or has no say in it at all.
        assert reasons.REASONS_311[packet_type] <= {0}


@pytest.mark.parametrize("name", BUILD)
def test_a_packet_takes_exactly_the_codes_that_one_of_the_versions_lists(name: str) -> None:
    build, _, _ = BUILD[name]
    allowed = REASON_CODES_5[name] | REASON_CODES_311.get(name, frozenset())
    for reason in allowed:
        assert build(reason)
    for reason in {*range(-1, 257)} - allowed:
        with refuses(rules.REASON_CODE_IN_TABLE):
            build(reason)


@pytest.mark.parametrize("name", BUILD)
def test_a_code_is_written_and_read_under_a_version_that_lists_it_and_no_other(name: str) -> None:
    build, in_5, in_311 = BUILD[name]
    codes_311 = REASON_CODES_311.get(name, frozenset())
    for reason in range(256):
        if reason in REASON_CODES_5[name]:
            packet = build(reason)
            data = packet_bytes(in_5, reason)
            if reason:  # the shortest form of success has no code
                assert encode(packet, MQTT5) == data
        else:
            check_refused(packet_bytes(in_5, reason), MQTT5, rules.REASON_CODE_IN_TABLE)
            if reason in codes_311:
                with refuses(rules.REASON_CODE_IN_TABLE):
                    encode(build(reason), MQTT5)
        if not in_311:
            continue
        if reason in codes_311:
            assert encode(build(reason), MQTT311) == packet_bytes(in_311, reason)
        else:
            check_refused(packet_bytes(in_311, reason), MQTT311, rules.REASON_CODE_IN_TABLE)
            if reason in REASON_CODES_5[name]:
                with refuses(rules.REASON_CODE_IN_TABLE):
                    encode(build(reason), MQTT311)


@pytest.mark.parametrize("name", ["PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "DISCONNECT"])
def test_what_has_no_code_in_311_can_only_say_success_there(name: str) -> None:
    build, _, _ = BUILD[name]
    encode(build(0), MQTT311)
    for reason in REASON_CODES_5[name] - {0}:
        with refuses(rules.REASON_CODE_IN_TABLE):
            encode(build(reason), MQTT311)


@pytest.mark.parametrize(("reason", "sender"), DISCONNECT_SENT_BY.items())
def test_a_disconnect_code_belongs_to_the_sides_that_the_standard_lists(
    reason: int, sender: str
) -> None:
    assert (reason in reasons.DISCONNECT_ONLY_CLIENT) is (sender == "client")
    assert (reason in reasons.DISCONNECT_ONLY_SERVER) is (sender == "server")


def test_every_disconnect_code_has_its_sides() -> None:
    assert REASON_CODES_5["DISCONNECT"] == set(DISCONNECT_SENT_BY)
    only_one = reasons.DISCONNECT_ONLY_CLIENT | reasons.DISCONNECT_ONLY_SERVER
    assert only_one < set(DISCONNECT_SENT_BY)
