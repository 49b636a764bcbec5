"""Checks before Spark starts: the record has the stream, and the table belongs to it.

Both are checked again when rows are read and committed, but a mistyped name should be reported
without waiting for Spark.
"""

from difflib import get_close_matches

from semel.pipeline.errors import PipelineError, TableError
from semel.store.roots import Root, RootError

# The maximum number of streams that an error lists.
MOST_NAMED = 20


def check_recorded(root: Root, stream: str) -> None:
    """Raise PipelineError if the record has streams, but not this one.

    A root without streams may be that of a broker that has not sealed anything yet.
    """
    try:
        streams = root.streams()
    except (OSError, RootError) as problem:
        reason = " ".join(str(problem).split())
        raise PipelineError(f"--root {root.address} cannot be read: {reason}") from None
    if not streams or stream in streams:
        return
    names = ", ".join(sorted(streams)[:MOST_NAMED])
    more = ", …" if len(streams) > MOST_NAMED else ""
    near = get_close_matches(stream, streams, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise PipelineError(
        f"--stream {stream}: there is no such stream in {root.address}, which has {names}{more}"
        f"{hint}"
    )


def check_landed(address: str, stream: str) -> None:
    """Raise TableError if there is a table at this address that is not of this stream."""
    from semel.pipeline.app_transactions import stream_id
    from semel.pipeline.table import Table

    table = Table(address)
    loaded = table.load()
    if loaded is None:
        return
    name = loaded.metadata().name or ""
    if name == stream_id(stream):
        return
    prefix = stream_id("")
    if name.startswith(prefix):
        other = name.removeprefix(prefix)
        raise TableError(
            f"{table.shown} is the table of stream {other}, not of {stream}: give --stream "
            f"{other}, or another --table"
        )
    raise TableError(
        f"{table.shown} is not a table of stream {stream}, because no landing created it: give "
        "another --table"
    )
