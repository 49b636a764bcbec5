"""Kill -9 of two brokers and of the bridge between them, and cuts at any byte, under load.

Many more kills are in `tests/long/bridge_kills.py`. That the account can fail is shown here too.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.kills.bridging import Plan, Result, compare, run
from tests.kills.record import Record, Row

pytest.importorskip("pyarrow")


@pytest.mark.parametrize("maximum_queued", [100_000, 20], ids=["large-queue", "small-queue"])
def test_brokers_and_a_bridge_that_are_killed_lose_and_duplicate_nothing(
    maximum_queued: int, tmp_path: Path
) -> None:
    result = run(Plan(seed=3, kills=3, maximum_queued=maximum_queued), tmp_path)
    assert not result.faults, f"{result}\n" + "\n".join(result.faults[:20])
    assert result.kills == Counter(local=1, remote=1, bridge=1)
    assert result.moved >= result.sent > 100
    assert (result.lost, result.duplicated) == (0, 0)


def test_a_right_that_is_taken_away_while_all_are_killed_stops_exactly_what_it_must(
    tmp_path: Path,
) -> None:
    result = run(Plan(seed=5, kills=6, changes_rights=True), tmp_path)
    assert not result.faults, f"{result}\n" + "\n".join(result.faults[:20])
    assert result.denials == 2
    assert result.denied > 50
    assert result.moved >= result.sent - result.denied > 100
    assert (result.lost, result.duplicated) == (0, 0)


def test_the_account_notices_what_is_lost_duplicated_strange_or_out_of_order() -> None:
    topic = "from-local/plant/2"
    payloads = [b"2-1", b"2-5", b"2-3", b"2-3", b"1-0", b"1-0", b"2-9"]
    rows = {
        seq: Row(topic, payload, int(payload[:1]), "c") for seq, payload in enumerate(payloads, 1)
    }
    result = Result()
    compare(result, Record(rows, len(rows), 0, 0, []), ["1-0", "2-1", "2-3", "2-5", "2-7"], 0)
    assert (result.lost, result.duplicated, result.repeats, result.moved) == (1, 1, 1, 7)
    assert [fault.split(" to ")[0] for fault in result.faults] == [
        "1",
        "1",
        "1",
        "QoS 2 messages",
    ]
    denied = Result()
    compare(denied, Record(rows, len(rows), 0, 0, []), ["1-0", "2-9"], 0, denied={"2-9", "2-8"})
    assert any("arrived without the right" in fault for fault in denied.faults)
    fine = Result()
    rows = {1: Row(topic, b"1-0", 1, "c"), 2: Row(topic, b"1-0", 1, "c"), 3: rows[1]}
    compare(fine, Record(rows, 3, 0, 0, []), ["1-0", "2-1", "2-2"], 0, denied={"2-2"})
    assert not fine.faults
