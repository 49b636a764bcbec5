"""The [land] section: which stream is landed where, and how often."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from semel.settings import SECONDS, check, setting
from semel.store.settings import about_stream_name


@dataclass(frozen=True)
class LandSettings:
    """Landing: the messages of a stream into a Delta table, each once."""

    section: ClassVar[str] = "land"

    root: str | None = setting(
        None,
        "Where the segments are: a folder, or an object store such as s3://bucket/root. As it may "
        "have a key in it, it is never printed whole.",
    )
    stream: str = setting("all", "The stream that is landed.", rule=about_stream_name)
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

    def __post_init__(self) -> None:
        check(self)
