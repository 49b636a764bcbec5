"""COPY is taken apart as DuckDB reads it, and its file is below the current folder and complete."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

import semel
from semel.up import sql_files
from semel.up.sql import LakeSql
from semel.up.sql_copy import CopyStatement, parse_copy
from semel.up.sql_errors import SqlError
from semel.up.sql_files import ReplacingFile, find_target
from tests.up.asked import NUMBERS, Kept, simple_lake

TIMEOUT = 60.0


def parsed(text: str) -> CopyStatement:
    connection = duckdb.connect()
    (statement,) = connection.extract_statements(text)
    return parse_copy(statement.query, connection)


def counted(sql: LakeSql, query: str) -> list[tuple[str | None, int]]:
    """The file and the number of rows of each result."""
    found = []
    with sql:
        for answer in sql.results(query):
            with answer:
                rows = sum(batch.num_rows for batch in answer.batches)
                found.append((None if answer.copy is None else answer.copy.file, rows))
    return found


# --- statements -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("copy t to 'a.csv'", CopyStatement("SELECT * FROM t", "a.csv", "csv")),
        ("COPY t TO 'A.CSV' ;", CopyStatement("SELECT * FROM t", "A.CSV", "csv")),
        ('copy "to" to $$a.json$$', CopyStatement('SELECT * FROM "to"', "a.json", "json")),
        ("copy ü.t to 'ü.jsonl'", CopyStatement("SELECT * FROM ü.t", "ü.jsonl", "json")),
        ("copy t (a, b) to 'x.ndjson'", CopyStatement("SELECT a, b\nFROM t", "x.ndjson", "json")),
        (
            "copy (select ')' as \"to\" -- )\n, (1) as ü) /* to */ to e'\\x61.parquet'",
            CopyStatement("select ')' as \"to\" -- )\n, (1) as ü", "a.parquet", "parquet"),
        ),
        (
            "copy t to 'a' with (format 'CSV', header false, delimiter e'\\t',)",
            CopyStatement("SELECT * FROM t", "a", "csv", header=False, delimiter="\t"),
        ),
        (
            "copy t to 'a' (\"format\" csv, header, delimiter '\\t')",
            CopyStatement("SELECT * FROM t", "a", "csv", delimiter="\t"),
        ),
        (
            "copy t to 'a.csv' (format parquet, compression ZSTD)",
            CopyStatement("SELECT * FROM t", "a.csv", "parquet", compression="zstd"),
        ),
        ("copy t to 'it''s.csv'", CopyStatement("SELECT * FROM t", "it's.csv", "csv")),
    ],
)
def test_a_copy_has_a_query_a_file_and_options(text: str, expected: CopyStatement) -> None:
    assert parsed(text) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("copy t from 'a.csv'", "COPY … FROM is not possible: semel sql reads no files"),
        ("copy t to a", "write the name of the file in quotes"),
        ("copy t to stdout", "write the name of the file in quotes"),
        ("copy (select 1) to ('a' || '.csv')", "write the name of the file in quotes"),
        ("copy t to 'a.csv' csv header", "write options in parentheses"),
        ("copy t to 'a.txt'", "the name 'a.txt' does not end with .parquet, .csv, .json, .jsonl"),
        ("copy t to 'a'", "the name 'a' does not end with"),
        ("copy t to 'a.csv' (format xlsx)", "format 'xlsx' is not supported: there are parquet"),
        ("copy t to 'a.csv' (force_quote (a, b))", "option FORCE_QUOTE is not supported: there"),
        ("copy t to 'a.csv' (partition_by a)", "option PARTITION_BY is not supported"),
        ("copy t to 'a.csv' (compression gzip)", "option COMPRESSION is for parquet, not for csv"),
        ("copy t to 'a.json' (header)", "option HEADER is for csv, not for json"),
        ("copy t to 'a.parquet' (delimiter ';')", "option DELIMITER is for csv, not for parquet"),
        ("copy t to 'a.parquet' (compression lz4)", "compression 'lz4' is not supported: there"),
        ("copy t to 'a.csv' (header maybe)", "option HEADER is true or false, not 'maybe'"),
        ("copy t to 'a.csv' (header (a, b))", "give option HEADER one value"),
        ("copy t to 'a.csv' (delimiter 'ab')", "option DELIMITER is one character"),
        ("copy t to 'a.csv' (delimiter '\"')", "option DELIMITER is one character"),
    ],
)
def test_what_a_copy_cannot_be_is_refused_by_name(text: str, sentence: str) -> None:
    with pytest.raises(SqlError) as caught:
        parsed(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# --- places ---------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a folder, and links that stay below it or lead out of it."""
    current = tmp_path / "here"
    (current / "folder").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.csv").write_text("outside")
    (current / "within").symlink_to("folder")
    (current / "leaving").symlink_to(tmp_path / "out")
    (current / "file").symlink_to(tmp_path / "out" / "a.csv")
    (current / "named.csv").symlink_to("folder/real.csv")
    (current / "loop").symlink_to("loop")
    monkeypatch.chdir(current)
    return current


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv", "a.csv"),
        ("./a.csv", "a.csv"),
        ("..a.csv", "..a.csv"),
        ("folder/a.csv", "folder/a.csv"),
        ("within/a.csv", "folder/a.csv"),
        ("named.csv", "folder/real.csv"),
    ],
)
def test_a_file_below_the_current_folder_is_accepted(here: Path, name: str, expected: str) -> None:
    assert find_target(name, [here.parent / "out", here.parent / "none"]) == Path(expected)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("/tmp/a.csv", "is not below the current folder: give a relative path without"),
        ("../a.csv", "is not below the current folder"),
        ("folder/../a.csv", "is not below the current folder"),
        ("leaving/a.csv", "is not below the current folder"),
        ("file", "is not below the current folder"),
        ("none/a.csv", "there is no folder 'none'"),
        ("folder", "exists and is not a file"),
        ("folder/", "is not the name of a file"),
        ("", "is not the name of a file"),
        (".", "is not the name of a file"),
        ("a\0b", "is not the name of a file"),
        ("loop/a.csv", "lead nowhere"),
        ("a" * 256, "cannot be written: File name too long"),
    ],
)
def test_a_file_elsewhere_is_refused(here: Path, name: str, sentence: str) -> None:
    with pytest.raises(SqlError) as caught:
        find_target(name, [])
    assert sentence in str(caught.value)
    assert (here.parent / "out" / "a.csv").read_text() == "outside"


