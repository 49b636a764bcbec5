"""`semel rules`: list the rules of the standard as this package states them."""

import json
import sys

import click

from semel.cli.flags import json_option
from semel.cli.option_groups import SemelCommand
from semel.mqtt import MQTT5, MQTT311, RULES, Rule


def matches(rule: Rule, pattern: str) -> bool:
    """Whether a rule's name, sentence or statement numbers contain the pattern."""
    texts = (rule.name, rule.sentence, *rule.statements())
    return any(pattern.casefold() in text.casefold() for text in texts)


def as_json(rule: Rule) -> dict[str, object]:
    return {
        "rule": rule.name,
        "sentence": rule.sentence,
        "mqtt311": list(rule.statements(MQTT311)),
        "mqtt5": list(rule.statements(MQTT5)),
        "boundaries": list(rule.boundaries),
        "reason": rule.reason,
        "closes": rule.closes,
    }


def numbers(rule: Rule, version: int) -> str:
    """The statement numbers of a rule without their common prefix."""
    short = [number.removeprefix("MQTT-") for number in rule.statements(version)]
    more = f" and {len(short) - 6} more" if len(short) > 6 else ""
    return ", ".join(short[:6]) + more if short else "–"


@click.command(cls=SemelCommand, examples=("semel rules wildcard", "semel rules 4.7.1-1 --json"))
@click.argument("pattern", default="")
@json_option("Print a JSON list.")
def command(pattern: str, is_json: bool) -> None:
    """List the rules whose name, sentence or statement number contains PATTERN, or all."""
    chosen = [rule for rule in RULES if matches(rule, pattern)]
    if is_json:
        click.echo(json.dumps([as_json(rule) for rule in chosen]))
        return
    if not chosen:
        click.echo(
            f"Error: no rule has {pattern!r} in its name, sentence or statement numbers", err=True
        )
        sys.exit(1)
    for rule in chosen:
        click.echo(click.style(rule.name, bold=True))
        click.echo(f"  {rule.sentence}")
        reason = f"0x{rule.reason:02x}" if rule.closes else "none, the receiver continues"
        click.echo(
            f"  3.1.1: {numbers(rule, MQTT311)} · 5.0: {numbers(rule, MQTT5)} · "
            f"holds at: {', '.join(rule.boundaries)} · reason code: {reason}"
        )
