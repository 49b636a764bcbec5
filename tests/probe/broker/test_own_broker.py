"""semel's own broker: the examiner finds nothing violated in it, and leaves nothing undecided."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.probe.broker.all_cases import ALL_CASES
from semel.probe.outcomes import ExaminationReport
from semel.probe.verdicts import NOT_APPLICABLE, NOT_OBSERVABLE, SATISFIED
from tests.broker.live.test_server_listeners import Broker, broker, urls
from tests.broker.tls_files import TlsFiles
from tests.probe.broker.own_broker import doubtful, examine_own

# Of the statements that a connection can show.
LEAST_SATISFIED = 0.95


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def running(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with broker(*urls(files, folder)) as made:
        yield made


@pytest.fixture(scope="module")
def over_tcp(running: Broker, files: TlsFiles) -> ExaminationReport:
    return examine_own(running, "tcp", files)


@pytest.fixture(scope="module")
def over_websocket(running: Broker, files: TlsFiles) -> ExaminationReport:
    cases = [case for case in ALL_CASES if not case.is_from_vector and not case.is_slow]
    return examine_own(running, "ws", files, cases)


def test_every_case_over_tcp_is_satisfied(over_tcp: ExaminationReport) -> None:
    assert doubtful(over_tcp) == []
    assert over_tcp.remarks == []
    assert {each.case for each in over_tcp.outcomes} >= {case.name for case in ALL_CASES}


def test_written_cases_over_websocket_are_satisfied(over_websocket: ExaminationReport) -> None:
    assert doubtful(over_websocket) == []
    assert over_websocket.remarks == []


def test_written_cases_over_tls_are_satisfied(running: Broker, files: TlsFiles) -> None:
    cases = [case for case in ALL_CASES if not case.is_from_vector and not case.is_slow][::3]
    report = examine_own(running, "tls", files, cases)
    assert doubtful(report) == []
    assert report.remarks == []


def test_most_statements_that_a_connection_can_show_get_a_verdict(
    over_tcp: ExaminationReport, over_websocket: ExaminationReport
) -> None:
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for report in (over_tcp, over_websocket):
        for each in report.statements():
            found[each.version, each.id].add(each.verdict)
    shown = {
        key: verdicts
        for key, verdicts in found.items()
        if not verdicts <= {NOT_APPLICABLE, NOT_OBSERVABLE}
    }
    satisfied = [key for key, verdicts in shown.items() if SATISFIED in verdicts]
    missing = sorted(set(shown) - set(satisfied))
    assert len(satisfied) >= LEAST_SATISFIED * len(shown), missing
    # So that not everything is called not applicable.
    assert len(satisfied) > 400
