"""The [land] section: which stream lands in which table, and how often."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from semel.pipeline.cluster_by import DEFAULT_CLUSTER_BY
from semel.settings import BYTES, SECONDS, check, setting
from semel.store.settings import stream_name_problem

# In seconds. Passes of maintenance may be an hour apart.
LEAST_RETENTION: Final = 3600.0


@dataclass(frozen=True)
class LandSettings:
    """Landing: writes the messages of a stream to a Delta table, each once."""

    section: ClassVar[str] = "land"

    root: str | None = setting(
        None,
        "Where the segments are: a folder, or an object store such as s3://bucket/root. Messages "
        "show it without keys.",
    )
    stream: str = setting("all", "The stream to land.", rule=stream_name_problem)
    lake: str = setting(
        "semel-data/lake",
        "Where the tables are: a folder, or an object store such as s3://bucket/lake.",
    )
    table: str = setting("messages", "The table in the lake. It holds one stream.")
    landing: Path | None = setting(  # noqa: RUF009
        None,
        "A landing file: the tables in which messages land by their topics, with typed columns, "
        "instead of one table with all messages.",
    )
    checkpoint: Path | None = setting(  # noqa: RUF009
        None,
        "The folder of Spark's checkpoint. By default _checkpoints/<table> in the lake, if the "
        "lake is a folder. It may be lost: the table itself records what has landed.",
    )
    interval: float = setting(
        1.0,
        "The minimum time from the start of one batch to the start of the next.",
        unit=SECONDS,
    )
    max_rows: int = setting(
        1_000_000,
        "The maximum number of rows in a batch.",
        minimum=1,
        maximum=1_000_000_000,
    )
    master: str | None = setting(
        None, "The Spark master, such as spark://host:7077. By default, all cores of this machine."
    )
    fail_on_data_loss: bool = setting(
        True,
        "Stop if rows that have not landed were deleted, by retention or a repair. Otherwise they "
        "are skipped.",
    )
    metrics_host: str = setting(
        "127.0.0.1",
        "The address on which the metrics of the landing are served by HTTP. Nothing protects "
        "them: listen on an address that only trusted machines can reach.",
    )
    metrics_port: int | None = setting(
        None,
        "The TCP port on which the metrics of the landing are served by HTTP: /metrics for "
        "Prometheus, /healthz and /readyz. 0 lets the system choose a free one. Without a port "
        "they are not served.",
        minimum=0,
        maximum=65_535,
    )
    maintenance: bool = setting(
        True,
        "Maintain the table while landing: compact small files, write checkpoints of its log, and "
        "delete log entries and files that are no longer needed.",
    )
    target_file_size: int = setting(
        1024 * 1024 * 1024,
        "The size of files after compaction.",
        minimum=1024,
        maximum=2**40,
        unit=BYTES,
    )
    small_files: int = setting(
        100,
        "Compact a partition that is still being written when it has this many files of similar "
        "size, each smaller than half the target.",
        minimum=2,
        maximum=1_000_000,
    )
    cluster_by: tuple[str, ...] = setting(
        DEFAULT_CLUSTER_BY,
        "Columns by which compaction sorts the rows of a file, so that queries about some of their "
        "values read only a part of it. Without any, rows stay in the order in which they landed. "
        "The tables of a landing file have a key of this name.",
    )
    retention: float | None = setting(
        None,
        "How long rows stay in the table after they were received; then whole days of them are "
        "removed. Without it they stay forever. The tables of a landing file have a key of this "
        "name.",
        minimum=LEAST_RETENTION,
        unit=SECONDS,
    )
    file_retention: float = setting(
        6 * 3600.0,
        "How long to keep files that were replaced, for readers of older versions of the table, "
        "and files that no commit names.",
        minimum=3600,
        unit=SECONDS,
    )
    log_entries: int = setting(
        1_000,
        "The minimum number of commits to keep in the log of the table, for its history and for "
        "programs that follow it. In a folder, each commit lists all of them.",
        minimum=10,
        maximum=1_000_000_000,
    )

    def __post_init__(self) -> None:
        check(self)
