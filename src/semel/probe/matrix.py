"""Examines many subjects, here or on a Spark cluster, one task per subject.

A task is a text in, and a text out, so that it runs in any process that has semel.
"""

import asyncio
import contextlib
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.client.address import parse_address
from semel.client.tls import TlsError, make_context
from semel.probe.broker.all_cases import ALL_CASES
from semel.probe.broker.control import BrokerControl, ControlCommandFailed
from semel.probe.broker.examination import Examination
from semel.probe.broker.trial import Subject
from semel.probe.client.examination import examine_client
from semel.probe.codec.examination import examine_codec
from semel.probe.outcomes import (
    INTERRUPTION,
    CannotExamine,
    ExaminationReport,
    report_from_json,
)
from semel.probe.subjects_file import VERSIONS, MatrixSubject, subject_from_text


@dataclass(frozen=True)
class SubjectResult:
    """The report on a subject, or why it could not be examined."""

    name: str
    report: ExaminationReport | None
    problem: str = ""


def examine_subject(text: str) -> str:
    """Examine the subject that `as_text` wrote. Returns a JSON text; never raises."""
    return asyncio.run(_examine_text(text))


async def _examine_text(text: str) -> str:
    subject = subject_from_text(text)
    try:
        report = await _examine(subject)
    except (CannotExamine, ControlCommandFailed, TlsError, OSError) as problem:
        return json.dumps({"name": subject.name, "problem": str(problem)})
    except Exception as problem:  # one subject must not end the examination of the others
        return json.dumps({"name": subject.name, "problem": f"semel probe failed: {problem!r}"})
    report.name = subject.name
    return json.dumps({"name": subject.name, "report": report.as_json()})


def result_of(text: str) -> SubjectResult:
    """What `examine_subject` returned."""
    value = json.loads(text)
    if "report" not in value:
        return SubjectResult(value["name"], None, value["problem"])
    return SubjectResult(value["name"], report_from_json(value["report"]))


def examine_here(
    subjects: Sequence[MatrixSubject], *, at_once: int, on_done: Callable[[SubjectResult], None]
) -> list[SubjectResult]:
    """Examine the subjects in this process, `at_once` at a time. Returns them in their order.

    After Ctrl-C it returns those that are done.
    """
    found: dict[str, SubjectResult] = {}
    turn = asyncio.Semaphore(at_once)

    async def examine(subject: MatrixSubject) -> None:
        async with turn:
            result = result_of(await _examine_text(subject.as_text()))
        if result.report is not None and INTERRUPTION in result.report.remarks:
            return
        found[result.name] = result
        on_done(result)

    async def examine_all() -> None:
        async with asyncio.TaskGroup() as group:
            for subject in subjects:
                group.create_task(examine(subject))

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(examine_all())
    return [found[subject.name] for subject in subjects if subject.name in found]


async def _examine(subject: MatrixSubject) -> ExaminationReport:
    versions = [VERSIONS[version] for version in subject.versions]
    if subject.kind == "codec":
        return await examine_codec(
            shlex.split(subject.codec), versions=subject.versions, timeout=subject.timeout
        )
    if subject.kind == "client":
        return await examine_client(shlex.split(subject.client), versions=versions)
    address = parse_address(subject.broker)
    tls = make_context(cafile=subject.cafile or None) if address.secure else None
    control = BrokerControl(address, subject.start, subject.stop, subject.kill)
    user = None if address.user_name is None else address.user_name.encode()
    examination = Examination(
        Subject(address, tls, user, address.password, subject.prefix, subject.timeout),
        ALL_CASES,
        versions=versions,
        control=control,
        name=subject.name,
    )
    try:
        await examination.run()
    finally:
        # What this examination has started, it stops.
        if subject.start and subject.stop:
            await control.stop()
    return examination.report()
