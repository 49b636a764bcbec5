"""The files of a table as deltalake itself describes them, for DuckDB."""

from typing import TYPE_CHECKING

from semel.pipeline.scanned_dataset import ScannedDataset

if TYPE_CHECKING:
    from deltalake import DeltaTable


def delta_dataset(table: "DeltaTable") -> ScannedDataset:
    """deltalake's own dataset, which opens files in Python, in a form that cannot deadlock."""
    found = table.to_pyarrow_dataset()
    return ScannedDataset(list(found.get_fragments()), found.schema, found.format, found.filesystem)
