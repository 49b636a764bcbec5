"""The reconciliation of a demo verifies the checksum of every page of the table."""

from pathlib import Path
from typing import Any

import pytest

from semel.lab.demo import add_table
from semel.lab.demo_reconciliation import Reconciliation, Verdict
from semel.lab.fleet.devices import Devices
from semel.lab.fleet.journal import BEGIN, DONE, JournalLine

deltalake = pytest.importorskip("deltalake")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DEVICES = Devices(4, 7)
COUNT = 300
FILES = ("part-0.parquet", "part-1.parquet")


def arrow_table(first: int, end: int) -> Any:
    """Rows as they land, with a column that the reconciliation does not need."""
    messages = [DEVICES.message(index) for index in range(first, end)]
    return pa.table(
        {
            "node": ["n"] * len(messages),
            "seq": pa.array(range(first + 1, end + 1), pa.int64()),
            "topic": [message.topic for message in messages],
            "payload": [message.payload for message in messages],
            "qos": pa.array([2] * len(messages), pa.int32()),
        }
    )


def land(folder: Path, *, has_checksums: bool = True) -> None:
    """Write a Delta table of two files; uncompressed, so that a flipped bit is no other error."""
    folder.mkdir()
    half = COUNT // 2
    for name, rows in zip(FILES, (arrow_table(0, half), arrow_table(half, COUNT)), strict=True):
        pq.write_table(
            rows,
            folder / name,
            compression="none",
            use_dictionary=False,
            write_page_checksum=has_checksums,
        )
    deltalake.convert_to_deltalake(str(folder))


def flip_bit(path: Path, column: str) -> None:
    """Flip a bit of the last value in the data page of a column."""
    group = pq.read_metadata(path).row_group(0)
    (chunk,) = [
        group.column(at)
        for at in range(group.num_columns)
        if group.column(at).path_in_schema == column
    ]
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(data)


def reconcile(folder: Path) -> Verdict:
    reconciliation = Reconciliation(DEVICES, COUNT)
    names = [DEVICES.name_of(index) for index in range(COUNT)]
    reconciliation.add_journal(JournalLine(word, *name) for name in names for word in (BEGIN, DONE))
    rows = ((index + 1, *DEVICES.message(index)) for index in range(COUNT))
    reconciliation.add_record("n", 1, rows)
    add_table(reconciliation, deltalake.DeltaTable(str(folder)))
    return reconciliation.reconcile(0)


def test_an_undamaged_table_reconciles(tmp_path: Path) -> None:
    land(tmp_path / "messages")
    verdict = reconcile(tmp_path / "messages")
    assert verdict.holds
    assert (verdict.landed, verdict.lost, verdict.duplicated) == (COUNT, 0, 0)


@pytest.mark.parametrize("column", ["node", "seq", "topic", "payload", "qos"])
@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_in_any_column_is_one_fault_that_names_the_file(
    tmp_path: Path, column: str, name: str
) -> None:
    land(tmp_path / "messages")
    flip_bit(tmp_path / "messages" / name, column)
    verdict = reconcile(tmp_path / "messages")
    assert not verdict.holds
    unreadable = [fault for fault in verdict.faults if "cannot be read" in fault]
    assert len(unreadable) == 1
    assert name in unreadable[0]
    assert "checksum" in unreadable[0].lower()
    assert "\n" not in unreadable[0]
    # The rows of the other file count as landed.
    assert verdict.landed == verdict.lost == COUNT // 2


def test_without_checksums_the_same_bit_would_not_be_noticed(tmp_path: Path) -> None:
    land(tmp_path / "messages", has_checksums=False)
    flip_bit(tmp_path / "messages" / FILES[0], "qos")
    assert reconcile(tmp_path / "messages").holds


def test_a_table_without_files_has_lost_everything(tmp_path: Path) -> None:
    schema = deltalake.Schema.from_arrow(arrow_table(0, 1).schema)
    deltalake.DeltaTable.create(str(tmp_path / "messages"), schema)
    verdict = reconcile(tmp_path / "messages")
    assert (verdict.landed, verdict.lost, verdict.holds) == (0, COUNT, False)
