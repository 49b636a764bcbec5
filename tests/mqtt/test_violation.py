"""What a rule says of itself, and what an error says of a rule."""

import pytest

from semel.mqtt import MQTT5, MQTT311, Rule, Violation, rules
from semel.mqtt.packet_types import CONNECT, PUBACK, PUBLISH
from semel.mqtt.reasons import MALFORMED_PACKET, SUCCESS
from semel.mqtt.violation import report

NOTHING = Rule("NOTHING", "Nothing.", at="decode", reason=SUCCESS)
MANY = Rule(
    "MANY",
    "All of it.",
    mqtt311="1.1-1 PUBLISH:1.1-2 U3-01",
    mqtt5="1.1-1 1.1-9 PUBACK:1.1-3 PUBLISH:U5-01",
    at="encode decode",
    reason=MALFORMED_PACKET,
    return_code=2,
)


def test_a_rule_is_what_it_was_made_of() -> None:
    assert (MANY.name, MANY.sentence) == ("MANY", "All of it.")
    assert MANY.boundaries == ("encode", "decode")
    assert (MANY.reason, MANY.return_code) == (MALFORMED_PACKET, 2)
    assert (NOTHING.mqtt311, NOTHING.mqtt5, NOTHING.return_code) == ((), (), 0)
    assert repr(MANY) == "MANY"


def test_a_rule_with_an_error_code_closes_the_connection() -> None:
    assert MANY.closes
    assert not NOTHING.closes


@pytest.mark.parametrize(
    ("version", "packet_type", "expected"),
    [
        (0, 0, "MQTT-1.1-1 MQTT-1.1-2 U3-01 MQTT-1.1-9 MQTT-1.1-3 U5-01"),
        (MQTT311, 0, "MQTT-1.1-1 MQTT-1.1-2 U3-01"),
        (MQTT5, 0, "MQTT-1.1-1 MQTT-1.1-9 MQTT-1.1-3 U5-01"),
        (MQTT311, PUBLISH, "MQTT-1.1-1 MQTT-1.1-2 U3-01"),
        (MQTT311, PUBACK, "MQTT-1.1-1 U3-01"),
        (MQTT5, PUBACK, "MQTT-1.1-1 MQTT-1.1-9 MQTT-1.1-3"),
        (MQTT5, PUBLISH, "MQTT-1.1-1 MQTT-1.1-9 U5-01"),
        (MQTT5, CONNECT, "MQTT-1.1-1 MQTT-1.1-9"),
    ],
)
def test_statements_are_those_of_the_version_and_the_packet(
    version: int, packet_type: int, expected: str
) -> None:
    assert MANY.statements(version, packet_type) == tuple(expected.split())


def test_statements_without_arguments_are_all_of_them_once() -> None:
    assert MANY.statements() == MANY.statements(0, 0)
    assert NOTHING.statements() == ()


def test_a_violation_knows_its_rule_and_what_was_seen() -> None:
    violation = Violation(MANY, "seven")
    assert violation.rule is MANY
    assert violation.seen == "seven"
    assert (violation.packet_type, violation.version) == (0, 0)
    assert violation.args == ("MANY",)


@pytest.mark.parametrize(
    ("rule", "version", "packet_type", "expected"),
    [
        (MANY, MQTT5, CONNECT, "CONNECT: MANY [MQTT-1.1-1, MQTT-1.1-9]: All of it. Seen: x."),
        (MANY, MQTT311, 0, "MANY [MQTT-1.1-1, MQTT-1.1-2, U3-01]: All of it. Seen: x."),
        (MANY, 0, 0, "MANY [MQTT-1.1-1, MQTT-1.1-2, U3-01, …]: All of it. Seen: x."),
        (MANY, MQTT5, 0, "MANY [MQTT-1.1-1, MQTT-1.1-9, MQTT-1.1-3, …]: All of it. Seen: x."),
        (NOTHING, MQTT5, PUBLISH, "PUBLISH: NOTHING: Nothing. Seen: x."),
    ],
)
def test_a_violation_reads_as_packet_rule_statements_and_what_was_seen(
    rule: Rule, version: int, packet_type: int, expected: str
) -> None:
    violation = Violation(rule, "x", packet_type)
    violation.version = version
    assert str(violation) == expected
    assert violation.statements == rule.statements(version, packet_type)


def test_a_violation_is_raised_where_nobody_gathers_and_gathered_where_someone_does() -> None:
    violation = Violation(rules.QOS_NOT_3, "QoS 3")
    with pytest.raises(Violation) as caught:
        report(None, violation)
    assert caught.value is violation
    found: list[Violation] = []
    report(found, violation)
    report(found, violation)
    assert found == [violation, violation]
