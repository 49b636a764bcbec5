"""Publishes the rows of one batch, each once, whatever process is killed meanwhile.

    the state folder
        tasks/…         rows of tasks that are too large for a commit message
        batches/…       the chunks of the batch that is being sent
        outbox/         the outbox of `semel.client`, with metadata about the batch

    file of chunks, synced ─▶ for each chunk one transaction: its messages, and "chunk k of batch n
                              is in the outbox" ─▶ acknowledged ─▶ failures reported ─▶ next chunk
                              ─▶ "batch n is sent" ─▶ file deleted

The first transaction decides which rows are the batch: a repeated attempt finds it open, ignores
the rows that its own tasks bring, and continues. A batch that is sent is not sent again. Nothing
else is needed: what happens to a message between outbox and server is the client's exactly-once
exchange.
"""

import asyncio
import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from semel.client.address import Address
from semel.client.outbox import OtherClientId, Outbox, open_outbox
from semel.counts import count
from semel.pipeline.errors import PipelineError
from semel.pipeline.publish_delivery import REFUSED, OutboxDelivery, Refusal
from semel.pipeline.publish_failures import FailedRow, report_failures
from semel.pipeline.publish_options import BrokerAccess, PublishOptions, broker_access
from semel.pipeline.publish_rows import (
    ChunkFile,
    TaskRows,
    batches_of,
    check_file,
    message_of,
    row_name,
    write_chunks,
)
from semel.store.schema import StoreInUse, Unusable

LOG: Final = logging.getLogger("semel.pipeline")

# Names in the metadata of the outbox: the batch that is being sent ("": none), and what was sent
# last, by query.
OPEN_BATCH: Final = "publish:batch"
QUERY: Final = "publish:query:"
# Seconds between two attempts to open an outbox that another process uses.
IN_USE_SECONDS: Final = 0.1


@dataclass(frozen=True)
class OpenBatch:
    """The batch that is being sent, as the outbox has it."""

    query: str
    batch: int
    # The file of its chunks.
    file: str
    # The chunk that is in the outbox, the number of its first message, and the rows of it that were
    # put there; None: all that can be sent.
    chunk: int
    first_number: int
    rows: list[int] | None
    # Whether its QoS 0 messages were sent, or may have been.
    is_qos_0_sent: bool
    # Increases with each chunk of the query: identifies the rows of it that failed.
    report: int
    # When the driver had the rows, in seconds since 1970: the expiry of messages counts from then.
    # None: an earlier version has begun the batch, and it counts from when a chunk is sent.
    received_at: float | None = None
    # The address of its broker; None: an earlier version has begun the batch.
    broker: str | None = None
    # Whether the outbox remembers that it was sent. It does not if it has no name to repeat it by.
    is_remembered: bool = True
    # The CRC-32 of its file; None: an earlier version has begun the batch.
    checksum: int | None = None


@dataclass(frozen=True)
class SentBatch:
    """The last batch of a query that was sent, and its last report."""

    batch: int = -1
    report: int = 0


def publish_batch(options: PublishOptions, messages: Sequence[TaskRows], batch: int) -> None:
    """Publish the rows of a batch. Returns when each is acknowledged, or is in the failures table.

    Raises PipelineError.
    """
    try:
        query = options.query()
        has_rows = any(message.count for message in messages)
        if has_rows or (options.state / "outbox").exists():
            access = broker_access(options)
            outbox = open_state(options)
            try:
                asyncio.run(_publish(options, access, outbox, messages, (query, batch)))
            finally:
                outbox.opened.close()
    except Unusable as problem:
        raise PipelineError(f"the state of this query cannot be used: {problem}") from problem
    except OSError as problem:
        raise PipelineError(
            f"the state folder {options.state} cannot be used: {problem.strerror or problem}"
        ) from problem
    finally:
        # Not the whole folder: if a new driver repeats the batch already, its files are there, too.
        discard_task_rows(messages)
        if options.is_temporary:
            discard_state(options)
    # Spark uses none of them again: a repeated batch has new ones.
    shutil.rmtree(options.task_folder, ignore_errors=True)


