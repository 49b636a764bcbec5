"""The metrics that a landing has once it has landed a batch."""

from semel.metrics.text import TEXT, write_families
from semel.pipeline.landing_metrics import LandingMetrics
from tests.metrics.exposition import Exposition, read_exposition


def landing_metrics() -> LandingMetrics:
    metrics = LandingMetrics()
    metrics.take_event({"event": "ready", "positions": {}})
    batch = {"event": "batch", "rows": 1, "seconds": 0.5, "lag_seconds": 1.0}
    metrics.take_event({**batch, "positions": {"n1": 1}})
    metrics.take_record({"n1": 1})
    return metrics


def landing_exposition() -> Exposition:
    """The same, as a program reads them."""
    text = write_families(landing_metrics().families(), TEXT).decode()
    return read_exposition(text, is_open=False)
