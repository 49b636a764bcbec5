"""Tasks on Spark: each result once, in the order of the tasks, whichever executor made it."""

from typing import TYPE_CHECKING

import pytest

from semel.pipeline.errors import PipelineError
from semel.pipeline.task_spread import run_spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shout(task: str) -> str:
    return task.upper()


def test_results_are_in_the_order_of_the_tasks(spark: "SparkSession") -> None:
    tasks = [f"task {number} äöü\n" for number in range(7)]
    assert run_spread(spark, tasks, shout) == [shout(task) for task in tasks]


def test_no_tasks_have_no_results(spark: "SparkSession") -> None:
    assert run_spread(spark, [], shout) == []


def fail(task: str) -> str:
    raise ModuleNotFoundError(f"No module named '{task}'")


def test_a_task_that_cannot_be_run_is_one_sentence(spark: "SparkSession") -> None:
    with pytest.raises(PipelineError) as caught:
        run_spread(spark, ["semel"], fail)
    assert str(caught.value) == (
        "Spark could not run the tasks: ModuleNotFoundError: No module named 'semel'"
    )
