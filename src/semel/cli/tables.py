"""`semel tables`: the tables of a lake, and how many rows of the record have not landed."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace

import click

from semel.cli.errors import one_sentence
from semel.cli.flags import json_option
from semel.cli.lake import commit_time, shown_lake
from semel.cli.locations import LakeLocation, lake_options
from semel.cli.option_groups import SemelCommand
from semel.cli.safe_text import shown_text
from semel.cli.text_tables import print_table, shown_age, shown_size, shown_time
from semel.counts import count
from semel.pipeline.errors import TableError
from semel.pipeline.lake import NodeLag, TableSummary, node_lags, open_table, tables
from semel.store.reading import StreamCatalog


@click.command(
    cls=SemelCommand, examples=("semel tables", "semel tables --lake s3://bucket/lake --json")
)
@lake_options
@json_option("Print a JSON list.")
def command(locate: Callable[[], LakeLocation], is_json: bool) -> None:
    """List the tables of a lake with rows, size and last commit.

    If the record of a table's stream is known (--root, --data, or because the lake is in the data
    folder), also lists how many rows have not landed. Exits with 1 if a table cannot be read.
    """
    with one_sentence():
        location = locate()
        # A lake that does not exist is an error, unless the record has not been landed yet.
        may_list = location.exists or location.record is None
        found = tables(location.lake) if may_list else []
        lags, notice = table_lags(location, found)
    if is_json:
        click.echo(json.dumps([facts_json(each, lags.get(each.table)) for each in found]))
    elif found:
        print_facts([each for each in found if each.problem is None], lags)
    elif notice is None:
        click.echo(f"{shown_lake(location.lake)} has no table", err=True)
    if notice is not None:
        click.echo(notice, err=True)
    problems = [shown_text(each.problem) for each in found if each.problem is not None]
    if problems:
        raise click.ClickException("\nError: ".join(problems))


def table_lags(
    location: LakeLocation, found: list[TableSummary]
) -> tuple[dict[str, list[NodeLag]], str | None]:
    """The lag of each table whose record is known, and a notice if nothing has landed yet.

    A table whose positions cannot be read gets a problem in `found`.
    """
    record = location.record
    if record is None:
        return {}, None
    lags = {}
    notice = None
    with StreamCatalog(record.data, record.root) as catalog:
        known = catalog.streams()
        for place, each in enumerate(found):
            if each.stream in known and each.stream is not None:
                try:
                    table = open_table(location.lake, each.table)
                    lags[each.table] = node_lags(table, each.stream, catalog)
                except TableError as problem:
                    found[place] = replace(each, problem=str(problem))
        # A landing file has other tables for the stream.
        has_table = record.table in [each.table for each in found] or record.stream in [
            each.stream for each in found
        ]
        if not has_table and record.stream in known:
            rows = sum(each.rows for each in node_lags(None, record.stream, catalog))
            notice = (
                f"nothing has landed in {shown_text(record.table)} of {shown_lake(location.lake)} "
                f"yet; {count(rows, 'row')} of stream {record.stream} "
                f"{'is' if rows == 1 else 'are'} waiting"
            )
    return lags, notice


def facts_json(facts: TableSummary, lag: list[NodeLag] | None) -> dict[str, object]:
    if facts.problem is not None:
        return {"table": facts.table, "problem": facts.problem}
    return {
        "table": facts.table,
        "rows": facts.rows,
        "bytes": facts.bytes,
        "files": facts.files,
        "version": facts.version,
        "committed": commit_time(facts.committed),
        "operation": facts.operation,
        "partition_by": list(facts.partition_by),
        "stream": facts.stream,
        "not_landed": None if lag is None else sum(each.rows for each in lag),
        "nodes": None if lag is None else [asdict(each) for each in lag],
        "problem": None,
    }


def print_facts(found: list[TableSummary], lags: dict[str, list[NodeLag]]) -> None:
    header = ["table", "rows", "size", "files", "version", "last commit", "age", "partitioned by"]
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
    if lags:
        header.append("not landed")
        for row, each in zip(rows, found, strict=True):
            nodes = lags.get(each.table)
            row.append("" if nodes is None else sum(node.rows for node in nodes))
    print_table(header, rows)
