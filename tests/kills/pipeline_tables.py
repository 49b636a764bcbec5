"""Messages for the tables of a landing file, and what each table must have of them.

Everything is a pure function of node and seq, and nothing here uses semel: what is expected in a
table is computed from the messages that were written, and from the landing files that were in use.

There are three landing files. The second adds a column to a table and a new table. The third
corrects the first table, so that some dead letters can be decoded: `value` may be missing.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import cbor2

STREAM = "all"
NODES = ("n1", "n2")
# Tables of the first landing file; the one that is added; and the table of dead letters.
TEMPERATURE = "temperature"
COUNTS = "counts"
PACKED = "packed"
RARE = "rare"
EVERYTHING = "everything"
NOTES = "notes"
DEAD_LETTERS = "dead_letters"
FIRST_TABLES = (TEMPERATURE, COUNTS, PACKED, RARE, EVERYTHING)
# Tables that nearly every batch has rows for.
BUSY_TABLES = (TEMPERATURE, COUNTS, PACKED, EVERYTHING, NOTES)
# When row 0 would have been received, and the time from row to row: a day has 4,320 rows.
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
STEP = timedelta(seconds=20)

FILE = """
[[table]]
name = "temperature"
topic = "site/{plant}/{line:int}/temp"
decoder = "json"
columns = "value DOUBLE NOT NULL, unit STRING, at TIMESTAMP"
event_time = "at"
computed = { fahrenheit = "value * 9 / 5 + 32" }
where = "coalesce(value, 0) < 1000000 and unit <> 'skip'"
message_columns = ["qos"]

[[table]]
name = "counts"
topic = "count/+"
decoder = "number"
columns = "value INT"

[[table]]
name = "packed"
topic = "packed/{part}"
decoder = "cbor"
columns = "x INT NOT NULL, y ARRAY<STRING>"

[[table]]
name = "rare"
topic = "rare/event"
decoder = "csv"
separator = ";"
columns = "x INT, y STRING"

