"""Where the record of streams is: the options of `semel stream` that say it, and what they mean."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from semel.cli.errors import one_sentence
from semel.cli.flags import shared_option
from semel.cli.locations import record_options
from semel.store.reading import Holdings, NodeRecord
from semel.store.schema import Unusable


def places(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say where a record is."""
    for option in (
        shared_option(
            "--node",
            "nodes",
            multiple=True,
            help="Of several nodes, this one. May be repeated. By default: all.",
        ),
        record_options,
    ):
        function = option(function)
    return function


@contextmanager
def opened(data: Path | None, root: str | None) -> Iterator[Holdings]:
    """Where the records are. What is wrong there ends the command, with one sentence."""
    if data is None and root is None:
        raise click.UsageError("say where the record is: --data DIR, --root ADDRESS, or both")
    with one_sentence(), Holdings(data, root) as holdings:
        yield holdings


def named(holdings: Holdings, stream: str, nodes: tuple[str, ...]) -> list[NodeRecord]:
    """The records of a stream, of all nodes or of those that are named."""
    records = holdings.records(stream)
    if not records:
        raise Unusable(f"{holdings.place} has no stream {stream}: {there(holdings.streams())}")
    missing = sorted(set(nodes) - {record.node for record in records})
    if missing:
        known = [record.node for record in records]
        raise Unusable(f"stream {stream} has no node {', '.join(missing)}: {there(known)}")
    return [record for record in records if not nodes or record.node in nodes]


def there(names: list[str]) -> str:
    """What could have been meant."""
    return f"it has {', '.join(names)}" if names else "it has none"
