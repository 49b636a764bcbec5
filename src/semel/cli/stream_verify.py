"""`semel stream verify`: compare every byte of the segments with its checksum."""

import json
import sys
from pathlib import Path

import click

from semel.cli.stream_options import open_catalog, record_options, stream_records
from semel.counts import count
from semel.store.verification import (
    DAMAGED,
    OK,
    UNCHECKED,
    SegmentFinding,
    missing_rows,
    verify_segments,
)


@click.command(short_help="Verify the checksums of all segments.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@record_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def verify(
    names: tuple[str, ...],
    data: Path | None,
    root: str | None,
    nodes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Read all segments of the named streams, or of all streams, and verify their checksums.

    Lists the segments that are damaged, and those that earlier versions wrote without checksums:
    these can be decoded, but not verified. Rows that are not sealed yet are checked by `semel store
    check`. Exits with 1 if anything is damaged or missing.

    \b
        semel stream verify --data /var/lib/semel
    """
    with open_catalog(data, root) as catalog:
        records = [
            record
            for stream in names or catalog.streams()
            for record in (
                stream_records(catalog, stream, nodes)
                if names
                else [each for each in catalog.records(stream) if not nodes or each.node in nodes]
            )
        ]
        work = {
            (each.stream, each.node): catalog.root.segments(each.stream, each.node)
            for each in records
        }
        size = sum(segment.size for segments in work.values() for segment in segments)
        found: list[SegmentFinding] = []
        with click.progressbar(length=max(size, 1), label="verifying", file=sys.stderr) as bar:
            for (stream, node), segments in work.items():
                for finding in verify_segments(catalog.root, stream, node, segments):
                    bar.update(finding.bytes)
                    found.append(finding)
        missing = [
            problem for stream, node in work for problem in missing_rows(catalog.root, stream, node)
        ]
    damaged = [each for each in found if each.state == DAMAGED]
    unchecked = [each for each in found if each.state == UNCHECKED]
    if as_json:
        click.echo(
            json.dumps(
                {
                    "segments": len(found),
                    "bytes": sum(each.bytes for each in found),
                    "damaged": [finding_json(each) for each in damaged],
                    "without_checksums": [finding_json(each) for each in unchecked],
                    "missing": missing,
                }
            )
        )
    else:
        for each in unchecked:
            click.echo(f"{each.path}: written without checksums by an earlier version, readable")
        intact = sum(each.state == OK for each in found)
        click.echo(
            f"{count(len(found), 'segment')}: {intact:,} intact, {len(unchecked):,} without "
            f"checksums, {len(damaged):,} damaged"
        )
    problems = [each.problem for each in damaged if each.problem is not None] + missing
    if problems:
        raise click.ClickException("\nError: ".join(problems))


def finding_json(finding: SegmentFinding) -> dict[str, object]:
    return {
        "path": finding.path,
        "stream": finding.stream,
        "node": finding.node,
        "first": finding.first,
        "last": finding.last,
        "bytes": finding.bytes,
        "problem": finding.problem,
    }
