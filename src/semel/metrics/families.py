"""Metric families: a name, a kind, a help text, and samples with labels.

A label never has a value that a client or a device chose: only values that the operator configured
(listeners, streams) or that this package defines (rules, reasons). So the number of time series is
bounded, whoever connects.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
# One sample with the value 1, whose labels are the content.
INFO: Final = "info"
KINDS: Final = (COUNTER, GAUGE, HISTOGRAM, INFO)

# The units that a name may end with, before the suffix of its kind.
UNITS: Final = ("seconds", "bytes")

_NAME: Final = re.compile(r"semel(_[a-z0-9]+)+")
_LABEL: Final = re.compile(r"[a-z][a-z_]*")
# The text format adds these to a name, or reserves them.
_SUFFIXES: Final = ("_total", "_info", "_bucket", "_sum", "_count", "_created")

# Upper bounds of buckets, in seconds: from one page in the cache of the disk to a stall.
LATENCY_BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)


class Histogram:
    """Counts observed values by buckets.

    One thread observes; others may read. A reader takes one copy of `counts`, from which it
    computes everything else, so that buckets and total always agree.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the upper bounds of the buckets, ascending; a last one has no bound."""
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"the bounds of a histogram must ascend: {bounds!r}")
        self.bounds: Final = tuple(bounds)
        # One more than there are bounds: values above the last bound.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.maximum = 0.0

    def observe(self, value: float) -> None:
        """Count a value, which must not be negative."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.maximum = max(self.maximum, value)

    def read(self) -> "HistogramValue":
        """The counts at this time."""
        return HistogramValue(self.bounds, tuple(self.counts), self.sum)


@dataclass(frozen=True)
class HistogramValue:
    """The counts of a histogram at one time; `counts` has one more entry than `bounds`."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def total(self) -> int:
        """How many values were observed."""
        return sum(self.counts)


Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class MetricSample:
    """One value of a family, with its labels."""

    labels: Labels
    value: int | float | HistogramValue


class MetricFamily:
    """A metric: its name without the suffix of its kind, its help, and its samples."""

    def __init__(self, name: str, kind: str, help: str) -> None:
        """`help` is one sentence without its last period. Raises ValueError for a wrong name."""
        if not _NAME.fullmatch(name) or name.endswith(_SUFFIXES):
            raise ValueError(f"{name!r} is not a valid name of a metric")
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of metric")
        self.name: Final = name
        self.kind: Final = kind
        self.help: Final = help
        self.unit: Final = next((unit for unit in UNITS if name.endswith(f"_{unit}")), None)
        self.samples: list[MetricSample] = []

    def add(self, value: int | float | HistogramValue, **labels: str) -> "MetricFamily":
        """Add a sample. Returns the family, so that one with a single sample is one expression."""
        for name in labels:
            if not _LABEL.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name of a label")
        if isinstance(value, HistogramValue) != (self.kind == HISTOGRAM):
            raise ValueError(f"{self.name} is a {self.kind}: it cannot have the value {value!r}")
        self.samples.append(MetricSample(tuple(labels.items()), value))
        return self

    def add_each(self, label: str, values: Mapping[str, int | float]) -> "MetricFamily":
        """Add a sample for each value of a label."""
        for key, value in values.items():
            self.add(value, **{label: key})
        return self


def counter(name: str, help: str) -> MetricFamily:
    """A family of counters: values that only grow while the process runs."""
    return MetricFamily(name, COUNTER, help)


def gauge(name: str, help: str) -> MetricFamily:
    """A family of gauges: values at this time."""
    return MetricFamily(name, GAUGE, help)


def histogram(name: str, help: str) -> MetricFamily:
    """A family of histograms."""
    return MetricFamily(name, HISTOGRAM, help)


def family_values(family: MetricFamily) -> object:
    """The samples of a family, for JSON: one value, or one for each value of its label.

    A histogram is its count and its sum, from which a reader computes the mean of an interval.
    """
    values = {
        ",".join(value for _, value in sample.labels): {
            "count": sample.value.total,
            "sum": sample.value.sum,
        }
        if isinstance(sample.value, HistogramValue)
        else sample.value
        for sample in family.samples
    }
    return values[""] if list(values) == [""] else values


def check_families(families: Iterable[MetricFamily]) -> None:
    """Raise ValueError if two families have one name, or two samples the same labels."""
    names: set[str] = set()
    for family in families:
        if family.name in names:
            raise ValueError(f"two metrics are named {family.name}")
        names.add(family.name)
        labels = [sample.labels for sample in family.samples]
        if len({*labels}) != len(labels):
            raise ValueError(f"{family.name} has two samples with the same labels")
