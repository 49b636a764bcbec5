"""`format("mqtt")` for every Spark session of this environment, without a registration.

PySpark imports each top-level module whose name begins with `pyspark_` when a session uses a data
source written in Python for the first time, and takes the class `DefaultSource` from it. That
happens also to people who never use this format, and one module that fails takes the formats of
all others away: so this one imports nothing but pyspark, and what the format needs is imported,
or missed, when somebody uses it.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from semel.pipeline.source import MqttSource


class DefaultSource(DataSource):
    """The name under which Spark knows the format; what it constructs is `MqttSource`."""

    def __new__(cls, options: dict[str, str]) -> "MqttSource":  # type: ignore[misc]
        from semel.extras import MissingExtra, need
        from semel.pipeline.errors import PipelineError

        try:
            need("pyarrow", extra="spark", by='format("mqtt")')
        except MissingExtra as problem:
            raise PipelineError(str(problem)) from None
        from semel.pipeline.source import MqttSource

        return MqttSource(options)

    @classmethod
    def name(cls) -> str:
        return "mqtt"
