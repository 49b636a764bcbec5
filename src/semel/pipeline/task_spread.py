"""Runs independent tasks on a Spark cluster: each is a text in, and a text out."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


def run_spread(spark: "SparkSession", tasks: Sequence[str], run: Callable[[str], str]) -> list[str]:
    """The results of `run(task)` for all tasks, in their order, each computed by a Spark task.

    `run` is a function of a module that the executors have, and must not raise: an exception ends
    the job after Spark has repeated the task.
    """

    def run_rows(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow

        for batch in batches:
            for row in batch.to_pylist():
                result = {"position": row["position"], "result": run(row["task"])}
                yield pyarrow.RecordBatch.from_pylist([result])

    # A partition per task, so that no executor waits for two while another has none.
    rows = spark.sparkContext.parallelize(list(enumerate(tasks)), max(1, len(tasks)))
    frame = spark.createDataFrame(rows, "position long, task string")
    found = frame.mapInArrow(run_rows, "position long, result string").collect()
    by_position = {int(row["position"]): str(row["result"]) for row in found}
    return [by_position[position] for position in range(len(tasks))]
