"""`semel stream verify`: compare every byte of the segments with its checksum."""

import json
from pathlib import Path

import click

from semel.cli.flags import ONE_OBJECT, QUIET
from semel.cli.live_line import LiveLine
from semel.cli.option_groups import SemelCommand
from semel.cli.stream_options import open_catalog, stream_options, stream_records
from semel.cli.text_tables import shown_size
from semel.counts import count
from semel.store.verification import (
    DAMAGED,
    OK,
    UNCHECKED,
    SegmentFinding,
    missing_rows,
    verify_segments,
)


@click.command(
    cls=SemelCommand,
    short_help="Verify the checksums of all segments.",
    examples=("semel stream verify --data /var/lib/semel", "semel stream verify plant --json"),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@stream_options
@ONE_OBJECT
@QUIET
def verify(
    names: tuple[str, ...],
    data: Path | None,
    root: str | None,
    nodes: tuple[str, ...],
    is_json: bool,
    quiet: bool,
) -> None:
    """Read all segments of the named streams, or of all streams, and verify their checksums.

    Lists the segments that are damaged, and those that earlier versions wrote without checksums:
    these can be decoded, but not verified. Rows that are not sealed yet are checked by `semel store
    check`. Exits with 1 if anything is damaged or missing.
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
        line = LiveLine(enabled=not quiet)
        done = 0
        for (stream, node), segments in work.items():
            for finding in verify_segments(catalog.root, stream, node, segments):
                done += finding.bytes
                line.show(f"verifying {shown_size(done)} of {shown_size(size)}")
                found.append(finding)
        line.clear()
        missing = [
            problem for stream, node in work for problem in missing_rows(catalog.root, stream, node)
        ]
    damaged = [each for each in found if each.state == DAMAGED]
    unchecked = [each for each in found if each.state == UNCHECKED]
    if is_json:
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
