"""The account can fail: what it must find, put there by hand."""

import sqlite3
from pathlib import Path

import pytest

from tests.kills.account import (
    DUE,
    MAYBE,
    NEVER,
    Ledger,
    Named,
    Taker,
    Verdict,
    payload_of,
    read_payload,
)
from tests.kills.record import Record, Row, pick, read_record, settle


def ledger_of(*messages: tuple[str, int, int, str]) -> Ledger:
    """An account of messages (publisher, counter, QoS, fate) with one taker at QoS 2."""
    ledger = Ledger()
    ledger.takers["t"] = Taker("t", 2, ("load/",))
    for publisher, n, qos, fate in messages:
        sent = ledger.submit((publisher, n), f"load/{publisher}", qos, fate=fate)
        sent.tries = 1
    return ledger


def take(ledger: Ledger, publisher: str, n: int, qos: int, *, dup: bool | None = False) -> None:
    ledger.takers["t"].take(Named((publisher, n), qos), 1, dup=dup)


def test_what_is_taken_once_and_in_order_is_clean() -> None:
    ledger = ledger_of(("p", 1, 2, DUE), ("p", 2, 1, DUE), ("p", 3, 0, MAYBE), ("p", 4, 2, NEVER))
    take(ledger, "p", 1, 2)
    take(ledger, "p", 2, 1)
    verdict = ledger.verdict()
    assert verdict.is_clean, verdict.faults
    assert (verdict.count("acknowledged"), verdict.count("taken")) == (2, 2)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_was_acknowledged_and_not_taken_is_lost(qos: int) -> None:
    ledger = ledger_of(("p", 1, qos, DUE))
    verdict = ledger.verdict()
    assert list(verdict.faults) == ["lost"]
    assert verdict.count("lost") == 1
    assert "not taken by t: p 1 (load/p" in verdict.faults["lost"][0]


def test_a_message_that_was_never_acknowledged_is_unfinished() -> None:
    assert list(ledger_of(("p", 1, 1, MAYBE)).verdict().faults) == ["unfinished"]


@pytest.mark.parametrize(("qos", "kind"), [(2, "doubled"), (0, "doubled"), (1, None)])
def test_only_qos_1_may_be_taken_again(qos: int, kind: str | None) -> None:
    ledger = ledger_of(("p", 1, qos, DUE if qos else MAYBE))
    take(ledger, "p", 1, qos)
    take(ledger, "p", 1, qos, dup=True)
    verdict = ledger.verdict()
    assert list(verdict.faults) == ([kind] if kind else [])
    assert verdict.count("repeats") == (qos == 1)


def test_a_qos_1_message_may_not_come_as_new_more_often_than_it_was_sent() -> None:
    ledger = ledger_of(("p", 1, 1, DUE))
    take(ledger, "p", 1, 1)
    take(ledger, "p", 1, 1)
    assert list(ledger.verdict().faults) == ["more often than sent"]
    ledger.sent["p", 1].tries = 2
    assert ledger.verdict().is_clean


def test_messages_of_one_publisher_and_qos_keep_their_order() -> None:
    messages = [("p", 1, 1, DUE), ("p", 2, 1, DUE), ("p", 3, 2, DUE), ("q", 1, 1, DUE)]
    ledger = ledger_of(*messages)
    for name, n, qos in (("p", 3, 2), ("p", 1, 1), ("q", 1, 1), ("p", 2, 1)):
        take(ledger, name, n, qos)
    # A repeat is out of its order by nature.
    take(ledger, "p", 1, 1, dup=True)
    assert ledger.verdict().is_clean
    ledger = ledger_of(*messages)
    for name, n, qos in (("p", 3, 2), ("p", 2, 1), ("q", 1, 1), ("p", 1, 1)):
        take(ledger, name, n, qos)
    verdict = ledger.verdict()
    assert list(verdict.faults) == ["out of order"]
    assert verdict.count("disordered") == 1


def test_what_may_not_come_and_what_nobody_sent_is_reported() -> None:
    ledger = ledger_of(("p", 1, 2, NEVER))
    take(ledger, "p", 1, 2)
    take(ledger, "p", 2, 2)
    assert set(ledger.verdict().faults) == {"came though it may not", "never sent"}


def test_a_message_for_another_taker_is_reported() -> None:
    ledger = ledger_of(("p", 1, 2, DUE))
    ledger.sent["p", 1].audience = "somebody"
    assert ledger.verdict().is_clean
    take(ledger, "p", 1, 2)
    assert list(ledger.verdict().faults) == ["came to the wrong taker"]


def test_a_payload_names_its_message_and_shows_when_it_is_not_whole() -> None:
    assert read_payload(payload_of("p", 7, 2, 30)) == Named(("p", 7), 2)
    for spoiled in (payload_of("p", 7, 2, 30)[:-1], payload_of("p", 7, 2) + b"x", b"", b"p 7"):
        with pytest.raises(ValueError, match=r"bytes where|values to unpack"):
            read_payload(spoiled)


