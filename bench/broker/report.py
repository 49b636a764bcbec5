"""The table, the losses and the targets."""

import statistics
from typing import Final

from bench.broker.connections import possible_connections
from bench.broker.contenders import AMQTT, CONTENDERS, MOSQUITTO, SEMEL
from bench.broker.measure import Measured
from bench.broker.scenarios import ALIKE, LATENCY, MANY, RECONNECTS, version_name
from semel.mqtt import MQTT5, MQTT311

SEPARATOR: Final = " / "
# The share of a processor that broker or load should have had in most runs.
FREE: Final = 0.6


def number_text(figure: float) -> str:
    """A number with about three digits."""
    if figure >= 100:
        return f"{figure:,.0f}"
    if figure >= 10:
        return f"{figure:.1f}"
    return f"{figure:.2f}" if figure >= 0.1 else f"{figure:.3f}"


def describe_cell(cell: Measured, semel: Measured | None) -> str:
    """Medians; in parentheses, the ratio to semel; then warnings."""
    text = SEPARATOR.join(number_text(figure) for figure in cell.figures)
    if text and semel is not None and semel.figures and cell.contender != SEMEL:
        pairs = zip(cell.figures, semel.figures, strict=True)
        ratios = [number_text(figure / own) if own else "–" for figure, own in pairs]
        text += f" ({SEPARATOR.join(ratios)}×)"
    if cell.lost:
        text += f" ⚠ lost {cell.lost:,}"
    if cell.faults:
        text += f" ⚠ {', '.join(cell.faults)}"
    return text.strip() or "–"


def _semel(cells: list[Measured], cell: Measured, version: int | None = None) -> Measured | None:
    """semel in the same scenario, and in the same version if no other is given."""
    version = cell.version if version is None else version
    for other in cells:
        if other.contender == SEMEL and other.version == version:
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
            (cell.version, cell.contender): describe_cell(cell, _semel(cells, cell))
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


def file_limit_warning(cells: list[Measured]) -> str:
    """A warning if there were fewer connections than a title says."""
    count = possible_connections()
    names = [cell.scenario.name for cell in cells if cell.scenario.kind == RECONNECTS]
    if not names or count == MANY:
        return ""
    return (
        f"⚠ {names[0]}: the limit of open files permits {count:,} connections; seconds are those "
        f"of {MANY:,} in proportion."
    )


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
        if cell.contender == SEMEL and cell.figures:
            lines += _own_targets(what, cell, _semel(cells, cell, MQTT311))
        if cell.scenario.kind == LATENCY and cell.contender == MOSQUITTO and semel is not None:
            lines += _median_target(what, cell, semel)
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
                f"{asked:g} times as long: {number_text(ratio)}"
            )
    return lines


def _own_targets(what: str, cell: Measured, older: Measured | None) -> list[str]:
    """What semel's figures should be by themselves, and beside those with 3.1.1 clients."""
    lines: list[str] = []
    for bound in cell.scenario.bounds:
        figure = cell.figures[bound.figure]
        sign = "✓" if figure <= bound.most else "✗"
        lines.append(f"{sign} {what}: at most {bound.most:g} {bound.unit}: {number_text(figure)}")
    if cell.scenario.versions_alike and cell.version == MQTT5 and older and older.figures:
        ratio = cell.figures[0] / older.figures[0]
        sign = "✓" if ratio <= ALIKE else "✗"
        lines.append(
            f"{sign} {what}: at most {ALIKE - 1:.0%} more than with 3.1.1 clients: {ratio - 1:+.0%}"
        )
    return lines


def _median_target(what: str, cell: Measured, semel: Measured) -> list[str]:
    """Whether semel's median latency is no longer than this contender's."""
    if not (cell.figures and semel.figures):
        return []
    theirs, ours = cell.figures[1], semel.figures[1]
    return [
        f"{'✓' if ours <= theirs else '✗'} {what}: the median latency is no longer than "
        f"{cell.contender}'s: {number_text(ours)} to {number_text(theirs)} µs"
    ]


def _asked(cell: Measured) -> float:
    """The target ratio of this contender's time to semel's; 0 for none."""
    if cell.contender == MOSQUITTO and cell.scenario.versions_alike and cell.version == MQTT5:
        return 0.0
    if cell.contender == MOSQUITTO:
        return cell.scenario.versus_mosquitto / (2 if cell.version == MQTT5 else 1)
    return cell.scenario.versus_amqtt if cell.contender == AMQTT else 0.0
