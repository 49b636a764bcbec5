"""Spark: messages from streams into tables.

`session()` gives a SparkSession that knows `format("mqtt")` and `format("semel_delta")`: the one
that is active, or else a quiet local one. `register(spark)` makes the two formats known to any
other session. Importing this package imports neither pyspark nor anything else that is heavy.
"""

# Not when asked for, as `semel` lends its names: there is a module called `session` too, and
# importing that later would put it in the place of the function.
from semel.pipeline.session import register, session

__all__ = ["register", "session"]
