"""The numbers of a broker, once a second: what the view Now shows.

`Numbers.take` turns the metrics of the broker, which are totals, into a sample with rates and means
of the time since the last one. It keeps the last five minutes.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

# Samples that are kept, one per second.
KEPT_SAMPLES: Final = 300

Values = dict[str, Any]


class Numbers:
    """The samples of one broker. It reads no clock: times are arguments."""

    def __init__(self) -> None:
        self.samples: deque[Values] = deque(maxlen=KEPT_SAMPLES)
        self._before: Values = {}
        self._before_at = 0.0
        # The flow before, for its rates.
        self._seqs: dict[str, int | None] = {}

    def take(
        self, metrics: Values | None, up: Values | None, stream: str | None, at: float
    ) -> Values:
        """Add a sample.

        `metrics` are those of the control socket, None if the broker does not answer; `up` is the
        status of `semel up`, if there is one; `at` is the time in seconds since 1970.
        """
        seconds = max(0.001, at - self._before_at)
        before = self._before if self._before_at and seconds < 10 else {}
        now = {} if metrics is None else metrics
        rate = _Rates(before, now, seconds)
        sample: Values = {
            "type": "now",
            "at": round(at, 3),
            "parts": _parts(metrics, up),
            "clients": now.get("semel_clients_connected"),
            "connections": _total(now.get("semel_connections")),
            "sessions": now.get("semel_sessions"),
            "subscriptions": now.get("semel_subscriptions"),
            "retained": now.get("semel_retained_messages"),
            "received_rate": rate.of("semel_messages_received"),
            "sent_rate": rate.of("semel_messages_sent"),
            "received_bytes_rate": rate.of("semel_network_received_bytes"),
            "sent_bytes_rate": rate.of("semel_network_sent_bytes"),
            "received_total": _total(now.get("semel_messages_received")),
            "sent_total": _total(now.get("semel_messages_sent")),
            "queued_messages": now.get("semel_queued_messages"),
            "inflight_messages": now.get("semel_inflight_messages"),
            "paused_publishers": _total(now.get("semel_publishers_paused")),
            "dropped": now.get("semel_messages_dropped") or {},
            "dropped_rate": rate.of("semel_messages_dropped"),
            "violations_total": _total(now.get("semel_violations")),
            "loop_lag_ms": rate.mean_ms("semel_loop_lag_seconds"),
            "commit_ms": rate.mean_ms("semel_commit_seconds"),
            "cpu": rate.of("semel_cpu_seconds"),
            "memory_bytes": now.get("semel_memory_bytes"),
            "memory_limit_bytes": now.get("semel_memory_limit_bytes"),
            "free_bytes": now.get("semel_store_free_bytes"),
            "store_condition": _condition(now.get("semel_store_condition")),
            "flow": self._flow(now, up, stream, rate, seconds),
        }
        self._before, self._before_at = now, at
        self.samples.append(sample)
        return sample

    def _flow(
        self,
        now: Values,
        up: Values | None,
        stream: str | None,
        rate: "_Rates",
        seconds: float,
    ) -> Values | None:
        """The way of a message from the broker to the table; None: nothing is recorded."""
        seqs = now.get("semel_stream_last_seq")
        if stream is None or not isinstance(seqs, Mapping) or stream not in seqs:
            self._seqs = {}
            return None
        recorded = seqs[stream]
        sealed = _of(now.get("semel_stream_sealed_seq"), stream)
        landed = None if up is None else up.get("landed")
        flow: Values = {
            "stream": stream,
            "received": {
                "total": _total(now.get("semel_messages_received")),
                "rate": rate.of("semel_messages_received"),
            },
            "recorded": {
                "seq": recorded,
                "rate": self._seq_rate("recorded", recorded, seconds),
                "lag_ms": rate.mean_ms("semel_commit_seconds"),
            },
            "sealed": {
                "seq": sealed,
                "rate": self._seq_rate("sealed", sealed, seconds),
                "lag_rows": _of(now.get("semel_stream_unsealed_rows"), stream),
                "lag_seconds": _of(now.get("semel_stream_unsealed_seconds"), stream),
            },
            "landed": None,
        }
        if up is not None and up.get("lands"):
            flow["landed"] = {
                "seq": landed,
                "rate": self._seq_rate("landed", landed, seconds),
                "lag_rows": None if landed is None else max(0, recorded - landed),
                # How long the oldest row has waited, or how long the last ones did.
                "lag_seconds": max(
                    (
                        each
                        for each in (up.get("waiting_seconds"), up.get("lag_seconds"))
                        if each is not None
                    ),
                    default=None,
                ),
            }
        self._seqs = {"recorded": recorded, "sealed": sealed, "landed": landed}
        return flow

    def _seq_rate(self, name: str, seq: int | None, seconds: float) -> float | None:
        before = self._seqs.get(name)
        if seq is None or before is None or seq < before:
            return None
        return round((seq - before) / seconds, 1)


class _Rates:
    """What changed between two sets of metrics, per second."""

    def __init__(self, before: Values, now: Values, seconds: float) -> None:
        self._before = before
        self._now = now
        self._seconds = seconds

    def of(self, name: str) -> float | None:
        """How much a counter grew per second; None: not known, or the broker was restarted."""
        before, now = _total(self._before.get(name)), _total(self._now.get(name))
        if before is None or now is None or now < before:
            return None
        return round(float(now - before) / self._seconds, 3)

    def mean_ms(self, name: str) -> float | None:
        """The mean of what a histogram observed, in milliseconds; None: it observed nothing."""
        before, now = self._before.get(name), self._now.get(name)
        if not isinstance(before, Mapping) or not isinstance(now, Mapping):
            return None
        count = int(now["count"]) - int(before["count"])
        if count <= 0:
            return None
        return round(float(now["sum"] - before["sum"]) / count * 1000, 3)


def _total(value: Any) -> Any:
    """The sum over all values of a label, or the one value."""
    return sum(value.values()) if isinstance(value, Mapping) else value


def _of(value: Any, label: str) -> Any:
    return value.get(label) if isinstance(value, Mapping) else None


def _condition(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return None
    return next((name for name, is_current in value.items() if is_current), None)


def _parts(metrics: Values | None, up: Values | None) -> list[Values]:
    """What runs: the broker, its sealer, and the landing if it is known."""
    parts = [
        {
            "name": "broker",
            "state": "stopped" if metrics is None else "ready",
            "text": "does not answer" if metrics is None else "",
        }
    ]
    sealer = None if metrics is None else metrics.get("semel_sealer_running")
    if sealer is not None:
        parts.append({"name": "sealer", "state": "ready" if sealer else "waiting", "text": ""})
    if up is not None:
        deaths = up.get("deaths") or {}
        for name, state in (up.get("parts") or {}).items():
            if name == "broker":
                parts[0] = {"name": name, "state": state, "text": deaths.get(name, "")}
            elif name != "page":
                parts.append({"name": name, "state": state, "text": deaths.get(name, "")})
    return parts
