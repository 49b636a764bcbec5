"""The metrics of a landing: from its events, and from listings of the record."""

import logging
from pathlib import Path
from typing import Any

import pytest

from semel.cli.land_run import as_line, serving_metrics
from semel.metrics.endpoint import CannotServeMetrics
from semel.metrics.families import check_families
from semel.metrics.text import OPENMETRICS, TEXT, write_families
from semel.pipeline.landing_metrics import LandingMetrics, RecordWatch
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.settings import LandSettings
from semel.store.roots import LocalRoot, RootEntry
from tests.metrics.exposition import Exposition, read_exposition
from tests.metrics.http_client import ask
from tests.pipeline.living import until
from tests.pipeline.made import write_messages


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def batch(rows: int, landed: dict[str, int], **facts: Any) -> dict[str, Any]:
    given = {"event": "batch", "rows": rows, "positions": landed, "seconds": 0.75}
    return {**given, "lag_seconds": 1.25, **facts}


def read_back(metrics: LandingMetrics) -> Exposition:
    families = metrics.families()
    check_families(families)
    text = write_families(families, OPENMETRICS).decode()
    same = read_exposition(text, is_open=True)
    found = read_exposition(write_families(families, TEXT).decode(), is_open=False)
    assert found.series() == same.series()
    return found


def test_before_the_first_batch_what_is_unknown_is_not_there() -> None:
    metrics = LandingMetrics()
    found = read_back(metrics)
    assert found.value("semel_landing_ready") == 0
    assert found.value("semel_landing_rows_total") == 0
    for name in ("lag_rows", "lag_seconds", "latency_seconds", "last_commit_timestamp_seconds"):
        assert f"semel_landing_{name}" not in found
    assert (metrics.health(), metrics.readiness()) == (None, "Spark is starting")


def test_batches_are_counted_and_timed() -> None:
    clock = Clock()
    metrics = LandingMetrics(clock=clock, wall=lambda: 1_700_000_000.5)
    metrics.take_event({"event": "starting"})
    metrics.take_event({"event": "ready", "positions": {"n1": 100}})
    assert metrics.readiness() is None
    metrics.take_event(batch(10, {"n1": 110}))
    metrics.take_event(batch(5, {"n2": 5}, seconds=40.0, lag_seconds=None))
    metrics.take_event({"event": "maintenance", "text": "compacted"})
    clock.now += 7
    found = read_back(metrics)
    assert found.value("semel_landing_ready") == 1
    assert found.value("semel_landing_batches_total") == 2
    assert found.value("semel_landing_rows_total") == 15
    assert found.value("semel_landing_last_batch_rows") == 5
    assert found.value("semel_landing_batch_seconds_sum") == 40.75
    assert found.value("semel_landing_batch_seconds_bucket", le="1.0") == 1
    assert found.value("semel_landing_last_commit_timestamp_seconds") == 1_700_000_000.5
    assert found.value("semel_landing_maintenance_total") == 1
    assert found.value("semel_landing_uptime_seconds") == 7
    # The latency of the last batch is unknown.
    assert "semel_landing_latency_seconds" not in found
    metrics.take_event({"event": "ended", "landed": 15})
    assert metrics.readiness() == "the landing has ended"
    assert read_back(metrics).value("semel_landing_ready") == 0


def test_the_lag_grows_while_nothing_lands_and_ends_when_all_has_landed() -> None:
    clock = Clock()
    metrics = LandingMetrics(clock=clock)
    metrics.take_record({"n1": 100, "n2": 7})
    assert "semel_landing_lag_rows" not in read_back(metrics)
    metrics.take_event({"event": "ready", "positions": {"n1": 90}})
    found = read_back(metrics)
    assert found.value("semel_landing_lag_rows") == 17
    assert found.value("semel_landing_lag_seconds") == 0
    clock.now += 60
    metrics.take_record({"n1": 120, "n2": 7})
    found = read_back(metrics)
    assert found.value("semel_landing_lag_rows") == 37
    assert found.value("semel_landing_lag_seconds") == 60
    metrics.take_event(batch(17, {"n1": 100, "n2": 7}))
    clock.now += 5
    found = read_back(metrics)
    assert found.value("semel_landing_lag_rows") == 20
    # The rows that are left came with the second listing.
    assert found.value("semel_landing_lag_seconds") == 5
    # The landing may be ahead of the last listing.
    metrics.take_event(batch(30, {"n1": 130}))
    found = read_back(metrics)
    assert found.value("semel_landing_lag_rows") == found.value("semel_landing_lag_seconds") == 0
    assert found.value("semel_landing_latency_seconds") == 1.25


