"""Rates and means from totals, as the view Now shows them."""

from typing import Any

from semel.web.broker_numbers import KEPT_SAMPLES, Numbers


def metrics(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "semel_clients_connected": 3,
        "semel_connections": {"main": 4, "ws": 1},
        "semel_messages_received": {"0": 10, "1": 20, "2": 30},
        "semel_messages_sent": {"0": 0, "1": 0, "2": 0},
        "semel_messages_dropped": {"queue_full": 0},
        "semel_commit_seconds": {"count": 5, "sum": 0.5},
        "semel_store_condition": {"open": 1, "full": 0},
        "semel_stream_last_seq": {"all": 60},
        "semel_stream_sealed_seq": {"all": 50},
        "semel_stream_unsealed_rows": {"all": 10},
        "semel_stream_unsealed_seconds": {"all": 0.4},
        "semel_sealer_running": 1,
    }
    return {**found, **changes}


UP = {
    "parts": {"broker": "ready", "page": "ready", "landing": "waiting"},
    "deaths": {"landing": "out of memory"},
    "lands": True,
    "landed": 40,
    "waiting_seconds": 0.0,
    "lag_seconds": 1.5,
}


def test_rates_are_of_the_time_between_two_samples() -> None:
    numbers = Numbers()
    first = numbers.take(metrics(), UP, "all", 100.0)
    assert (first["received_rate"], first["commit_ms"]) == (None, None)
    assert (first["clients"], first["connections"], first["received_total"]) == (3, 5, 60)
    later = metrics(
        semel_messages_received={"0": 110, "1": 20, "2": 30},
        semel_commit_seconds={"count": 7, "sum": 0.51},
        semel_messages_dropped={"queue_full": 4},
        semel_stream_last_seq={"all": 160},
    )
    second = numbers.take(later, {**UP, "landed": 100}, "all", 102.0)
    assert (second["received_rate"], second["dropped_rate"]) == (50, 2)
    assert second["commit_ms"] == 5
    assert second["store_condition"] == "open"
    assert second["flow"]["recorded"]["rate"] == 50
    assert second["flow"]["sealed"] == {
        "seq": 50,
        "rate": 0,
        "lag_rows": 10,
        "lag_seconds": 0.4,
    }
    assert second["flow"]["landed"] == {
        "seq": 100,
        "rate": 30,
        "lag_rows": 60,
        "lag_seconds": 1.5,
    }
    assert list(numbers.samples) == [first, second]


def test_a_restart_of_the_broker_makes_no_negative_rate() -> None:
    numbers = Numbers()
    numbers.take(metrics(), None, "all", 100.0)
    fresh = metrics(semel_messages_received={"0": 1, "1": 0, "2": 0})
    found = numbers.take(fresh, None, "all", 101.0)
    assert found["received_rate"] is None
    found = numbers.take(None, None, "all", 102.0)
    assert (found["clients"], found["flow"]) == (None, None)
    assert found["parts"] == [{"name": "broker", "state": "stopped", "text": "does not answer"}]
    # After a long pause, a rate would be a mean of the pause.
    numbers.take(metrics(), None, "all", 103.0)
    assert numbers.take(metrics(), None, "all", 203.0)["received_rate"] is None


def test_parts_are_those_of_the_supervisor_without_the_page_itself() -> None:
    numbers = Numbers()
    assert numbers.take(metrics(), UP, "all", 1.0)["parts"] == [
        {"name": "broker", "state": "ready", "text": ""},
        {"name": "sealer", "state": "ready", "text": ""},
        {"name": "landing", "state": "waiting", "text": "out of memory"},
    ]


def test_without_a_stream_or_a_landing_the_flow_ends_there() -> None:
    numbers = Numbers()
    assert numbers.take(metrics(), None, None, 1.0)["flow"] is None
    assert numbers.take(metrics(), None, "other", 2.0)["flow"] is None
    assert numbers.take(metrics(), None, "all", 3.0)["flow"]["landed"] is None


def test_the_last_minutes_are_kept() -> None:
    numbers = Numbers()
    for second in range(KEPT_SAMPLES + 10):
        numbers.take(metrics(), None, "all", float(second))
    assert len(numbers.samples) == KEPT_SAMPLES
