"""Looking at a packet without stopping at its first fault."""

import pytest
from hypothesis import given, settings

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Observation,
    Packet,
    Rule,
    Violation,
    decode,
    encode,
    observe,
    rules,
)
from tests.modes import repeats
from tests.mqtt.strategies import inputs, packets, with_version
from tests.mqtt.verdicts import BOTH, check_refused, framed, observed, section, text


def seen(data: bytes, version: int, start: int = 0) -> Observation:
    observation = observe(data, version, start=start)
    assert observation is not None
    return observation


# --- extent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["", "30", "3080", "3004", "30040001", "3004000161", "c0", "00"])
def test_a_packet_that_is_not_all_there_is_not_observed(data: str) -> None:
    for version in BOTH:
        assert observe(bytes.fromhex(data), version) is None
    assert observe(b"\xc0\x00", MQTT5, start=2) is None


def test_an_observation_says_what_stood_where() -> None:
    data = bytes.fromhex("c000 33 06 0001 61 0007 78 d0")
    observation = seen(data, MQTT311, start=2)
    assert (observation.start, observation.end) == (2, 10)
    assert (observation.packet_type, observation.flags) == (3, 0b0011)
    assert observation.version == MQTT311
    assert observation.fields == (("topic_name", "a"), ("packet_id", 7), ("payload", b"x"))
    assert observation.violations == ()


def test_5_is_the_version_unless_another_is_named() -> None:
    observation = observe(bytes.fromhex("2003000000"))
    assert observation is not None
    assert (observation.version, observation.violations) == (MQTT5, ())


def test_without_a_remaining_length_a_packet_ends_with_the_data() -> None:
    data = bytes.fromhex("30 ffffffff 01 02 03")
    observation = seen(data, MQTT5)
    assert (observation.start, observation.end, observation.fields) == (0, 8, ())
    rules_of = [violation.rule for violation in observation.violations]
    assert rules_of == [rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES]
    assert observed(bytes.fromhex("c5 80808080"), MQTT5) == [
        rules.FIXED_HEADER_FLAGS,
        rules.VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES,
    ]


@pytest.mark.parametrize(("data", "version"), [("0003 010203", MQTT5), ("f003 180000", MQTT311)])
def test_a_packet_of_unknown_type_has_an_extent_and_no_fields(data: str, version: int) -> None:
    observation = seen(bytes.fromhex(data), version)
    assert (observation.end, observation.fields) == (5, ())
    assert [each.rule for each in observation.violations] == [rules.PACKET_TYPE_KNOWN]


def test_a_length_longer_than_needed_is_reported_beside_the_rest() -> None:
    assert observed(bytes.fromhex("c1 8100 00"), MQTT5) == [
        rules.FIXED_HEADER_FLAGS,
        rules.NO_SURPLUS_BYTES,
        rules.VARIABLE_BYTE_INTEGER_SHORTEST,
    ]
    assert observed(bytes.fromhex("c1 8100 00"), MQTT311) == [
        rules.FIXED_HEADER_FLAGS,
        rules.NO_SURPLUS_BYTES,
    ]
    assert observed(bytes.fromhex("c0 8000"), MQTT311) == []


@pytest.mark.parametrize("data", ["c000", "d000"])
def test_pings_are_observed_as_nothing(data: str) -> None:
    for version in BOTH:
        observation = seen(bytes.fromhex(data), version)
        assert (observation.fields, observation.violations) == ((), ())


def test_a_violation_knows_version_and_packet_type() -> None:
    for version in BOTH:
        connect = encode(Connect("a", version=version))[:-1] + b"\0"
        for told in BOTH:
            (violation,) = seen(connect, told).violations
            assert (violation.version, violation.packet_type) == (version, 1)
    (violation,) = seen(framed(0x40, "0000"), MQTT311).violations
    assert (violation.version, violation.packet_type) == (MQTT311, 4)
    (violation,) = seen(framed(0x40, "0007 7f"), MQTT5).violations
    assert (violation.version, violation.packet_type) == (MQTT5, 4)


