"""The [land] section: which stream is landed where, and how often."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from semel.settings import BYTES, SECONDS, check, setting
from semel.store.settings import stream_name_problem


@dataclass(frozen=True)
class LandSettings:
    """Landing: the messages of a stream into a Delta table, each once."""

    section: ClassVar[str] = "land"

    root: str | None = setting(
        None,
        "Where the segments are: a folder, or an object store such as s3://bucket/root. As it may "
        "have a key in it, it is never printed whole.",
    )
    stream: str = setting("all", "The stream that is landed.", rule=stream_name_problem)
    lake: str = setting(
        "semel-data/lake",
        "Where the tables are: a folder, or an object store such as s3://bucket/lake.",
    )
    table: str = setting("messages", "The table in the lake. It takes one stream.")
    checkpoint: Path | None = setting(  # noqa: RUF009
        None,
        "Spark's notes on how far it is; _checkpoints/<table> in the lake if nobody says, which "
        "has to be a folder then. They may be lost: the table itself knows what it has.",
    )
    interval: float = setting(
        1.0,
        "How long to wait from the beginning of one batch to that of the next, at least.",
        unit=SECONDS,
    )
    max_rows: int = setting(
        1_000_000,
        "A batch has at most so many rows; the rest is for the next.",
        minimum=1,
        maximum=1_000_000_000,
    )
    master: str | None = setting(
        None, "The Spark that does the work, such as spark://host:7077; this machine if not given."
    )
    fail_on_data_loss: bool = setting(
        True,
        "Stop if rows that were not landed are gone, by retention or a repair. Without this the "
        "table gets what there is.",
    )
    maintenance: bool = setting(
        True,
        "Keep the table fast beside the landing: compact small files, write checkpoints of its log "
        "and delete what they cover, delete files that no version needs any more.",
    )
    target_file_size: int = setting(
        1024 * 1024 * 1024,
        "How large the files are to become by compaction.",
        minimum=1024,
        maximum=2**40,
        unit=BYTES,
    )
    small_files: int = setting(
        100,
        "Compact a partition that is being written when this many of its files are of about the "
        "same size and smaller than half the target.",
        minimum=2,
        maximum=1_000_000,
    )
    file_retention: float = setting(
        6 * 3600.0,
        "Keep a file that was replaced for this long, for whoever reads an older version of the "
        "table; the same for files that no commit names.",
        minimum=3600,
        unit=SECONDS,
    )
    log_entries: int = setting(
        1_000,
        "Keep at least this many commits in the table's log, for its history and for programs that "
        "follow it; on a folder each commit lists them all.",
        minimum=10,
        maximum=1_000_000_000,
    )

    def __post_init__(self) -> None:
        check(self)
