"""Tables to which each run of a command appends its rows, such as `quality` and `conformance`.

A run is appended in one commit, so that a query sees all of it or nothing. The tables are
partitioned by `date`, the day of the run in UTC.
"""

from typing import Any, Final

from semel.extras import need
from semel.pipeline.delta_errors import table_errors
from semel.pipeline.delta_fsync import fsync_commit
from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import split_address
from semel.store.roots import without_secrets

PARTITION: Final = "date"


def append_run_rows(address: str, rows: Any, *, command: str, way_out: str) -> int:
    """Append an Arrow table with a column `date`. Returns the version. Raises TableError.

    `command` made the table, and `way_out` says what else to do if another program has made it.
    """
    deltalake = need("deltalake", extra="sql", by=command)
    location, options = split_address(address)
    with table_errors(address):
        try:
            existing = deltalake.DeltaTable(location, storage_options=options or None)
        except deltalake.exceptions.TableNotFoundError:
            existing = None
    if existing is not None:
        _check_columns(address, existing, rows.schema, command, way_out)
    with table_errors(address):
        deltalake.write_deltalake(
            location,
            rows,
            mode="append",
            # A table may have more columns, which are null in these rows.
            schema_mode=None if existing is None else "merge",
            partition_by=[PARTITION],
            storage_options=options or None,
        )
        version: int = deltalake.DeltaTable(location, storage_options=options or None).version()
    for each in range(0 if existing is None else existing.version() + 1, version + 1):
        try:
            fsync_commit(address, each, files=True)
        except OSError as problem:
            raise TableError(
                f"{without_secrets(address)}: version {each} may not be on disk: {problem}"
            ) from problem
    return version


def read_run_rows(address: str, *, command: str) -> Any:
    """All rows of such a table, as an Arrow table; None if it does not exist. Raises TableError."""
    deltalake = need("deltalake", extra="sql", by=command)
    location, options = split_address(address)
    with table_errors(address):
        try:
            existing = deltalake.DeltaTable(location, storage_options=options or None)
        except deltalake.exceptions.TableNotFoundError:
            return None
        return existing.to_pyarrow_table()


def _check_columns(address: str, existing: Any, schema: Any, command: str, way_out: str) -> None:
    """Raise TableError if another program has made the table."""
    deltalake = need("deltalake", extra="sql", by=command)
    expected = {each.name: each.type for each in deltalake.Schema.from_arrow(schema).fields}
    found = {each.name: each.type for each in existing.schema().fields}
    different = sorted(name for name, kind in expected.items() if found.get(name) != kind)
    if different or list(existing.metadata().partition_columns) != [PARTITION]:
        what = f"columns {', '.join(different)}" if different else f"partitions by {PARTITION}"
        raise TableError(
            f"{without_secrets(address)} is not a table of {command}: it lacks {what}; rename"
            f" it, or {way_out}"
        )
