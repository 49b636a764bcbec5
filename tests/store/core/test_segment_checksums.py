"""Checksums of segments: what is not what was written is not read."""

import io
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel.extras import need
from semel.store import segment_checksums, segment_writer
from semel.store.roots import LocalRoot
from semel.store.segment_checksums import CheckedFile, add_checksums
from semel.store.segment_names import segment_name
from semel.store.segment_writer import seal_rows
from semel.store.segments import RecordError, open_segment, verify_segment
from tests.store.memory_root import MemoryRoot
from tests.store.recorded import (
    fields,
    insert,
    make_database,
    read_records,
    reader,
)

pa = need("pyarrow", extra="broker", by="this test")
pq = need("pyarrow.parquet", extra="broker", by="this test")

ROWS = 60
PLACE = f"plant/n1/{segment_name(1, ROWS)}"


@pytest.fixture(scope="module")
def sealed() -> MemoryRoot:
    """A segment with every kind of row."""
    connection = make_database(":memory:")
    insert(connection, 1, ROWS)
    root = MemoryRoot()
    seal_rows(connection, root, "plant", "n1", stream_id=1, first=1, last=ROWS)
    connection.close()
    return root


def flipped(root: MemoryRoot, bit: int) -> MemoryRoot:
    """The same with one bit of the segment turned over."""
    twin = root.copy()
    data = bytearray(twin.files[PLACE][0])
    data[bit // 8] ^= 1 << bit % 8
    twin.files[PLACE] = (bytes(data), 0.0)
    return twin


def read(root: MemoryRoot) -> list[tuple[Any, ...]]:
    return [(*fields(each), each.received) for each in read_records(root, "plant", "n1", 1, 1_000)]


def read_columns(root: MemoryRoot, columns: list[str]) -> Any:
    opened = open_segment(root, "plant", "n1", first=1, last=ROWS)
    try:
        return opened.read_row_group(0, columns=columns, use_threads=False)
    finally:
        opened.close(force=True)


def without_checksums(root: MemoryRoot) -> MemoryRoot:
    """The same rows, as earlier versions wrote them."""
    sink = io.BytesIO()
    table = read_columns(root, pq.ParquetFile(io.BytesIO(root.files[PLACE][0])).schema_arrow.names)
    pq.write_table(table, sink, compression="zstd", store_schema=False)
    twin = MemoryRoot()
    twin.files[PLACE] = (sink.getvalue(), 0.0)
    return twin


def test_the_rows_of_a_whole_segment_are_read_and_it_passes(sealed: MemoryRoot) -> None:
    assert [each[1] for each in read(sealed)] == list(range(1, ROWS + 1))
    assert verify_segment(sealed, "plant", "n1", first=1, last=ROWS) is True


def test_no_flipped_bit_changes_a_row(sealed: MemoryRoot) -> None:
    size = len(sealed.files[PLACE][0])
    good = read(sealed)
    chosen = random.Random(21)
    footer = struct.unpack("<I", sealed.files[PLACE][0][-8:-4])[0] + 8
    bits = {chosen.randrange(size * 8) for _ in range(300)}
    # As many in the last part, which is small: the checksums themselves, the footer, the end.
    bits |= {chosen.randrange((size - footer - 400) * 8, size * 8) for _ in range(300)}
    bits |= set(range((size - 8) * 8, size * 8))
    bits |= set(range((size - footer - 40) * 8, (size - footer) * 8))
    unread = 0
    for bit in bits:
        damaged = flipped(sealed, bit)
        with suppress(RecordError):
            assert read(damaged) == good, bit
            unread += 1
        with pytest.raises(RecordError, match=segment_name(1, ROWS)):
            verify_segment(damaged, "plant", "n1", first=1, last=ROWS)
    # Bits that no reader of rows looks at: the four at the start of each Parquet file.
    assert unread <= 8


def test_damage_in_a_column_that_is_not_wanted_does_not_matter(sealed: MemoryRoot) -> None:
    chunk = pq.ParquetFile(pa.BufferReader(sealed.files[PLACE][0])).metadata.row_group(0).column(4)
    assert chunk.path_in_schema == "payload"
    damaged = flipped(sealed, (chunk.data_page_offset + chunk.total_compressed_size - 5) * 8)
    assert read_columns(damaged, ["seq", "topic"]) == read_columns(sealed, ["seq", "topic"])
    with pytest.raises(RecordError, match="checksum"):
        read_columns(damaged, ["seq", "payload"])


def test_the_message_names_the_file_and_says_what_to_do(sealed: MemoryRoot) -> None:
    with pytest.raises(RecordError) as caught:
        read(flipped(sealed, 200 * 8))
    text = str(caught.value)
    assert f"memory/{PLACE}" in text
    assert "Restore" in text
    assert f"semel stream trim plant --node n1 --before {ROWS + 1}" in text


def test_a_segment_of_an_earlier_version_is_read_and_told_apart(sealed: MemoryRoot) -> None:
    old = without_checksums(sealed)
    assert read(old) == read(sealed)
    assert verify_segment(old, "plant", "n1", first=1, last=ROWS) is False


def test_a_segment_that_lost_its_checksums_is_not_one_of_an_earlier_version(
    sealed: MemoryRoot,
) -> None:
    data = sealed.files[PLACE][0]
    footer = struct.unpack("<I", data[-8:-4])[0] + 8
    twin = MemoryRoot()
    # A well-meaning tool copies the data and the footer, and nothing in between.
    twin.files[PLACE] = (data[: -footer - 60] + data[-footer:], 0.0)
    with pytest.raises(RecordError, match="checksums"):
        read(twin)


def test_other_readers_read_a_segment_and_can_check_its_pages(
    sealed: MemoryRoot, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(sealed.files[PLACE][0])
    assert pq.read_table(path, page_checksum_verification=True).num_rows == ROWS
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(4)
    path.write_bytes(
        flipped(sealed, (chunk.data_page_offset + chunk.total_compressed_size - 5) * 8).files[
            PLACE
        ][0]
    )
    with pytest.raises(OSError, match="CRC"):
        pq.read_table(path, page_checksum_verification=True)
    duckdb = need("duckdb", extra="spark", by="this test")
    path.write_bytes(sealed.files[PLACE][0])
    assert duckdb.sql(f"SELECT count(*), sum(seq) FROM '{path}'").fetchall() == [(60, 1830)]


@pytest.mark.parametrize("tail", [8, 400, 65_536])
def test_a_row_group_is_read_though_another_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int
) -> None:
    """However much of the file is read with its footer."""
    monkeypatch.setattr(segment_writer, "GROUP_ROWS", 64)
    monkeypatch.setattr(segment_checksums, "TAIL_BYTES", tail)
    path = tmp_path / "store.db"
    connection = make_database(path)
    insert(connection, 1, 200)
    root = LocalRoot(tmp_path / "streams")
    source = reader(path)
    seal_rows(source, root, "plant", "n1", stream_id=1, first=1, last=200)
    source.close()
    connection.close()
    file = tmp_path / "streams/plant/n1" / segment_name(1, 200)
    metadata = pq.ParquetFile(file).metadata
    assert metadata.num_row_groups == 2
    assert verify_segment(root, "plant", "n1", first=1, last=200) is True
    data = bytearray(file.read_bytes())
    data[metadata.row_group(1).column(0).data_page_offset + 30] ^= 1
    file.write_bytes(data)
    assert [each.seq for each in read_records(root, "plant", "n1", 1, 64)] == list(range(1, 65))
    with pytest.raises(RecordError, match="checksum"):
        read_records(root, "plant", "n1", 65, 1)


def test_a_disk_that_fails_while_reading_is_no_damage(sealed: MemoryRoot) -> None:
    class Failing(io.BytesIO):
        def readinto(self, memory: Any, /) -> int:
            if self.tell() < 1_000:
                # As an object store may: without a number.
                raise OSError("the network is down")
            return super().readinto(memory)

    class Disk(MemoryRoot):
        def read(self, path: str) -> Any:
            return Failing(sealed.files[PLACE][0])

    root = Disk()
    root.files = sealed.files
    with pytest.raises(OSError, match="the network is down"):
        read(root)


def test_a_disk_that_fails_behind_the_footer_is_no_damage(sealed: MemoryRoot) -> None:
    failing = False

    class Failing(io.BytesIO):
        def readinto(self, memory: Any, /) -> int:
            if failing:
                raise OSError(5, "Input/output error")
            return super().readinto(memory)

    class Disk(MemoryRoot):
        def read(self, path: str) -> Any:
            return Failing(sealed.files[PLACE][0])

    opened = open_segment(Disk(), "plant", "n1", first=1, last=ROWS)
    failing = True
    with pytest.raises(OSError, match="Input/output error"):
        opened.read_row_group(0)
    with pytest.raises(OSError, match="Input/output error"):
        list(opened.iter_batches(batch_size=5, row_groups=[0]))
    opened.close()


def checked_file(*sizes: int) -> tuple[CheckedFile, bytes]:
    """A file whose ranges have these sizes, and what is in it; no Parquet at all."""
    data = random.Random(3).randbytes(sum(sizes))
    file = io.BytesIO(data + b"footer" + struct.pack("<I4s", 6, b"PAR1"))
    add_checksums(file, [sum(sizes[:at]) for at in range(len(sizes))])
    return CheckedFile(file, RecordError), data


def test_any_part_of_a_file_can_be_read_whatever_its_ranges_are() -> None:
    file, data = checked_file(4, 100, 1, 900, 70_000, 3)
    file.seek(0)
    whole = bytes(file.read())
    assert whole.startswith(data)
    assert whole.endswith(b"footer\x06\0\0\0PAR1")
    chosen = random.Random(4)
    for _ in range(300):
        at, size = chosen.randrange(len(whole) + 5), chosen.randrange(2_000)
        file.seek(at)
        assert bytes(file.read(size)) == whole[at : at + size]
        assert file.tell() == max(at, min(len(whole), at + size))


def test_memory_that_somebody_still_looks_at_is_not_used_again() -> None:
    size = 1_500_000
    file, data = checked_file(size, size, size, size)
    parts = []
    for at in range(4):
        file.seek(at * size)
        parts.append(file.read(size))
    assert [bytes(each) for each in parts] == [data[at * size : (at + 1) * size] for at in range(4)]
    parts.clear()
    # Now nobody does.
    file.seek(size)
    assert bytes(file.read(2 * size)) == data[size : 3 * size]
