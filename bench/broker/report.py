"""The table, the losses and the targets."""

import statistics
from typing import Final

from bench.broker.contenders import AMQTT, CONTENDERS, MOSQUITTO, SEMEL
from bench.broker.measure import Measured
from bench.broker.scenarios import CONNECTIONS, IDLE, IDLE_KB_TARGET, version_name
from semel.mqtt import MQTT5

SEPARATOR: Final = " / "
# The share of a processor that broker or load should have had in most runs.
FREE: Final = 0.6


def _number(figure: float) -> str:
    """A number with about three digits."""
    if figure >= 100:
        return f"{figure:,.0f}"
    if figure >= 10:
        return f"{figure:.1f}"
    return f"{figure:.2f}" if figure >= 0.1 else f"{figure:.3f}"


def _cell(cell: Measured, semel: Measured | None) -> str:
    """Medians; in parentheses, the ratio to semel; then warnings."""
    text = SEPARATOR.join(_number(figure) for figure in cell.figures)
    if text and semel is not None and semel.figures and cell.contender != SEMEL:
        pairs = zip(cell.figures, semel.figures, strict=True)
        ratios = [_number(figure / own) if own else "–" for figure, own in pairs]
        text += f" ({SEPARATOR.join(ratios)}×)"
    if cell.lost:
        text += f" ⚠ lost {cell.lost:,}"
    if cell.faults:
        text += f" ⚠ {', '.join(cell.faults)}"
    return text.strip() or "–"


def _semel(cells: list[Measured], cell: Measured) -> Measured | None:
    """semel in the same scenario and version."""
    for other in cells:
        if other.contender == SEMEL and other.version == cell.version:
            if other.scenario == cell.scenario:
                return other
    return None


def table(cells: list[Measured]) -> list[str]:
    """A Markdown table: a row per scenario, a column per contender and version."""
    columns = [
        (version, contender)
        for version in sorted({cell.version for cell in cells})
        for contender in CONTENDERS
        if any(cell.version == version and cell.contender == contender for cell in cells)
    ]
    heads = [f"{contender} {version_name(version)}" for version, contender in columns]
    lines = [
        f"| µs of processor time per delivered message | {' | '.join(heads)} |",
        f"|---|{'---:|' * len(columns)}",
    ]
    for scenario in dict.fromkeys(cell.scenario for cell in cells):
        texts = {
            (cell.version, cell.contender): _cell(cell, _semel(cells, cell))
            for cell in cells
            if cell.scenario == scenario
        }
        row = " | ".join(texts.get(column, "–") for column in columns)
        lines.append(f"| {scenario.name}: {scenario.title} | {row} |")
    return lines


def losses(cells: list[Measured]) -> str:
    """One sentence about losses."""
    runs = [run for cell in cells for run in cell.runs if run.figures]
    delivered = sum(run.delivered for run in runs)
    lost = [f"{cell.contender} {cell.scenario.name}: {cell.lost:,}" for cell in cells if cell.lost]
    summary = f"lost: {'; '.join(lost)}" if lost else "nothing was lost"
    return f"{delivered:,} messages delivered while measured, in {len(runs)} runs; {summary}"


def busy_machine_warning(cells: list[Measured]) -> str:
    """A warning if neither broker nor load had a processor to itself."""
    shares = [max(run.broker_busy, run.load_busy) for cell in cells for run in cell.runs]
    shares = [share for share in shares if share]
    if not shares or statistics.median(shares) >= FREE:
        return ""
    return (
        f"⚠ Other programs used this machine: the busier of broker and load had "
        f"{statistics.median(shares):.0%} of a processor. Latencies mean little."
    )


def targets(cells: list[Measured]) -> list[str]:
    """A line per measured target. A broker that loses messages meets none."""
    lines: list[str] = []
    for cell in cells:
        semel = _semel(cells, cell)
        asked = _asked(cell)
        what = f"{cell.scenario.name} {version_name(cell.version)}"
        if cell.scenario.name == CONNECTIONS and cell.contender == SEMEL and cell.figures:
            kilobytes = cell.figures[1]
            sign = "✓" if kilobytes <= IDLE_KB_TARGET else "✗"
            lines.append(
                f"{sign} {what}: {IDLE:,} of them take at most {IDLE_KB_TARGET:.0f} KB each: "
                f"{kilobytes:.1f}"
            )
        if not asked or semel is None:
            continue
        if not cell.figures:
            lines.append(f"– {what}: {cell.contender} {', '.join(cell.faults)}")
        elif semel.lost or semel.faults or not semel.figures:
            lines.append(f"✗ {what}: semel {', '.join(semel.faults) or 'lost messages'}")
        else:
            ratio = cell.figures[0] / semel.figures[0]
            lines.append(
                f"{'✓' if ratio >= asked else '✗'} {what}: {cell.contender} takes at least "
                f"{asked:g} times as long: {_number(ratio)}"
            )
    return lines


def _asked(cell: Measured) -> float:
    """The target ratio of this contender's time to semel's; 0 for none."""
    if cell.contender == MOSQUITTO:
        return cell.scenario.versus_mosquitto / (2 if cell.version == MQTT5 else 1)
    return cell.scenario.versus_amqtt if cell.contender == AMQTT else 0.0
