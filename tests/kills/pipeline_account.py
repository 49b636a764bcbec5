"""The account of a pipeline: what publishers sent, what the record has, and what the table has.

The table is read by its log, file by file, and the record by the ranges that segments name. Both
have to say the same of each row, in all columns; and the rows of the table, by their payloads, have
to be what the publishers were told is safe.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from semel.pipeline.app_transactions import position_id
from tests.kills.account import Ledger, Taker, Verdict, read_payload
from tests.kills.brokers import STREAM
from tests.kills.pipeline_lake import Lake
from tests.kills.record import pick, sealed_through

TABLE = "table"
SHOWN = 5


@dataclass
class Node:
    """A broker, or an ingester, that seals: its publishers, its store, and its name in the root."""

    name: str
    ledger: Ledger
    # The folder of its store.
    data: Path
    # Whether rows have the client identifiers of the publishers; those of an ingester have its own.
    is_first_hand: bool


@dataclass
class Counts:
    """What the account has looked at."""

    rows: int = 0
    files: int = 0
    commits: int = 0
    orphans: int = 0
    # Files that compaction has replaced.
    compacted: int = 0
    segments: int = 0
    repeats: int = 0
    lost: int = 0
    doubled: int = 0
    # The verdict on each node's publishers.
    verdicts: dict[str, Verdict] = field(default_factory=dict)


def settle(lake: Lake, root: Path, nodes: list[Node], verdict: Verdict) -> Counts:
    """Compare all with all. Nobody may be at work any more."""
    counts = Counts()
    table = read_table(lake, verdict, counts)
    there = {str(name) for name in pc.unique(table.column("node")).to_pylist()}
    for name in there - {node.name for node in nodes}:
        verdict.blame("table", f"it has rows of a node {name}")
    for node in nodes:
        record = read_record(root, node, verdict, counts)
        rows = table.filter(pc.equal(table.column("node"), node.name)).sort_by("seq")
        compare(node.name, record, rows, verdict, counts)
        position = lake.log.numbers.get(position_id(STREAM, node.name))
        if position != record.num_rows:
            verdict.blame("position", f"node {node.name} is at {position}, not {record.num_rows}")
        own = hear(node, rows, verdict)
        counts.verdicts[node.name] = own
        counts.repeats += own.count("repeats")
        counts.lost += own.count("lost")
        counts.doubled += own.count("doubled")
    return counts


# --- the table ------------------------------------------------------------------------------------


def read_table(lake: Lake, verdict: Verdict, counts: Counts) -> pa.Table:
    """All rows that the log names, and what is wrong with how it names them."""
    log = lake.read_log()
    on_disk = lake.parquet()
    named = {unquote(path) for path in log.named}
    counts.commits = log.version
    counts.files = len(log.files)
    counts.orphans = len(on_disk - named)
    counts.compacted = len(log.named) - len(log.files)
    for path in log.again:
        verdict.blame("log", f"{path} is added twice")
    for text in log.backwards:
        verdict.blame("log", f"{text}: an app transaction never goes back")
    parts: list[pa.Table] = []
    for path, add in log.files.items():
        if unquote(path) not in on_disk:
            verdict.blame("log", f"{path} is named, and is not there")
            continue
        if not lake.is_whole(unquote(path)):
            verdict.blame("log", f"{path} is named, and is not whole")
            continue
        rows = pq.ParquetFile(lake.table / unquote(path)).read()
        size = (lake.table / unquote(path)).stat().st_size
        if size != add["size"]:
            verdict.blame("log", f"{path} has {size} bytes, not {add['size']}")
        day = date.fromisoformat(add["partitionValues"]["date"])
        days = {moment.astimezone(UTC).date() for moment in rows.column("received").to_pylist()}
        if days != {day}:
            verdict.blame("log", f"{path} is of {day}, and has rows of {days}")
        parts.append(rows)
    table = pa.concat_tables(parts)
    counts.rows = table.num_rows
    if "log" in verdict.faults:
        return table
    # What delta-rs, another reader of the log, finds there.
    seen = DeltaTable(str(lake.table)).to_pyarrow_table(columns=["node", "seq"])
    if seen.num_rows != table.num_rows:
        verdict.blame("log", f"delta-rs reads {seen.num_rows} rows, not {table.num_rows}")
    return table


# --- the record -----------------------------------------------------------------------------------


def read_record(root: Path, node: Node, verdict: Verdict, counts: Counts) -> pa.Table:
    """The rows of a node's segments, which are all that it has."""
    parts: list[pa.Table] = []
    for first, last, path in pick(root / STREAM / node.name):
        rows = pq.ParquetFile(path).read()
        if rows.column("seq").to_pylist() != list(range(first, last + 1)):
            verdict.blame("record", f"{path.name} does not have the rows that its name says")
        parts.append(rows)
    record = pa.concat_tables(parts)
    counts.segments += len(parts)
    sealed, last_seq = sealed_through(node.data, STREAM)
    if sealed != last_seq:
        verdict.blame("record", f"node {node.name}: {last_seq - sealed} rows are not sealed")
    if record.column("seq").to_pylist() != list(range(1, last_seq + 1)):
        verdict.blame("record", f"node {node.name}: segments are not the rows 1 to {last_seq}")
    return record