[[table]]
name = "everything"
topic = "#"
partition_by = []
"""
NOTES_TABLE = """
[[table]]
name = "notes"
topic = "count/{place:int}"
decoder = "text"
"""
ADDED = FILE.replace("unit STRING", "unit STRING, room STRING") + NOTES_TABLE
CORRECTED = ADDED.replace("value DOUBLE NOT NULL", "value DOUBLE")

# The columns that are compared, beside node, seq, received, topic and date, which all tables have.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    TEMPERATURE: (
        *("qos", "plant", "line", "value", "unit", "at", "fahrenheit", "event_time", "room"),
    ),
    COUNTS: ("value",),
    PACKED: ("part", "x", "y"),
    RARE: ("x", "y"),
    EVERYTHING: ("payload",),
    NOTES: ("place", "value"),
    DEAD_LETTERS: ("stream", "table_name", "payload"),
}
SHARED = ("node", "seq", "received", "topic", "date")

Row = dict[str, Any]


@dataclass
class Stage:
    """What the landing files in use so far imply."""

    # By node: the last seq in `temperature` when its new column was added; None: it is not yet.
    room_after: Mapping[str, int] | None = None
    # Whether the corrected file is in use, and all dead letters were retried with it.
    is_corrected: bool = False


@dataclass
class Expected:
    """The rows that each table must have, by table."""

    rows: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, table: str, row: Row) -> None:
        self.rows.setdefault(table, []).append(row)


# --- messages -------------------------------------------------------------------------------------


def number_of(node: str, seq: int) -> int:
    """Which of its kind a message is; nodes are shifted against each other."""
    return seq // 4 + 3 * NODES.index(node)


def is_rare(node: str, seq: int) -> bool:
    return seq % 4 == 0 and number_of(node, seq) % 97 == 41


def topic_of(node: str, seq: int) -> str:
    if seq % 4 == 1:
        return f"site/p{seq % 3}/{seq % 5}/temp"
    if seq % 4 == 2:
        return f"count/{seq % 6}"
    if seq % 4 == 3:
        return f"packed/{'abc'[seq % 3]}"
    return "rare/event" if is_rare(node, seq) else f"other/{seq % 7}"


def temperature_kind(node: str, seq: int) -> str:
    """Of ten: one can never be decoded, one when the file is corrected, one is left out."""
    number = number_of(node, seq)
    if number % 30 == 7:
        # It can be decoded by the corrected file, which leaves it out.
        return "skipped"
    return {3: "bad", 5: "without value", 8: "left out"}.get(number % 10, "good")


def payload_of(node: str, seq: int) -> bytes:
    number = number_of(node, seq)
    if seq % 4 == 1:
        kind = temperature_kind(node, seq)
        found: dict[str, Any] = {"value": seq / 8, "unit": "C", "room": room_of(seq)}
        found["at"] = f"2026-02-01T00:{seq // 60 % 60:02}:{seq % 60:02}Z"
        if kind == "bad":
            found["value"] = "warm"
        elif kind == "left out":
            found["value"] = 1_000_000 + seq
        elif kind in ("without value", "skipped"):
            del found["value"]
        if kind == "skipped":
            found["unit"] = "skip"
        return json.dumps(found).encode()
    if seq % 4 == 2:
        return b"many" if number % 10 == 6 else str(seq).encode()
    if seq % 4 == 3:
        return b"\xff" if number % 10 == 2 else cbor2.dumps({"x": seq, "y": [node, str(seq)]})
    if is_rare(node, seq):
        return b"x;1;2" if number // 97 % 3 == 2 else f"{seq};row {seq}".encode()
    return bytes([seq % 256, 0, 255]) * (seq % 5)


def room_of(seq: int) -> str:
    return f"room {seq % 7}"


# --- what is expected -----------------------------------------------------------------------------


def expect(last: Mapping[str, int], stage: Stage) -> Expected:
    """What the tables must have of the messages 1 to `last` of each node."""
    found = Expected({table: [] for table in (*FIRST_TABLES, DEAD_LETTERS)})
    if stage.room_after is not None:
        found.rows[NOTES] = []
    for node, through in last.items():
        for seq in range(1, through + 1):
            _expect_message(found, stage, node, seq)
    return found


def _expect_message(found: Expected, stage: Stage, node: str, seq: int) -> None:
    shared = shared_columns(node, seq)
    payload = payload_of(node, seq)
    found.add(EVERYTHING, {**shared, "payload": payload})
    for table, own in _rows_of_message(stage, node, seq):
        if own is None:
            letter = {"stream": STREAM, "table_name": table, "payload": payload}
            found.add(DEAD_LETTERS, {**shared, **letter})
        else:
            found.add(table, {**shared, **own})


def shared_columns(node: str, seq: int) -> Row:
    received = START + seq * STEP
    topic = topic_of(node, seq)
    return dict(zip(SHARED, (node, seq, received, topic, received.date()), strict=True))


def _rows_of_message(stage: Stage, node: str, seq: int) -> Iterator[tuple[str, Row | None]]:
    """The tables that get a message, with their own columns; None: it is a dead letter."""
    number = number_of(node, seq)
    if seq % 4 == 1:
        yield from _temperature(stage, node, seq)
    elif seq % 4 == 2:
        yield COUNTS, None if number % 10 == 6 else {"value": seq}
        if stage.room_after is not None:
            yield NOTES, {"place": seq % 6, "value": payload_of(node, seq).decode()}
    elif seq % 4 == 3:
        row = {"part": "abc"[seq % 3], "x": seq, "y": [node, str(seq)]}
        yield PACKED, None if number % 10 == 2 else row
    elif is_rare(node, seq):
        yield RARE, None if number // 97 % 3 == 2 else {"x": seq, "y": f"row {seq}"}


def _temperature(stage: Stage, node: str, seq: int) -> Iterator[tuple[str, Row | None]]:
    kind = temperature_kind(node, seq)
    if kind == "left out":
        return
    if kind == "bad" or (kind in ("without value", "skipped") and not stage.is_corrected):
        yield TEMPERATURE, None
        return
    if kind == "skipped":
        return
    at = datetime(2026, 2, 1, 0, seq // 60 % 60, seq % 60, tzinfo=UTC)
    value = None if kind == "without value" else seq / 8
    after = stage.room_after
    # A row that was a dead letter was decoded by the last file.
    has_room = after is not None and (value is None or seq > after.get(node, 0))
    yield (
        TEMPERATURE,
        {
            "qos": seq % 3,
            "plant": f"p{seq % 3}",
            "line": seq % 5,
            "value": value,
            "unit": "C",
            "at": at,
            "fahrenheit": None if value is None else value * 9 / 5 + 32,
            "event_time": at,
            "room": room_of(seq) if has_room else None,
        },
    )
