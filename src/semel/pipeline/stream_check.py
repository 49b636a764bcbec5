"""Is the stream that is to be landed in the record, and the table one of that stream?

Both are checked again when rows are read and committed; but that takes a Spark, and somebody who
has mistyped a name should not have to wait for one.
"""

from difflib import get_close_matches

from semel.pipeline.errors import PipelineError, TableError
from semel.store.roots import Root, RootError

# Streams that an error names.
MOST_NAMED = 20


def check_recorded(root: Root, stream: str) -> None:
    """Raise PipelineError if the record has streams, but not this one.

    A root without any may be that of a broker that has sealed nothing yet.
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
    """Raise TableError if the table at this address is there, and takes no rows of this stream."""
    from semel.pipeline.table import Table, stream_id

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
        f"{table.shown} is no table of stream {stream}, because no landing has made it: give "
        "another --table"
    )
