"""A full disk under the lake: one sentence, nothing committed, and a retry that works."""

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from semel.pipeline.compaction import compact, plan_all
from semel.pipeline.errors import PipelineError, TableError
from semel.pipeline.files import DataFile, TableLayout, write_files
from semel.pipeline.live_files import list_files
from semel.pipeline.maintenance import PassFailed, Task, run_pass
from semel.pipeline.maintenance_process import Policy
from semel.pipeline.table import LandingBatch, Table
from tests.pipeline.core.test_table import PLAIN, plain, values
from tests.pipeline.landing_rows import land_seqs
from tests.pipeline.made import write_messages
from tests.pipeline.spark.test_landing import Place

MIB = 1024 * 1024


def noise(size: int) -> Callable[[int], bytes]:
    """Payloads that cannot be compressed."""
    return lambda seq: Random(seq).randbytes(size)


def wide(rows: int) -> pa.Table:
    """Rows of more than a KiB, in columns that are written one after the other."""
    long, short = noise(1_000), noise(500)
    numbers = range(rows)
    return pa.table(
        {
            "text": [str(each) for each in numbers],
            "long": [long(each) for each in numbers],
            "number": list(numbers),
            "short": [short(each) for each in numbers],
        }
    )


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond a size: a disk that is full for it alone."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mount(folder: Path, size: int, *options: str) -> bool:
    """A file system of a size at a folder; False: that is not allowed here."""
    given = ",".join((f"size={size}", *options))
    command = ["mount", "-t", "tmpfs", "-o", given, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if not mount(folder, MIB):
        pytest.skip("mounting is not allowed here: there is no disk to fill")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("size", [0, 100, MIB, 3 * MIB, 3_500_000, 4_500_000])
def test_a_file_that_cannot_be_written_is_a_sentence_wherever_space_ends(
    tmp_path: Path, size: int
) -> None:
    table = wide(3_000)

    def write() -> list[DataFile]:
        return write_files(table.to_batches(), TableLayout(str(tmp_path / "table")))

    with largest_file(size), pytest.raises(TableError, match="File too large") as told:
        write()
    assert "cannot be written" in str(told.value)
    # What was begun is not in the way of whoever makes room.
    assert list((tmp_path / "table").iterdir()) == []
    (file,) = write()
    assert file.rows == 3_000


@pytest.mark.parametrize("size", [100, 500_000, MIB])
def test_a_compaction_without_space_leaves_no_file_behind(tmp_path: Path, size: int) -> None:
    table = tmp_path / "table"
    for _ in range(2):
        write_deltalake(table, wide(700), mode="append")
    before = {path.name for path in table.rglob("*.parquet")}
    opened = DeltaTable(table)
    (group,) = plan_all(list_files(opened), 2**30)
    with largest_file(size), pytest.raises(TableError, match="File too large"):
        compact(str(table), opened, [group])
    assert {path.name for path in table.rglob("*.parquet")} == before
    assert compact(str(table), opened, [group]).rows == 1_400


def test_a_compaction_deletes_what_it_wrote_before_it_failed(tmp_path: Path) -> None:
    """Files of earlier groups that no commit has named."""
    table = tmp_path / "table"
    for rows in (10, 10, 1_500, 1_500):
        write_deltalake(table, wide(rows), mode="append")
    before = {path.name for path in table.rglob("*.parquet")}
    opened = DeltaTable(table)
    files = sorted(list_files(opened), key=lambda file: file.size)
    with largest_file(2 * MIB), pytest.raises(TableError, match="File too large"):
        compact(str(table), opened, [files[:2], files[2:]])
    assert {path.name for path in table.rglob("*.parquet")} == before


def fill(filler: Path) -> None:
    """Use up all space that there is."""
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


def test_a_commit_without_space_for_its_entry_changes_nothing(small: Path) -> None:
    table = small / "table"
    plain(table, 1)
    batch = LandingBatch(
        write_files(pa.table({"a": [2]}).to_batches(), TableLayout(str(table))), PLAIN
    )
    filler = small / "filler"
    fill(filler)
    with pytest.raises(TableError, match="No space left on device"):
        Table(str(table)).commit(batch)
    assert values(table) == [1]
    filler.unlink()
    assert Table(str(table)).commit(batch).rows == 1
    assert values(table) == [1, 2]


def test_maintenance_on_a_full_disk_makes_room_though_it_cannot_compact(small: Path) -> None:
    assert mount(small, 4 * MIB, "remount")
    address = str(small / "messages")
    table = Table(address)
    for seq in range(1, 71):
        if seq == 50:
            DeltaTable(address).create_checkpoint()
        land_seqs(address, seq, seq, table=table)
    orphan = small / "messages" / "part-orphan.parquet"
    orphan.write_bytes(b"of an attempt that was killed")
    os.utime(orphan, (0, 0))
    policy = Policy(target_file_size=MIB, small_files=10, file_retention=3600.0, log_entries=10)
    fill(small / "filler")
    events: list[dict[str, Any]] = []
    with pytest.raises(PassFailed, match=r"^No space left on device$"):
        run_pass(Task(address, policy, vacuum=True), events.append)
    assert [event["action"] for event in events] == ["cleaned log", "vacuumed"]
    assert not orphan.exists()
    assert DeltaTable(address).count() == 70


def test_a_landing_on_a_full_disk_says_so_and_lands_when_there_is_room(
    spark: SparkSession, tmp_path: Path, small: Path
) -> None:
    place = Place(spark, tmp_path)
    place.lake = small
    place.table = small / "messages"
    checkpoint = tmp_path / "checkpoint"
    write_messages(place.root, "all", "n1", 1, 200)
    assert place.land(checkpoint=checkpoint) == 200
    write_messages(place.root, "all", "n1", 201, 3_000, payload=noise(1_000))
    with pytest.raises(PipelineError, match=r"no space is left for .*messages") as told:
        place.land(checkpoint=checkpoint)
    assert "Traceback" not in str(told.value)
    assert DeltaTable(str(place.table)).count() == 200
    assert mount(small, 64 * MIB, "remount")
    assert place.land(checkpoint=checkpoint) == 3_000
    place.holds(n1=3_200)
