"""`semel tables`: what tables a lake has, in numbers, and how far each is behind its record."""

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from semel.cli.lake import (
    CONFIG,
    DATA,
    LAKE,
    ROOT,
    Where,
    one_sentence,
    shown_lake,
    shown_moment,
    where,
)
from semel.cli.safe_text import shown_text
from semel.cli.store import print_table
from semel.cli.stream import shown_size, shown_time
from semel.counts import count
from semel.pipeline.lake import NodeLag, TableSummary, node_lags, open_table, tables
from semel.store.reading import StreamCatalog


@click.command
@CONFIG
@LAKE
@ROOT
@DATA
@click.option("--json", "json_wanted", is_flag=True, help="Print a JSON list.")
def command(
    config: Path | None,
    lake: str | None,
    root: str | None,
    data: Path | None,
    json_wanted: bool,
) -> None:
    """List the tables of a lake, with rows, size and last commit.

    If the record that a table is landed from is known (--root, --data, or because the lake is in
    the data folder), also how many of its rows are not landed yet. Exits with 1 if a table cannot
    be read.
    """
    with one_sentence():
        place = where(config, lake, root, data)
        # Without a record there is nothing that could make it come.
        found = tables(place.lake) if place.is_there or place.record is None else []
        late, waiting = lateness(place, found)
    if json_wanted:
        click.echo(json.dumps([facts_json(each, late.get(each.table)) for each in found]))
    elif found:
        print_facts([each for each in found if each.problem is None], late)
    elif waiting is None:
        click.echo(f"{shown_lake(place.lake)} has no table", err=True)
    if waiting is not None:
        click.echo(waiting, err=True)
    problems = [shown_text(each.problem) for each in found if each.problem is not None]
    if problems:
        raise click.ClickException("\nError: ".join(problems))


def lateness(
    place: Where, found: list[TableSummary]
) -> tuple[dict[str, list[NodeLag]], str | None]:
    """How far the tables are behind, by name: those whose record is known.

    And what is to be said of the rows for which there is no table yet.
    """
    record = place.record
    if record is None:
        return {}, None
    late = {}
    waiting = None
    with StreamCatalog(record.data, record.root) as catalog:
        known = catalog.streams()
        for each in found:
            if each.stream in known and each.stream is not None:
                late[each.table] = node_lags(
                    open_table(place.lake, each.table), each.stream, catalog
                )
        if record.table not in [each.table for each in found] and record.stream in known:
            rows = sum(each.rows for each in node_lags(None, record.stream, catalog))
            waiting = (
                f"nothing is landed in {shown_text(record.table)} of {shown_lake(place.lake)} yet; "
                f"{count(rows, 'row')} of stream {record.stream} {'is' if rows == 1 else 'are'} "
                "waiting"
            )
    return late, waiting


def facts_json(facts: TableSummary, late: list[NodeLag] | None) -> dict[str, object]:
    if facts.problem is not None:
        return {"table": facts.table, "problem": facts.problem}
    return {
        "table": facts.table,
        "rows": facts.rows,
        "bytes": facts.bytes,
        "files": facts.files,
        "version": facts.version,
        "committed": shown_moment(facts.committed),
        "operation": facts.operation,
        "partition_by": list(facts.partition_by),
        "stream": facts.stream,
        "not_landed": None if late is None else sum(each.rows for each in late),
        "nodes": None if late is None else [asdict(each) for each in late],
        "problem": None,
    }


def print_facts(found: list[TableSummary], late: dict[str, list[NodeLag]]) -> None:
    head = ["table", "rows", "size", "files", "version", "last commit", "age", "partitioned by"]
    rows: list[list[object]] = []
    now = time.time()
    for each in found:
        committed = age = ""
        if each.committed:
            committed = shown_time(each.committed, "seconds")
            age = shown_age(now - each.committed / 1e6)
        by = ", ".join(map(shown_text, each.partition_by))
        size = shown_size(each.bytes)
        rows.append(
            [shown_text(each.table), each.rows, size, each.files, each.version, committed, age, by]
        )
    if late:
        head.append("not landed")
        for row, each in zip(rows, found, strict=True):
            nodes = late.get(each.table)
            row.append("" if nodes is None else sum(node.rows for node in nodes))
    print_table(head, rows)


def shown_age(seconds: float) -> str:
    """How long ago something was, in its largest unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"
