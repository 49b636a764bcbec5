"""Whether the record is the one whose rows a table has.

Store and record may be restored from a backup that is older than the table. Then new messages get
numbers that the table has already, and a landing that compares numbers would leave them out. So a
table may not be ahead of the record. Later only the rows themselves show it: the newest row of each
node in the table is compared with the row of the same number in the record.
"""

from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from semel.pipeline.app_transactions import positions_in
from semel.pipeline.errors import TableError
from semel.pipeline.files import TableFolder
from semel.pipeline.live_files import list_files
from semel.pipeline.offsets import list_all_extents
from semel.pipeline.table import Table
from semel.store.reading import NodeRecord, ReadOptions
from semel.store.roots import Root, RootError, without_secrets
from semel.store.segment_names import Range
from semel.store.segments import RecordError

# Files that are searched for the newest rows. A node without a row in them is not compared.
SEARCHED_FILES: Final = 20
_COLUMNS: Final = ["node", "seq", "received"]


def check_same_record(address: str, stream: str, root: Root) -> None:
    """Raise TableError if the record has other messages than those that have landed.

    A row that is no longer in the record, or not in the table, is not compared.
    """
    loaded = Table(address).load()
    if loaded is None:
        return
    try:
        # One listing, however many nodes there are. After the table was loaded: it may be growing.
        extents = list_all_extents(root, stream)
    except (OSError, RootError):
        # Whoever reads the record next reports it.
        return
    positions = positions_in(loaded, stream, extents)
    for node, seq in sorted(positions.items()):
        last = extents[node].last
        if seq > last:
            there = f"has only rows up to {last}" if last else "has none of its rows"
            raise TableError(
                f"{without_secrets(address)} has rows up to {seq} of stream {stream}, node {node},"
                f" but {root.address} {there}: it is another root, or was restored from a copy that"
                f" is older than the table, and new messages up to row {seq} would not land."
                " Continue after it (semel store adopt), or restore what belongs together:"
                " docs/operate/backup.md"
            )
    landed = _newest_rows(address, loaded, {node for node, seq in positions.items() if seq})
    for node, (seq, received) in sorted(landed.items()):
        ranges = [each.range for each in extents[node].segments]
        hint = next((each for each in ranges if each[0] <= seq <= each[1]), None)
        if hint is None:
            # It was trimmed.
            continue
        recorded = _recorded_at(NodeRecord(root, stream, node), seq, hint)
        if recorded is not None and recorded != received:
            raise TableError(
                f"{without_secrets(address)} has row {seq} of stream {stream}, node {node},"
                f" received at {_shown(received)}, but in the record that row is another message,"
                f" received at {_shown(recorded)}: the record was restored from a copy that is"
                f" older than the table, and rows up to {positions[node]} would not land. Land it"
                " in another table, or restore what belongs together: docs/operate/backup.md"
            )


def _newest_rows(address: str, table: DeltaTable, nodes: set[str]) -> dict[str, tuple[int, int]]:
    """By node: the highest seq in the table, and when that row was received, in microseconds."""
    # Partition columns are not in the files.
    names = set(pa.schema(table.schema()).names) - set(table.metadata().partition_columns)
    if not nodes or not set(_COLUMNS) <= names:
        return {}
    found: dict[str, tuple[int, int]] = {}
    folder = TableFolder(address)
    for path in _newest_files(table):
        try:
            with folder.open_parquet(path) as opened:
                rows = opened.read(columns=_COLUMNS)
        except (OSError, ValueError, pa.ArrowException):
            # A damaged file, or one that another program has deleted: maintenance reports it.
            continue
        rows = rows.filter(pc.is_in(rows.column("node"), pa.array(sorted(nodes), pa.string())))
        newest = rows.group_by("node").aggregate([("seq", "max")])
        ends = dict(zip(*(column.to_pylist() for column in newest.columns), strict=True))
        for node, seq in ends.items():
            if seq is not None and seq > found.get(node, (0, 0))[0]:
                found[node] = (seq, _received(rows, node, seq))
        if nodes <= found.keys():
            break
    return found


def _newest_files(table: DeltaTable) -> list[str]:
    """The paths of the files with the highest rows, at most SEARCHED_FILES."""
    actions = pa.table(table.get_add_actions(flatten=True))
    if "max.seq" not in actions.column_names:
        return []
    highest = dict(
        zip(actions.column("path").to_pylist(), actions.column("max.seq").to_pylist(), strict=True)
    )
    files = [each for each in list_files(table) if highest.get(each.path) is not None]
    files.sort(key=lambda each: highest[each.path] or 0, reverse=True)
    return [each.disk_path for each in files[:SEARCHED_FILES]]


def _received(rows: pa.Table, node: str, seq: int) -> int:
    is_row = pc.and_(pc.equal(rows.column("node"), node), pc.equal(rows.column("seq"), seq))
    times = rows.filter(is_row).column("received").cast(pa.timestamp("us", "UTC"))
    return int(times.cast(pa.int64())[0].as_py())


def _recorded_at(record: NodeRecord, seq: int, segment: Range) -> int | None:
    """When a row of a segment was received, in microseconds; None: it cannot be read."""
    options = ReadOptions(columns=("seq", "received"), hinted_segments=(segment,))
    try:
        for table in record.tables(seq, seq, options):
            return int(table.column("received").cast(pa.int64())[0].as_py())
    except (RecordError, RootError, OSError):
        # A damaged segment: whoever reads it next reports it.
        pass
    return None


def _shown(microseconds: int) -> str:
    at = datetime.fromtimestamp(microseconds / 1e6, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
