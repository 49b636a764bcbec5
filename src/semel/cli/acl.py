"""`semel acl`: check a rights file, and explain what it allows to a client."""

import json
import os
import sys
from pathlib import Path
from typing import Final

import click

from semel.broker.access.rights import Decision, Rights
from semel.broker.access.rights_loading import load_rights
from semel.broker.access.rights_rules import ACTION_NAMES, RightsError
from semel.broker.access.rights_settings import RightsSettings
from semel.broker.identity import ANONYMOUS, PASSWORD, Identity
from semel.cli.flags import CONFIG, ONE_OBJECT, shared_option
from semel.cli.groups import SuggestingGroup
from semel.cli.numbers import IntegerRange
from semel.cli.safe_text import print_warnings, shown_text
from semel.cli.sections import SECTIONS
from semel.counts import count
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.topics import check_share, check_topic_filter, check_topic_name
from semel.mqtt.violation import Violation
from semel.settings import SettingsError, load

# USER of an anonymous client.
NO_USER_NAME: Final = "-"
# The exit codes of `semel acl test`, so that a script can tell a refusal from a mistake.
DENIED: Final = 1
FAILED: Final = 2


class CannotDecide(click.ClickException):
    """The rights cannot be read."""

    exit_code = FAILED


@click.group(name="acl", cls=SuggestingGroup)
def command() -> None:
    """Check the rights of clients: the rules in a rights file or an ACL file of Mosquitto.

    Without FILE, it is the one of section [rights] of the settings.
    """


MOSQUITTO: Final = click.option(
    "--mosquitto", "is_mosquitto", is_flag=True, help="FILE is an ACL file of Mosquitto."
)


def locate_rights(file: Path | None, *, is_mosquitto: bool, config: Path | None) -> RightsSettings:
    """The settings of the flags, or of the environment and the file of settings."""
    if file is not None:
        if is_mosquitto:
            return RightsSettings(mosquitto_acl_file=file)
        return RightsSettings(file=file)
    if is_mosquitto:
        raise click.UsageError("--mosquitto needs FILE, the ACL file of Mosquitto")
    try:
        settings = load(SECTIONS, path=config, environ=os.environ, flags={}).of(RightsSettings)
    except SettingsError as problem:
        raise CannotDecide(str(problem)) from None
    if settings.file is None and settings.mosquitto_acl_file is None:
        raise click.UsageError(
            "no rights are configured: name FILE, or settings with [rights] file by --config"
        )
    return settings


def read_rights(settings: RightsSettings) -> Rights:
    """The rights that the settings name, which are some. Raises CannotDecide."""
    try:
        rights = load_rights(settings)
    except RightsError as problem:
        raise CannotDecide(str(problem)) from None
    assert rights is not None
    print_warnings(rights.warnings)
    return rights


# --- test -----------------------------------------------------------------------------------------


