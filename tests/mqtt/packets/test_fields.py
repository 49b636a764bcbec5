"""Packet Identifier and reason code: the fields that several packets share."""

import pytest

from semel.mqtt import MQTT5, MQTT311, PACKET_NAMES, Violation, rules
from semel.mqtt.packets.fields import check_packet_id, check_reason
from tests.mqtt.standard_tables import REASON_CODES_5, REASON_CODES_311
from tests.mqtt.verdicts import refuses


@pytest.mark.parametrize("packet_id", [1, 2, 255, 256, 65_535])
def test_a_packet_id_is_1_to_65535(packet_id: int) -> None:
    check_packet_id(packet_id, None)


@pytest.mark.parametrize("packet_id", [0, -1, 65_536, 10**30])
def test_any_other_packet_id_is_refused(packet_id: int) -> None:
    with refuses(rules.PACKET_ID_NOT_ZERO):
        check_packet_id(packet_id, None)


@pytest.mark.parametrize("name", sorted(REASON_CODES_5))
def test_a_reason_is_judged_by_the_table_of_its_packet_and_version(name: str) -> None:
    packet_type = PACKET_NAMES.index(name)
    in_5 = REASON_CODES_5[name]
    in_311 = REASON_CODES_311.get(name, frozenset())
    tables = {MQTT5: in_5, 0: in_5 | in_311}
    if name in REASON_CODES_311:
        tables[MQTT311] = in_311
    for version, table in tables.items():
        for reason in range(256):
            if reason in table:
                check_reason(packet_type, reason, version, None)
            else:
                with refuses(rules.REASON_CODE_IN_TABLE):
                    check_reason(packet_type, reason, version, None)


def test_faults_are_gathered_where_someone_gathers() -> None:
    found: list[Violation] = []
    check_packet_id(0, found)
    check_reason(PACKET_NAMES.index("PUBACK"), 1, MQTT5, found)
    assert [violation.rule for violation in found] == [
        rules.PACKET_ID_NOT_ZERO,
        rules.REASON_CODE_IN_TABLE,
    ]
