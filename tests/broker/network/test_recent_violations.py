"""Violations of a live broker, as `semel ctl` and the metrics show them."""

import asyncio
from pathlib import Path

from tests.broker.controlled import controlled
from tests.broker.core.test_recent_violations import QOS_3


def test_an_operator_can_list_violations_and_read_the_metrics(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            entries, done = await broker.ask("violations.list")
            assert (entries, done) == ([], {})
            link = await broker.connect("press")
            link.writer.write(QOS_3)
            while not entries:
                entries, _ = await broker.ask("violations.list")
            assert entries[0]["rule"] == "QOS_NOT_3"
            assert entries[0]["client"] == "press"
            _, metrics = await broker.ask("metrics")
            assert metrics["semel_violations"]["QOS_NOT_3"] == 1
            assert set(metrics["semel_loop_lag_seconds"]) == {"count", "sum"}

    asyncio.run(test())
