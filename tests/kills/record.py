"""A stream as it lies on disk: rows of the store, and Parquet segments by the ranges they name.

Read without semel's own reader, like everything here. A range of numbers may be in segments, in
the store, or in both after a crash: then both must say the same.
"""

import re
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tests.kills.account import RECORD, Ledger, Taker, Verdict, read_payload

SEGMENT = re.compile(r"(\d+)-(\d+)\.parquet")


class Row(NamedTuple):
    """What the account compares of a row."""

    topic: str
    payload: bytes
    qos: int
    client_id: str


class Record(NamedTuple):
    """All rows of a stream by their numbers, and what is wrong with how they are kept."""

    rows: dict[int, Row]
    last_seq: int
    in_store: int
    segments: int
    faults: list[str]


def read_segment(path: Path) -> list[tuple[int, Row]]:
    parquet: Any = import_module("pyarrow.parquet")
    columns = ["seq", "topic", "payload", "qos", "client_id"]
    found = parquet.read_table(path, columns=columns).to_pydict()
    values = [[*found[name]] for name in columns]
    return [
        (seq, Row(str(topic), bytes(payload), qos, str(client_id)))
        for seq, topic, payload, qos, client_id in zip(*values, strict=True)
    ]


def sealed_through(data: Path, stream: str) -> tuple[int, int]:
    """The last number that is in a segment, and the last of all."""
    with closing(sqlite3.connect(f"file:{data / 'store.db'}?mode=ro", uri=True)) as store:
        query = "SELECT sealed_seq, last_seq FROM stream WHERE name = ?"
        sealed, last_seq = store.execute(query, (stream,)).fetchone()
    return sealed, last_seq


def read_record(data: Path, stream: str) -> Record:
    """Read what there is. The broker must have ended."""
    faults: list[str] = []
    rows: dict[int, Row] = {}
    with closing(sqlite3.connect(f"file:{data / 'store.db'}?mode=ro", uri=True)) as store:
        for (problem,) in store.execute("PRAGMA integrity_check"):
            if problem != "ok":
                faults.append(f"the store is damaged: {problem}")
        query = "SELECT id, last_seq, sealed_seq FROM stream WHERE name = ?"
        number, last_seq, sealed = store.execute(query, (stream,)).fetchone()
        query = "SELECT seq, topic, payload, flags, client_id FROM record WHERE stream_id = ?"
        for seq, topic, payload, flags, client_id in store.execute(query, (number,)):
            rows[seq] = Row(topic, payload, flags & 3, client_id)
    in_store = len(rows)
    segments = 0
    through = 0
    for first, last, path in pick(data / "streams" / stream):
        segments += 1
        found = read_segment(path)
        if [seq for seq, _ in found] != list(range(first, last + 1)):
            faults.append(f"{path.name} does not have the rows that its name says")
        if first != through + 1:
            faults.append(f"{path.name} follows {through}")
        through = last
        for seq, row in found:
            if rows.setdefault(seq, row) != row:
                faults.append(f"{seq} is {rows[seq]} in the store and {row} in {path.name}")
    if through < sealed:
        faults.append(f"sealed through {sealed}, but segments end at {through}")
    missing = [seq for seq in range(1, last_seq + 1) if seq not in rows]
    if missing:
        faults.append(f"{len(missing)} numbers have no row, the first is {missing[0]}")
    beyond = [seq for seq in rows if not 1 <= seq <= last_seq]
    if beyond:
        faults.append(f"{len(beyond)} rows lie beyond {last_seq}, the first is {min(beyond)}")
    return Record(rows, last_seq, in_store, segments, faults)


def pick(folder: Path) -> list[tuple[int, int, Path]]:
    """The segments that no other covers, by their ranges."""
    found = []
    for path in folder.rglob("*.parquet"):
        named = SEGMENT.fullmatch(path.name)
        if named is not None:
            found.append((int(named[1]), int(named[2]), path))
    # Of those that begin alike the longest comes first.
    found.sort(key=lambda entry: (entry[0], -entry[1]))
    picked: list[tuple[int, int, Path]] = []
    for first, last, path in found:
        if not picked or last > picked[-1][1]:
            picked.append((first, last, path))
    return picked


def settle(record: Record, ledger: Ledger, verdict: Verdict) -> None:
    """Add the record to the account, as one taker more, and hear the account about it."""
    taker = ledger.takers[RECORD] = Taker(RECORD, 2, ("",), order="publisher")
    for text in record.faults:
        verdict.blame("record", text)
    for seq in sorted(record.rows):
        row = record.rows[seq]
        # The deletion of a retained message has no payload, and so no name.
        if not row.payload:
            continue
        try:
            named = read_payload(row.payload)
        except ValueError as problem:
            verdict.blame("record", f"{seq}: {problem}: {row.payload[:40]!r}")
            continue
        sent = ledger.sent.get(named.key)
        if sent is not None and row[::2] != (sent.topic, sent.qos):
            verdict.blame("record", f"{seq} is {row.topic} {row.qos}: {ledger.tell(named.key)}")
        if row.client_id != named.key[0]:
            verdict.blame("record", f"{seq} of {named.key} has client id {row.client_id}")
        taker.take(named, seq, dup=False)
