"""The options of `format("semel_delta")`, parsed once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from semel.pipeline.errors import OptionError
from semel.pipeline.lake_address import split_address
from semel.pipeline.source_options import boolean, near
from semel.store.roots import LocalRoot, RootError, open_root
from semel.store.settings import stream_name_problem

KNOWN: Final = (
    "path",
    "partitionBy",
    "mergeSchema",
    "appId",
    "checkpointLocation",
    "stream",
    "root",
    "failOnDataLoss",
    "coverage",
    "key",
    "batch",
)
# What a batch of a stream covers: the rows that it brings, each once and without a gap; or what the
# offsets of its query say, whatever rows it brings.
ROWS: Final = "rows"
OFFSETS: Final = "offsets"
# Options that Spark itself adds to a streaming query, or uses.
SPARKS: Final = ("queryname", "outputmode", "triggerinterval")


@dataclass(frozen=True)
class SinkOptions:
    """Parsed options of a sink."""

    path: str = field(repr=False)
    partition_by: tuple[str, ...]
    merge_schema: bool
    app_id: str | None
    checkpoint: str | None
    # The stream whose rows these are; None for rows that do not have node and seq.
    stream: str | None
    # The root of the stream: a commit looks up there where the record of a new node begins.
    root: str | None = field(repr=False)
    fail_on_data_loss: bool
    # ROWS or OFFSETS.
    coverage: str
    # Rows replace those of the table that have the same values in these columns.
    key: tuple[str, ...] = ()
    # The number of a batch write of `app_id`, which is committed once.
    batch: int | None = None


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse options: strings with case-insensitive names. Raises OptionError."""
    names = {name.lower(): name for name in KNOWN}
    values: dict[str, str] = {}
    for name, value in given.items():
        known = names.get(name.lower())
        if known is not None:
            values[known] = value
        elif name.lower() not in SPARKS:
            meant = near(name, names)
            hint = f"did you mean {meant}?" if meant else f"the options are {', '.join(KNOWN)}"
            raise OptionError(f"semel_delta has no option {name}: {hint}")
    path = values.get("path", "").strip()
    if not path:
        raise OptionError(
            "the table is missing: give its path by .start(path), .save(path) or option path"
        )
    split_address(path)
    stream = values.get("stream") or None
    root = values.get("root") or None
    if root is not None:
        if stream is None:
            raise OptionError("option root is the root of a stream: give option stream too")
        root = _root(root)
    if stream is not None:
        problem = stream_name_problem(stream)
        if problem is not None:
            raise OptionError(f"option stream: {stream!r} {problem}")
    coverage = values.get("coverage", ROWS).strip().lower()
    if coverage not in (ROWS, OFFSETS):
        raise OptionError(f"option coverage is {coverage!r}, but must be {ROWS} or {OFFSETS}")
    if coverage == OFFSETS and stream is None:
        raise OptionError("option coverage is for the rows of a stream: give option stream too")
    partition_by = _names(values, "partitionBy")
    key = _names(values, "key")
    if key and stream is not None:
        raise OptionError(
            "options key and stream exclude each other: rows of a stream are appended, each once"
        )
    batch = values.get("batch", "").strip()
    if batch and not (batch.isascii() and batch.isdecimal()):
        raise OptionError(f"option batch is {batch!r}, but must be the number of a batch")
    if batch and not values.get("appId"):
        raise OptionError("option batch is the number of a batch of appId: give option appId too")
    return SinkOptions(
        path=path,
        partition_by=partition_by,
        merge_schema=boolean(values, "mergeSchema", False),
        app_id=values.get("appId") or None,
        checkpoint=values.get("checkpointLocation") or None,
        stream=stream,
        root=root,
        fail_on_data_loss=boolean(values, "failOnDataLoss", True),
        coverage=coverage,
        key=key,
        batch=int(batch) if batch else None,
    )


def _names(values: Mapping[str, str], option: str) -> tuple[str, ...]:
    """Columns that are separated by commas."""
    names = tuple(filter(None, map(str.strip, values.get(option, "").split(","))))
    if len(set(names)) < len(names):
        raise OptionError(f"{option} names a column twice: {', '.join(names)}")
    return names


def _root(address: str) -> str:
    """A root that does not depend on the working directory of a process."""
    try:
        root = open_root(address)
    except RootError as problem:
        raise OptionError(f"option root: {problem}") from None
    return str(Path(root.address).absolute()) if isinstance(root, LocalRoot) else address
