"""`semel sql` copies rows into files that other programs read, and leaves no half of one."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import semel
from semel.cli.sql import command
from semel.cli.sql_results import with_delimiter, write_parquet
from semel.store.reading import NodeRecord
from tests.store.keeper import Keeper
from tests.up.landed import land, land_rows, with_date

PROGRAM = "from semel.cli.sql import command; command(prog_name='semel sql')"
TIMEOUT = 60.0
PAYLOADS = [b"\xff\x00", b"", b'a "b", ;\r\nc', b"\r", "ü".encode()]


@pytest.fixture(autouse=True)
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    """As `semel up` lays things out: ten rows, of which 1 to 5 are landed."""
    monkeypatch.chdir(tmp_path)
    made = Keeper(tmp_path / "semel-data", stream="all")
    made.commit(10)
    made.seal(5)
    land(tmp_path / "semel-data" / "lake", NodeRecord(made.root, "all", "n1"), 1, 5)
    yield made
    made.close()


@pytest.fixture
def odd(keeper: Keeper) -> Path:
    """A lake whose payloads are not all text."""
    rows = with_date(pa.concat_tables(NodeRecord(keeper.root, "all", "n1").tables(1, 5)))
    at = rows.schema.get_field_index("payload")
    rows = rows.set_column(at, "payload", pa.array(PAYLOADS, pa.binary()))
    land_rows(keeper.folder.path.parent / "odd", rows, stream="all")
    return keeper.folder.path.parent / "odd"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def copied(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def rows_of(*arguments: object) -> list[dict[str, Any]]:
    """The rows that `semel sql --json` prints."""
    return [json.loads(line) for line in copied(*arguments, "--json").splitlines()]


# --- round trips ----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "uncompressed"])
def test_parquet_has_the_types_of_the_table(odd: Path, compression: str) -> None:
    printed = copied("--lake", odd, f"copy messages to 'm.parquet' (compression {compression})")
    assert printed.startswith("copied 5 rows to m.parquet (")
    file = pq.ParquetFile("m.parquet")
    assert file.metadata.row_group(0).column(0).compression == compression.upper()
    found = file.read().sort_by("seq")
    assert found.column("payload").to_pylist() == PAYLOADS
    assert str(found.schema.field("received").type).startswith("timestamp[us, tz=")
    assert str(found.schema.field("payload").type) == "binary"
    assert str(found.schema.field("date").type) == "date32[day]"
    assert str(found.schema.field("retain").type) == "bool"
    assert found.column("user_properties").to_pylist()[0][0] == {"key": "n", "value": "1"}
    # DuckDB reads the same rows as the lake has.
    shown = rows_of("--lake", odd, "select * from messages order by seq")
    assert [row["seq"] for row in shown] == found.column("seq").to_pylist()
    again = duckdb.execute("select payload, received from 'm.parquet' order by seq").fetchall()
    assert [row[0] for row in again] == PAYLOADS
    assert [row[1] for row in again] == found.column("received").to_pylist()


@pytest.mark.parametrize("ending", ["json", "jsonl", "ndjson"])
def test_json_has_the_objects_that_are_printed(odd: Path, ending: str) -> None:
    query = "select * from messages order by seq"
    copied("--lake", odd, f"copy ({query}) to 'm.{ending}'")
    lines = Path(f"m.{ending}").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows_of("--lake", odd, query)
    first = json.loads(lines[0])
    assert (first["payload"], b64decode(first["payload_base64"])) == (None, PAYLOADS[0])
    found = duckdb.execute(
        "select coalesce(encode(payload), from_base64(payload_base64)), received::timestamptz,"
        f" user_properties[1].key from read_json('m.{ending}', format = 'newline_delimited')"
        " order by seq"
    ).fetchall()
    assert [row[0] for row in found] == PAYLOADS
    assert found[0][2] == "n"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "t"])
def test_csv_has_the_cells_that_are_printed(odd: Path, delimiter: str) -> None:
    query = "select * from messages order by seq"
    copied("--lake", odd, f"copy ({query}) to 'm.csv' (delimiter '{delimiter}')")
    with open("m.csv", encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file, delimiter=delimiter))
    for row, cells, payload in zip(rows_of("--lake", odd, query), found, PAYLOADS, strict=True):
        whole = b64decode(cells["payload_base64"]) or cells["payload"].encode()
        assert whole == payload
        assert cells["received"] == row["received"]
        assert json.loads(cells["user_properties"] or "null") == row["user_properties"]
        assert cells["retain"] == str(row["retain"]).lower()
    (again,) = duckdb.execute(
        f"select count(*), max(seq), max(received) from read_csv('m.csv', delim='{delimiter}',"
        " quote='\"', strict_mode=false)"
    ).fetchall()
    assert again[:2] == (5, 5)


def test_csv_may_have_no_header(tmp_path: Path) -> None:
    copied("copy messages (seq, retain) to 'a.csv' (header false)")
    copied("copy messages (seq, retain) to 'b.csv' (header true)")
    assert Path("a.csv").read_text() == "".join(f"{n},false\n" for n in range(1, 6))
    assert Path("b.csv").read_text() == "seq,retain\n" + Path("a.csv").read_text()
    copied("copy (select seq from messages where false) to 'none.csv'")
    assert Path("none.csv").read_text() == "seq\n"


def test_rows_that_have_not_landed_are_copied_too() -> None:
    assert copied("copy messages_now to 'm.parquet'").startswith("copied 10 rows to m.parquet")
    polars = pytest.importorskip("polars")
    found = polars.read_parquet("m.parquet").sort("seq")
    assert found["seq"].to_list() == list(range(1, 11))
    assert found["landed"].to_list() == [True] * 5 + [False] * 5


def test_a_file_is_printed_as_an_object_or_a_line(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (found,) = rows_of("copy messages to 'sub/m.json'")
    size = (tmp_path / "sub" / "m.json").stat().st_size
    assert found == {"file": "sub/m.json", "format": "json", "rows": 5, "bytes": size}
    printed = copied("--csv", "copy messages to 'sub/m.json'")
    assert printed == f"file,format,rows,bytes\nsub/m.json,json,5,{size}\n"


def test_several_copies_each_write_a_file_and_print_a_line() -> None:
    printed = copied(
        "create table t as select seq from messages; copy t to 'a.csv';"
        " copy (select 1 as b) to 'b.csv'; select count(*) as n from t"
    )
    assert printed.splitlines() == [
        "copied 5 rows to a.csv (14 B)",
        "copied 1 row to b.csv (4 B)",
        "n",
        "5",
    ]


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "sentence", "accepted"),
    [
        ("copy messages from 'a.csv'", "COPY … FROM is not", "copy messages to 'a.csv'"),
        ("copy messages to '../a.csv'", "not below the current", "copy messages to './a.csv'"),
        ("copy messages to 'a.xlsx'", "does not end with", "copy messages to 'a.parquet'"),
        (
            "copy messages to 'semel-data/a.csv'",
            "the folder of a lake or of its record",
            "copy messages to 'semel-data.csv'",
        ),
        (
            "copy (select interval 1 day as i) to 'a.parquet'",
            "Parquet has no type for column i (month_day_nano_interval)",
            "copy (select interval 1 day as i) to 'a.csv'",
        ),
        (
            "copy (select 1 as a, 2 as a) to 'a.parquet'",
            "there are two columns a: rename one with AS",
            "copy (select 1 as a, 2 as b) to 'a.parquet'",
        ),
        ("copy nothing to 'a.csv'", "there is no table nothing", "copy messages to 'a.csv'"),
    ],
)
def test_a_refusal_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, refused: str, sentence: str, accepted: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    result = run(refused)
    assert (result.exit_code, result.stdout) == (1, "")
    assert sentence in result.stderr
    assert result.stderr.startswith("Error: ")
    assert sorted(tmp_path.rglob("*")) == before
    assert copied(accepted).startswith("copied ")


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_an_error_in_the_middle_leaves_the_file_that_was_there(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_text("old")
    before = sorted(tmp_path.rglob("*"))
    query = "select case when i = 250000 then error('boom') else i::varchar end from range(300000)"
    result = run(f"copy ({query} t(i)) to 'a.{ending}'")
    assert result.exit_code == 1
    assert "boom" in result.stderr
    assert path.read_text() == "old"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        result = run("copy messages to 'a.csv'")
    assert result.exit_code == 1
    assert result.stderr == "Error: COPY: 'a.csv' cannot be written: No space left on device\n"
    assert not Path("a.csv").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_copy_that_is_ended_leaves_what_was_there(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "a.csv").write_text("old")
    before = sorted(tmp_path.iterdir())
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "copy (from range(100000000000)) to 'a.csv'"],
        env={**os.environ, "PYTHONPATH": str(Path(semel.__file__).parents[1])},
    )
    until_written(process)
    process.send_signal(number)
    code = process.wait(TIMEOUT)
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(number, -number)
    assert (tmp_path / "a.csv").read_text() == "old"
    assert sorted(tmp_path.iterdir()) == before


def until_written(process: "subprocess.Popen[bytes]") -> None:
    """Return when the process has written a file in the current folder that has no name yet."""
    ends = time.monotonic() + TIMEOUT
    current = os.getcwd()
    while time.monotonic() < ends:
        assert process.poll() is None
        for each in Path(f"/proc/{process.pid}/fd").iterdir():
            try:
                target, size = os.readlink(each), each.stat().st_size
            except OSError:
                continue
            if target.startswith(f"{current}/") and target.endswith("(deleted)") and size:
                return
        time.sleep(0.05)
    raise AssertionError("nothing was written")


# --- files ----------------------------------------------------------------------------------------


def test_parquet_is_written_group_by_group(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.binary())])
    peak = 0

    def batches() -> Iterator[Any]:
        nonlocal peak
        for number in range(200):
            yield pa.record_batch([pa.array([bytes([number]) * 1_000_000] * 2)], schema=schema)
            peak = max(peak, pa.total_allocated_bytes())

    before = pa.total_allocated_bytes()
    with open(tmp_path / "a.parquet", "wb") as file:
        write_parquet(file, schema, batches(), compression="zstd")
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    assert metadata.num_rows == 400
    assert 5 < metadata.num_row_groups < 30
    # 400 MB were written.
    assert peak - before < 200_000_000


@pytest.mark.parametrize(
    ("line", "delimiter", "expected"),
    [
        ("a,b\n", ";", "a;b\n"),
        ("a;b,c\n", ";", '"a;b";c\n'),
        ('"a,b",,"c""d\ne"\n', ";", '"a,b";;"c""d\ne"\n'),
        ("a\rb,c\n", ",", '"a\rb",c\n'),
        ('""\n', ";", '""\n'),
        (",\n", "\t", "\t\n"),
    ],
)
def test_a_line_may_have_another_delimiter(line: str, delimiter: str, expected: str) -> None:
    assert with_delimiter(line, delimiter) == expected