def discard_state(options: PublishOptions) -> None:
    """Delete the state of a write that is not remembered."""
    if options.is_temporary:
        shutil.rmtree(options.state, ignore_errors=True)


def discard_task_rows(messages: Sequence[TaskRows]) -> None:
    """Delete the files of tasks. Spark gives no attempt the rows of another."""
    for message in messages:
        if message.path is not None:
            with suppress(OSError):
                os.unlink(message.path)


def open_state(options: PublishOptions) -> Outbox:
    """Open the outbox. Raises Unusable and OSError.

    After a kill of Spark's driver, its last commit may still run for a moment: wait for that.
    """
    (options.state / "batches").mkdir(mode=0o700, parents=True, exist_ok=True)
    path = options.state / "outbox"
    end = time.monotonic() + options.timeout
    while True:
        try:
            return open_outbox(path, options.new_client_id())
        except OtherClientId as problem:
            if options.connection.get("client_id"):
                raise PipelineError(
                    f"option clientId: {path} belongs to the client {problem.client_id!r}: use that"
                    " client identifier, or another folder for option state"
                ) from None
            return open_outbox(path, problem.client_id)
        except StoreInUse:
            if time.monotonic() >= end:
                raise
            time.sleep(IN_USE_SECONDS)


async def _publish(
    options: PublishOptions,
    access: BrokerAccess,
    outbox: Outbox,
    messages: Sequence[TaskRows],
    batch: tuple[str, int],
) -> None:
    publisher = BatchPublisher(options, outbox, access.address)
    if publisher.open_batch is None and publisher.is_sent(*batch):
        return
    async with OutboxDelivery(options, access, outbox) as delivery:
        await publisher.publish(delivery, messages, *batch)