# --- packets that break off -----------------------------------------------------------------------

MQTT = "0004 4d515454"


@pytest.mark.parametrize(
    ("version", "data", "further"),
    [
        # The first byte of a PUBLISH, its topic and its identifier, before a section cut short.
        (MQTT5, framed(0x3E, text("a/#") + "0000 05 01"), "QOS_NOT_3 WILDCARDS PACKET_ID"),
        (MQTT5, framed(0x38, text("a") + "05 01"), "DUP_NEEDS_QOS"),
        (MQTT5, framed(0x32, text("a") + "0007 05 01"), ""),
        (MQTT5, framed(0x30, "0001 ff 05 01"), "TEXT_WELL_FORMED"),
        # An empty name may be right: the alias may be in what is lost.
        (MQTT5, framed(0x30, "0000 05 01"), ""),
        (MQTT5, framed(0x30, text("a") + section("0102 08 000123 23 00")), "IS_0_OR_1 WILDCARDS"),
        (
            MQTT5,
            framed(0x30, text("a") + section("230000 0b00 09 0005")),
            "ALIAS_NOT_ZERO NOT_ZERO",
        ),
        (MQTT5, framed(0x30, text("a") + section("09 0001ff 03 0005")), ""),
        (MQTT5, framed(0x30, text("a") + section("26 000100 000161 03")), "TEXT_WITHOUT_NUL"),
        # Reason codes are judged by packet and version.
        (MQTT5, framed(0x40, "0000 7f 05 1f"), "PACKET_ID REASON_CODE"),
        (MQTT5, framed(0x40, "0007 87 05 1f"), ""),
        (MQTT5, framed(0x20, "03 05"), "CONNACK_RESERVED_FLAGS REASON_CODE"),
        (MQTT5, framed(0x20, "01 00"), ""),
        (MQTT311, framed(0x20, "80"), "CONNACK_RESERVED_FLAGS"),
        # Filters, one after another.
        (MQTT311, framed(0x82, "0000" + text("a#") + "00" + text("+b")), "PACKET_ID HASH PLUS"),
        (MQTT311, framed(0x82, "0007" + text("a") + "00" + "0000"), "TOPIC_FILTER_NOT_EMPTY"),
        (MQTT311, framed(0xA2, "0007" + text("a#") + "00"), "HASH"),
        (MQTT311, framed(0xA2, "0007" + text("a") + "00"), ""),
        # CONNECT: flags, and the texts that were read before the end.
        (MQTT311, framed(0x10, f"{MQTT} 04 03 003c"), "CONNECT_RESERVED_FLAG"),
        (MQTT311, framed(0x10, f"{MQTT} 04 3a 003c"), "WILL_QOS WILL_RETAIN"),
        (MQTT311, framed(0x10, f"{MQTT} 04 02 003c"), ""),
        (MQTT311, framed(0x10, f"{MQTT} 04 06 003c" + text("a") + text("#")), "WILDCARDS"),
        (MQTT311, framed(0x10, f"{MQTT} 04 82 003c 0001 00"), "TEXT_WITHOUT_NUL"),
    ],
)
def test_what_came_before_the_break_is_judged_by_itself(
    version: int, data: bytes, further: str
) -> None:
    broken = observed(data, version)
    assert broken[0] is rules.FIELD_WITHIN_PACKET
    assert len(broken) == 1 + len(further.split())
    for word in further.split():
        assert any(word in rule.name for rule in broken[1:])


def test_a_protocol_that_is_not_mqtt_is_not_read_on() -> None:
    data = framed(0x10, "0006 4d514973 6470 03 02 003c 0001 61")
    observation = seen(data, MQTT5)
    assert [each.rule for each in observation.violations] == [rules.PROTOCOL_NAME_IS_MQTT]
    assert observation.fields == (("protocol_name", "MQIsdp"),)
    assert observation.end == len(data)


