"""Delta tables read by Spark's own Parquet reader, with its column pruning and filter pushdown.

delta-rs says which files a version has, and Spark reads them. That is only possible if Spark can
open them, which it can in a local folder or one that all machines mount, and if the folders of the
partitions are named as Hive names them, because Spark takes the values from there. Any other table
is read by `format("semel_delta")`, with the same rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from semel.pipeline.lake_address import local_folder, table_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semel.pipeline.table_reading import TableFile

# Characters of a path that Spark takes for a pattern.
PATTERN: Final = frozenset("*?[]{}\\")
# The number of paths from which on a job of Spark looks at the files.
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"


def read_table(
    spark: "SparkSession",
    path: str,
    *,
    version: int | None = None,
    timestamp: datetime | None = None,
    filters: Sequence[Any] = (),
) -> "DataFrame":
    """A version of a Delta table as a DataFrame: the current one, or as of a version or a time.

    `filters` are comparisons such as `("date", ">=", "2026-03-01")` that must all be true, or lists
    of these, of which one must be: files without such rows are not even opened. Raises TableError
    and OptionError.
    """
    # These import pyspark and deltalake.
    from semel.pipeline.table_filters import bind_filters, filters_as_text
    from semel.pipeline.table_options import parse_table_options
    from semel.pipeline.table_reading import live_files, open_version, schema_of

    given = {"path": path, "filters": filters_as_text(filters)}
    if version is not None:
        given["version"] = str(version)
    if timestamp is not None:
        given["timestamp"] = timestamp.isoformat()
    options = parse_table_options(given)
    table = open_version(options)
    bound = bind_filters(options.filters, schema_of(table))
    files = live_files(table, bound)
    folder = local_folder(options.path)
    if folder is None or not all(is_native(each) for each in files) or PATTERN & set(str(folder)):
        # The same version, even if another one is committed meanwhile.
        chosen = {**given, "path": options.path, "version": str(table.version())}
        chosen.pop("timestamp", None)
        return spark.read.format("semel_delta").options(**chosen).load()
    if not files:
        return spark.createDataFrame([], schema_of(table))
    with _listed_by_driver(spark):
        reader = spark.read.schema(schema_of(table)).option("basePath", str(folder))
        frame = reader.parquet(*(str(folder / each.path) for each in files))
    return frame if bound is None else frame.where(bound.condition())


@contextmanager
def _listed_by_driver(spark: "SparkSession") -> Iterator[None]:
    """During the block, the driver itself looks at files, however many there are.

    Spark would run a job with a task for each of them, which takes seconds for a year of days.
    """
    before = spark.conf.get(_LISTING)
    spark.conf.set(_LISTING, str(2**31 - 1))
    try:
        yield
    finally:
        spark.conf.set(_LISTING, before or "32")


def register_tables(spark: "SparkSession", lake: str) -> list[str]:
    """Make each table of a lake a temporary view with its name. Returns the names.

    A view is the version that was current then: call this again for later rows.
    """
    from semel.pipeline.lake import table_names

    names = table_names(lake)
    for name in names:
        frame = read_table(spark, table_address(lake, name))
        escaped = name.replace("`", "``")
        frame.createOrReplaceTempView(f"`{escaped}`")
    return names


def is_native(file: "TableFile") -> bool:
    """Whether Spark finds the values of the partition columns in the path of a file."""
    if PATTERN & set(file.path):
        return False
    *folders, _ = file.path.split("/")
    expected = [f"{name}={_text(value)}" for name, value in file.partition.items()]
    return [unquote(each) for each in folders] == expected


def _text(value: Any) -> str | None:
    """A value of a partition as Hive writes it; None for types that have several forms."""
    if value is None:
        return "__HIVE_DEFAULT_PARTITION__"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return None
    return str(value) if isinstance(value, (str, int, date)) else None
