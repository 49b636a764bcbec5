"""The tables of a lake, as the page lists them."""

from contextlib import suppress
from typing import Any, Final

from semel.pipeline.errors import PipelineError, TableError
from semel.pipeline.lake import TableSummary, node_lags, open_table, tables
from semel.pipeline.lake_address import local_folder
from semel.store.reading import StreamCatalog
from semel.store.roots import RootError
from semel.store.schema import Unusable
from semel.store.segments import RecordError
from semel.web.sql_queries import LakeAddress

DEAD_LETTERS_QUERY: Final = """
    select table_name, reason, column_name, count(*) as count
    from dead_letters group by all order by count desc limit 100
"""

Values = dict[str, Any]


def list_tables(address: LakeAddress) -> list[Values]:
    """All tables with their lag. Blocks. Raises PipelineError."""
    folder = local_folder(address.lake)
    if folder is not None and not folder.exists():
        return []
    found = tables(address.lake)
    lags = _lags(address, found)
    return [
        {
            "table": each.table,
            "rows": each.rows,
            "bytes": each.bytes,
            "files": each.files,
            "version": each.version,
            "modified": each.committed / 1e6 if each.committed else None,
            "stream": each.stream,
            "lag": lags.get(each.table),
            "problem": each.problem,
        }
        for each in found
    ]


def _lags(address: LakeAddress, found: list[TableSummary]) -> dict[str, list[Values]]:
    """The lag of each table whose record can be read."""
    lags: dict[str, list[Values]] = {}
    if address.data is None and address.root is None:
        return lags
    try:
        with StreamCatalog(address.data, address.root) as catalog:
            known = catalog.streams()
            for each in found:
                if each.stream is not None and each.stream in known and each.problem is None:
                    # A table whose positions are damaged is shown without a lag.
                    with suppress(TableError):
                        table = open_table(address.lake, each.table)
                        lags[each.table] = [
                            {
                                "node": lag.node,
                                "landed": lag.landed,
                                "recorded": lag.last,
                                "rows": lag.rows,
                            }
                            for lag in node_lags(table, each.stream, catalog)
                        ]
    except (RecordError, RootError, Unusable, PipelineError, OSError):
        # The tables are worth showing without it; the view Now says what is wrong with the record.
        return lags
    return lags
