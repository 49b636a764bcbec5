"""DuckDB for `semel sql`: a connection that has no access to files, and results as Arrow batches.

DuckDB's access to files and to the network is disabled before anything is queried, and cannot be
enabled again. Arrow datasets, which Python reads, can still be registered.

Types that Arrow cannot hold without loss (times with a zone, bits, numbers of more than 127 bits)
become text, and values of any type (VARIANT) become JSON.
"""

from pathlib import Path
from typing import Any, Final

from semel.extras import need
from semel.up.sql_errors import SqlError, first_line

MEMORY: Final = "1GB"
# Rows per batch of a result.
BATCH_ROWS: Final = 2_048
_TEXT: Final = "VARCHAR"
# The type that a column is cast to. Arrow drops the zone of the first, makes large numbers of the
# second negative, and converts the others to bytes.
_CASTS: Final = {
    "time with time zone": _TEXT,
    "uhugeint": _TEXT,
    "bit": _TEXT,
    "bignum": _TEXT,
    "variant": "JSON",
}


def open_connection(memory: str, folder: Path) -> Any:
    """A locked connection; what does not fit into `memory` is written below `folder`.

    Raises SqlError and MissingExtra.
    """
    duckdb = need("duckdb", extra="sql", by="semel sql")
    if not _is_text(memory):
        raise SqlError(f"--memory {memory} is not UTF-8: give a size such as {MEMORY}")
    spilled = str(folder / "spilled")
    if not _is_text(spilled):
        raise SqlError(f"the temporary folder {spilled} is not UTF-8: set TMPDIR to another")
    try:
        connection = duckdb.connect(":memory:", config={"memory_limit": memory})
    except duckdb.Error as problem:
        raise SqlError(f"--memory {memory}: {first_line(problem)}") from None
    connection.execute("SET temp_directory = '" + spilled.replace("'", "''") + "'")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def arrow_reader(connection: Any, query: str) -> Any:
    """Run one statement. Returns an Arrow reader of its result."""
    found = connection.sql(query)
    types = [_as_text(each) for each in found.types]
    if any(types):
        # By number, because two columns may have the same name.
        found = found.project(
            ", ".join(
                (f"#{number}" if kind is None else f"CAST(#{number} AS {kind})")
                + f" AS {quoted(name)}"
                for number, (name, kind) in enumerate(zip(found.columns, types, strict=True), 1)
            )
        )
    return found.to_arrow_reader(BATCH_ROWS)


def quoted(name: str) -> str:
    """A name as SQL quotes it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _as_text(kind: Any) -> str | None:
    """The type to cast a column to, so that Arrow can hold its values; None: no cast is needed."""
    name = kind.id
    if name in _CASTS:
        return _CASTS[name]
    if name not in ("list", "array", "struct", "map", "union"):
        return None
    # An array has its size among its children.
    parts = [(label, each) for label, each in kind.children if not isinstance(each, int)]
    inner = [_as_text(each) for _, each in parts]
    if not any(inner):
        return None
    texts = [text or str(each) for text, (_, each) in zip(inner, parts, strict=True)]
    if name == "list":
        return f"{texts[0]}[]"
    if name == "array":
        return f"{texts[0]}[{dict(kind.children)['size']}]"
    if name == "map":
        return f"MAP({', '.join(texts)})"
    if name == "struct":
        fields = (f"{quoted(each)} {text}" for (each, _), text in zip(parts, texts, strict=True))
        return f"STRUCT({', '.join(fields)})"
    return _TEXT


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
