"""Runs independent tasks on a Spark cluster: each is a text in, and a text out."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from semel.pipeline.errors import PipelineError
from semel.pipeline.landing_errors import first_line

# The last line of a traceback of a Python worker; names of Java have dots.
_OF_PYTHON: Final = re.compile(r"^\s*([A-Za-z_]*(?:Error|Exception): .+?)\s*$", re.MULTILINE)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


def run_spread(spark: "SparkSession", tasks: Sequence[str], run: Callable[[str], str]) -> list[str]:
    """The results of `run(task)` for all tasks, in their order, each computed by a Spark task.

    `run` is a function of a module that the executors have, and must not raise: an exception ends
    the job after Spark has repeated the task. Raises PipelineError if Spark cannot run them.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    def run_rows(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow

        for batch in batches:
            for row in batch.to_pylist():
                result = {"position": row["position"], "result": run(row["task"])}
                yield pyarrow.RecordBatch.from_pylist([result])

    # A partition per task, so that no executor waits for two while another has none.
    rows = spark.sparkContext.parallelize(list(enumerate(tasks)), max(1, len(tasks)))
    frame = spark.createDataFrame(rows, "position long, task string")
    try:
        found = frame.mapInArrow(run_rows, "position long, result string").collect()
    except (PySparkException, Py4JError, ConnectionError, EOFError) as problem:
        of_python = _OF_PYTHON.search(str(problem))
        why = first_line(str(problem)) if of_python is None else of_python[1]
        raise PipelineError(f"Spark could not run the tasks: {why}") from problem
    by_position = {int(row["position"]): str(row["result"]) for row in found}
    return [by_position[position] for position in range(len(tasks))]