def parse_claims(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Parse claims, NAME=VALUE each."""
    claims = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, such as tenant=acme")
        claims[name] = value
    return claims


@command.command(
    name="test",
    short_help="Decide whether a client may do something, and name the rule.",
    examples=(
        "semel acl test alice publish plant/1/temp --file rights.txt",
        "semel acl test - subscribe '$SYS/#' --config semel.toml --json",
        "semel acl test gw publish gw/3/up --client-id gw-3 --group gateways --qos 1 --retain",
    ),
)
@click.argument("user", metavar="USER")
@click.argument("action", metavar="ACTION", type=click.Choice(list(ACTION_NAMES)))
@click.argument("topic", metavar="TOPIC")
@shared_option("--client-id", default="", help="The client identifier, for rules that use it.")
@click.option(
    "--group", "groups", metavar="NAME", multiple=True, help="A group of the user. May be repeated."
)
@click.option(
    "--certificate", metavar="NAME", help="The Common Name of the verified client certificate."
)
@click.option(
    "--claim",
    "claims",
    metavar="NAME=VALUE",
    multiple=True,
    callback=parse_claims,
    help="A claim of the user's token. May be repeated.",
)
@shared_option(
    "--qos",
    type=IntegerRange(0, 2),
    default=0,
    help="The QoS of the message, or of the subscription.",
)
@click.option("--retain", is_flag=True, help="The message is to be retained.")
@shared_option(
    "--file", type=click.Path(path_type=Path), help="The rights file.  [or SEMEL_RIGHTS_FILE]"
)
@MOSQUITTO
@CONFIG
@ONE_OBJECT
def explain(
    user: str,
    action: str,
    topic: str,
    client_id: str,
    groups: tuple[str, ...],
    certificate: str | None,
    claims: dict[str, str],
    qos: int,
    retain: bool,
    file: Path | None,
    is_mosquitto: bool,
    config: Path | None,
    is_json: bool,
) -> None:
    """Decide whether a client may do ACTION on TOPIC, and name the rule that decides.

    USER is a user name, or - for an anonymous client. ACTION is publish, subscribe or receive.
    TOPIC is a topic name, or the topic filter to subscribe to. Exits with 0 if it is allowed, with
    1 if it is denied, and with 2 if the rights cannot be read.
    """
    check_topic(action, topic)
    is_anonymous = user == NO_USER_NAME
    identity = Identity(
        client_id,
        user_name=None if is_anonymous else user,
        proof=ANONYMOUS if is_anonymous else PASSWORD,
        certificate=certificate,
        groups=groups,
        claims=claims,
    )
    rights = read_rights(locate_rights(file, is_mosquitto=is_mosquitto, config=config))
    decision = rights.explain(identity, action, topic, qos=qos, retain=retain)
    if is_json:
        click.echo(json.dumps(decision_json(decision, rights.source)))
    else:
        for line in sentences(decision, rights.source):
            click.echo(shown_text(line))
    if not decision.allowed:
        sys.exit(DENIED)


def check_topic(action: str, topic: str) -> None:
    """Raise UsageError if the topic is not valid for the action."""
    try:
        if action == "subscribe":
            check_topic_filter(topic, None)
            check_share(topic, MQTT5, None)
        else:
            check_topic_name(topic, "TOPIC", None)
    except Violation as violation:
        raise click.UsageError(f"TOPIC {topic!r}: {violation.rule.sentence}") from None


def sentences(decision: Decision, source: str) -> list[str]:
    """The decision in words, one line for each rule."""
    verdict = "allowed" if decision.allowed else "denied"
    if decision.line is None:
        return [f"{verdict}: {decision.reason}"]
    rule = f" by line {decision.line} of {source}: {decision.rule}" if decision.line else ""
    reason = "" if decision.reason is None else f" ({decision.reason})"
    lines = [f"{verdict}{rule or f': {decision.rule}'}{reason}"]
    for each in decision.withheld:
        lines.append(f"except for messages that line {each.line} denies: {each.text}")
    return lines


def decision_json(decision: Decision, source: str) -> dict[str, object]:
    return {
        "allowed": decision.allowed,
        "file": source,
        "line": decision.line or None,
        "rule": decision.rule,
        "reason": decision.reason,
        "granted_qos": decision.granted_qos,
        "withheld": [{"line": each.line, "rule": each.text} for each in decision.withheld],
    }


# --- check ----------------------------------------------------------------------------------------


@command.command(
    name="check",
    short_help="Check a rights file for mistakes.",
    examples=(
        "semel acl check rights.txt",
        "semel acl check --mosquitto /etc/mosquitto/acl --json",
        "semel acl check --config semel.toml",
    ),
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@MOSQUITTO
@CONFIG
@ONE_OBJECT
def check(file: Path | None, is_mosquitto: bool, config: Path | None, is_json: bool) -> None:
    """Check a rights file for mistakes, and list all of them. Exits with 1 if there are any.

    Rules that never decide, because an earlier rule covers them, are listed too. They are not a
    mistake.
    """
    settings = locate_rights(file, is_mosquitto=is_mosquitto, config=config)
    problems: tuple[str, ...] = ()
    rights = None
    try:
        rights = load_rights(settings)
    except RightsError as problem:
        problems = problem.problems
        if not is_json:
            raise click.ClickException(str(problem)) from None
    if is_json:
        click.echo(json.dumps(check_json(rights, problems)))
    else:
        assert rights is not None
        print_check(rights)
    if problems:
        sys.exit(1)


def check_json(rights: Rights | None, problems: tuple[str, ...]) -> dict[str, object]:
    unused = [] if rights is None else rights.find_unused()
    return {
        "rules": 0 if rights is None else len(rights.lines),
        "problems": problems,
        "warnings": () if rights is None else rights.warnings,
        "unused": [
            {"line": rule.line, "rule": rule.text, "covered_by": other.line}
            for rule, other in unused
        ],
    }


def print_check(rights: Rights) -> None:
    print_warnings(rights.warnings)
    for rule, other in rights.find_unused():
        sentence = f"line {rule.line} never decides, because line {other.line} comes first"
        click.echo(shown_text(f"{sentence}: {rule.text}"))
    rules = count(len(rights.lines), "rule")
    effect = "" if rights.lines else ", so that everything is denied"
    click.echo(f"nothing is wrong with {rights.source}: {rules}{effect}")