def test_an_absolute_path_to_the_current_folder_is_refused_too(here: Path) -> None:
    with pytest.raises(SqlError, match="give a relative path"):
        find_target(str(here / "a.csv"), [])


def test_a_file_that_is_write_protected_is_not_replaced(here: Path) -> None:
    (here / "a.csv").write_text("kept")
    assert find_target("a.csv", []) == Path("a.csv")
    (here / "a.csv").chmod(0o444)
    with pytest.raises(SqlError, match=r"'a\.csv' is write-protected"):
        find_target("a.csv", [])


def test_the_folders_of_the_lake_and_its_record_are_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    kept.keeper.commit(2)
    kept.keeper.seal(2)
    kept.land(2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alias").symlink_to("lake")
    (tmp_path / "other").mkdir()
    for name in ("lake/a.csv", "lake/messages/a.csv", "alias/a.csv", "root/a.csv", "n1/a.csv"):
        with pytest.raises(SqlError, match="the folder of a lake or of its"):
            counted(kept.sql(), f"copy messages to '{name}'")
    for name in ("a.csv", "other/a.csv"):
        assert counted(kept.sql(), f"copy messages to '{name}'") == [(name, 2)]
    kept.close()


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["unnamed", "named"])
def _kind_of_file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both with a file that has no name yet and with one that has a temporary name."""
    if not request.param:
        monkeypatch.setattr(sql_files, "_UNNAMED", 0)


@pytest.mark.usefixtures("_kind_of_file")
def test_a_file_is_there_when_it_is_complete(here: Path) -> None:
    before = set(here.iterdir())
    with ReplacingFile(Path("folder/a.csv")) as written:
        written.file.write(b"x" * 100_000)
        assert not (here / "folder" / "a.csv").exists()
        assert written.commit() == 100_000
    assert [each.name for each in (here / "folder").iterdir()] == ["a.csv"]
    assert (here / "folder" / "a.csv").read_bytes() == b"x" * 100_000
    assert set(here.iterdir()) == before


@pytest.mark.usefixtures("_kind_of_file")
def test_a_file_is_replaced_and_keeps_its_mode(here: Path) -> None:
    path = here / "a.csv"
    path.write_text("old")
    path.chmod(0o600)
    with ReplacingFile(Path("a.csv")) as written:
        written.file.write(b"new")
        assert path.read_text() == "old"
        written.commit()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("_kind_of_file")
@pytest.mark.parametrize("function", ["write", "fsync", "rename"])
def test_a_file_that_fails_leaves_what_was_there(
    here: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    (here / "a.csv").write_text("old")
    before = set(here.iterdir())

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if function != "write":
        monkeypatch.setattr(os, function, fail)

    def write() -> None:
        with ReplacingFile(Path("a.csv")) as written:
            written.file.write(b"new")
            if function == "write":
                fail()
            written.commit()

    with pytest.raises(OSError, match="No space"):
        write()
    assert (here / "a.csv").read_text() == "old"
    assert set(here.iterdir()) == before


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(here: Path) -> None:
    target = find_target("folder/a.csv", [])
    (here / "folder").rmdir()
    (here / "folder").symlink_to(here.parent / "out")
    with pytest.raises(OSError, match="folder"):
        ReplacingFile(target)
    assert (here.parent / "out" / "a.csv").read_text() == "outside"


@pytest.mark.skipif(not sql_files._UNNAMED, reason="this system has no files without names")
def test_a_process_that_is_killed_leaves_nothing(here: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from semel.up.sql_files import ReplacingFile\n"
        "with ReplacingFile(Path('a.csv')) as written:\n"
        "    written.file.write(b'x' * 1_000_000)\n"
        "    print('written', flush=True)\n"
        "    input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(semel.__file__).parents[1])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    before = set(here.iterdir())
    assert process.stdout.readline() == b"written\n"
    process.kill()
    assert process.wait(TIMEOUT) == -signal.SIGKILL
    process.stdin.close()
    process.stdout.close()
    assert set(here.iterdir()) == before


# --- queries --------------------------------------------------------------------------------------


def test_the_results_are_those_of_each_copy_and_of_the_last_statement(here: Path) -> None:
    lake = simple_lake(here.parent / "lake", numbers=NUMBERS)
    query = (
        "create table big as select * from numbers where a > 1; copy big to 'big.csv';"
        "copy numbers to 'all.json'; select 1; select 2 as b"
    )
    found = counted(LakeSql(lake), query)
    assert found == [("big.csv", 2), ("all.json", 3), (None, 1)]
    # Whoever cannot write files does not learn which there are.
    for text in (query, "copy numbers to 'none/a.csv'", "copy numbers to '../a.csv'"):
        with LakeSql(lake) as sql, pytest.raises(SqlError, match="COPY … TO writes a file"):
            sql.query(text)


def test_a_copy_that_is_refused_is_refused_before_anything_runs(here: Path) -> None:
    lake = simple_lake(here.parent / "lake", numbers=NUMBERS)
    found: list[object] = []
    with LakeSql(lake) as sql, pytest.raises(SqlError, match="not below the current folder"):
        found += sql.results("copy numbers to 'a.csv'; copy numbers to '../b.csv'")
    assert found == []


@pytest.mark.parametrize(
    "query",
    [
        "explain analyze copy numbers to 'a.csv'",
        "prepare p as copy numbers to 'a.csv'; execute p",
        "copy (select * from read_csv('named.csv')) to 'a.csv'",
        "copy (from 'folder/real.csv') to 'a.csv'",
        "copy 'folder/real.csv' to 'a.csv'",
        "copy (select * from glob('*')) to 'a.csv'",
    ],
)
def test_a_copy_reads_no_file_and_duckdb_writes_none(here: Path, query: str) -> None:
    (here / "folder" / "real.csv").write_text("a\n1\n")
    lake = simple_lake(here.parent / "lake", numbers=NUMBERS)
    before = set(here.iterdir())
    with pytest.raises(SqlError):
        counted(LakeSql(lake), query)
    assert set(here.iterdir()) == before
