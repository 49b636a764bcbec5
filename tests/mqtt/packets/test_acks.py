"""PUBACK, PUBREC, PUBREL and PUBCOMP [3.4 to 3.7]."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    Properties,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Rule,
    encode,
    observe,
    rules,
)
from tests.mqtt.verdicts import (
    BOTH,
    check_accepted,
    check_both_ways,
    check_refused,
    framed,
    refuses,
)

Ack = type[PubAck] | type[PubRec] | type[PubRel] | type[PubComp]

# The class, its first byte, a code of its table, a code that another acknowledgement has.
ACKS = (
    (PubAck, 0x40, 0x87, 0x92),
    (PubRec, 0x50, 0x97, 0x92),
    (PubRel, 0x62, 0x92, 0x10),
    (PubComp, 0x70, 0x92, 0x80),
)
EACH = pytest.mark.parametrize(("ack", "first", "reason", "foreign"), ACKS)


@EACH
def test_the_shortest_form_is_the_packet_id_under_both_versions(
    ack: Ack, first: int, reason: int, foreign: int
) -> None:
    for version in BOTH:
        check_both_ways(framed(first, "0007"), version, ack(7))
        check_both_ways(framed(first, "ffff"), version, ack(65_535))


@EACH
def test_a_reason_without_properties_has_no_property_length(
    ack: Ack, first: int, reason: int, foreign: int
) -> None:
    check_both_ways(framed(first, f"0007 {reason:02x}"), MQTT5, ack(7, reason))


@EACH
def test_a_reason_with_properties_is_the_long_form(
    ack: Ack, first: int, reason: int, foreign: int
) -> None:
    properties = Properties(reason_string="s", user_properties=[("k", "v")])
    body = "0007 {:02x} 0b 1f 000173 26 00016b 000176"
    for code in (0, reason):
        packet = ack(7, code, properties=properties)
        check_both_ways(framed(first, body.format(code)), MQTT5, packet)


@EACH
def test_forms_longer_than_needed_are_read_all_the_same(
    ack: Ack, first: int, reason: int, foreign: int
) -> None:
    check_accepted(framed(first, "0007 00"), MQTT5, ack(7))
    check_accepted(framed(first, "0007 00 00"), MQTT5, ack(7))
    check_accepted(framed(first, f"0007 {reason:02x} 00"), MQTT5, ack(7, reason))


@EACH
def test_311_knows_neither_reason_nor_properties(
    ack: Ack, first: int, reason: int, foreign: int
) -> None:
    check_refused(framed(first, "0007 00"), MQTT311, rules.NO_SURPLUS_BYTES)
    check_refused(framed(first, "0007 00 00"), MQTT311, rules.NO_SURPLUS_BYTES)
    with refuses(rules.REASON_CODE_IN_TABLE):
        encode(ack(7, reason), MQTT311)
    with refuses(rules.PROPERTIES_NEED_MQTT5):
        encode(ack(7, properties=Properties(reason_string="s")), MQTT311)


@EACH
def test_packet_id_0_is_refused(ack: Ack, first: int, reason: int, foreign: int) -> None:
    for packet_id in (0, -1, 65_536):
        with refuses(rules.PACKET_ID_NOT_ZERO):
            ack(packet_id)
    for version in BOTH:
        check_refused(framed(first, "0000"), version, rules.PACKET_ID_NOT_ZERO)


@EACH
def test_a_code_of_another_acknowledgement_is_refused(
    ack: Ack, first: int, reason: int, foreign: int
) -> None:
    with refuses(rules.REASON_CODE_IN_TABLE):
        ack(7, foreign)
    check_refused(framed(first, f"0007 {foreign:02x}"), MQTT5, rules.REASON_CODE_IN_TABLE)


@EACH
def test_a_property_of_another_packet_is_refused(
    ack: Ack, first: int, reason: int, foreign: int
) -> None:
    with refuses(rules.PROPERTY_IN_ITS_PACKET):
        ack(7, properties=Properties(topic_alias=1))
    check_refused(framed(first, "0007 00 03 230001"), MQTT5, rules.PROPERTY_IN_ITS_PACKET)


@EACH
def test_other_flags_are_refused(ack: Ack, first: int, reason: int, foreign: int) -> None:
    for flags in {*range(16)} - {first & 15}:
        data = framed(first & 0xF0 | flags, "0007")
        for version in BOTH:
            check_refused(data, version, rules.FIXED_HEADER_FLAGS)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("", rules.FIELD_WITHIN_PACKET),
        ("00", rules.FIELD_WITHIN_PACKET),
        ("0007 00 01", rules.FIELD_WITHIN_PACKET),
        ("0007 00 04 1f 0002 73", rules.FIELD_WITHIN_PACKET),
        ("0007 00 00 00", rules.NO_SURPLUS_BYTES),
        ("0007 00 08 1f 000173 1f 000173", rules.PROPERTY_ONCE),
        ("0007 00 02 04 00", rules.PROPERTY_KNOWN),
        ("0007 00 04 1f 0001 00", rules.TEXT_WITHOUT_NUL),
    ],
)
@EACH
def test_a_body_that_is_wrong_is_refused(
    ack: Ack, first: int, reason: int, foreign: int, body: str, rule: Rule
) -> None:
    check_refused(framed(first, body), MQTT5, rule)


@EACH
def test_an_observer_sees_every_fault(ack: Ack, first: int, reason: int, foreign: int) -> None:
    observation = observe(framed(first, f"0000 {foreign:02x} 03 230000 00"), MQTT5)
    assert observation is not None
    assert [violation.rule for violation in observation.violations] == [
        rules.NO_SURPLUS_BYTES,
        rules.TOPIC_ALIAS_NOT_ZERO,
        rules.PACKET_ID_NOT_ZERO,
        rules.REASON_CODE_IN_TABLE,
        rules.PROPERTY_IN_ITS_PACKET,
    ]
    assert observation.fields[:2] == (("packet_id", 0), ("reason", foreign))


@EACH
def test_acknowledgements_are_equal_when_class_and_fields_are(
    ack: Ack, first: int, reason: int, foreign: int
) -> None:
    assert ack(7) == ack(7, 0, properties=NO_PROPERTIES)
    assert ack(7) != ack(8)
    assert ack(7) != ack(7, reason)
    assert ack(7) != ack(7, properties=Properties(reason_string="s"))
    for other, _, _, _ in ACKS:
        if other is not ack:
            assert ack(7) != other(7)
