"""The examination of semel's own broker, over each transport."""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from semel.client.address import parse_address
from semel.client.tls import make_context
from semel.probe.broker.all_cases import ALL_CASES
from semel.probe.broker.case import Case
from semel.probe.broker.examination import Examination
from semel.probe.broker.trial import Subject
from semel.probe.outcomes import ExaminationReport
from semel.probe.verdicts import NOT_APPLICABLE, NOT_EXAMINED, SATISFIED
from tests.broker.live.test_server_listeners import Broker
from tests.broker.tls_files import TlsFiles

TRANSPORTS = ("tcp", "tls", "ws")
# Enough for a busy machine: only what would hang takes so long.
SECONDS = 60.0
# What is neither violated nor undecided: a case may need an option, or a feature.
CLEAR = frozenset((SATISFIED, NOT_APPLICABLE, NOT_EXAMINED))


def examine_own(
    running: Broker, transport: str, files: TlsFiles, cases: Sequence[Case] = ALL_CASES
) -> ExaminationReport:
    """The report on a broker that has a listener of this transport."""
    url = running.url(transport)
    # A name may have two addresses, of which only one has a listener.
    address = parse_address(url if transport == "tls" else url.replace("localhost", "127.0.0.1"))
    assert urlsplit(url).port == address.port
    tls = make_context(cafile=str(files / "ca.pem")) if address.secure else None
    subject = Subject(address, tls, None, None, "semel-probe", SECONDS)
    examination = Examination(subject, cases, versions=[4, 5], name=f"semel, {transport}")
    asyncio.run(examination.run())
    return examination.report()


def doubtful(report: ExaminationReport) -> list[tuple[str, str, str, str]]:
    """Cases that are violated, arguable or undecided: version, name, verdict, and why."""
    return [
        (each.version, each.case, each.verdict, each.found)
        for each in report.outcomes
        if each.verdict not in CLEAR
    ]
