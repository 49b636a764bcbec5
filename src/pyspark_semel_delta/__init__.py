"""`format("semel_delta")` for every Spark session of this environment, without registration.

When a session first uses a Python data source, PySpark imports each top-level module whose name
begins with `pyspark_`, and takes the class `DefaultSource` from it. This happens even if nobody
uses this format, and one module that fails disables the formats of all others. So this module
imports only pyspark; what the format needs is imported when it is used.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from semel.pipeline.sink import DeltaSink


class DefaultSource(DataSource):
    """The class that Spark finds; it constructs a `DeltaSink`."""

    def __new__(cls, options: dict[str, str]) -> "DeltaSink":  # type: ignore[misc]
        from semel.extras import MissingExtra, need
        from semel.pipeline.errors import PipelineError

        try:
            for package in ("deltalake", "pyarrow"):
                need(package, extra="spark", by='format("semel_delta")')
        except MissingExtra as problem:
            raise PipelineError(str(problem)) from None
        from semel.pipeline.sink import DeltaSink

        return DeltaSink(options)

    @classmethod
    def name(cls) -> str:
        return "semel_delta"