def compare(name: str, record: pa.Table, rows: pa.Table, verdict: Verdict, counts: Counts) -> None:
    """Row by row, by their numbers."""
    expected = record.column("seq").to_pylist()
    found = Counter(rows.column("seq").to_pylist())
    missing = [seq for seq in expected if seq not in found]
    twice = [seq for seq, times in found.items() if times > 1]
    beyond = sorted(set(found) - set(expected))
    for kind, seqs in (("missing", missing), ("there twice", twice), ("beyond", beyond)):
        if seqs:
            verdict.blame(
                f"rows {kind}", f"{len(seqs)} of node {name}: {spans(sorted(seqs))[:300]}"
            )
    counts.lost += len(missing)
    counts.doubled += len(twice)
    if missing or twice or beyond:
        return
    if rows.column_names != record.column_names:
        verdict.blame("columns", f"{rows.column_names}, not {record.column_names}")
        return
    for column in record.column_names:
        mine, others = record.column(column), rows.column(column).combine_chunks()
        if mine.combine_chunks().equals(others):
            continue
        pairs = enumerate(zip(mine.to_pylist(), others.to_pylist(), strict=True), 1)
        different = [f"{seq}: {one!r} is {two!r}" for seq, (one, two) in pairs if one != two]
        verdict.blame("rows differ", f"node {name}, {column}, row {'; '.join(different[:SHOWN])}")


def spans(seqs: list[int]) -> str:
    """Numbers as ranges."""
    found: list[list[int]] = []
    for seq in seqs:
        if found and seq == found[-1][1] + 1:
            found[-1][1] = seq
        else:
            found.append([seq, seq])
    return ", ".join(f"{first}-{last}" for first, last in found)


# --- the publishers -------------------------------------------------------------------------------


def hear(node: Node, rows: pa.Table, verdict: Verdict) -> Verdict:
    """Hold the rows of a node against what its publishers know; the verdict on that."""
    # A broker keeps all that a publisher sent in its order, for a subscriber those of one QoS.
    taker = Taker(TABLE, 2, ("",), order="publisher" if node.is_first_hand else "qos")
    node.ledger.takers = {TABLE: taker}
    columns = ("seq", "topic", "payload", "qos", "dup", "client_id")
    values: list[list[Any]] = [rows.column(column).to_pylist() for column in columns]
    clients: set[str] = set()
    for seq, topic, payload, qos, dup, client_id in zip(*values, strict=True):
        what = f"node {node.name}, row {seq}"
        try:
            named = read_payload(payload)
        except ValueError as problem:
            verdict.blame("spoiled", f"{what}: {problem}: {payload[:40]!r}")
            continue
        sent = node.ledger.sent.get(named.key)
        if sent is not None and (topic, qos) != (sent.topic, sent.qos):
            verdict.blame("spoiled", f"{what} is {topic} {qos}: {node.ledger.tell(named.key)}")
        if node.is_first_hand and client_id != named.key[0]:
            verdict.blame("spoiled", f"{what} of {named.key} has client id {client_id}")
        if named.key in taker.takes and node.is_first_hand and not dup:
            # Its publisher has said so: with DUP on all but the first.
            verdict.blame("again without DUP", f"{what}: {node.ledger.tell(named.key)}")
        clients.add(client_id)
        taker.take(named, seq, dup=dup)
        if 1 + taker.repeats(named.key) > (sent.tries if sent else 0) and node.is_first_hand:
            verdict.blame("more often than sent", f"{what}: {node.ledger.tell(named.key)}")
    if not node.is_first_hand and len(clients) > 1:
        verdict.blame("spoiled", f"node {node.name} has rows of {sorted(clients)}")
    own = node.ledger.verdict()
    for kind, texts in own.faults.items():
        for text in texts:
            verdict.blame(kind, f"node {node.name}: {text}")
    return own


def tracebacks(logs: list[Path], verdict: Verdict) -> None:
    """Nobody who is killed may leave one behind who shows its stack."""
    for log in logs:
        text = log.read_text(errors="replace") if log.exists() else ""
        found = re.search(r"Traceback \(most recent call last\)", text)
        if found is not None:
            verdict.blame("traceback", f"{log.name}: {text[found.start() :][:3_000]}")
