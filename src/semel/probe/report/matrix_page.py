"""Several reports as one HTML page: a row per statement, a column per subject."""

from collections.abc import Sequence
from datetime import UTC, datetime

from semel.probe.outcomes import ExaminationReport, StatementVerdict, totals
from semel.probe.report.chapters import chapter
from semel.probe.report.page_parts import SIGNS, escaped, page, select_field
from semel.probe.verdicts import VERDICTS

# Of each version and id, the verdict of each report, None where it did not examine the version.
MatrixRow = tuple[StatementVerdict, tuple[StatementVerdict | None, ...]]


def matrix_rows(reports: Sequence[ExaminationReport]) -> list[MatrixRow]:
    """Every statement of any of the reports, by version and in the order of the standard."""
    by_report = [{(each.version, each.id): each for each in one.statements()} for one in reports]
    known = {key: each for found in by_report for key, each in found.items()}
    order = {version: number for number, version in enumerate(sorted({key[0] for key in known}))}
    # Sorting is stable, so that the order of the standard remains within a version.
    keys = sorted(known, key=lambda key: order[key[0]])
    return [(known[key], tuple(found.get(key) for found in by_report)) for key in keys]


def differs(row: MatrixRow) -> bool:
    """Whether the subjects have different verdicts, or only some have one."""
    return len({each and each.verdict for each in row[1]}) > 1


def make_matrix(reports: Sequence[ExaminationReport]) -> str:
    """The page. Columns are in the order of the reports."""
    rows = matrix_rows(reports)
    heads = "".join(
        f'<th scope="col">{escaped(each.name or each.subject)}</th>' for each in reports
    )
    body = (
        "<header>\n<h1>MQTT conformance of several subjects</h1>\n"
        '<nav class="screen" aria-label="Parts of this page"><a href="#subjects">Subjects</a> · '
        '<a href="#statements">All statements</a></nav>\n</header>\n<main>\n'
        + _subjects(reports)
        + '<section id="statements" aria-labelledby="statements-title">\n'
        '<h2 id="statements-title">All statements</h2>\n'
        + _filter(reports, rows)
        + '<table class="all"><caption>Every statement with the verdict of each subject</caption>\n'
        f'<thead><tr><th scope="col">Statement</th><th scope="col">In our words</th>{heads}</tr>'
        "</thead>\n" + "".join(_row(row) for row in rows) + "</table>\n</section>\n</main>\n"
    )
    return page("MQTT conformance of several subjects", body)


def _subjects(reports: Sequence[ExaminationReport]) -> str:
    """The table of subjects: when and how each was examined, and its totals."""
    all_totals = [totals(each.statements()) for each in reports]
    used = [verdict for verdict in VERDICTS if any(verdict in each for each in all_totals)]
    heads = "".join(f'<th scope="col">{SIGNS[each][0]} {each}</th>' for each in used)
    rows = []
    for report, counts in zip(reports, all_totals, strict=True):
        cells = ""
        for verdict in used:
            number = counts.get(verdict, 0)
            style = f" {SIGNS[verdict][1]}" if number and SIGNS[verdict][1] != "none" else ""
            cells += f'<td class="number{style}">{number or ""}</td>'
        date = datetime.fromtimestamp(report.started, UTC).date().isoformat()
        rows.append(
            f'<tr><th scope="row">{escaped(report.name or report.subject)}</th>'
            f"<td>{escaped(report.kind)}</td><td>{escaped(', '.join(report.versions))}</td>"
            f"<td>{date}</td><td>{escaped(report.semel_version)}</td>{cells}</tr>\n"
        )
    return (
        '<section id="subjects" aria-labelledby="subjects-title">\n'
        '<h2 id="subjects-title">Subjects</h2>\n'
        '<div class="wide" role="region" aria-label="Table of subjects" tabindex="0">'
        '<table class="summary"><caption>Statements of the standard by verdict</caption>\n'
        '<thead><tr><th scope="col">Subject</th><th scope="col">Kind</th>'
        '<th scope="col">MQTT</th><th scope="col">Date</th><th scope="col">semel</th>'
        f"{heads}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody></table></div>\n</section>\n"
    )


def _filter(reports: Sequence[ExaminationReport], rows: list[MatrixRow]) -> str:
    versions = list(dict.fromkeys(row[0].version for row in rows))
    sections = list(dict.fromkeys(chapter(row[0].version, row[0].section) for row in rows))
    found = {each.verdict for row in rows for each in row[1] if each is not None}
    verdicts = [each for each in VERDICTS if each in found]
    different = ""
    if len(reports) > 1:
        different = (
            '<label class="check"><input type="checkbox" name="differs">'
            "Only statements that differ</label>\n"
        )
    return (
        '<form class="screen" role="search" aria-label="Statements">\n'
        '<label>Text, numbers<input type="search" name="text" autocomplete="off" '
        'placeholder="wildcard 4.7.1"></label>\n'
        + select_field("verdict", "Verdict of any", "all verdicts", [(v, v) for v in verdicts])
        + select_field("version", "Version", "all versions", [(v, f"MQTT {v}") for v in versions])
        + select_field("section", "Section", "all sections", [(s, s) for s in sections])
        + different
        + '<button type="reset">Show all</button>\n<output aria-live="polite"></output>\n</form>\n'
    )


def _row(row: MatrixRow) -> str:
    known, verdicts = row
    cells = "".join(_cell(each) for each in verdicts)
    found = "|".join(dict.fromkeys(each.verdict for each in verdicts if each is not None))
    return (
        f'<tbody id="{escaped(f"s{known.version}-{known.id}")}" data-verdict="{found}"'
        f' data-version="{escaped(known.version)}"{" data-differs" if differs(row) else ""}'
        f' data-section="{escaped(chapter(known.version, known.section))}">'
        f'<tr><th scope="row" class="id">{escaped(known.id)}'
        f"<small>MQTT {escaped(known.version)}</small></th>"
        f"<td>{escaped(known.sentence)}</td>{cells}</tr></tbody>\n"
    )


def _cell(verdict: StatementVerdict | None) -> str:
    if verdict is None:
        return "<td></td>"
    sign, style = SIGNS[verdict.verdict]
    paths = ""
    if len(set(verdict.by_path.values())) > 1:
        lines = [f"{path}: {SIGNS[each][0]} {each}" for path, each in verdict.by_path.items()]
        paths = f"<br><small>{'<br>'.join(lines)}</small>"
    return f'<td class="{style}">{sign} {verdict.verdict}{paths}</td>'
