"""Temperatures of the factory, as a Delta table, as a table of Spark, and as a view of the latter.

The messages are those of examples/factory/simulate.py, in the record of the stream `all`.
"""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions

spark = SparkSession.active()

# The processes of Spark have other working directories.
HOME = Path(__file__).resolve().parent.parent
ROOT = str(HOME / "semel-data" / "streams")
STREAM = "all"


def readings() -> DataFrame:
    """A row for each reading, with the number of its message. Other messages are left out."""
    messages = (
        spark.readStream.format("mqtt")
        .option("root", ROOT)
        .option("stream", STREAM)
        .option("columns", "node,seq,topic,payload")
        .load()
    )
    return (
        messages.where("topic like 'factory/%/%/temperature'")
        .selectExpr(
            "node",
            "seq",
            "split(topic, '/') as level",
            "from_json(cast(payload as string), 'celsius DOUBLE, at TIMESTAMP') as reading",
        )
        .where("reading.celsius is not null and reading.at is not null")
        .selectExpr(
            "node",
            "seq",
            "level[1] as hall",
            "cast(level[2] as int) as press",
            "reading.celsius",
            "reading.at",
        )
    )


# A Delta table. It remembers which messages it has, so that a full refresh adds none twice.
dp.create_sink(
    "lake_temperature",
    format="semel_delta",
    options={
        "path": str(HOME / "lake" / "temperature"),
        "stream": STREAM,
        "root": ROOT,
        "coverage": "offsets",
    },
)


@dp.append_flow(target="lake_temperature")
def land_temperature() -> DataFrame:
    return readings()


# A table of Spark's catalog, as Parquet. A full refresh deletes it and reads the record again.
@dp.table(format="parquet")
def temperature() -> DataFrame:
    return readings()


# Computed anew in each run, after `temperature`.
@dp.materialized_view
def hottest() -> DataFrame:
    return (
        spark.read.table("temperature")
        .groupBy("hall", "press")
        .agg(functions.max("celsius").alias("celsius"), functions.count("*").alias("readings"))
    )
