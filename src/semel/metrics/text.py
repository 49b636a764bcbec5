"""Writes metric families as text: Prometheus text 0.0.4, and OpenMetrics 1.0.

The two formats differ in few places: OpenMetrics names a family of counters without `_total`, has
units and the kind `info`, escapes quotes in help texts, and ends with `# EOF`.
"""

import math
from collections.abc import Sequence
from typing import Final

from semel.metrics.families import (
    COUNTER,
    GAUGE,
    INFO,
    HistogramValue,
    Labels,
    MetricFamily,
    MetricSample,
)

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_OPENMETRICS_TYPE: Final = "application/openmetrics-text"
# The versions of OpenMetrics that a client may ask for; this writer fulfills both.
_VERSIONS: Final = ("1.0.0", "0.0.1", "")
# A client sends a few media types; further ones are ignored.
_MAXIMUM_TYPES: Final = 20


def write_families(families: Sequence[MetricFamily], content_type: str) -> bytes:
    """The families as a response body of this content type, TEXT or OPENMETRICS."""
    is_open = content_type == OPENMETRICS
    lines: list[str] = []
    for family in families:
        if family.samples:
            _write_family(lines, family, is_open=is_open)
    if is_open:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines).encode()


def _write_family(lines: list[str], family: MetricFamily, *, is_open: bool) -> None:
    name, kind = family.name, family.kind
    sample_name = name
    if kind == COUNTER:
        sample_name = f"{name}_total"
    elif kind == INFO:
        sample_name = f"{name}_info"
    if not is_open:
        name = sample_name
        kind = GAUGE if kind == INFO else kind
    lines.append(f"# TYPE {name} {kind}")
    if is_open and family.unit is not None:
        lines.append(f"# UNIT {name} {family.unit}")
    lines.append(f"# HELP {name} {_escape_help(family.help, is_open=is_open)}")
    for sample in family.samples:
        if isinstance(sample.value, HistogramValue):
            _write_histogram(lines, name, sample, sample.value)
        else:
            lines.append(f"{sample_name}{_labels(sample.labels)} {format_value(sample.value)}")


def _write_histogram(
    lines: list[str], name: str, sample: MetricSample, value: HistogramValue
) -> None:
    total = 0
    for bound, count in zip((*value.bounds, math.inf), value.counts, strict=True):
        total += count
        labels = (*sample.labels, ("le", format_value(float(bound))))
        lines.append(f"{name}_bucket{_labels(labels)} {total}")
    lines.append(f"{name}_sum{_labels(sample.labels)} {format_value(value.sum)}")
    lines.append(f"{name}_count{_labels(sample.labels)} {total}")


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escape_label(value)}"' for name, value in labels) + "}"


def escape_label(value: str) -> str:
    """The value of a label between its quotes. Lone surrogates, which UTF-8 lacks, become `?`."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return escaped.encode(errors="replace").decode()


def _escape_help(text: str, *, is_open: bool) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if is_open else escaped


def format_value(value: int | float) -> str:
    """A number as both formats write it."""
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def content_type_for(accept: str) -> str:
    """The content type for a request with this Accept header: OPENMETRICS if it is preferred.

    Any other request gets TEXT, whatever it accepts, as Prometheus asks of exporters.
    """
    openmetrics = text = 0.0
    for media_range in accept.split(",")[:_MAXIMUM_TYPES]:
        media_type, *rest = (part.strip() for part in media_range.split(";"))
        parameters = dict(_parameter(part) for part in rest)
        quality = _quality(parameters.get("q", "1"))
        kind = media_type.lower()
        if kind == _OPENMETRICS_TYPE and parameters.get("version", "") in _VERSIONS:
            openmetrics = max(openmetrics, quality)
        elif kind in ("text/plain", "text/*", "*/*"):
            text = max(text, quality)
    return OPENMETRICS if openmetrics > 0 and openmetrics >= text else TEXT


def _parameter(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip().lower(), value.strip().strip('"')


def _quality(text: str) -> float:
    """The weight of a media type; 0.0 if it is not a number from 0 to 1."""
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0.0 <= quality <= 1.0 else 0.0
