"""Delta tables read by Spark's own Parquet reader, with its column pruning and filter pushdown.

delta-rs says which files a version has, and Spark reads them. That is only possible if Spark can
open them, which it can in a local folder or one that all machines mount, and if the folders of the
partitions are named as Hive names them, because Spark takes the values from there: it decodes `%XX`
as one character, so that other than ASCII is lost if it is encoded. Spark also skips files whose
names begin with `_` or `.`. Any other table is read by `format("semel_delta")`, with the same rows
and columns.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from semel.pipeline.errors import PipelineError, TableError
from semel.pipeline.lake_address import local_folder, table_address
from semel.pipeline.spark_names import quoted_name
from semel.store.roots import without_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from semel.pipeline.table_reading import TableFile

LOG: Final = logging.getLogger("semel.pipeline")

# Characters of a path that Spark takes for a pattern.
PATTERN: Final = frozenset("*?[]{}\\")
# The number of paths from which on a job of Spark looks at the files.
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ENCODED: Final = re.compile("%([0-9a-fA-F]{2})")


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
    schema = schema_of(table)
    bound = bind_filters(options.filters, schema)
    files = live_files(table, bound)
    folder = local_folder(options.path)
    if folder is None or not all(is_native(each) for each in files) or PATTERN & set(str(folder)):
        # The same version, even if another one is committed meanwhile.
        chosen = {**given, "path": options.path, "version": str(table.version())}
        chosen.pop("timestamp", None)
        return spark.read.format("semel_delta").options(**chosen).load()
    if not files:
        return spark.createDataFrame([], schema)
    # Spark would name neither the table nor the version.
    for each in files:
        if not (folder / each.path).exists():
            raise TableError(
                f"{without_secrets(options.path)}: {each.path}, which version {table.version()}"
                " needs, is missing; a vacuum deletes the files of older versions: read a newer one"
            )
    with _listed_by_driver(spark):
        reader = spark.read.schema(schema).option("basePath", str(folder))
        found = reader.parquet(*(str(folder / each.path) for each in files))
    if bound is not None:
        found = found.where(bound.condition())
    # Spark puts the columns of the partitions last.
    return found.select(*map(quoted_name, schema.names))


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

    A view is the version that was current then: call this again for later rows. A table that cannot
    be read gets no view, and nor do tables whose names differ only in case, which are one name in
    SQL; each is logged as a warning.
    """
    from semel.pipeline.lake import table_names

    names = table_names(lake)
    registered = []
    for name in names:
        same = [each for each in names if each.lower() == name.lower()]
        try:
            if len(same) > 1:
                raise TableError(
                    f"{' and '.join(same)} are the same name in SQL: rename the folder of one of"
                    " them"
                )
            frame = read_table(spark, table_address(lake, name))
        except PipelineError as problem:
            LOG.warning("table %s has no view: %s", name, problem)
            # One of an earlier call would have old rows.
            spark.catalog.dropTempView(name)
            continue
        frame.createOrReplaceTempView(quoted_name(name))
        registered.append(name)
    return registered


def is_native(file: "TableFile") -> bool:
    """Whether Spark finds a file, and the values of the partition columns in its path."""
    *folders, name = file.path.split("/")
    if PATTERN & set(file.path) or name.startswith(("_", ".")):
        return False
    expected = [f"{name}={_text(value)}" for name, value in file.partition.items()]
    return [_decoded(each) for each in folders] == expected


def _decoded(folder: str) -> str:
    """The name of a folder as Spark decodes it."""
    return _ENCODED.sub(lambda found: chr(int(found[1], 16)), folder)


def _text(value: Any) -> str | None:
    """A value of a partition as Hive writes it; None for what has several forms, or none."""
    if value is None:
        return _NULL
    if value == _NULL:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return None
    return str(value) if isinstance(value, (str, int, date)) else None
