"""Flags of stored rows: what is encoded is what is decoded."""

from itertools import product

import pytest

from semel.store.row_flags import (
    DUP,
    HAS_EXTRA,
    MAXIMUM_FLAGS,
    QOS_MASK,
    RELEASED_FLAGS,
    RETAIN,
    delivery_flags,
    received_flags,
)
from semel.store.rows import SELECT_DELIVERIES, SELECT_RECORDS
from semel.store.schema import TABLES

BOOLS = (False, True)


@pytest.mark.parametrize(("qos", "retain", "dup"), list(product((0, 1, 2), BOOLS, BOOLS)))
def test_flags_of_a_received_message(qos: int, retain: bool, dup: bool) -> None:
    flags = received_flags(qos, retain=retain, dup=dup)
    assert (flags & QOS_MASK, bool(flags & RETAIN), bool(flags & DUP)) == (qos, retain, dup)
    assert flags <= MAXIMUM_FLAGS


@pytest.mark.parametrize(("qos", "retain", "has_extra"), list(product((1, 2), BOOLS, BOOLS)))
def test_flags_of_a_delivery(qos: int, retain: bool, has_extra: bool) -> None:
    flags = delivery_flags(qos, retain=retain, has_extra=has_extra)
    found = (flags & QOS_MASK, bool(flags & RETAIN), bool(flags & HAS_EXTRA))
    assert found == (qos, retain, has_extra)
    assert flags <= MAXIMUM_FLAGS


def test_a_released_delivery_keeps_its_qos_only() -> None:
    assert delivery_flags(2, retain=False, has_extra=False) == RELEASED_FLAGS


def test_queries_name_every_column_of_their_tables() -> None:
    record = TABLES["record"].column_names
    for name in record[1:]:
        assert f"{name}," in SELECT_RECORDS or f"{name} FROM" in SELECT_RECORDS
    for table in ("delivery", "delivery_extra", "shared_payload"):
        for name in TABLES[table].column_names[2 if table != "shared_payload" else 1 :]:
            assert f"{table}.{name}" in SELECT_DELIVERIES
