"""What a message says about the rows of a record, and which of them exist."""

from pathlib import Path

from semel.pipeline.stream_record import StreamRecord, runs_label
from semel.store.segment_names import segment_name


def test_a_message_lists_three_runs_at_most() -> None:
    runs = [(1, 2), (5, 5), (7, 9), (11, 12)]
    assert runs_label(runs[:1]) == "rows 1 to 2"
    assert runs_label(runs[:3]) == "rows 1 to 2, row 5, rows 7 to 9"
    assert runs_label(runs) == "rows 1 to 2, row 5, rows 7 to 9 and more"


def test_existing_rows_are_cut_to_what_is_asked_for_and_joined(tmp_path: Path) -> None:
    folder = tmp_path / "plant" / "n1"
    folder.mkdir(parents=True)
    for first, last in ((1, 10), (11, 20), (31, 40)):
        (folder / segment_name(first, last)).write_bytes(b"x")
    record = StreamRecord(str(tmp_path), "plant")
    assert record.ranges("n1") == [(1, 10), (11, 20), (31, 40)]
    assert record.ranges_within("n1", 5, 33) == [(5, 20), (31, 33)]
    assert record.ranges_within("n1", 10, 11) == [(10, 11)]
    assert record.ranges_within("n1", 21, 30) == []
    assert record.ranges_within("n1", 40, 99) == [(40, 40)]
    assert record.ranges_within("n2", 1, 99) == []
    # A record is listed once.
    (folder / segment_name(41, 50)).write_bytes(b"x")
    assert record.ranges("n1")[-1] == (31, 40)
