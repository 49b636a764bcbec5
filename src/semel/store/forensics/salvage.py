"""Exports every row of a damaged store that can be read. Reads only."""

from collections.abc import Iterator
from pathlib import Path

from semel.store.care import row_as_json
from semel.store.folder import STORE, Lock, store_errors
from semel.store.forensics.pages import Gap, Pages
from semel.store.forensics.repair import root_page, stored_row
from semel.store.migration import upgraded_row
from semel.store.row_checksums import WRONG_CHECKSUM
from semel.store.schema import TABLES, VERSION, Row, Unusable, content_of, with_checksum


def salvage(folder: Path) -> Iterator[dict[str, object] | Gap]:
    """The rows of a store that nobody uses, as JSON objects, and a Gap for each unreadable page."""
    with store_errors(folder):
        if not (folder / STORE).exists():
            raise Unusable(f"{folder} is not a data folder: it has no {STORE}")
        with Lock(folder), Pages(folder / STORE) as pages:
            version = pages.version or VERSION
            roots = {name: root for kind, name, root in pages.tables() if kind == "table"}
            for table in TABLES:
                for found in pages.walk(root_page(roots, table)):
                    if isinstance(found, Gap):
                        yield found
                    else:
                        yield _as_found(table, upgraded_row(table, stored_row(found), version))


def _as_found(table: str, row: Row) -> dict[str, object]:
    """A row as a JSON object, marked if it is damaged."""
    if len(row) != len(TABLES[table].columns):
        return row_as_json(table, row)
    content = content_of(table, row)
    found = row_as_json(table, content)
    if with_checksum(table, content) != row:
        found["damaged"] = WRONG_CHECKSUM
    return found
