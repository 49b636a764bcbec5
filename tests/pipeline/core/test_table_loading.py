"""A table that is loaded again reads what is new, and notices when it is another one."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from semel.pipeline import table as tables
from semel.pipeline.delta_log import log_entry
from semel.pipeline.errors import DataLoss, PipelineError, TableError
from semel.pipeline.landing_target import RunCheckpoints
from semel.pipeline.table import LOG_RETENTION, Table, cached_table
from semel.pipeline.table_schema import rows_schema
from tests.pipeline.core.test_table import record
from tests.pipeline.landing_rows import batch_of_rows, land_seqs


@pytest.fixture
def address(tmp_path: Path) -> str:
    place = str(tmp_path / "lake" / "messages")
    land_seqs(place, 1, 10)
    return place


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often a whole log was read."""
    found: list[str] = []

    class Counted(DeltaTable):
        def __init__(self, uri: str, **named: object) -> None:
            found.append(uri)
            super().__init__(uri, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "DeltaTable", Counted)
    return found


def test_a_log_is_read_once_and_then_only_what_is_new(address: str, loads: list[str]) -> None:
    table = Table(address)
    for number in range(1, 6):
        first = number * 10 + 1
        land_seqs(address, first, first + 9, table=table)
        assert table.positions("plant", ["n1"]) == {"n1": first + 9}
    # What another writer commits is seen as well.
    land_seqs(address, 61, 70, table=Table(address))
    assert table.positions("plant", ["n1"]) == {"n1": 70}
    assert len(loads) == 2
    opened = table.load()
    assert opened is not None
    assert opened.version() == DeltaTable(address).version() == 7
    assert opened.count() == 70


def test_a_table_that_was_deleted_or_made_anew_is_noticed(address: str) -> None:
    table = Table(address)
    land_seqs(address, 11, 20, table=table)
    folder = Path(address)
    saved = folder.with_name("saved")
    shutil.copytree(folder, saved)
    shutil.rmtree(folder)
    assert table.load() is None
    with pytest.raises(DataLoss, match="lacks rows 1 to 20"):
        table.commit(replace(batch_of_rows(address, 21, 30), record=record(n1=[(1, 30)])))
    # Another one with as many versions, but other rows.
    shutil.rmtree(folder, ignore_errors=True)
    for first in (1, 6):
        land_seqs(address, first, first + 4)
    assert table.positions("plant", ["n1"]) == {"n1": 10}
    shutil.rmtree(folder)
    saved.rename(folder)
    assert table.positions("plant", ["n1"]) == {"n1": 20}


def test_a_log_that_was_cleaned_meanwhile_is_read_as_a_whole(
    address: str, loads: list[str]
) -> None:
    table = Table(address)
    assert table.positions("plant", ["n1"]) == {"n1": 10}
    for first in range(11, 51, 10):
        land_seqs(address, first, first + 9, table=Table(address))
    DeltaTable(address).create_checkpoint()
    for version in range(5):
        (Path(address) / "_delta_log" / log_entry(version)).unlink()
    before = len(loads)
    assert table.positions("plant", ["n1"]) == {"n1": 50}
    assert len(loads) == before + 1


def test_storage_is_probed_once_unless_the_query_has_committed_there(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[str] = []
    monkeypatch.setattr(tables, "probe", probed.append)

    def land(table: Table, first: int, number: int) -> None:
        batch = batch_of_rows(address, first, first + 9)
        table.commit(replace(batch, query="q", number=number))

    # Another program may have created the table.
    table = Table(address)
    land(table, 11, 0)
    assert probed == [address]
    land(table, 21, 1)
    land(Table(address), 31, 2)
    assert probed == [address]


def test_columns_that_rows_would_add_are_known_before(address: str) -> None:
    batch = batch_of_rows(address, 11, 20)
    assert Table(address).new_columns_for(batch) == []
    schema = json.loads(batch.schema)
    schema["fields"].append({"name": "x", "type": "long", "nullable": True, "metadata": {}})
    wider = replace(batch, schema=json.dumps(schema))
    assert Table(address).new_columns_for(wider) == ["x"]
    assert Table(f"{address}-none").new_columns_for(wider) == []


def test_a_process_keeps_a_few_tables(tmp_path: Path) -> None:
    addresses = [str(tmp_path / str(number)) for number in range(tables.CACHE_SIZE + 2)]
    kept = [cached_table(each) for each in addresses]
    assert cached_table(addresses[-1]) is kept[-1]
    assert cached_table(addresses[0]) is not kept[0]
    assert len(tables._CACHE) <= tables.CACHE_SIZE


def test_a_file_in_place_of_a_table_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_text("not a table")
    with pytest.raises(TableError) as refused:
        Table(str(path)).load()
    assert str(refused.value).startswith(f"{path} is a file, and not the folder of a table: move")
    path.unlink()
    assert Table(str(path)).load() is None


def test_a_log_that_cannot_be_listed_is_a_sentence(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(root: object) -> str | None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(tables, "find_empty_entry", broken)
    with pytest.raises(TableError, match=rf"^{address} cannot be listed: .*Input/output error"):
        Table(address).check_log()


def test_a_commit_that_may_not_be_on_disk_is_an_error(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(place: str, version: int) -> None:
        if version > 2:
            raise FileNotFoundError(place)
        raise OSError(errno.EIO, "Input/output error")

    batch = batch_of_rows(address, 11, 20)
    monkeypatch.setattr(tables, "fsync_commit", broken)
    with pytest.raises(TableError, match=rf"^{address}: version 2 may not be on disk: "):
        Table(address).commit(batch)


def test_only_the_table_of_a_stream_forgets_its_log_after_a_day(address: str) -> None:
    assert DeltaTable(address).metadata().configuration == {LOG_RETENTION: "interval 1 days"}
    batch = batch_of_rows(address, 1, 10)
    other = Table(f"{address}-other")
    other.create(rows_schema(batch.schema), ("date",), None)
    assert DeltaTable(other.uri).metadata().configuration == {}


def test_a_table_is_not_partitioned_by_a_column_that_it_lacks(address: str) -> None:
    schema = rows_schema(batch_of_rows(address, 1, 10).schema)
    with pytest.raises(TableError, match=r"^partitionBy: there is no column day$"):
        Table(f"{address}-other").create(schema, ("date", "day"), None)


def test_a_lock_that_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    checkpoints = RunCheckpoints(tmp_path / "checkpoint")
    lock = tmp_path / "checkpoint" / "lock"
    lock.mkdir(parents=True)
    with pytest.raises(PipelineError) as refused, checkpoints.locked():
        pass
    assert "cannot be used: Is a directory: " in str(refused.value)
    assert "; remove it, or give another (--checkpoint)" in str(refused.value)
    lock.rmdir()
    with checkpoints.locked():
        assert lock.is_file()
