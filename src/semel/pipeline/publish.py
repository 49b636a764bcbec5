"""`df.writeStream.format("mqtt")` and `df.write.format("mqtt")`: rows become MQTT messages.

    executors    write(batches) ─▶ checked rows, in a message for the driver or in a file
    driver       commit(messages, batch) ─▶ outbox ─▶ broker; returns when all is acknowledged

Spark creates a new writer for each step, in its own processes, so a writer has no state except its
options. `abort` deletes nothing that a commit may have begun to send: Spark also calls it when
`commit` has failed, and the next attempt continues. The rows of tasks are not that: the commit has
its own copy, and the next attempt brings new ones.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from semel.pipeline.errors import OptionError
from semel.pipeline.publish_options import (
    PublishOptions,
    check_publish_columns,
    parse_publish_options,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from semel.pipeline.publish_rows import TaskRows

LOG: Final = logging.getLogger("semel.pipeline")


class PublishBatchWriter(DataSourceArrowWriter):
    """`df.write.format("mqtt").mode("append").save()`."""

    def __init__(self, options: Mapping[str, str], schema: "StructType", *, overwrite: bool):
        """Raises OptionError."""
        self.options = parse_publish_options(options, is_stream=False)
        check_publish_columns(schema, self.options)
        if overwrite:
            raise OptionError("a message that was sent cannot be overwritten: use mode append")

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> "TaskRows":
        return write_rows_of_task(self.options, iterator)

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        commit_rows(self.options, messages, 0)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        from semel.pipeline.publish_batch import discard_state

        abort_rows(messages)
        discard_state(self.options)


class PublishStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("mqtt")`."""

    def __init__(self, options: Mapping[str, str], schema: "StructType", *, overwrite: bool):
        """Raises OptionError."""
        self.options = parse_publish_options(options, is_stream=True)
        check_publish_columns(schema, self.options)
        if overwrite:
            raise OptionError(
                "output mode complete would send all rows again with each batch: use append or"
                " update"
            )

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> "TaskRows":
        return write_rows_of_task(self.options, iterator)

    def commit(
        self,
        messages: "list[WriterCommitMessage | None]",
        batchId: int,  # noqa: N803
    ) -> None:
        commit_rows(self.options, messages, batchId)

    def abort(
        self,
        messages: "list[WriterCommitMessage | None]",
        batchId: int,  # noqa: N803
    ) -> None:
        abort_rows(messages)


def write_rows_of_task(options: PublishOptions, batches: "Iterator[pa.RecordBatch]") -> "TaskRows":
    """Check and keep the rows of a task. Raises PipelineError."""
    # Here and below: pyarrow and deltalake are slow to import, and planning needs neither.
    from semel.pipeline.publish_rows import write_task_rows

    return write_task_rows(
        batches,
        options.task_folder,
        default_qos=options.qos,
        keeps_invalid=options.failures is not None,
        limits=options.chunks,
    )


def commit_rows(
    options: PublishOptions, messages: "list[WriterCommitMessage | None]", batch: int
) -> None:
    """Publish the rows of all tasks. Raises PipelineError."""
    from semel.pipeline.publish_batch import publish_batch

    if not LOG.hasHandlers():
        # A process of Spark that runs only this commit: its standard error is the driver's.
        LOG.addHandler(logging.StreamHandler())
        LOG.setLevel(logging.INFO)
    publish_batch(options, rows_of_tasks(messages), batch)


def abort_rows(messages: "list[WriterCommitMessage | None]") -> None:
    """Delete the rows of the tasks that have succeeded."""
    from semel.pipeline.publish_batch import discard_task_rows

    discard_task_rows(rows_of_tasks(messages))


def rows_of_tasks(messages: "list[WriterCommitMessage | None]") -> "list[TaskRows]":
    """The rows of the tasks that have succeeded."""
    from semel.pipeline.publish_rows import TaskRows

    return [each for each in messages if isinstance(each, TaskRows)]
