"""The broker's bench: its arithmetic, and small runs of what it measures."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from bench.broker import connections
from bench.broker.churn import ReconnectingClients, has_closed
from bench.broker.configurations import PLAIN, TCP, Configuration
from bench.broker.contenders import MOSQUITTO, SEMEL, _command, started
from bench.broker.devices import DEVICES, watch_devices
from bench.broker.load import source_of
from bench.broker.measure import Measured, Run, run_once
from bench.broker.report import file_limit_warning, table, targets
from bench.broker.scenarios import (
    HALF_LOAD,
    LATENCY,
    MANY,
    SCENARIOS,
    Scenario,
    parse_scenarios,
)
from bench.broker.soak import FLAT, growth_verdict
from semel.lab.load.description import SCENARIOS as LOADS
from semel.mqtt import MQTT5, MQTT311, Decoder, Publish

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


def scenario_named(name: str) -> Scenario:
    (found,) = parse_scenarios(name)
    return found


def measured(
    name: str, contender: str, *figures: float, version: int = MQTT311, lost: int = 0
) -> Measured:
    run = Run(name, contender, version, figures=figures, lost=lost)
    return Measured(scenario_named(name), contender, version, [run])


# --- targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("theirs", "sign"), [(14.1, "✓"), (13.9, "✗")])
def test_a_ratio_to_mosquitto_meets_its_target_or_not(theirs: float, sign: str) -> None:
    cells = [measured("p50q1", SEMEL, 10.0), measured("p50q1", MOSQUITTO, theirs)]
    (line,) = targets(cells)
    assert line.startswith(f"{sign} p50q1 3.1.1: Mosquitto takes at least 1.4 times as long")


def test_a_semel_that_loses_messages_meets_no_target() -> None:
    cells = [measured("d1", SEMEL, 1.0, lost=3), measured("d1", MOSQUITTO, 10.0)]
    assert targets(cells) == ["✗ d1 3.1.1: semel lost messages"]


@pytest.mark.parametrize(("newer", "sign"), [(10.9, "✓"), (11.2, "✗")])
def test_the_newer_version_is_compared_with_the_older_one(newer: float, sign: str) -> None:
    cells = [
        measured("c1", SEMEL, 10.0),
        measured("c1", SEMEL, newer, version=MQTT5),
        measured("c1", MOSQUITTO, 1.0, version=MQTT5),
    ]
    (line,) = targets(cells)
    assert line.startswith(f"{sign} c1 5.0: at most 10% more than with 3.1.1 clients")


def test_older_scenarios_keep_half_of_their_target_in_the_newer_version() -> None:
    cells = [
        measured("d", SEMEL, 1.0, version=MQTT5),
        measured("d", MOSQUITTO, 4.5, version=MQTT5),
    ]
    (line,) = targets(cells)
    assert line.startswith("✓ d 5.0: Mosquitto takes at least 4 times as long")


@pytest.mark.parametrize(("ours", "sign"), [(70.0, "✓"), (71.0, "✗")])
def test_a_median_latency_is_no_longer_than_that_of_mosquitto(ours: float, sign: str) -> None:
    cells = [measured("l1", SEMEL, 10.0, ours, 900.0), measured("l1", MOSQUITTO, 12.0, 70.0, 80.0)]
    median, ratio = targets(cells)
    assert median.startswith(f"{sign} l1 3.1.1: the median latency")
    assert ratio.startswith("✓ l1 3.1.1: Mosquitto takes")


def test_connections_have_bounds_of_their_own() -> None:
    assert targets([measured("connections", SEMEL, 70.0, 3.1)]) == [
        "✗ connections 3.1.1: at most 3 KB each: 3.10"
    ]
    assert targets([measured("connections20k", SEMEL, 1.9, 0.5, 2.0)]) == [
        "✓ connections20k 3.1.1: at most 2 s to reconnect all: 1.90"
    ]


def test_a_table_has_all_figures_of_a_scenario_and_their_ratios() -> None:
    cells = [measured("fleet", SEMEL, 8.0, 10.0, 500.0), measured("fleet", MOSQUITTO, 16, 30, 250)]
    assert table(cells)[-1].endswith(
        "| 8.00 / 10.0 / 500 | 16.0 / 30.0 / 250 (2.00 / 3.00 / 0.50×) |"
    )


def test_fewer_connections_than_the_title_says_are_mentioned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = [measured("connections20k", SEMEL, 1.9, 0.5, 2.0)]
    monkeypatch.setattr("bench.broker.report.possible_connections", lambda: 900)
    assert "permits 900 connections" in file_limit_warning(cells)
    assert file_limit_warning([measured("connections", SEMEL, 70.0, 3.1)]) == ""
    monkeypatch.setattr("bench.broker.report.possible_connections", lambda: MANY)
    assert file_limit_warning(cells) == ""


def test_names_are_unique() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)


# --- memory ---------------------------------------------------------------------------------------


def test_memory_is_flat_if_it_rises_by_less_than_the_bound_after_the_beginning() -> None:
    beginning = [(float(second), 50_000 + 1_000 * second) for second in range(15)]
    rise = FLAT * 65_000 / 45

    def samples(share: float) -> list[tuple[float, int]]:
        rest = range(15, 61)
        return [*beginning, *((at, int(65_000 + share * rise * (at - 15))) for at in rest)]

    assert growth_verdict(samples(0.9), 1.0)[0]
    assert not growth_verdict(samples(1.2), 1.0)[0]
    assert growth_verdict(samples(1.2), 1.0)[1].startswith("✗ growing")
    assert growth_verdict(beginning[:1], 1.0) == (False, "✗ too short for a verdict")


# --- the load -------------------------------------------------------------------------------------


@VERSIONS
def test_blocks_of_a_fleet_are_short_and_have_more_identifiers_than_a_window(version: int) -> None:
    load = replace(LOADS["fleet"].load, version=version)
    for publisher in (0, load.publishers - 1):
        source = source_of(load, publisher, prefix="x", stamped=False)
        assert load.acknowledgements < source.cycle < 100
        data, count = source.take(1_000)
        packets = Decoder(version).receive(bytes(data))
        assert [each.packet_id for each in packets if isinstance(each, Publish)] == list(
            range(1, count + 1)
        )
        (topic,) = load.written_by(publisher)
        assert {each.topic_name for each in packets if isinstance(each, Publish)} == {
            load.topic_name("x", topic)
        }


def test_a_configuration_is_passed_to_semel(tmp_path: Path) -> None:
    ports = {TCP: 1}
    plain = _command(SEMEL, ports, tmp_path, PLAIN)
    durable = _command(SEMEL, ports, tmp_path, Configuration(durable=True))
    assert durable == [*plain, "--data", str(tmp_path / "data"), "--stream", "all=#"]
    many = _command(SEMEL, ports, tmp_path, Configuration(connections=MANY))
    assert many == [*plain, "--maximum-connections", str(MANY)]


def test_a_client_that_reconnects_has_another_address() -> None:
    addresses = {
        connections._address(number, turn)
        for number in range(0, MANY, connections.PORTS_PER_ADDRESS)
        for turn in range(connections.TURNS)
    }
    assert len(addresses) == MANY // connections.PORTS_PER_ADDRESS * connections.TURNS
    assert all(int(address.rpartition(".")[2]) < 255 for address in addresses)


def test_a_closed_connection_is_noticed_and_an_idle_one_is_not() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20)
        assert not has_closed(ours)
        theirs.close()
        assert has_closed(ours)


# --- small runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "figures"), [(LATENCY, "latency", 3), (HALF_LOAD, "fleet", 3)]
)
@VERSIONS
def test_a_run_has_its_figures_and_loses_nothing(
    kind: str, name: str, figures: int, version: int
) -> None:
    changes = {"publishers": 20} if name == "fleet" else {"rate": 500, "qos": 1}
    scenario = Scenario(name, "small", LOADS[name].changed(changes), kind=kind)
    run = run_once(Measured(scenario, SEMEL, version))
    assert (run.fault, run.lost) == ("", 0)
    assert len(run.figures) == figures
    assert all(figure > 0 for figure in run.figures)
    assert run.delivered >= 500


@VERSIONS
def test_connections_are_opened_closed_and_opened_again(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(connections, "possible_connections", lambda: 300)
    opened: list[int] = []
    open_clients = connections.open_clients

    def noted(*arguments: object, **options: int) -> list[socket.socket]:
        made = open_clients(*arguments, **options)  # type: ignore[arg-type]
        opened.append(len(made))
        return made

    monkeypatch.setattr(connections, "open_clients", noted)
    run = run_once(Measured(scenario_named("connections20k"), SEMEL, version))
    assert run.fault == ""
    assert len(run.figures) == 3
    assert opened == [100, 200, 300]


def test_clients_that_reconnect_are_always_as_many() -> None:
    with started(SEMEL, os.sched_getaffinity(0)) as process:
        clients = ReconnectingClients(process.port, 120)
        try:
            clients.open(list(range(120)))
            for _ in range(3):
                clients.reconnect_some()
            assert (len(clients.sockets), clients.reconnected, clients.refused) == (120, 150, 0)
        finally:
            clients.close()


def test_devices_wait_for_their_acknowledgements() -> None:
    with started(SEMEL, os.sched_getaffinity(0)) as process:
        latencies = watch_devices(process.port, 1.5)
    assert sum(latencies.buckets.values()) >= DEVICES
