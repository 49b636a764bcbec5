"""Aggregates of a stream into a table: each batch replaces the rows that have its keys.

Spark 4.3 does not offer the output mode `update` to a sink in Python, but to `foreachBatch`:

    totals.writeStream.outputMode("update").foreachBatch(
        upsert("lake/totals", key="device", app_id="totals"))
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from semel.pipeline.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def upsert(
    path: str,
    *,
    key: str | Sequence[str],
    app_id: str,
    partition_by: str | Sequence[str] = (),
    merge_schema: bool = False,
) -> "Callable[[DataFrame, int], None]":
    """A function for `foreachBatch` that replaces the rows of a table by their keys.

    Each batch is committed once: `app_id` identifies the query in the table. Change it together
    with the checkpoint of the query, because a new checkpoint numbers batches from 0. Raises
    OptionError if `key` or `app_id` is empty.
    """
    if not _joined(key).strip(" ,"):
        raise OptionError("upsert: key is empty: give the columns by which rows are replaced")
    if not app_id:
        raise OptionError("upsert: app_id is empty: give a name that is unique in the table")

    def write(rows: "DataFrame", batch: int) -> None:
        (
            rows.write.format("semel_delta")
            .mode("append")
            .option("key", _joined(key))
            .option("partitionBy", _joined(partition_by))
            .option("mergeSchema", "true" if merge_schema else "false")
            .option("appId", app_id)
            .option("batch", str(batch))
            .save(path)
        )

    return write


def _joined(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ",".join(names)
