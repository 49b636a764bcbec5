"""What TLS, WebSocket and access rules cost: the same scenarios in several configurations."""

from dataclasses import dataclass
from typing import Final

from bench.broker.configurations import PLAIN, TCP, TLS, WS, WSS, Configuration
from bench.broker.contenders import MOSQUITTO, SEMEL
from bench.broker.measure import Measured, measure_cells
from bench.broker.report import describe_cell, number_text
from bench.broker.scenarios import CONNECTIONS, Scenario, parse_scenarios
from semel.mqtt import MQTT311

RULES: Final = 10_000
# What is measured over every transport, and with rules.
TRANSPORT_SCENARIOS: Final = "a,d,e,f,p50,connections"
RULE_SCENARIOS: Final = "a,d,e,g,g1,p50"
# A transport should leave semel at least this share of its plain ratio to Mosquitto.
RATIO_TARGET: Final = 0.5
# Rules should cost semel at most this much more processor time.
RULES_TARGET: Final = 1.1

# Mosquitto does not start with WebSocket listeners only, so there is always a TCP listener.
TRANSPORTS: Final = (PLAIN, *(Configuration((each, TCP)) for each in (TLS, WS, WSS)))
WITH_RULES: Final = Configuration(rules=RULES)


@dataclass(frozen=True)
class Variants:
    """Scenarios, each in several configurations, of semel and Mosquitto with 3.1.1 clients."""

    cells: list[Measured]
    configurations: tuple[Configuration, ...]

    def cell(self, scenario: Scenario, contender: str, made: Configuration) -> Measured:
        """The runs of one configuration; none if it was not measured."""
        for cell in self.cells:
            if (cell.scenario, cell.contender, cell.configuration) == (scenario, contender, made):
                return cell
        return Measured(scenario, contender, MQTT311, configuration=made)

    @property
    def scenarios(self) -> list[Scenario]:
        return list(dict.fromkeys(cell.scenario for cell in self.cells))

    def ratio(self, scenario: Scenario, made: Configuration) -> float | None:
        """Mosquitto's processor time to semel's."""
        ours, theirs = (self.cell(scenario, name, made).figures for name in (SEMEL, MOSQUITTO))
        return theirs[0] / ours[0] if ours and theirs else None

    def cost(self, scenario: Scenario, contender: str) -> float | None:
        """The processor time with the last configuration to that with the first."""
        first, last = self.configurations[0], self.configurations[-1]
        before, after = (self.cell(scenario, contender, each).figures for each in (first, last))
        return after[0] / before[0] if before and after else None


def measure_variants(
    rounds: int, only: list[Scenario] | None, configurations: tuple[Configuration, ...]
) -> Variants:
    """Measure scenarios in each configuration; progress goes to standard error.

    Connections are measured by TCP and TLS only: Mosquitto needs a tenth of a second for each over
    WebSocket. Scenarios with a configuration of their own are left out.
    """
    default = RULE_SCENARIOS if WITH_RULES in configurations else TRANSPORT_SCENARIOS
    scenarios = parse_scenarios(default) if only is None else only
    cells = [
        Measured(scenario, contender, MQTT311, configuration=made)
        for scenario in scenarios
        if scenario.configuration == PLAIN
        for made in configurations
        if scenario.kind != CONNECTIONS or made.listeners[0] not in (WS, WSS)
        for contender in (SEMEL, MOSQUITTO)
    ]
    measure_cells(rounds, cells)
    return Variants(cells, configurations)


def transport_lines(measured: Variants) -> list[str]:
    """A Markdown table: a row per scenario and transport."""
    lines = [
        "| µs of processor time per delivered message | | semel | Mosquitto | of the plain ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for scenario in measured.scenarios:
        plain = measured.ratio(scenario, PLAIN)
        for made in measured.configurations:
            ours, theirs = (
                measured.cell(scenario, contender, made) for contender in (SEMEL, MOSQUITTO)
            )
            ratio = measured.ratio(scenario, made)
            share = "" if made == PLAIN or not plain or not ratio else f"{ratio / plain:.2f}"
            name = f"{scenario.name}: {scenario.title}" if made == PLAIN else ""
            lines.append(
                f"| {name} | {made.listeners[0]} | {describe_cell(ours, None)} | "
                f"{describe_cell(theirs, ours)} | {share} |"
            )
    return [*lines, ""]


def transport_targets(measured: Variants) -> list[str]:
    """Whether each transport leaves enough of the plain ratio."""
    lines = []
    for scenario in measured.scenarios:
        plain = measured.ratio(scenario, PLAIN)
        for made in measured.configurations[1:]:
            ratio = measured.ratio(scenario, made)
            if scenario.kind == CONNECTIONS or plain is None or ratio is None:
                continue
            share = ratio / plain
            lines.append(
                f"{'✓' if share >= RATIO_TARGET else '✗'} {scenario.name} over "
                f"{made.listeners[0]}: Mosquitto takes {number_text(ratio)} times as long, at "
                f"least half of the plain {number_text(plain)}"
            )
    return lines


def rule_lines(measured: Variants) -> list[str]:
    """A Markdown table: a row per scenario; in parentheses, what the rules cost."""
    lines = [
        "| µs of processor time per delivered message | semel | with rules | Mosquitto "
        "| with rules |",
        "|---|---:|---:|---:|---:|",
    ]
    for scenario in measured.scenarios:
        texts = []
        for contender in (SEMEL, MOSQUITTO):
            cost = measured.cost(scenario, contender)
            texts += [
                describe_cell(measured.cell(scenario, contender, made), None)
                for made in measured.configurations
            ]
            if cost is not None:
                texts[-1] += f" ({number_text(cost)}×)"
        lines.append(f"| {scenario.name}: {scenario.title} | {' | '.join(texts)} |")
    return [*lines, ""]


def rule_targets(measured: Variants) -> list[str]:
    """Whether rules cost semel little."""
    lines = []
    for scenario in measured.scenarios:
        cost = measured.cost(scenario, SEMEL)
        if cost is not None:
            lines.append(
                f"{'✓' if cost <= RULES_TARGET else '✗'} {scenario.name}: {RULES:,} rules cost "
                f"at most {RULES_TARGET - 1:.0%}: {cost - 1:+.0%}"
            )
    return lines