def test_a_property_that_nobody_knows_does_not_hide_the_payload() -> None:
    observation = seen(framed(0x30, text("a") + section("04 00") + "78"), MQTT5)
    assert [each.rule for each in observation.violations] == [rules.PROPERTY_KNOWN]
    assert observation.fields[-1] == ("payload", b"x")


# --- the defects that semel comes from, as an observer sees them ----------------------------------


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("300b000873656e736f722f2378", rules.TOPIC_NAME_WITHOUT_WILDCARDS),
        ("300b000873656e736f722f2b78", rules.TOPIC_NAME_WITHOUT_WILDCARDS),
        ("300400012b78", rules.TOPIC_NAME_WITHOUT_WILDCARDS),
        ("300400012378", rules.TOPIC_NAME_WITHOUT_WILDCARDS),
        ("3003000078", rules.TOPIC_NAME_NOT_EMPTY),
        ("32050000000778", rules.TOPIC_NAME_NOT_EMPTY),
        ("380400016178", rules.DUP_NEEDS_QOS),
    ],
)
def test_an_observer_names_the_rule_that_a_bad_publish_breaks(data: str, rule: Rule) -> None:
    check_refused(bytes.fromhex(data), MQTT311, rule)


def test_an_observer_has_nothing_to_say_of_a_good_publish() -> None:
    data = framed(0x30, text("sensor/value") + "78")
    assert observed(data, MQTT311) == []
    assert observed(bytes.fromhex("3a0600016100 0778"), MQTT311) == []


# --- secrets --------------------------------------------------------------------------------------


def test_a_password_is_shown_by_its_length() -> None:
    for version in BOTH:
        data = encode(Connect("a", version=version, user_name="u", password=b"secret"))
        observation = seen(data, version)
        assert observation.fields[-1] == ("password", "<6 bytes>")
        # Also when the packet breaks off after it, or has too much.
        shown = seen(bytes((data[0], data[1] + 1)) + data[2:] + b"\0", version)
        assert ("password", "<6 bytes>") in shown.fields


# --- what holds for all ---------------------------------------------------------------------------


@settings(max_examples=repeats(300, 100), deadline=None, derandomize=True)
@given(with_version(packets))
def test_an_observer_has_nothing_to_say_of_a_packet_that_is_right(
    drawn: tuple[int, Packet],
) -> None:
    version, packet = drawn
    data = encode(packet, version)
    observation = seen(b"\xff" + data + b"\xff", version, start=1)
    assert observation.violations == ()
    assert (observation.start, observation.end) == (1, 1 + len(data))


@pytest.mark.slow
@settings(max_examples=repeats(800, 200), deadline=None, derandomize=True)
@given(with_version(inputs))
def test_observe_and_decode_are_of_one_mind(drawn: tuple[int, bytes]) -> None:
    version, data = drawn
    observation = observe(data, version)
    refused: Violation | None = None
    decoded: tuple[Packet, int] | None = None
    try:
        decoded = decode(data, version)
    except Violation as violation:
        refused = violation
    if observation is None:
        # decode refuses what it can before all is there; an observer waits for the end.
        assert decoded is None
    elif refused is None:
        assert decoded is not None
        assert observation.violations == ()
        assert observation.end == decoded[1]
    else:
        assert refused.rule in [each.rule for each in observation.violations]
        assert 0 < observation.end <= len(data)
        # Over its flags a CONNECT is refused before it can name its version.
        if refused.rule is not rules.FIXED_HEADER_FLAGS:
            assert observation.version == refused.version


def test_the_flags_of_a_publish_are_not_asked_of_a_broken_packet_of_another_type() -> None:
    observation = observe(bytes.fromhex("480100"), MQTT311)
    assert observation is not None
    assert [violation.rule for violation in observation.violations] == [
        rules.FIXED_HEADER_FLAGS,
        rules.FIELD_WITHIN_PACKET,
    ]
