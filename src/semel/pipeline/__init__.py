"""Spark: from streams to tables.

`session()` returns a SparkSession with `format("mqtt")` and `format("semel_delta")`: the active
one, or a new local one. `register(spark)` adds the two formats to any other session. Importing this
package imports neither pyspark nor anything else that is slow to import.
"""

# Not lazily, as in `semel`: a later import of the module `session` would replace the function.
from semel.pipeline.session import register, session

__all__ = ["register", "session"]
