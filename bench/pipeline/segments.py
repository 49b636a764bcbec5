"""A record to measure with: segments like those of a busy sealer, created in a few seconds.

Devices publish JSON of 200 bytes to their own topics at QoS 1. Values differ from row to row, so
payloads compress to a third, which is typical. One row group is built column by column; the others
repeat it with other numbers and times, which costs a reader the same, because each row group is
compressed on its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from semel.extras import need
from semel.store.roots import open_root
from semel.store.segment_writer import GROUP_ROWS, write_segment
from semel.store.segments import schema

STREAM: Final = "all"
NODE: Final = "plant"
PAYLOAD: Final = 200
TOPICS: Final = 20_000
# Topics of one device.
CHANNELS: Final = 10
VALUES: Final = 11
# Rows per segment: about 64 MiB (seal_bytes), as a busy sealer writes them.
SEGMENT_ROWS: Final = 4 * GROUP_ROWS
# The receive time of the first row in microseconds, and the interval. 16 million rows must fit into
# one day, because a table is partitioned by it.
BEGIN: Final = 1_790_000_000_000_000
STEP: Final = 1_000


def payloads(rows: int) -> Any:
    """JSON texts of PAYLOAD bytes each."""
    pa = need("pyarrow", extra="broker", by="the record of a stream")
    pc = need("pyarrow.compute", extra="broker", by="the record of a stream")
    values = [
        pc.cast(pc.round(pc.multiply(pc.random(rows, initializer=seed), 1e12)), pa.int64())
        for seed in range(VALUES)
    ]
    texts = [pc.cast(each, pa.string()) for each in values]
    listed = pc.binary_join_element_wise(*texts, ",")
    whole = pc.binary_join_element_wise(
        '{"device":"press","unit":"µm","status":"ok","values":[', listed, "]}", ""
    )
    # A non-ASCII letter has two bytes, but counts as one character.
    return pc.cast(pc.utf8_rpad(whole, PAYLOAD - 1), pa.binary())


def group(rows: int = GROUP_ROWS) -> Any:
    """The columns of a row group, with numbers and times that begin at 0."""
    pa = need("pyarrow", extra="broker", by="the record of a stream")
    pc = need("pyarrow.compute", extra="broker", by="the record of a stream")
    lottery = pc.multiply(pc.random(rows, initializer=VALUES), TOPICS)
    chosen = pc.cast(pc.floor(lottery), pa.int32())
    devices = pc.divide(chosen, CHANNELS)
    topics = pa.array(
        f"plant/line-{topic // 1_000:02}/device-{topic // CHANNELS:04}/channel-{topic % CHANNELS}"
        for topic in range(TOPICS)
    )
    clients = pa.array(f"device-{device:04}" for device in range(TOPICS // CHANNELS))
    numbers = pa.array(range(rows), pa.int64())
    given = {
        "seq": numbers,
        "node": pa.repeat(pa.scalar(NODE), rows),
        "received": pc.multiply(numbers, STEP),
        "topic": topics.take(chosen),
        "payload": payloads(rows),
        "qos": pa.repeat(pa.scalar(1, pa.int32()), rows),
        "retain": pa.repeat(pa.scalar(False), rows),
        "dup": pa.repeat(pa.scalar(False), rows),
        "client_id": clients.take(devices),
        "packet_id": pc.cast(pc.add(pc.cast(chosen, pa.int64()), 1), pa.int32()),
        "protocol_version": pa.repeat(pa.scalar(5, pa.int32()), rows),
        "payload_format": pa.repeat(pa.scalar(1, pa.int32()), rows),
        "content_type": pa.repeat(pa.scalar("application/json"), rows),
    }
    names = [name for name in schema().names if name in given]
    return pa.table([given[name] for name in names], names=names)


def numbered(base: Any, first: int, rows: int) -> Any:
    """Rows of a record from `first` on."""
    pa = need("pyarrow", extra="broker", by="the record of a stream")
    pc = need("pyarrow.compute", extra="broker", by="the record of a stream")
    part = base.slice(0, rows)
    columns = {name: part.column(name) for name in part.column_names}
    columns["seq"] = pc.add(columns["seq"], first)
    received = pc.add(columns["received"], BEGIN + first * STEP)
    columns["received"] = pc.cast(received, schema().field("received").type)
    for field in schema():
        if field.name not in columns:
            columns[field.name] = pa.nulls(rows, field.type)
    return pa.table([columns[name] for name in schema().names], schema=schema())


def make_record(folder: Path, rows: int, *, node: str = NODE, base: Any = None) -> Path:
    """Create a root with this many rows of STREAM; returns the directory of its segments."""
    root = open_root(folder)
    base = group() if base is None else base
    for first in range(1, rows + 1, SEGMENT_ROWS):
        last = min(first + SEGMENT_ROWS - 1, rows)

        def tables(first: int = first, last: int = last) -> Iterator[Any]:
            for begin in range(first, last + 1, GROUP_ROWS):
                yield numbered(base, begin, min(GROUP_ROWS, last - begin + 1))

        write_segment(root, STREAM, node, tables, first=first, last=last)
    return folder / STREAM / node
