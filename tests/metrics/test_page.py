"""The page on metrics lists exactly the metrics, reasons and topics that there are."""

import re
from pathlib import Path

from semel.broker.counters import DROP_REASONS
from semel.broker.network.broker_families import server_families
from semel.broker.settings import BrokerSettings
from semel.broker.sys_topics import PREFIX, SysTopics
from semel.client.bridge_metrics import DROP_REASONS as BRIDGE_DROP_REASONS
from semel.metrics.families import COUNTER, INFO, MetricFamily
from semel.store.streams import Stream, Streams
from tests.broker.core.test_broker_families import server_snapshot
from tests.broker.world import World
from tests.metrics.bridges import bridge_metrics
from tests.metrics.landing import landing_metrics

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "operate" / "metrics.md"
SUFFIXES = {COUNTER: "_total", INFO: "_info"}


def tables(heading: str) -> list[list[list[str]]]:
    """The rows of each table under a heading, without its head."""
    part = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"(?:^\|.*\n)+", part, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
        for lines in (table.splitlines() for table in found)
    ]


def row_of(family: MetricFamily) -> list[str]:
    labels = sorted({label for sample in family.samples for label, _ in sample.labels})
    name = family.name + SUFFIXES.get(family.kind, "")
    return [f"`{name}`", family.kind, ", ".join(f"`{label}`" for label in labels), family.help]


def make_world() -> World:
    world = World(
        BrokerSettings(sys_interval=0.0), streams=Streams([Stream(1, "plant", "plant/#", 0)])
    )
    world.broker.memory.limit = 10**9
    return world


def test_the_page_lists_every_metric_of_the_broker() -> None:
    metrics, reasons = tables("Metrics of the broker")
    assert metrics == [row_of(each) for each in server_families(server_snapshot(make_world()))]
    assert [reason.strip("`") for reason, _ in reasons] == list(DROP_REASONS)


def test_the_page_lists_every_metric_of_the_landing() -> None:
    (metrics,) = tables("Metrics of the landing")
    assert metrics == [row_of(each) for each in landing_metrics().families()]


def test_the_page_lists_every_metric_of_the_bridges() -> None:
    metrics, reasons = tables("Metrics of the bridges")
    assert metrics == [row_of(each) for each in bridge_metrics().families()]
    assert [reason.strip("`") for reason, _ in reasons] == list(BRIDGE_DROP_REASONS)


def test_the_page_lists_every_topic_under_sys() -> None:
    (topics,) = tables("Topics under `$SYS`")
    listed: set[str] = set()
    for names, value in topics:
        first = ""
        for name in re.findall(r"`([^`]+)`", names):
            base = first.rpartition("/")[0]
            listed.add(base + name if name.startswith("/") else name)
            first = first if name.startswith("/") else name
        for name in re.findall(r"`(/\w+)`", value):
            listed.add(f"clients{name}")
        if "load/<name>/1min" in listed:
            for name in re.findall(r"`([a-z/]+)`", value):
                listed |= {f"load/{name}/{span}" for span in ("1min", "5min", "15min")}
    world = make_world()
    report = SysTopics(world.now).report(world.broker.snapshot(world.now), world.now)
    known = {name.removeprefix(PREFIX) for name, _ in report}
    assert {name for name in listed if "<" not in name} == known
