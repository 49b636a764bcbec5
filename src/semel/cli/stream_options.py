"""The options of `semel stream` that locate records, and opening what they name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from semel.cli.errors import one_sentence
from semel.cli.flags import shared_option
from semel.cli.locations import record_options
from semel.store.reading import NodeRecord, StreamCatalog
from semel.store.schema import Unusable


def stream_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --config, --data, --root and --node."""
    for option in (
        shared_option(
            "--node",
            "nodes",
            multiple=True,
            help="Only this node; may be repeated. Default: all nodes.",
        ),
        record_options,
    ):
        function = option(function)
    return function


@contextmanager
def open_catalog(data: Path | None, root: str | None) -> Iterator[StreamCatalog]:
    """The catalog of the records. Problems with them end the command with one sentence."""
    if data is None and root is None:
        raise click.UsageError(
            "name the record: --data DIR (semel up uses semel-data), --root ADDRESS, or both"
        )
    with one_sentence(), StreamCatalog(data, root) as catalog:
        yield catalog


def stream_records(catalog: StreamCatalog, stream: str, nodes: tuple[str, ...]) -> list[NodeRecord]:
    """The records of a stream, of all nodes or of these. Raises Unusable if one does not exist."""
    records = catalog.records(stream)
    if not records:
        raise Unusable(f"{catalog.location} has no stream {stream}: {available(catalog.streams())}")
    missing = sorted(set(nodes) - {record.node for record in records})
    if missing:
        known = [record.node for record in records]
        raise Unusable(f"stream {stream} has no node {', '.join(missing)}: {available(known)}")
    return [record for record in records if not nodes or record.node in nodes]


def available(names: list[str]) -> str:
    """The names that exist, for a message about one that does not."""
    return f"it has {', '.join(names)}" if names else "it has none"
