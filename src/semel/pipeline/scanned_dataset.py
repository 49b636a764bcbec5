"""Datasets of files that Python opens, for DuckDB.

pyarrow's `Scanner.to_reader`, which DuckDB calls, starts a scan while it holds the interpreter
lock. If a thread of Arrow has the lock of that scan at this moment and needs the interpreter lock
to read a file, both wait forever. `Scanner.to_batches` does not hold the interpreter lock.
"""

from typing import Any

import pyarrow as pa
import pyarrow.dataset


class ScannedDataset(pyarrow.dataset.FileSystemDataset):  # type: ignore[misc]
    """A dataset that DuckDB can scan, whoever reads its files."""

    def scanner(self, *arguments: Any, **options: Any) -> "BatchScanner":
        return BatchScanner(super().scanner(*arguments, **options))


class BatchScanner:
    """A pyarrow Scanner with another `to_reader`."""

    def __init__(self, scanner: Any) -> None:
        self._scanner = scanner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scanner, name)

    def to_reader(self) -> Any:
        """A RecordBatchReader of all batches."""
        return pa.RecordBatchReader.from_batches(
            self._scanner.projected_schema, self._scanner.to_batches()
        )
