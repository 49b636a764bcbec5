"""The dashboard and the alert rules name metrics, labels and values that really exist.

They are compared with the metrics of a running broker with a stream, of a running bridge, and of a
landing.
"""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.broker.broker_process import Process
from tests.cli.test_bridge import METRICS, bridging, file_of, metrics_address, section
from tests.metrics.exposition import Exposition, read_exposition
from tests.metrics.http_client import ask
from tests.metrics.landing import landing_exposition

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
DASHBOARD = DEPLOY / "grafana" / "semel.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"

# Labels that Prometheus adds to every series.
ADDED = {"job", "instance"}
FUNCTIONS = {
    *("rate", "increase", "deriv", "predict_linear", "histogram_quantile", "time"),
    *("sum", "min", "max"),
}
WORDS = {"by", "and", "or", "unless"}
# A string, a duration in brackets, a name, a number, or one other character.
TOKEN = re.compile(r'"[^"]*"|\[[^\]]*\]|[a-zA-Z_][a-zA-Z0-9_]*|\d[\d.e+-]*|=~|!~|!=|==|<=|>=|[^\s]')
DURATION = re.compile(r"\[(\d+[smhd]|\$__rate_interval)\]")


class Series:
    """Which series exist: by name, the values of each label."""

    def __init__(self, *expositions: Exposition) -> None:
        self.labels: dict[str, dict[str, set[str]]] = {}
        for exposition in expositions:
            for family in exposition.values():
                for name, labels in family.samples:
                    known = self.labels.setdefault(name, {})
                    for label, value in labels:
                        known.setdefault(label, set()).add(value)
        self.labels["up"] = {}

    def check(self, expression: str) -> set[str]:
        """The names of the metrics in an expression. Raises AssertionError for what is unknown."""
        tokens = TOKEN.findall(expression)
        assert tokens.count("(") == tokens.count(")")
        used: set[str] = set()
        grouped: set[str] = set()
        at = 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            if token == "by":
                end = tokens.index(")", at)
                grouped |= {*tokens[at + 1 : end]} - {","}
                at = end + 1
            elif token.startswith("["):
                assert DURATION.fullmatch(token), token
            elif re.fullmatch(r"[a-zA-Z_]\w*", token) and token not in FUNCTIONS | WORDS:
                assert token in self.labels, f"there is no metric {token}"
                used.add(token)
                if at < len(tokens) and tokens[at] == "{":
                    end = tokens.index("}", at)
                    self.check_matchers(token, tokens[at + 1 : end])
                    at = end + 1
        assert used, f"no metric in {expression!r}"
        known = ADDED.union(*(self.labels[name] for name in used))
        assert grouped <= known, f"no label {grouped - known} in {expression!r}"
        return used

    def check_matchers(self, name: str, tokens: list[str]) -> None:
        labels = self.labels[name]
        for at in range(0, len(tokens), 4):
            label, operator, quoted, *comma = tokens[at : at + 4]
            assert comma in ([","], [])
            assert operator in ("=", "!=", "=~", "!~")
            assert label in ADDED | labels.keys(), f"{name} has no label {label}"
            if label not in ADDED:
                for value in quoted.strip('"').split("|"):
                    assert value in labels[label], f"{name} has no {label} {value!r}"


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    data = tmp_path_factory.mktemp("data")
    arguments = ["--metrics-port", "0", "--data", str(data / "d"), "--stream", "all=#"]
    with Process(*arguments) as broker:
        found = re.search(r"http://([\d.]+):(\d+)/metrics", "".join(broker.log))
        assert found
        body = ask((found[1], int(found[2]))).body
        with bridging(data, *file_of(data, section(data, (broker.address[1],) * 2)), *METRICS) as b:
            bridge_body = ask(metrics_address(b)).body
    expositions = [read_exposition(each, is_open=False) for each in (body, bridge_body)]
    return Series(*expositions, landing_exposition())


def load_yaml(path: Path) -> Any:
    return import_module("yaml").safe_load(path.read_text("utf-8"))


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return found


def test_the_dashboard_uses_metrics_that_exist(series: Series) -> None:
    used: set[str] = set()
    for panel in panels():
        for target in panel.get("targets", []):
            used |= series.check(target["expr"])
            shown = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            for label in shown:
                assert re.search(rf"by \([^)]*\b{label}\b", target["expr"]), target
    # What an operator asks first.
    for name in (
        *("semel_connections", "semel_messages_received_total", "semel_messages_sent_total"),
        *("semel_messages_dropped_total", "semel_violations_total", "semel_commit_seconds_bucket"),
        *("semel_loop_lag_seconds_bucket", "semel_queued_messages", "semel_stream_unsealed_rows"),
        *("semel_landing_lag_rows", "semel_landing_lag_seconds"),
        *("semel_bridge_connected", "semel_bridge_messages_moved_total"),
        *("semel_bridge_queued_messages", "semel_bridge_messages_refused_total"),
    ):
        assert name in used


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_variables_of_the_dashboard_exist(series: Series) -> None:
    text = DASHBOARD.read_text("utf-8")
    variables = {each["name"]: each for each in json.loads(text)["templating"]["list"]}
    used = {*re.findall(r"\$\{?(\w+)", text)} - {"__rate_interval", "__all"}
    assert used == set(variables)
    query = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["instance"]["query"])
    assert query
    assert query[1] in series.labels
    assert query[2] in ADDED


def rules() -> list[dict[str, Any]]:
    return [rule for group in load_yaml(ALERTS)["groups"] for rule in group["rules"]]


def test_the_alerts_use_metrics_that_exist(series: Series) -> None:
    names = [rule["alert"] for rule in rules()]
    assert len({*names}) == len(names) >= 10
    used: set[str] = set()
    for rule in rules():
        used |= series.check(rule["expr"])
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        # What a text shows must be left after the aggregation.
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            by = re.search(r"by \(([^)]*)\)", rule["expr"])
            assert label in (by[1].split(", ") if by else ADDED), rule["alert"]
    for name in (
        *("up", "semel_ready", "semel_landing_lag_seconds", "semel_store_free_bytes"),
        *("semel_bridge_connected", "semel_bridge_state"),
    ):
        assert name in used


def test_the_configuration_has_the_jobs_of_the_alerts() -> None:
    configuration = load_yaml(CONFIGURATION)
    jobs = {each["job_name"] for each in configuration["scrape_configs"]}
    used = {job for rule in rules() for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert used == jobs
    assert configuration["rule_files"] == [ALERTS.name]


@pytest.mark.parametrize(
    "expression",
    [
        "semel_nothing",
        "rate(semel_ready_total[5m])",
        "sum by (topic) (semel_ready)",
        'semel_ready{topic="x"}',
        'semel_store_condition{condition="broken"}',
        'semel_messages_dropped_total{reason!~"expired|nothing"}',
        "rate(semel_violations_total[5 minutes])",
        "average(semel_ready)",
        "1 > 0",
    ],
)
def test_the_check_of_these_tests_is_strict(series: Series, expression: str) -> None:
    with pytest.raises(AssertionError):
        series.check(expression)
    assert series.check('sum by (reason) (rate(semel_messages_dropped_total{job="x"}[5m])) > 1')
