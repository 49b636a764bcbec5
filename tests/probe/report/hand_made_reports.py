"""Reports that no examination made, for the tests of what is made out of them."""

from semel import standard
from semel.probe.evidence import (
    CLOSED_BY_EXAMINER,
    CLOSED_BY_SUBJECT,
    CONTROL,
    NOTE,
    OPENED,
    RECEIVED,
    SENT,
    TEST,
    WireEvent,
)
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.verdicts import (
    ARGUABLE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    RECEIVE,
    SATISFIED,
    SEND,
    VIOLATED,
)

# What ends a script, a comment, a section of XML, a table of Markdown or a line of a terminal.
HOSTILE = "</script><script>alert(1)</script>\"'&<!-- ]]> \x00\x1b[31m\n|`` \ud800 \u202e {}\\"

CONNECT = bytes.fromhex("101300044d5154540402003c0007") + b"semel42"
CONNACK = bytes.fromhex("20020000")
PUBLISH_1 = bytes.fromhex("3207000161000778") + b"y"
EMPTY_TOPIC = bytes.fromhex("32050000000778")
PUBACK = bytes.fromhex("40020007")

# The second origin case: the broker acknowledges a PUBLISH without a topic name.
ORIGIN_EVIDENCE = (
    WireEvent(0.0, CONTROL, 1, OPENED, b"", "connected to 127.0.0.1:1883"),
    WireEvent(0.001, CONTROL, 1, SENT, CONNECT, "CONNECT, client_id 'semel42'"),
    WireEvent(0.002, CONTROL, 1, RECEIVED, CONNACK, "CONNACK"),
    WireEvent(0.003, CONTROL, 1, SENT, PUBLISH_1, "PUBLISH QoS 1, packet_id 7, topic_name 'a'"),
    WireEvent(0.004, CONTROL, 1, RECEIVED, PUBACK, "PUBACK, packet_id 7"),
    WireEvent(0.005, CONTROL, 1, CLOSED_BY_EXAMINER, b"", "closed"),
    WireEvent(0.010, TEST, 2, OPENED, b"", "connected to 127.0.0.1:1883"),
    WireEvent(0.011, TEST, 2, SENT, CONNECT, "CONNECT, client_id 'semel42'"),
    WireEvent(0.012, TEST, 2, RECEIVED, CONNACK, "CONNACK"),
    WireEvent(0.013, TEST, 2, SENT, EMPTY_TOPIC, "PUBLISH QoS 1, packet_id 7, topic_name ''"),
    WireEvent(0.014, TEST, 2, RECEIVED, PUBACK, "PUBACK, packet_id 7"),
    WireEvent(0.264, TEST, 2, CLOSED_BY_EXAMINER, b"", "connection cut"),
)
ORIGIN_CASE = CaseOutcome(
    "empty-topic-name",
    "3.1.1",
    RECEIVE,
    ("MQTT-4.7.3-1", "MQTT-3.3.2-1"),
    "The broker closes the connection on a PUBLISH with an empty topic name.",
    VIOLATED,
    "The broker answered with PUBACK.",
    ORIGIN_EVIDENCE,
    runs=3,
    seconds=0.3,
)


def report(*outcomes: CaseOutcome, **others: object) -> ExaminationReport:
    """A report of a broker with these outcomes."""
    values: dict[str, object] = {
        "kind": "broker",
        "subject": "mqtt://localhost:1883",
        "name": "example 1.0",
        "started": 1_790_000_000.0,
        "seconds": 12.5,
        "seed": 7,
        "versions": ("3.1.1",),
        "semel_version": "0.9",
    }
    values.update(others)
    return ExaminationReport(outcomes=list(outcomes), **values)  # type: ignore[arg-type]


def origin_report() -> ExaminationReport:
    """A report with the verdicts that a page shows differently."""
    refused = ORIGIN_EVIDENCE[6:10]
    closed = WireEvent(0.014, TEST, 2, CLOSED_BY_SUBJECT, b"", "closed")
    return report(
        ORIGIN_CASE,
        case("wildcard-in-topic-name", SATISFIED, ("MQTT-4.7.1-1",), (*refused, closed)),
        case("empty-topic-name-qos-0", SATISFIED, ("MQTT-4.7.3-1",), (*refused, closed)),
        case("retained", NOT_APPLICABLE, ("MQTT-3.3.1-5",)),
        case("order", INCONCLUSIVE, ("MQTT-4.6.0-6",)),
        case("session", ARGUABLE, ("MQTT-3.1.2-4",), (WireEvent(0.0, TEST, 0, NOTE, b"", "n"),)),
        remarks=["The run was interrupted: 3 cases were not run."],
    )


def hostile_report() -> ExaminationReport:
    """Every text is hostile, and so are bytes and times."""
    evidence = (
        *ORIGIN_EVIDENCE,
        WireEvent(0.3, TEST, 3, RECEIVED, b"\xff\xff\xff\xff\xff", HOSTILE),
        WireEvent(0.3, TEST, 3, SENT, b"", HOSTILE),
        WireEvent(0.4, TEST, 0, NOTE, b"", HOSTILE),
    )
    outcomes = [
        CaseOutcome(
            f"../../{verdict}{HOSTILE}",
            "3.1.1",
            RECEIVE,
            ("MQTT-4.7.3-1",),
            HOSTILE,
            verdict,
            HOSTILE,
            evidence,
        )
        for verdict in (VIOLATED, SATISFIED, INCONCLUSIVE, NOT_APPLICABLE, ARGUABLE)
    ]
    return report(*outcomes, subject=HOSTILE, name=HOSTILE, remarks=[HOSTILE])


def large_report(cases: int = 2_000) -> ExaminationReport:
    """A report of both versions with cases of six events or more."""
    outcomes = []
    for version in ("3.1.1", "5.0"):
        statements = standard.statements(version)
        for number in range(cases // 2):
            names = tuple(statements[(number + n) % len(statements)].id for n in range(2))
            violated = number % 50 == 3
            outcomes.append(
                CaseOutcome(
                    f"case-{number}",
                    version,
                    SEND if number % 3 else RECEIVE,
                    names,
                    f"The broker does what case {number} requires, in every version of MQTT.",
                    VIOLATED if violated else SATISFIED,
                    "The broker answered with PUBACK." if violated else "It does.",
                    ORIGIN_EVIDENCE[6:],
                    seconds=0.02,
                )
            )
    return report(*outcomes, versions=("3.1.1", "5.0"))


def case(
    name: str,
    verdict: str,
    statements: tuple[str, ...],
    evidence: tuple[WireEvent, ...] = (),
    *,
    version: str = "3.1.1",
    path: str = RECEIVE,
) -> CaseOutcome:
    """An outcome with sentences that name the case."""
    title = f"The broker does what {name} requires."
    found = f"The result of {name}."
    return CaseOutcome(name, version, path, statements, title, verdict, found, evidence)