class BatchPublisher:
    """Sends one batch, after an earlier one that was not finished."""

    def __init__(self, options: PublishOptions, outbox: Outbox, address: Address) -> None:
        """Reads what the outbox has. Raises Unusable."""
        self._options = options
        self._broker = str(replace(address, user_name=None, password=None))
        self._folder = options.state / "batches"
        database = outbox.opened.store.reader
        self._metadata = database.get_metadata
        self._outbox_id = database.unique_id()
        found = self._metadata(OPEN_BATCH)
        self.open_batch = OpenBatch(**json.loads(found)) if found else None
        refused: dict[str, list[Any]] = json.loads(self._metadata(REFUSED) or "{}")
        self._refused: dict[int, Refusal] = {
            int(row): (code, text) for row, (code, text) in refused.items()
        }
        self._delete_orphans()

    def _delete_orphans(self) -> None:
        for path in self._folder.iterdir():
            if self.open_batch is None or path.name != self.open_batch.file:
                path.unlink()

    def _sent(self, query: str) -> SentBatch | None:
        found = self._metadata(QUERY + query)
        return None if found is None else SentBatch(**json.loads(found))

    def is_sent(self, query: str, batch: int) -> bool:
        """Whether a batch was sent. Raises PipelineError if Spark cannot be repeating it."""
        sent = self._sent(query)
        if sent is None or batch > sent.batch:
            return False
        if batch < sent.batch:
            # Spark repeats its last batch only. An earlier number has other rows.
            raise PipelineError(
                f"{batch_name(query, batch)} follows batch {sent.batch}, which was sent before: the"
                " checkpoint of the query was deleted, or restored from an older copy. Nothing of"
                " this batch was sent, because some of its rows may have been; to send all of"
                " them, give option appId with a new name"
            )
        LOG.warning("%s was sent before: nothing is sent again", batch_name(query, batch))
        return True

    async def publish(
        self, delivery: OutboxDelivery, messages: Sequence[TaskRows], query: str, batch: int
    ) -> None:
        """Send a batch, unless it was sent. Raises PipelineError."""
        opened = self.open_batch
        if opened is not None and (opened.query, opened.batch) != (query, batch):
            self._check_broker(opened, query)
            LOG.warning(
                "%s was not sent completely: it is finished before %s",
                batch_name(opened.query, opened.batch),
                batch_name(query, batch),
            )
            await self._finish(delivery, opened)
            opened = None
            if self.is_sent(query, batch):
                return
        if opened is None:
            opened = await self._begin(messages, query, batch, delivery.now())
        if opened is not None:
            await self._finish(delivery, opened)

    def _check_broker(self, opened: OpenBatch, query: str) -> None:
        """Raise PipelineError if an unfinished batch of another query has another broker.

        The broker of one query may move.
        """
        if opened.query != query and opened.broker not in (None, self._broker):
            raise PipelineError(
                f"{self._options.state} has rows of {batch_name(opened.query, opened.batch)} that"
                f" were not sent to {opened.broker} yet, so it cannot be used for {self._broker}:"
                " repeat that write first, or give another folder with option state"
            )

    async def _begin(
        self, messages: Sequence[TaskRows], query: str, batch: int, received_at: float
    ) -> OpenBatch | None:
        """Keep the rows of a new batch in a file. Returns None if it has none."""
        if not any(message.count for message in messages):
            return None
        sent = self._sent(query)
        if sent is None:
            sent = SentBatch()
            if batch > 0:
                LOG.warning(
                    "%s has nothing about the batches before %s: if the folder was lost, rows of"
                    " this batch may be sent twice",
                    self._options.state,
                    batch_name(query, batch),
                )
        path = self._folder / f"{os.urandom(12).hex()}.arrow"
        try:
            checksum = await asyncio.to_thread(
                write_chunks, batches_of(messages), path, self._options.chunks
            )
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        return OpenBatch(
            query,
            batch,
            file=path.name,
            chunk=-1,
            first_number=0,
            rows=None,
            is_qos_0_sent=False,
            report=sent.report,
            received_at=received_at,
            broker=self._broker,
            is_remembered=self._options.is_named,
            checksum=checksum,
        )

    # --- chunks -----------------------------------------------------------------------------------

    async def _finish(self, delivery: OutboxDelivery, opened: OpenBatch) -> None:
        """Send what is left of a batch. Raises PipelineError."""
        path = self._folder / opened.file
        delivery.name = batch_name(opened.query, opened.batch)
        chunks = open_chunks(path, opened)
        try:
            if opened.chunk >= 0:
                rows = chunks.rows(opened.chunk)
                delivery.resume(number_rows(opened, rows), self._refused)
                await self._finish_chunk(delivery, opened, rows, is_resumed=True)
            while opened.chunk + 1 < chunks.chunks:
                opened = replace(
                    opened,
                    chunk=opened.chunk + 1,
                    rows=None,
                    is_qos_0_sent=False,
                    report=opened.report + 1,
                )
                rows = chunks.rows(opened.chunk)
                opened = await self._put(delivery, opened, rows)
                await self._finish_chunk(delivery, opened, rows, is_resumed=False)
        finally:
            chunks.close()
        changes = [(OPEN_BATCH, "")]
        if opened.is_remembered:
            sent = SentBatch(opened.batch, opened.report)
            changes.append((QUERY + opened.query, json.dumps(asdict(sent))))
        await delivery.record(changes)
        path.unlink(missing_ok=True)
        self.open_batch = None
        if delivery.expired:
            LOG.warning(
                "%s: %d messages expired before they could be sent",
                delivery.name,
                delivery.expired,
            )

    async def _put(
        self, delivery: OutboxDelivery, opened: OpenBatch, rows: Sequence[dict[str, Any]]
    ) -> OpenBatch:
        """Put the rows of a chunk into the outbox, except those of QoS 0."""
        opened = replace(opened, first_number=delivery.next_number)
        at = received_at(delivery, opened)
        messages = [
            (row["row"], message_of(row, at)) for row in sendable(opened, rows) if row["qos"]
        ]
        await delivery.put(messages, [(OPEN_BATCH, json.dumps(asdict(opened)))])
        return opened

    async def _finish_chunk(
        self,
        delivery: OutboxDelivery,
        opened: OpenBatch,
        rows: Sequence[dict[str, Any]],
        *,
        is_resumed: bool,
    ) -> None:
        """Wait until a chunk is sent, and report the rows of it that failed."""
        await self._send(delivery, opened, rows)
        failures = self._options.failures
        if delivery.refused and failures is None and is_resumed:
            # The server has not taken these, and may take them now: the query was restarted.
            opened = replace(opened, rows=sorted(delivery.refused), is_qos_0_sent=False)
            opened = await self._put(delivery, opened, rows)
            await self._send(delivery, opened, rows)
        failed = []
        for row in rows:
            if row["problem"] is not None:
                failed.append(FailedRow(row, row["problem"]))
            elif row["row"] in delivery.refused:
                code, reason = delivery.refused[row["row"]]
                failed.append(FailedRow(row, reason, code))
        if not failed:
            return
        if failures is None:
            first = failed[0]
            raise PipelineError(
                f"{row_name(first.row['row'], first.row['topic'])} of {delivery.name} was not sent:"
                f" {first.reason.rstrip('.')}. {len(failed)} of {count(len(rows), 'row')} of this"
                " part were not; the others were. A restart tries these again; to go on without"
                " them, collect them in a table with option failures"
            )
        LOG.warning(
            "%s: %d rows cannot be sent, the first because: %s",
            delivery.name,
            len(failed),
            failed[0].reason,
        )
        await asyncio.to_thread(
            report_failures,
            failures,
            failed,
            query=opened.query,
            batch=opened.batch,
            report=(f"{opened.query}/{self._outbox_id}", opened.report),
        )

    async def _send(
        self, delivery: OutboxDelivery, opened: OpenBatch, rows: Sequence[dict[str, Any]]
    ) -> None:
        """Wait until all messages in the outbox are acknowledged, and send those of QoS 0."""
        at = received_at(delivery, opened)
        unacknowledged = [
            (row["row"], message_of(row, at)) for row in sendable(opened, rows) if not row["qos"]
        ]
        if unacknowledged and not opened.is_qos_0_sent:
            await delivery.until_connected()
            # At most once: written before they are sent.
            opened = replace(opened, is_qos_0_sent=True)
            await delivery.record([(OPEN_BATCH, json.dumps(asdict(opened)))])
            await delivery.send_unacknowledged(unacknowledged)
        await delivery.until_acknowledged()


