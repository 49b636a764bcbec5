"""The options of `semel stream` that locate records, and opening what they name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from semel.extras import MissingExtra
from semel.store.reading import NodeRecord, StreamCatalog
from semel.store.roots import RootError
from semel.store.schema import Unusable
from semel.store.segments import RecordError


def record_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options --data, --root and --node."""
    for option in (
        click.option(
            "--node",
            "nodes",
            multiple=True,
            help="Only this node; may be repeated. Default: all nodes.",
        ),
        click.option(
            "--root",
            metavar="ADDRESS",
            envvar="SEMEL_STORE_ROOT",
            help="The root of the segments: a folder, or the address of an object store. Default: "
            "the folder streams in the data folder.  [or SEMEL_STORE_ROOT]",
        ),
        click.option(
            "--data",
            metavar="DIR",
            type=click.Path(path_type=Path),
            envvar="SEMEL_STORE_DATA",
            help="The data folder of a broker, running or stopped.  [or SEMEL_STORE_DATA]",
        ),
    ):
        function = option(function)
    return function


@contextmanager
def open_catalog(data: Path | None, root: str | None) -> Iterator[StreamCatalog]:
    """The catalog of the records. Problems with them end the command with one sentence."""
    if data is None and root is None:
        raise click.UsageError("name the record: --data DIR, --root ADDRESS, or both")
    try:
        with StreamCatalog(data, root) as catalog:
            yield catalog
    except BrokenPipeError:
        raise
    except (MissingExtra, OSError, RecordError, RootError, Unusable) as problem:
        raise click.ClickException(str(problem)) from None


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
