"""Metric families and their text: each format, read back by a strict reader."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.metrics.families import (
    INFO,
    Histogram,
    MetricFamily,
    check_families,
    counter,
    gauge,
    histogram,
)
from semel.metrics.text import OPENMETRICS, TEXT, content_type_for, format_value, write_families
from tests.metrics.exposition import Exposition, read_exposition

BOTH = pytest.mark.parametrize("content_type", [TEXT, OPENMETRICS])


def read_back(families: list[MetricFamily], content_type: str) -> Exposition:
    text = write_families(families, content_type).decode()
    return read_exposition(text, is_open=content_type == OPENMETRICS)


def test_a_counter_in_text_0_0_4() -> None:
    family = counter("semel_messages_received", "Messages by QoS").add_each("qos", {"0": 5, "1": 7})
    assert write_families([family], TEXT).decode() == (
        "# TYPE semel_messages_received_total counter\n"
        "# HELP semel_messages_received_total Messages by QoS\n"
        'semel_messages_received_total{qos="0"} 5\n'
        'semel_messages_received_total{qos="1"} 7\n'
    )


def test_a_counter_in_openmetrics() -> None:
    family = counter("semel_network_sent_bytes", "Bytes sent").add(5)
    assert write_families([family], OPENMETRICS).decode() == (
        "# TYPE semel_network_sent_bytes counter\n"
        "# UNIT semel_network_sent_bytes bytes\n"
        "# HELP semel_network_sent_bytes Bytes sent\n"
        "semel_network_sent_bytes_total 5\n"
        "# EOF\n"
    )


def test_versions_are_an_info_which_text_0_0_4_does_not_have() -> None:
    family = MetricFamily("semel_build", INFO, "Versions").add(1, version="1.2")
    assert b"# TYPE semel_build info\n" in write_families([family], OPENMETRICS)
    assert b"# TYPE semel_build_info gauge\n" in write_families([family], TEXT)
    for content_type in (TEXT, OPENMETRICS):
        assert read_back([family], content_type).value("semel_build_info", version="1.2") == 1


@BOTH
def test_a_histogram_has_cumulative_buckets(content_type: str) -> None:
    made = Histogram((0.1, 1, 10))
    for value in (0.05, 0.1, 0.5, 10.0, 11.0):
        made.observe(value)
    found = read_back([histogram("semel_x_seconds", "Times").add(made.read())], content_type)
    bounds = {"0.1": 2, "1.0": 3, "10.0": 4, "+Inf": 5}
    for bound, count in bounds.items():
        assert found.value("semel_x_seconds_bucket", le=bound) == count
    assert found.value("semel_x_seconds_sum") == pytest.approx(21.65)
    assert made.maximum == 11.0
    assert made.read().total == 5


@BOTH
def test_a_family_without_samples_is_not_written(content_type: str) -> None:
    assert read_back([gauge("semel_empty", "Nothing")], content_type) == {}
    assert [*read_back([gauge("semel_one", "One").add(0)], content_type)] == ["semel_one"]


@BOTH
@given(value=st.text(), help=st.text(min_size=1))
def test_any_text_in_labels_and_help_can_be_read_back(
    content_type: str, value: str, help: str
) -> None:
    help = help.replace("\r", "")
    family = gauge("semel_x", help or "-").add(1, stream=value.replace("\r", ""))
    found = read_back([family], content_type)
    expected = value.replace("\r", "").encode(errors="replace").decode()
    assert found.value("semel_x", stream=expected) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (2**63, "9223372036854775808"), (True, "1"), (0.5, "0.5"), (1e300, "1e+300")),
        *((math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")),
    ],
)
def test_numbers_are_written_as_both_formats_have_them(value: float, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("application/json", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("Application/OpenMetrics-Text; Version=1.0.0", OPENMETRICS),
        ('application/openmetrics-text; version="1.0.0"', OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", OPENMETRICS),
        ("application/openmetrics-text;version=2.0.0", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=nonsense", TEXT),
        ("application/openmetrics-text;q=7", TEXT),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.5", TEXT),
        ("text/plain;q=0.3, application/openmetrics-text;q=0.5", OPENMETRICS),
        ("text/plain, application/openmetrics-text", OPENMETRICS),
        # Prometheus 2 and 3
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OPENMETRICS,
        ),
        (
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;q=0.7,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            TEXT,
        ),
        ("," * 10_000 + "application/openmetrics-text", TEXT),
        (";;;=,=;q", TEXT),
    ],
)
def test_the_format_is_chosen_by_accept(accept: str, expected: str) -> None:
    assert content_type_for(accept) == expected


@pytest.mark.parametrize(
    "name", ["messages", "semel_", "semel", "semel_A", "semel_x_total", "semel_x_info", "semel_x y"]
)
def test_a_wrong_name_is_a_mistake_of_the_caller(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name of a metric"):
        gauge(name, "Help")
    gauge("semel_x", "Help")


def test_other_mistakes_of_the_caller() -> None:
    with pytest.raises(ValueError, match="is not a kind of metric"):
        MetricFamily("semel_x", "summary", "Help")
    with pytest.raises(ValueError, match="is not a valid name of a label"):
        gauge("semel_x", "Help").add(1, **{"a b": "c"})
    with pytest.raises(ValueError, match="semel_x is a gauge: it cannot have the value"):
        gauge("semel_x", "Help").add(Histogram((1,)).read())
    with pytest.raises(ValueError, match="semel_x is a histogram"):
        histogram("semel_x", "Help").add(1)
    for bounds in ((), (1, 1), (2, 1)):
        with pytest.raises(ValueError, match="must ascend"):
            Histogram(bounds)


def test_families_and_samples_must_differ() -> None:
    one, two = gauge("semel_x", "Help").add(1), gauge("semel_y", "Help").add(1, a="b")
    check_families([one, two])
    with pytest.raises(ValueError, match="two metrics are named semel_x"):
        check_families([one, two, one])
    with pytest.raises(ValueError, match="semel_y has two samples with the same labels"):
        check_families([two.add(2, a="b")])


@pytest.mark.parametrize(
    "text",
    [
        "semel_x 1\n",
        "# TYPE semel_x gauge\nsemel_x 1\n",
        "# TYPE semel_x gauge\n# HELP semel_x h\n",
        "# TYPE semel_x gauge\n# HELP semel_x h\nsemel_y 1\n",
        "# TYPE semel_x gauge\n# HELP semel_x h\nsemel_x 1\nsemel_x 1\n",
        "# TYPE semel_x gauge\n# HELP semel_x h\nsemel_x one\n",
        '# TYPE semel_x gauge\n# HELP semel_x h\nsemel_x{a="b} 1\n',
        '# TYPE semel_x gauge\n# HELP semel_x h\nsemel_x{a="b" c="d"} 1\n',
        '# TYPE semel_x histogram\n# HELP semel_x h\nsemel_x_bucket{le="1"} 1\n',
        "# TYPE semel_x gauge\n# HELP semel_x h\nsemel_x 1",
    ],
)
def test_the_reader_of_these_tests_is_strict(text: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        read_exposition(text, is_open=False)
    with pytest.raises((AssertionError, KeyError)):
        read_exposition(f"{text}# EOF\n", is_open=True)