def received_at(delivery: OutboxDelivery, opened: OpenBatch) -> float:
    """The time from which the expiry of the messages of a batch counts."""
    return delivery.now() if opened.received_at is None else opened.received_at


def sendable(opened: OpenBatch, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a chunk that are sent."""
    chosen = None if opened.rows is None else set(opened.rows)
    return [
        row for row in rows if row["problem"] is None and (chosen is None or row["row"] in chosen)
    ]


def number_rows(opened: OpenBatch, rows: Sequence[dict[str, Any]]) -> dict[int, int]:
    """The rows of the messages that an earlier process has put into the outbox, by number."""
    put = [row["row"] for row in sendable(opened, rows) if row["qos"]]
    return dict(enumerate(put, opened.first_number))


def open_chunks(path: Path, opened: OpenBatch) -> ChunkFile:
    """Open the file of an open batch. Raises PipelineError."""
    try:
        if opened.checksum is not None:
            check_file(path, opened.checksum)
        return ChunkFile(path)
    except (OSError, pa.ArrowInvalid) as problem:
        raise PipelineError(
            f"the rows of {batch_name(opened.query, opened.batch)}, which was not sent completely,"
            f" cannot be read: {problem}; restore {path}, or delete {path.parent.parent} to send"
            " the whole batch again"
        ) from problem


def batch_name(query: str, batch: int) -> str:
    """A batch in a sentence."""
    return query if query.startswith("batch ") else f"batch {batch} of query {query}"
