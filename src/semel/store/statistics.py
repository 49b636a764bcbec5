"""What a store measures: its commits and transactions, and the sealing of its streams."""

from dataclasses import dataclass
from typing import Final

from semel.metrics.families import LATENCY_BOUNDS, Histogram, HistogramValue

# Upper bounds of buckets, in commits and in rows per transaction.
GROUP_BOUNDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
ROW_BOUNDS: Final = (1, 10, 100, 1_000, 10_000, 100_000)


class TransactionTimes:
    """The transactions of a writer. Its thread observes; others read."""

    def __init__(self) -> None:
        self.seconds = Histogram(LATENCY_BOUNDS)
        self.commits = Histogram(GROUP_BOUNDS)
        self.rows = Histogram(ROW_BOUNDS)

    def observe(self, seconds: float, *, commits: int, rows: int) -> None:
        """Note a transaction that is on disk."""
        self.seconds.observe(seconds)
        self.commits.observe(commits)
        self.rows.observe(rows)


@dataclass(frozen=True)
class StreamSealing:
    """How far one stream is sealed."""

    stream: str
    sealed_seq: int
    unsealed_rows: int
    # The age of the oldest unsealed row; 0.0 if all are sealed.
    oldest_seconds: float


@dataclass(frozen=True)
class StoreStatistics:
    """The numbers of a store at one time."""

    # From the end of a tick until its commit is on disk, as the loop sees it.
    commit_seconds: HistogramValue
    transaction_seconds: HistogramValue
    transaction_commits: HistogramValue
    transaction_rows: HistogramValue
    unwritten_bytes: int
    # Of all streams.
    unsealed_bytes: int
    streams: tuple[StreamSealing, ...]
    # None: no stream is configured, so that there is no sealer.
    is_sealer_running: bool | None
