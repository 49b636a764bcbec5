"""Segments made for a test: written by the store's own functions, as a sealer would have.

Row `seq` of a node says its own numbers, so that a test can tell which rows it got: `topic` and
`payload` are given as text with `{seq}`, `{line}` and `{node}` in it, or as a function of seq.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from semel.mqtt.properties import Properties
from semel.store.compaction import merge
from semel.store.retention import trim
from semel.store.roots import Root, open_root
from semel.store.rows import properties_value
from semel.store.segment_writer import write_segment
from semel.store.segments import table_of

# When row 0 would have been received; a row takes a millisecond.
START: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CHUNK: Final = 50_000

Text = str | Callable[[int], str]
Bytes = str | bytes | Callable[[int], bytes]


def received_at(seq: int, start: datetime = START, step: timedelta = MILLISECOND) -> datetime:
    """When row `seq` was received, if a test says nothing else."""
    return start + seq * step


def write_messages(
    root: Path | str | Root,
    stream: str,
    node: str,
    first: int,
    count: int,
    *,
    start: datetime = START,
    step: timedelta = MILLISECOND,
    topic: Text = "plant/line{line}/temperature",
    payload: Bytes = "value {seq} of {node}",
    lines: int = 5,
    properties: bool = True,
) -> int:
    """One segment with rows `first` to `first + count - 1`; returns its bytes.

    `{line}` in a text is the row's number modulo `lines`, so that topics repeat as they do in
    life. Every fourth row has properties and every second a user name, unless `properties` is
    false.
    """
    last = first + count - 1
    base = (start - _EPOCH) // timedelta(microseconds=1)
    each = step // timedelta(microseconds=1)

    def filled(text: str, seq: int) -> str:
        return text.format(seq=seq, line=seq % lines, node=node)

    def topic_of(seq: int) -> str:
        return filled(topic, seq) if isinstance(topic, str) else topic(seq)

    def payload_of(seq: int) -> bytes:
        if isinstance(payload, str):
            return filled(payload, seq).encode()
        return payload if isinstance(payload, bytes) else payload(seq)

    def row(seq: int) -> tuple[Any, ...]:
        qos = seq % 3
        extra = None
        if properties and seq % 4 == 1:
            extra = properties_value(
                Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=seq % 1_000,
                    content_type="text/plain",
                    user_properties=[("n", str(seq)), ("n", "again")],
                )
            )
        return (
            seq,
            base + seq * each,
            qos | (seq % 7 == 0) << 2,
            seq % 65_535 + 1 if qos else 0,
            5 if seq % 2 else 4,
            f"sensor-{seq % 4}",
            "ann" if properties and seq % 2 else None,
            topic_of(seq),
            extra,
            payload_of(seq),
        )

    def tables() -> Iterator[Any]:
        for begin in range(first, last + 1, _CHUNK):
            end = min(begin + _CHUNK, last + 1)
            yield table_of([row(seq) for seq in range(begin, end)], node)

    return write_segment(root_of(root), stream, node, tables, first=first, last=last)


def root_of(root: Path | str | Root) -> Root:
    """The root at a place."""
    return root if isinstance(root, Root) else open_root(root)


def compact(root: Path | str | Root, stream: str, node: str, first: int, last: int) -> None:
    """Merge the segments from `first` to `last` into one, and delete those it was made of."""
    opened = root_of(root)
    parts = [
        each
        for each in opened.segments(stream, node)
        if first <= each.first and each.last <= last and each.range != (first, last)
    ]
    if not parts:
        return  # there is such a segment, and nothing else
    merge(opened, stream, node, parts)
    for each in parts:
        opened.delete(opened.file_path(stream, node, each.name))


def trim_before(root: Path | str | Root, stream: str, node: str, seq: int) -> int:
    """Delete whole segments before a seq, as retention does; returns the last row deleted."""
    return trim(root_of(root), stream, node, before_seq=seq)


def lose(root: Path | str | Root, stream: str, node: str, first: int, last: int) -> None:
    """Delete the file of a segment, and leave no note of it: what must never happen."""
    opened = root_of(root)
    for each in opened.segments(stream, node):
        if each.range == (first, last):
            opened.delete(opened.file_path(stream, node, each.name))
            return
    raise AssertionError(f"there is no segment {first} to {last}")
