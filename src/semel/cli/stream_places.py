"""Where the record of streams is: the options of `semel stream` that say it, and what they mean."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from semel.extras import MissingExtra
from semel.store.reading import Holdings, NodeRecord
from semel.store.roots import RootError
from semel.store.schema import Unusable
from semel.store.segments import RecordError


def places(function: Callable[..., None]) -> Callable[..., None]:
    """The options that say where a record is."""
    for option in (
        click.option(
            "--node",
            "nodes",
            multiple=True,
            help="Of several nodes, this one. May be repeated. By default: all.",
        ),
        click.option(
            "--root",
            metavar="ADDRESS",
            envvar="SEMEL_STORE_ROOT",
            help="Where the segments are: a folder, or the address of an object store. By default "
            "the folder streams in the data folder.  [or SEMEL_STORE_ROOT]",
        ),
        click.option(
            "--data",
            metavar="DIR",
            type=click.Path(path_type=Path),
            envvar="SEMEL_STORE_DATA",
            help="The data folder of a broker, which may run or not.  [or SEMEL_STORE_DATA]",
        ),
    ):
        function = option(function)
    return function


@contextmanager
def opened(data: Path | None, root: str | None) -> Iterator[Holdings]:
    """Where the records are. What is wrong there ends the command, with one sentence."""
    if data is None and root is None:
        raise click.UsageError("say where the record is: --data DIR, --root ADDRESS, or both")
    try:
        with Holdings(data, root) as holdings:
            yield holdings
    except BrokenPipeError:
        raise
    except (MissingExtra, OSError, RecordError, RootError, Unusable) as problem:
        raise click.ClickException(str(problem)) from None


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