def test_the_record_is_listed_by_node(tmp_path: Path) -> None:
    write_messages(tmp_path, "all", "n1", 1, 30)
    write_messages(tmp_path, "all", "n2", 1, 4)
    metrics = LandingMetrics()
    metrics.take_event({"event": "ready", "positions": {"n1": 10}})
    watch = RecordWatch(LocalRoot(tmp_path), "all", metrics=metrics)
    watch.list_record()
    assert read_back(metrics).value("semel_landing_lag_rows") == 24


class Failing(LocalRoot):
    """A root that can be out of reach."""

    is_down = True

    def entries_by_node(self, stream: str) -> dict[str, list[RootEntry]]:
        if self.is_down:
            raise OSError("out\nof reach")
        return super().entries_by_node(stream)


def test_a_record_that_cannot_be_listed_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_messages(tmp_path, "all", "n1", 1, 30)
    metrics = LandingMetrics()
    metrics.take_event({"event": "ready", "positions": {}})
    root = Failing(tmp_path)
    watch = RecordWatch(root, "all", metrics=metrics)
    with caplog.at_level(logging.WARNING):
        watch.list_record()
        watch.list_record()
    (line,) = caplog.messages
    assert line == "the record cannot be listed, so that its lag is outdated: out of reach"
    assert "semel_landing_lag_rows" not in read_back(metrics)
    root.is_down = False
    watch.list_record()
    assert read_back(metrics).value("semel_landing_lag_rows") == 30


def test_the_watch_lists_until_it_is_stopped(tmp_path: Path) -> None:
    write_messages(tmp_path, "all", "n1", 1, 3)
    metrics = LandingMetrics()
    metrics.take_event({"event": "ready", "positions": {}})
    watch = RecordWatch(LocalRoot(tmp_path), "all", metrics=metrics, seconds=0.01)
    watch.start()
    until(lambda: "semel_landing_lag_rows" in read_back(metrics))
    write_messages(tmp_path, "all", "n1", 4, 3)
    until(lambda: read_back(metrics).value("semel_landing_lag_rows") == 6)
    watch.stop()
    until(lambda: not watch._thread.is_alive())


# --- the command ----------------------------------------------------------------------------------


def settings(tmp_path: Path, **given: Any) -> LandSettings:
    return LandSettings(root=str(tmp_path / "root"), lake=str(tmp_path / "lake"), **given)


def test_events_go_to_the_report_and_to_the_metrics(tmp_path: Path) -> None:
    write_messages(tmp_path / "root", "all", "n1", 1, 3)
    given = settings(tmp_path, metrics_port=0)
    events: list[dict[str, Any]] = []
    with serving_metrics(given, make_plan(given), events.append) as emit:
        (served,) = events
        address = (served["host"], served["port"])
        line = f"serving metrics on http://127.0.0.1:{address[1]}/metrics"
        assert as_line(served) == line
        assert ask(address, "/healthz").status == 200
        found = ask(address, "/readyz")
        assert (found.status, found.body) == (503, "Spark is starting\n")
        emit({"event": "ready", "positions": {}, "landed_before": 0})
        assert ask(address, "/readyz").status == 200
        emit(batch(3, {"n1": 3}))
        found = ask(address)
        rows = read_exposition(found.body, is_open=False).value("semel_landing_rows_total")
        assert rows == 3
    assert [event["event"] for event in events] == ["metrics", "ready", "batch"]
    with pytest.raises(ConnectionRefusedError):
        ask(address)


def test_an_event_that_the_metrics_do_not_understand_does_not_end_the_landing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "root").mkdir()
    given = settings(tmp_path, metrics_port=0)
    events: list[dict[str, Any]] = []
    with serving_metrics(given, make_plan(given), events.append) as emit:
        emit({"event": "batch"})
    assert [event["event"] for event in events] == ["metrics", "batch"]
    assert "an event is missing in the metrics" in caplog.messages


def test_without_a_port_events_go_to_the_report_only(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    given = settings(tmp_path)
    events: list[dict[str, Any]] = []
    with serving_metrics(given, make_plan(given), events.append) as emit:
        emit({"event": "ready"})
    assert events == [{"event": "ready"}]


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    first = settings(tmp_path, metrics_port=0)
    events: list[dict[str, Any]] = []
    with serving_metrics(first, make_plan(first), events.append):
        again = settings(tmp_path, metrics_port=events[0]["port"])
        with (
            pytest.raises(CannotServeMetrics, match="the port is in use by another program"),
            serving_metrics(again, make_plan(again), events.append),
        ):
            pass