def rows_of(*messages: tuple[int, int]) -> dict[int, Row]:
    """Rows from 1 on of (counter, QoS) of publisher p."""
    return {
        seq: Row("load/p", payload_of("p", n, qos), qos, "p")
        for seq, (n, qos) in enumerate(messages, 1)
    }


def heard(ledger: Ledger, rows: dict[int, Row]) -> set[str]:
    """The kinds of faults when these rows are all that was recorded."""
    verdict = Verdict()
    del ledger.takers["t"]
    settle(Record(rows, len(rows), 0, 0, []), ledger, verdict)
    return {*verdict.faults, *ledger.verdict().faults}


def test_the_record_has_each_qos_2_message_once_and_in_order() -> None:
    messages = [("p", 1, 2, DUE), ("p", 2, 1, DUE), ("p", 3, 2, DUE), ("p", 4, 0, MAYBE)]
    assert heard(ledger_of(*messages), rows_of((1, 2), (2, 1), (3, 2))) == set()
    assert heard(ledger_of(*messages), rows_of((1, 2), (2, 1))) == {"lost"}
    doubled = rows_of((1, 2), (2, 1), (3, 2), (3, 2))
    assert heard(ledger_of(*messages), doubled) == {"doubled"}
    often = rows_of((1, 2), (2, 1), (2, 1), (3, 2))
    assert heard(ledger_of(*messages), often) == {"more often than sent"}
    # In the record that holds whatever the QoS.
    assert heard(ledger_of(*messages), rows_of((2, 1), (1, 2), (3, 2))) == {"out of order"}
    foreign = {**rows_of((1, 2), (2, 1)), 3: Row("load/p", payload_of("p", 3, 2), 2, "q")}
    assert heard(ledger_of(*messages), foreign) == {"record"}
    spoiled = {**rows_of((1, 2), (2, 1)), 3: Row("load/x", payload_of("p", 3, 2), 2, "p")}
    assert heard(ledger_of(*messages), spoiled) == {"record"}


def test_of_segments_the_longest_that_goes_on_is_picked(tmp_path: Path) -> None:
    for name in ("1-3", "4-6", "1-6", "7-9"):
        (tmp_path / f"{name}.parquet").touch()
    (tmp_path / "1-9.parquet.tmp").touch()
    assert [entry[:2] for entry in pick(tmp_path)] == [(1, 6), (7, 9)]


def store_of(folder: Path, seqs: list[int], last_seq: int, sealed: int) -> None:
    """A store as far as the record is read from it."""
    store = sqlite3.connect(folder / "store.db")
    store.executescript(
        "CREATE TABLE stream (id, name, last_seq, sealed_seq);"
        "CREATE TABLE record (stream_id, seq, topic, payload, flags, client_id);"
    )
    store.execute("INSERT INTO stream VALUES (1, 'all', ?, ?)", (last_seq, sealed))
    store.executemany(
        "INSERT INTO record VALUES (1, ?, 'load/p', x'70', 2, 'p')", [(seq,) for seq in seqs]
    )
    store.commit()
    store.close()


@pytest.mark.parametrize(
    ("seqs", "last_seq", "fault"),
    [
        ([1, 2, 3], 3, None),
        ([1, 3], 3, "1 numbers have no row, the first is 2"),
        ([2, 3], 3, "1 numbers have no row, the first is 1"),
        ([1, 2], 3, "1 numbers have no row, the first is 3"),
        ([1, 2, 3], 2, "1 rows lie beyond 2, the first is 3"),
    ],
)
def test_a_gap_in_the_numbers_is_found(
    tmp_path: Path, seqs: list[int], last_seq: int, fault: str | None
) -> None:
    store_of(tmp_path, seqs, last_seq, 0)
    assert read_record(tmp_path, "all").faults == ([fault] if fault else [])


def segment(folder: Path, name: str, seqs: list[int], payload: bytes = b"p") -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder.mkdir(parents=True, exist_ok=True)
    count = len(seqs)
    columns = {
        "seq": seqs,
        "topic": ["load/p"] * count,
        "payload": [payload] * count,
        "qos": [2] * count,
        "client_id": ["p"] * count,
    }
    parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")


def test_rows_may_be_in_segments_in_the_store_or_in_both(tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "all" / "node"
    segment(folder, "1-2", [1, 2])
    segment(folder, "3-4", [3, 4])
    segment(folder, "1-4", [1, 2, 3, 4])
    store_of(tmp_path, [3, 4, 5], 5, 2)
    record = read_record(tmp_path, "all")
    assert record.faults == []
    assert (sorted(record.rows), record.in_store, record.segments) == ([1, 2, 3, 4, 5], 3, 1)


def test_a_segment_that_is_not_what_its_name_says_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "streams" / "all" / "node"
    segment(folder, "1-2", [1])
    segment(folder, "4-4", [4], b"other")
    store_of(tmp_path, [2, 3, 4], 4, 5)
    found = "\n".join(read_record(tmp_path, "all").faults)
    assert "1-2.parquet does not have the rows that its name says" in found
    assert "4-4.parquet follows 2" in found
    assert "4 is Row(topic='load/p', payload=b'p'" in found
    assert "sealed through 5, but segments end at 4" in found
