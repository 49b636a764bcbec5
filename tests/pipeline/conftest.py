"""The address of a table, and one Spark session for all tests of a process: it starts slowly."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semel.pipeline import session
from semel.pipeline.session import close

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Where a table may be created."""
    return str(tmp_path / "lake" / "messages")


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """A local session on two cores. It is everybody's: leave no query and no setting behind."""
    made = session(
        "tests",
        master="local[2]",
        settings={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
    )
    yield made
    for query in made.streams.active:
        query.stop()
    close(made)
