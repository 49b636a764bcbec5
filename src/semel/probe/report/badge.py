"""A badge (SVG) for a README: "MQTT 5.0 | 243/251"."""

from typing import Final
from xml.sax.saxutils import escape  # nosec B406: it escapes text and parses none

from semel.probe.outcomes import ExaminationReport, StatementVerdict, totals
from semel.probe.verdicts import (
    ARGUABLE,
    FAILED,
    INCONCLUSIVE,
    PARTLY,
    SATISFIED,
    VIOLATED,
)

# White text on each of them has a contrast of at least 4.5.
_LABEL, _GREEN, _AMBER, _RED, _GRAY = "#444d56", "#177245", "#8a5800", "#b92323", "#596474"
_HEIGHT: Final = 20
_PADDING: Final = 6
# The mean width of a character of the font, in pixels.
_CHARACTER: Final = 6.6
# Statements that were examined: all that a case decided or failed to decide.
_EXAMINED: Final = (SATISFIED, VIOLATED, PARTLY, ARGUABLE, INCONCLUSIVE)


def make_badge(report: ExaminationReport) -> str:
    """The SVG. Per version: how many of the examined statements are satisfied."""
    statements = report.statements()
    parts: list[tuple[str, str]] = []
    for version in report.versions:
        parts.append((f"MQTT {version}", _LABEL))
        parts.append(_score([each for each in statements if each.version == version]))
    if not parts:
        parts = [("MQTT", _LABEL), ("not examined", _GRAY)]
    words = " ".join(text for text, _ in parts)
    x = 0.0
    boxes = []
    for text, color in parts:
        width = round(len(text) * _CHARACTER + 2 * _PADDING, 1)
        boxes.append(
            f'<rect x="{x:.1f}" width="{width}" height="{_HEIGHT}" fill="{color}"/>'
            f'<text x="{x + width / 2:.1f}" y="14" textLength="{width - 2 * _PADDING:.1f}">'
            f"{escape(text)}</text>"
        )
        x += width
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x:.1f}" height="{_HEIGHT}" role="img"'
        f' aria-label="{escape(words)}"><title>{escape(words)}</title>\n'
        f'<clipPath id="r"><rect width="{x:.1f}" height="{_HEIGHT}" rx="3"/></clipPath>\n'
        f'<g clip-path="url(#r)" fill="#fff" text-anchor="middle" font-size="11"'
        f' font-family="Verdana,Geneva,DejaVu Sans,sans-serif">\n' + "\n".join(boxes) + "\n"
        "</g></svg>\n"
    )


def _score(statements: list[StatementVerdict]) -> tuple[str, str]:
    """The text and the color of a version."""
    counts = totals(statements)
    examined = sum(counts.get(verdict, 0) for verdict in _EXAMINED)
    if not examined:
        return "not examined", _GRAY
    text = f"{counts.get(SATISFIED, 0)}/{examined}"
    if any(counts.get(verdict) for verdict in FAILED):
        return text, _RED
    return text, _AMBER if counts.get(INCONCLUSIVE) else _GREEN
