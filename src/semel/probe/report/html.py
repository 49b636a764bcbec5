"""A report as one HTML page: it loads nothing, can be searched and filtered, and prints well.

Everything that the subject sent or is called is escaped, and the page's policy runs no script but
its own. A case is shown in full once: a violated one among the violations, another one with the
first statement that it examines.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from semel.counts import count
from semel.probe.evidence import CONTROL, NOTE, WireEvent
from semel.probe.outcomes import CaseOutcome, ExaminationReport, StatementVerdict
from semel.probe.report.case_files import CaseFiles
from semel.probe.report.chapters import chapter, totals_by_chapter
from semel.probe.report.page_parts import SIGNS, escaped, page, select_field, verdict_label
from semel.probe.report.safe_strings import spaced_hex
from semel.probe.verdicts import FAILED, PATHS, VERDICTS

# More bytes of one event are in report.json only.
_SHOWN_BYTES: Final = 512


def make_html(
    report: ExaminationReport, files: Mapping[tuple[str, str], CaseFiles] | None = None
) -> str:
    """The page. `files` has the reproducers and bug reports to which it links."""
    statements = report.statements()
    name = report.name or report.subject
    body = "".join(
        (
            _header(report),
            "<main>\n",
            _summary(statements),
            _violations(report, statements, files or {}),
            _all_statements(report, statements),
            "</main>\n",
        )
    )
    return page(f"MQTT conformance of {name}", body)


def _header(report: ExaminationReport) -> str:
    started = datetime.fromtimestamp(report.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts = [
        ("Subject", report.subject),
        ("Examined as", report.kind.replace("+", " and ")),
        ("MQTT", " and ".join(report.versions)),
        ("Cases", f"{len(report.outcomes):,} in {report.seconds:.1f} s"),
        ("Started", started),
        ("Examiner", f"semel {report.semel_version}, seed {report.seed}"),
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{escaped(value)}</dd>\n" for name, value in facts)
    remarks = "".join(f"<li>{escaped(each)}</li>\n" for each in report.remarks)
    return (
        f"<header>\n<h1>MQTT conformance of {escaped(report.name or report.subject)}</h1>\n"
        f"<dl>\n{rows}</dl>\n"
        + (f"<h2>Remarks</h2>\n<ul>\n{remarks}</ul>\n" if remarks else "")
        + '<nav class="screen" aria-label="Parts of this page"><a href="#summary">Summary</a> · '
        '<a href="#violations">Violations</a> · <a href="#statements">All statements</a></nav>\n'
        "</header>\n"
    )


def _summary(statements: list[StatementVerdict]) -> str:
    used = [each for each in VERDICTS if any(one.verdict == each for one in statements)]
    heads = "".join(f'<th scope="col">{SIGNS[each][0]} {each}</th>' for each in used)
    by_chapter = totals_by_chapter(statements)
    versions = list(dict.fromkeys(version for version, _ in by_chapter))
    rows = []
    for version in versions:
        chapters = {key[1]: counts for key, counts in by_chapter.items() if key[0] == version}
        sums = {
            verdict: sum(each.get(verdict, 0) for each in chapters.values()) for verdict in used
        }
        rows.append(_summary_row(f"MQTT {version}", sums, used, is_sum=True))
        rows += [_summary_row(name, counts, used) for name, counts in chapters.items()]
    return (
        '<section id="summary" aria-labelledby="summary-title">\n'
        '<h2 id="summary-title">Summary by section</h2>\n'
        '<div class="wide" role="region" aria-label="Table of sections" tabindex="0">'
        '<table class="summary"><caption>Statements of the standard by verdict</caption>\n'
        f'<thead><tr><th scope="col">Section</th>{heads}<th scope="col">All</th></tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody></table></div>\n</section>\n"
    )


def _summary_row(
    name: str, counts: Mapping[str, int], used: Iterable[str], *, is_sum: bool = False
) -> str:
    cells = ""
    for verdict in used:
        number = counts.get(verdict, 0)
        style = f" {SIGNS[verdict][1]}" if number and SIGNS[verdict][1] != "none" else ""
        cells += f'<td class="number{style}">{number or ""}</td>'
    title = f"<strong>{escaped(name)}</strong>" if is_sum else escaped(name)
    total = sum(counts.values())
    return f'<tr><th scope="row">{title}</th>{cells}<td class="number">{total}</td></tr>\n'


# --- violations -----------------------------------------------------------------------------------


def _violations(
    report: ExaminationReport,
    statements: list[StatementVerdict],
    files: Mapping[tuple[str, str], CaseFiles],
) -> str:
    sentences = {(each.version, each.id): each.sentence for each in statements}
    failed = report.failed()
    head = (
        '<section id="violations" aria-labelledby="violations-title">\n'
        f'<h2 id="violations-title">Violations ({len(failed):,})</h2>\n'
    )
    if not failed:
        return f"{head}<p>No case found a violation.</p>\n</section>\n"
    numbers = _case_numbers(report)
    parts = [head]
    for outcome in failed:
        key = (outcome.case, outcome.version)
        named = "".join(
            f"<li>{_statement_link(outcome.version, each)} "
            f"{escaped(sentences.get((outcome.version, each), ''))}</li>\n"
            for each in outcome.statements
        )
        parts.append(
            f'<article id="c{numbers[key]}">\n<h3>{verdict_label(outcome.verdict)} '
            f"{escaped(outcome.found)}</h3>\n"
            f"<p>Required: {escaped(outcome.title)}</p>\n<ul>\n{named}</ul>\n"
            f'<p class="why">MQTT {escaped(outcome.version)}, path {escaped(outcome.path)}, '
            f"case {escaped(outcome.case)}, {count(outcome.runs, 'run')}{_links(files.get(key))}"
            f"</p>\n<details open><summary>Evidence</summary>{_evidence(outcome)}</details>\n"
            "</article>\n"
        )
    return "".join(parts) + "</section>\n"


def _links(files: CaseFiles | None) -> str:
    if files is None:
        return ""
    links = f' · <a href="{escaped(files.bug_report_path)}">bug report</a>'
    if files.reproducer_path:
        links = f' · <a href="{escaped(files.reproducer_path)}">reproducer</a>{links}'
    return links


def _evidence(outcome: CaseOutcome) -> str:
    """The table of what was sent and seen. Closing tags that HTML does not need are left out."""
    if not outcome.evidence:
        return '<p class="why">No bytes were exchanged.</p>'
    return (
        '<table class="evidence"><thead><tr><th scope="col">Seconds<th scope="col">Arm'
        '<th scope="col">Connection<th scope="col">Event<th scope="col">Bytes'
        '<th scope="col">Meaning</thead><tbody>\n'
        + "".join(_event_row(event) for event in outcome.evidence)
        + "</table>"
    )


def _event_row(event: WireEvent) -> str:
    style = ' class="control"' if event.arm == CONTROL else ""
    data = spaced_hex(event.data[:_SHOWN_BYTES])
    if len(event.data) > _SHOWN_BYTES:
        data += f" … ({count(len(event.data), 'byte')} in all)"
    code = f"<code>{data}</code>" if data else ""
    link = "" if event.kind == NOTE else str(event.link)
    return (
        f"<tr{style}><td>{event.at:.3f}<td>{escaped(event.arm)}<td>{link}<td>{escaped(event.kind)}"
        f"<td>{code}<td>{escaped(event.meaning)}\n"
    )


# --- all statements -------------------------------------------------------------------------------


def _all_statements(report: ExaminationReport, statements: list[StatementVerdict]) -> str:
    numbers = _case_numbers(report)
    outcomes = {(each.case, each.version): each for each in report.outcomes}
    # Violated cases are shown in full above.
    shown = {key for key, each in outcomes.items() if each.verdict in FAILED}
    bodies = []
    for statement in statements:
        cases = []
        for case in dict.fromkeys(statement.cases):
            key = (case, statement.version)
            cases.append(_case(outcomes[key], numbers[key], is_shown_before=key in shown))
            shown.add(key)
        bodies.append(_statement(statement, cases))
    heads = "".join(f'<th scope="col">{path}</th>' for path in PATHS)
    return (
        '<section id="statements" aria-labelledby="statements-title">\n'
        '<h2 id="statements-title">All statements</h2>\n'
        + _filter(statements)
        + '<table class="all blocks"><caption>Every statement, its verdict, and its verdict by '
        "path: "
        "what the subject encodes, decodes and sends, and its reaction to what it receives"
        "</caption>\n"
        '<thead><tr><th scope="col">Statement</th><th scope="col">In our words</th>'
        f'<th scope="col">Verdict</th>{heads}</tr></thead>\n'
        + "".join(bodies)
        + "</table>\n</section>\n"
    )


def _filter(statements: list[StatementVerdict]) -> str:
    verdicts = [each for each in VERDICTS if any(one.verdict == each for one in statements)]
    versions = list(dict.fromkeys(each.version for each in statements))
    sections = list(dict.fromkeys(chapter(each.version, each.section) for each in statements))
    paths = [path for path in PATHS if any(path in each.by_path for each in statements)]
    return (
        '<form class="screen" role="search" aria-label="Statements">\n'
        '<label>Text, numbers, bytes<input type="search" name="text" autocomplete="off" '
        'placeholder="PUBACK 3.3.2 40 02"></label>\n'
        + select_field("verdict", "Verdict", "all verdicts", [(v, v) for v in verdicts])
        + select_field("version", "Version", "all versions", [(v, f"MQTT {v}") for v in versions])
        + select_field("section", "Section", "all sections", [(s, s) for s in sections])
        + select_field("path", "Path", "all paths", [(p, p) for p in paths])
        + '<button type="reset">Show all</button>\n<output aria-live="polite"></output>\n</form>\n'
    )


def _statement(statement: StatementVerdict, cases: list[str]) -> str:
    paths = "|".join(statement.by_path)
    cells = ""
    for path in PATHS:
        verdict = statement.by_path.get(path)
        if verdict is None:
            cells += "<td></td>"
        else:
            sign, style = SIGNS[verdict]
            cells += f'<td class="{style}" data-label="{path}">{sign} {verdict}</td>'
    why = f'<p class="why">{escaped(statement.why)}</p>' if statement.why else ""
    found = ""
    if cases:
        number = count(len(cases), "case")
        found = (
            f'<tr class="more"><td colspan="{3 + len(PATHS)}">'
            f"<details><summary>{number}</summary>\n{''.join(cases)}</details></td></tr>"
        )
    return (
        f'<tbody id="{_anchor(statement.version, statement.id)}" data-verdict="{statement.verdict}"'
        f' data-version="{escaped(statement.version)}" data-path="{paths}"'
        f' data-section="{escaped(chapter(statement.version, statement.section))}">'
        f'<tr><th scope="row" class="id">{escaped(statement.id)}'
        f"<small>MQTT {escaped(statement.version)}</small></th>"
        f'<td>{escaped(statement.sentence)}{why}</td><td class="verdict">'
        f"{verdict_label(statement.verdict)}</td>{cells}</tr>{found}</tbody>\n"
    )


def _case(outcome: CaseOutcome, number: int, *, is_shown_before: bool) -> str:
    sign, style = SIGNS[outcome.verdict]
    title = f'<span class="{style}">{sign} {outcome.verdict}</span> {escaped(outcome.title)}'
    found = f"<p>{escaped(outcome.found)}</p>" if outcome.found else ""
    about = f'<p class="why">{escaped(outcome.path)}: {escaped(outcome.case)}'
    if is_shown_before:
        return (
            f'<div class="cases"><p>{title}</p>{found}{about} · <a href="#c{number}">evidence</a>'
            "</p></div>\n"
        )
    return (
        f'<details id="c{number}"><summary>{title}</summary>{found}{about}</p>'
        f"{_evidence(outcome)}</details>\n"
    )


def _statement_link(version: str, statement: str) -> str:
    return f'<a href="#{_anchor(version, statement)}">{escaped(statement)}</a>'


def _anchor(version: str, statement: str) -> str:
    return escaped(f"s{version}-{statement}")


def _case_numbers(report: ExaminationReport) -> dict[tuple[str, str], int]:
    return {(each.case, each.version): number for number, each in enumerate(report.outcomes)}
