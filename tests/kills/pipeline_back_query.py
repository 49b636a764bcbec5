"""A Spark query that publishes each message of a record as an alert: the program that is killed.

    python -m tests.kills.pipeline_back_query ROOT CHECKPOINT URL RATE [--once]

It prints a line of JSON when the query runs, and for each batch.
"""

import json
import logging
import sys
import time

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from semel.pipeline import session
from semel.pipeline.session import close

BATCH_ROWS = "200"


def say(event: str) -> None:
    print(json.dumps({"event": event}), flush=True)


def main(root: str, checkpoint: str, url: str, rate: str, *flags: str) -> None:
    # py4j logs a traceback, also by the root logger, when Java is killed.
    logging.disable()
    spark = session("way back", master="local[2]")
    messages = spark.readStream.format("mqtt").options(root=root, maxRowsPerBatch=BATCH_ROWS).load()
    alerts = messages.selectExpr(
        "concat('alerts/', node) as topic", "concat(node, ' ', seq) as payload"
    )
    writer = alerts.writeStream.format("mqtt").options(
        url=url, maxRate=rate, checkpointLocation=checkpoint
    )
    trigger = (
        {"availableNow": True} if "--once" in flags else {"processingTime": "100 milliseconds"}
    )
    query = writer.trigger(**trigger).start()
    say("ready")
    try:
        problem = watch(query)
    except Py4JError:
        sys.exit("Java is gone")
    close(spark)
    sys.exit(problem)


def watch(query: StreamingQuery) -> str | None:
    """Say each batch until the query ends; returns why it did, None: nothing is left to publish."""
    last = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress.batchId > last and progress.numInputRows:
            last = progress.batchId
            say("batch")
        time.sleep(0.05)
    problem = query.exception()
    return None if problem is None else str(problem).splitlines()[0]


if __name__ == "__main__":
    main(*sys.argv[1:])
