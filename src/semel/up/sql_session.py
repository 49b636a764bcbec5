"""A series of statements, each of which sees the lake as it is when the statement begins.

Each statement has a LakeSql of its own, which opens the tables. They share one connection, so that
what a statement creates (tables, views, macros, variables) exists until the session is closed. A
view that was created here sees the lake as it is then, too: the statements that define views are
kept, and the tables that they name are opened for each statement.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from semel.extras import need
from semel.up.sql import LakeSql, RecordLocation
from semel.up.sql_connection import open_connection
from semel.up.sql_errors import SqlError, shown_error

# A statement of this kind refers to tables whenever its object is used.
_DEFINES: Final = re.compile(r"\b(view|macro|function)\b", re.I)
_CATALOG_QUERY: Final = (
    "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal ORDER BY ALL"
)
_CREATED_QUERY: Final = (
    "SELECT table_name, 'table' FROM duckdb_tables() WHERE NOT internal "
    "UNION ALL SELECT view_name, 'view' FROM duckdb_views() WHERE NOT internal ORDER BY ALL"
)


class SqlSession:
    """A connection, and the statements that have defined something in it."""

    def __init__(
        self, locate: Callable[[], tuple[str, RecordLocation | None]], *, memory: str
    ) -> None:
        """`locate` returns the lake and its record. Raises SqlError and MissingExtra."""
        self._duckdb = need("duckdb", extra="sql", by="semel sql")
        self._locate = locate
        self._folder = Path(tempfile.mkdtemp(prefix="semel-sql-"))
        self._definitions: list[str] = []
        try:
            self._connection = open_connection(memory, self._folder)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def close(self) -> None:
        """Close the connection, and delete temporary files."""
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "SqlSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_complete(self, text: str) -> bool:
        """Whether a text ends with `;`, outside of a string, a quoted name or a comment."""
        data = f"{text}\n;".encode()
        kinds = self._duckdb.token_type
        tokens = self._duckdb.tokenize(data.decode())
        # The `;` that was added is a token only if it is outside, too.
        if not tokens or tokens[-1] != (len(data) - 1, kinds.operator):
            return False
        found = [begins for begins, kind in tokens[:-1] if kind != kinds.comment]
        return bool(found) and data[found[-1] : found[-1] + 1] == b";"

    def statements(self, text: str) -> list[Any]:
        """The statements of a text, for `opened`. Raises SqlError."""
        try:
            found: list[Any] = self._connection.extract_statements(text)
        except self._duckdb.Error as problem:
            raise SqlError(shown_error(problem)) from None
        kinds = self._duckdb.StatementType
        if any(each.type == kinds.TRANSACTION for each in found):
            raise SqlError("a session has no transactions: no statement changes the lake")
        if any(each.type == kinds.PREPARE for each in found):
            # DuckDB would keep the tables as they are now.
            raise SqlError("a session has no prepared statements: create a view or a macro")
        return found

    def returns_rows(self, statement: Any) -> bool:
        """Whether the result of a statement is more than that it was executed."""
        nothing = self._duckdb.ExpectedResultType.NOTHING
        is_multiple = statement.type == self._duckdb.StatementType.MULTI
        return is_multiple or nothing not in statement.expected_result_type

    @contextmanager
    def opened(self, statement: Any) -> Iterator[LakeSql]:
        """The lake as it is now, for running this statement. Raises as LakeSql does."""
        with self._open() as sql:
            yield sql
        is_create = statement.type == self._duckdb.StatementType.CREATE
        if is_create and _DEFINES.search(statement.query):
            self._definitions.append(statement.query)

    def _open(self) -> LakeSql:
        lake, record = self._locate()
        return LakeSql(
            lake, record=record, connection=self._connection, definitions=self._definitions
        )

    def columns(self) -> dict[str, list[str]]:
        """The columns of each table and view that can be read. Raises as LakeSql does."""
        found: dict[str, list[str]] = {}
        with self._open() as sql, sql.query(_CATALOG_QUERY) as answer:
            for batch in answer.batches:
                for table, column in zip(*batch.to_pydict().values(), strict=True):
                    found.setdefault(table, []).append(column)
        return found

    def tables(self) -> list[tuple[str, str]]:
        """The names of tables and views, and what each is. Raises as LakeSql does."""
        with self._open() as sql:
            found = sql.named_kinds()
        created = self._connection.execute(_CREATED_QUERY).fetchall()
        return found + [(name, f"{kind} of this session") for name, kind in created]
