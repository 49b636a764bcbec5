"""Prints the results of `semel sql`, and writes the files of COPY.

CSV and JSON files have values as `--csv` and `--json` print them. A Parquet file has the types of
the result. One row group is in memory at a time.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

import click

from semel.cli.safe_text import shown_text
from semel.cli.stream import PIECE, TEXT
from semel.cli.table_view import csv_lines, json_lines, print_answer
from semel.cli.text_tables import shown_size
from semel.counts import count
from semel.extras import need
from semel.up.sql import LakeSql, QueryResult
from semel.up.sql_copy import CSV, PARQUET, CopyStatement
from semel.up.sql_errors import SqlError
from semel.up.sql_files import ReplacingFile, find_target

# A row group of Parquet is written when it has one of these.
GROUP_ROWS: Final = 122_880
GROUP_BYTES: Final = 32 * 1024 * 1024
# A cell of a line that `csv_lines` wrote, and what ends it.
_CELL: Final = re.compile(r'("[^"]*(?:""[^"]*)*"|[^,"\n]*)([,\n])')


@contextmanager
def sql_errors() -> Iterator[None]:
    """Report an SqlError, which may have several lines."""
    try:
        yield
    except SqlError as problem:
        lines = [shown_text(line) for line in str(problem).splitlines()]
        raise click.ClickException("\n".join(lines)) from None


def print_results(sql: LakeSql, statements: str, form: str) -> None:
    """Run statements. Prints a line for each COPY, and the result of the last statement.

    Raises SqlError, BrokenPipeError, and what reading a lake raises.
    """
    noted = 0
    for answer in sql.results(statements):
        with answer:
            for note in sql.notes[noted:]:
                click.echo(f"Note: {shown_text(note)}", err=True)
            noted = len(sql.notes)
            if answer.copy is None:
                print_answer(answer.schema, answer.batches, form)
            else:
                rows, size = write_copy(sql, answer.copy, answer)
                _print_copy(answer.copy, rows, size, form)


def _print_copy(copy: CopyStatement, rows: int, size: int, form: str) -> None:
    if form == TEXT:
        file = shown_text(copy.file)
        click.echo(f"copied {count(rows, 'row')} to {file} ({shown_size(size)})")
        return
    pyarrow = need("pyarrow", extra="sql", by="semel sql")
    columns = {"file": [copy.file], "format": [copy.format], "rows": [rows], "bytes": [size]}
    batch = pyarrow.RecordBatch.from_pydict(columns)
    print_answer(batch.schema, [batch], form)


# --- files ----------------------------------------------------------------------------------------


def write_copy(sql: LakeSql, copy: CopyStatement, answer: QueryResult) -> tuple[int, int]:
    """Write a result to the file of a COPY. Returns the numbers of rows and of bytes.

    If this raises, the file is as it was before. Raises SqlError, and what the query raises.
    """
    target = find_target(copy.file, sql.protected_folders())
    if copy.format == PARQUET:
        _check_columns(answer.schema)
    counted = _CountedBatches(answer.batches)
    try:
        with ReplacingFile(target) as written:
            _write_rows(written.file, copy, answer.schema, counted)
            return counted.rows, written.commit()
    except OSError as problem:
        reason = problem.strerror or problem
        raise SqlError(f"COPY: '{copy.file}' cannot be written: {reason}") from None


def _write_rows(
    file: IO[bytes], copy: CopyStatement, schema: Any, batches: "_CountedBatches"
) -> None:
    if copy.format == PARQUET:
        write_parquet(file, schema, batches, compression=copy.compression)
    elif copy.format == CSV:
        lines = csv_lines(schema, batches)
        if not copy.header:
            next(lines)
        _write_lines(file, (with_delimiter(each, copy.delimiter) for each in lines))
    else:
        _write_lines(file, json_lines(schema, batches))


class _CountedBatches:
    """Batches, and how many rows they had."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.rows = 0
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def _write_lines(file: IO[bytes], lines: Iterable[str]) -> None:
    gathered: list[str] = []
    size = 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size >= PIECE:
            file.write("".join(gathered).encode("utf-8", "surrogateescape"))
            gathered, size = [], 0
    file.write("".join(gathered).encode("utf-8", "surrogateescape"))


def with_delimiter(line: str, delimiter: str) -> str:
    """A line of `csv_lines` with this delimiter, and with quotes around a lone carriage return."""
    if delimiter == "," and "\r" not in line:
        return line
    parts = []
    for cell, end in _CELL.findall(line):
        # What contains a quote, a comma or a line feed is in quotes already.
        is_bare = not cell.startswith('"') and (delimiter in cell or "\r" in cell)
        parts += [f'"{cell}"' if is_bare else cell, delimiter if end == "," else end]
    return "".join(parts)


def write_parquet(
    file: IO[bytes], schema: Any, batches: Iterable[Any], *, compression: str
) -> None:
    """Write batches as row groups. Raises OSError, and what reading the batches raises."""
    pyarrow = need("pyarrow", extra="sql", by="semel sql")
    parquet = need("pyarrow.parquet", extra="sql", by="semel sql")
    kind = "NONE" if compression == "uncompressed" else compression
    with parquet.ParquetWriter(file, schema, compression=kind) as writer:
        group: list[Any] = []
        rows = size = 0
        for batch in batches:
            group.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                writer.write_table(pyarrow.Table.from_batches(group, schema), GROUP_ROWS)
                group, rows, size = [], 0, 0
        if group:
            writer.write_table(pyarrow.Table.from_batches(group, schema), GROUP_ROWS)


def _check_columns(schema: Any) -> None:
    """Raise SqlError if Parquet has no type for a column, or if two have the same name."""
    pyarrow = need("pyarrow", extra="sql", by="semel sql")
    parquet = need("pyarrow.parquet", extra="sql", by="semel sql")
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise SqlError(f"COPY: there are two columns {field.name}: rename one with AS")
        try:
            parquet.ParquetWriter(pyarrow.BufferOutputStream(), pyarrow.schema([field])).close()
        except pyarrow.ArrowNotImplementedError:
            raise SqlError(
                f"COPY: Parquet has no type for column {field.name} ({field.type}): cast it, for"
                " example to VARCHAR"
            ) from None
