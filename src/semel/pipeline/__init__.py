"""Spark: from streams to tables.

`session()` returns a SparkSession with `format("mqtt")` and `format("semel_delta")`: the active
one, or a new local one. `register(spark)` adds the two formats to any other session.
`read_table(spark, path)` is a Delta table as a DataFrame, and `register_tables(spark, lake)` makes
views of all tables of a lake. `upsert(path, key=…, app_id=…)` writes aggregates of a stream by
`foreachBatch`. Importing this package imports neither pyspark nor anything else that is slow to
import.
"""

# Not lazily, as in `semel`: a later import of the module `session` would replace the function.
from semel.pipeline.foreach_batch import upsert
from semel.pipeline.native_table import read_table, register_tables
from semel.pipeline.session import register, session

__all__ = ["read_table", "register", "register_tables", "session", "upsert"]
