"""Datasets of files that Python opens: DuckDB reads them, and never waits forever."""

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from semel.pipeline.scanned_dataset import ScannedDataset

FRAGMENTS = 6
ROWS = 100
SCANS = 2_000
PATIENCE = 300.0


class BusyFile(io.BytesIO):
    """A file that needs the interpreter for a moment with every read."""

    def read(self, size: int | None = -1) -> bytes:
        for _ in range(300):
            pass
        return super().read(size)


class PythonFiles(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """The same Parquet file under any path."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "test"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(BusyFile(self.content), mode="r")

    def _refuse(self, *_: object) -> Any:
        raise NotImplementedError

    get_file_info = get_file_info_selector = open_input_stream = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


def made() -> ScannedDataset:
    file = io.BytesIO()
    pq.write_table(pa.table({"seq": range(ROWS), "other": ["x"] * ROWS}), file)
    files = pyarrow.fs.PyFileSystem(PythonFiles(file.getvalue()))
    kind = ds.ParquetFileFormat()
    fragments = [kind.make_fragment(f"{number}", files) for number in range(FRAGMENTS)]
    return ScannedDataset(fragments, pa.schema({"seq": pa.int64(), "other": pa.string()}), kind)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("select count(*), sum(seq) from rows", (FRAGMENTS * ROWS, FRAGMENTS * 4950)),
        ("select count(*), max(other) from rows where seq >= 90", (FRAGMENTS * 10, "x")),
        ("select max(seq), count(*) from (select seq from rows limit 5)", (4, 5)),
    ],
)
def test_duckdb_selects_columns_and_rows(query: str, expected: tuple[object, ...]) -> None:
    with duckdb.connect() as connection:
        connection.register("rows", made())
        assert connection.execute(query).fetchone() == expected


def scan_again_and_again() -> None:
    """With pyarrow's own dataset this stops within seconds, in `Scanner.to_reader`."""
    sys.setswitchinterval(1e-6)
    with duckdb.connect() as connection:
        for _ in range(SCANS):
            connection.register("rows", made())
            (found,) = connection.execute("select count(seq) from rows").fetchall()
            assert found == (FRAGMENTS * ROWS,)
            connection.unregister("rows")


def test_a_scan_that_begins_while_files_are_read_does_not_wait_forever() -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.pipeline.spark.test_scanned_dataset"],
        cwd=Path(__file__).resolve().parents[3],
        timeout=PATIENCE,
        check=True,
    )


if __name__ == "__main__":
    scan_again_and_again()
