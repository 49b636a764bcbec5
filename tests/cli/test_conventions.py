"""All commands agree: one concept has one flag, and every command explains itself in one way."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from semel import cli
from semel.broker.settings import BrokerSettings
from semel.cli.flags import METAVARS, SHORT_FLAGS
from semel.cli.groups import RunnableGroup
from semel.cli.numbers import MqttVersion
from semel.cli.option_groups import GENERAL, GroupedOption, SemelCommand
from semel.cli.sections import SECTIONS
from semel.cli.setting_options import HEADINGS, heading_of
from semel.settings import settings_of

# More options than this are listed under headings.
MOST_UNGROUPED = 15

# Flags that mean something else in one command, because they are Mosquitto's there or name
# something that the command alone has.
OWN_METAVARS = {
    ("broker", "--stream"): "NAME=FILTER",
    ("pub", "--topic"): "TOPIC",
    ("store export", "--out"): "FILE",
    ("fleet", "--payload"): "[binary|json|mixed]",
    **{("quality", flag): "TIME" for flag in ("--from", "--to")},
}
# Short forms that are Mosquitto's in pub, sub and fleet and have another meaning elsewhere.
MOSQUITTO = ("pub", "sub", "fleet")
# Mosquitto's spellings of flags that have another name here.
MOSQUITTO_SPELLINGS = {
    *("--id", "--keepalive", "--protocol-version", "--pw", "--repeat"),
    *("--disable-clean-session",),
}
# Spellings of concepts that have a flag: nobody may bring them back.
REPLACED = {
    *("--limit", "--max", "--messages", "--number", "--rows"),  # --count
    *("--seconds", "--time", "--length"),  # --duration
    *("--patience", "--wait"),  # --timeout
    *(
        "--state",
        "--folder-data",
        "--store",
        "--dir",
        "--data-dir",
        "--data-folder",
        "--folder",
    ),  # --data
    *("--mqtt", "--protocol", "--mqtt5"),  # --mqtt-version
    *("--force", "--run", "--confirm", "--no-confirm"),  # --yes
    *("--simulate", "--preview"),  # --dry-run
    *("--filter", "--topic-filter"),  # --topic
    *("--silent", "--output-json", "--user", "--user-name", "--settings"),
}

# Commands that delete something of the user's.
DELETING = {
    "lake vacuum",
    "store adopt",
    "store retained delete",
    "store sessions delete",
    "stream trim",
}
# Commands that read the settings of the product.
WITH_SETTINGS = {
    *("broker", "bridge", "ctl", "ingest", "land", "sql", "tables", "up", "web", "lake", "store"),
    *("stream", "acl", "passwd", "config show", "quality"),
}
# Commands that have nothing to report but a payload, or JSON anyway.
WITHOUT_JSON = {"pub", "store export"}
# Commands that run for a while and report how they are getting on.
WITH_QUIET = {
    *("broker", "bridge", "ingest", "land", "up", "pub", "sub", "fleet", "load", "demo"),
    *("store backup", "stream verify"),
    *("probe broker", "probe client", "probe codec", "probe matrix"),
}
# Commands that connect to a broker in a version of MQTT, or read packets of one.
WITH_VERSION = {
    *("pub", "sub", "fleet", "load", "ingest", "decode"),
    *("probe broker", "probe client", "probe codec"),
}
# Commands that log in to a broker.
WITH_PASSWORD = {"pub", "sub", "fleet", "load", "ingest", "probe broker"}
# Commands that stop after, or print, a number of things.
WITH_COUNT = {
    *("pub", "sub", "fleet", "load", "demo"),
    *("stream read", "stream tail", "lake history", "ctl top", "land check", "land infer"),
    "quality",
}
WITH_DURATION = {"sub", "load", "demo", "ctl bans add"}
WITH_DATA = {
    *("broker", "ingest", "up", "web", "sql", "tables", "fleet", "demo", "doctor", "quality"),
    *("store", "stream", "ctl"),
    *("land check", "land infer", "land retry", "land backfill", "land sparkplug"),
}


def commands(
    group: click.Group = cli.group, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command that can be run, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or isinstance(command, RunnableGroup):
            yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


COMMANDS = dict(commands())
EVERY = pytest.mark.parametrize("name", COMMANDS)


def options(name: str) -> list[click.Option]:
    params = COMMANDS[name].params
    return [each for each in params if isinstance(each, click.Option) and not each.hidden]


def flags(name: str) -> set[str]:
    return {flag for each in options(name) for flag in (*each.opts, *each.secondary_opts)}


def metavar(option: click.Option, name: str) -> str | None:
    if option.is_flag or option.type is click.BOOL:
        return None
    return option.make_metavar(click.Context(COMMANDS[name]))


def is_among(name: str, names: set[str]) -> bool:
    """Whether a command, or its group, is among these."""
    return name in names or name.split()[0] in names


def test_the_tables_here_name_commands_that_exist() -> None:
    known = {*COMMANDS, *cli.COMMANDS}
    for names in (DELETING, WITH_SETTINGS, WITHOUT_JSON, WITH_QUIET, WITH_VERSION, WITH_COUNT):
        assert names <= known
    assert {name for name, _ in OWN_METAVARS} | WITH_DURATION | WITH_DATA | WITH_PASSWORD <= known
    assert len(COMMANDS) > 25


# --- one concept, one flag ------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("--mqtt-version", WITH_VERSION),
        ("--count", WITH_COUNT),
        ("--duration", WITH_DURATION),
        ("--data", WITH_DATA),
        ("--password-file", WITH_PASSWORD),
        ("--keep-alive", {"pub", "sub", "fleet", "ingest"}),
        (
            "--client-id",
            {
                *("pub", "sub", "fleet", "ingest", "store sessions", "acl test"),
                *("ctl subscriptions", "quality"),
            },
        ),
        ("--session-expiry", {"pub", "sub", "fleet", "ingest"}),
        ("--qos", {"pub", "sub", "fleet", "load", "ingest", "acl test"}),
        ("--username", WITH_PASSWORD),
        ("--yes", DELETING),
        ("--dry-run", DELETING),
        ("--config", WITH_SETTINGS),
        ("--quiet", WITH_QUIET),
        ("--json", set(COMMANDS) - WITHOUT_JSON),
    ],
)
def test_a_concept_has_its_flag_where_it_occurs_and_nowhere_else(
    name: str, flag: str, names: set[str]
) -> None:
    expected = is_among(name, names) or " ".join(name.split()[:2]) in names
    assert (flag in flags(name)) is expected


@EVERY
def test_a_shared_flag_has_one_metavar_and_its_short_form(name: str) -> None:
    for option in options(name):
        for flag in option.opts:
            if flag in METAVARS:
                assert metavar(option, name) == METAVARS[flag], flag
            if flag in SHORT_FLAGS and flag != "--file":
                assert SHORT_FLAGS[flag] in option.opts, flag
            if flag == "--mqtt-version" and name != "ingest":
                assert isinstance(option.type, MqttVersion)


def test_a_flag_of_several_commands_means_the_same_in_all_of_them() -> None:
    found: dict[str, dict[str | None, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in COMMANDS:
        for option in options(name):
            for flag in option.opts:
                if flag.startswith("--") and (name, flag) not in OWN_METAVARS:
                    found[flag][metavar(option, name)].append(name)
    different = {flag: dict(names) for flag, names in found.items() if len(names) > 1}
    assert not different


def test_a_short_form_stands_for_one_flag() -> None:
    """-n, -f and the like are Mosquitto's in its commands, and free elsewhere."""
    found = defaultdict(set)
    for name in COMMANDS:
        for option in options(name):
            long = [flag for flag in option.opts if flag.startswith("--")]
            for flag in option.opts:
                if not flag.startswith("--") and long and name not in MOSQUITTO:
                    found[flag].add(long[0])
    found["-f"].discard("--follow")
    assert not {flag: names for flag, names in found.items() if len(names) > 1}
    for flag, short in SHORT_FLAGS.items():
        assert found[short] <= {flag}


@EVERY
def test_no_flag_has_a_spelling_that_was_replaced(name: str) -> None:
    assert not flags(name) & REPLACED
    if name not in MOSQUITTO:
        assert not flags(name) & MOSQUITTO_SPELLINGS


@pytest.mark.parametrize("name", MOSQUITTO)
def test_mosquittos_spellings_are_beside_ours(name: str) -> None:
    by_flag = {flag: set(each.opts) for each in options(name) for flag in each.opts}
    assert by_flag["--mqtt-version"] >= {"-V", "--protocol-version"}
    assert by_flag["--keep-alive"] >= {"-k", "--keepalive"}
    assert by_flag["--client-id"] >= {"-i", "--id"}
    assert by_flag["--password"] >= {"-P", "--pw"}
    assert by_flag["--session-expiry"] >= {"-x"}
    if name == "sub":
        assert by_flag["--count"] >= {"-C"}
        assert by_flag["--duration"] >= {"-W"}
    if name == "pub":
        assert by_flag["--count"] >= {"--repeat"}


def test_every_version_has_the_same_spellings() -> None:
    for text, level in (("3.1.1", 4), ("311", 4), ("mqttv311", 4), ("5", 5), ("mqttv5", 5)):
        assert MqttVersion().convert(text, None, None) == level
    for text in ("4", "5.0", "mqttv31", "31", "3.1", ""):
        with pytest.raises(click.BadParameter):
            MqttVersion().convert(text, None, None)


# --- help -----------------------------------------------------------------------------------------


def help_of(name: str) -> str:
    command = COMMANDS[name]
    context = click.Context(command, info_name=f"semel {name}")
    return command.get_help(context)


@EVERY
def test_every_command_and_every_option_has_help(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert re.match(r"[A-Z].*\.", command.help)
    for option in options(name):
        assert option.help, option.opts
        text = re.sub(r"  \[.*\]$", "", option.help)
        assert re.match(r"[A-Z`%]", text), option.opts
        assert text.endswith("."), option.opts


@EVERY
def test_help_has_no_private_words(name: str) -> None:
    text = " ".join(help_of(name).split())
    for words in ("so many", "or empty for none", "a text that", "head line", "small letters"):
        if name in ("ingest", "broker", "land", "up") and words in ("so many", "small letters"):
            # These are the texts of settings, which their rooms declare.
            continue
        assert words not in text


@EVERY
def test_every_command_ends_with_examples_that_it_understands(name: str) -> None:
    command = COMMANDS[name]
    assert isinstance(command, SemelCommand)
    assert command.examples
    tail = help_of(name).partition("\nExamples:\n")[2]
    assert [line.strip() for line in tail.splitlines()] == list(command.examples)
    for example in command.examples:
        # What a shell does with it: pipes, and files for the output.
        words = shlex.split(example.rpartition("| ")[2].partition(" >")[0])
        path = ["semel", *name.split()]
        assert words[: len(path)] == path
        context = command.make_context(name, words[len(path) :], resilient_parsing=True)
        assert context.args == []


@EVERY
def test_a_long_list_of_options_is_grouped(name: str) -> None:
    found = options(name)
    grouped = [each for each in found if isinstance(each, GroupedOption)]
    general = [each for each in found if each not in grouped or each.section == GENERAL]
    if len(found) > MOST_UNGROUPED:
        assert len(general) <= MOST_UNGROUPED
        assert len({each.section for each in grouped}) >= 2


def test_every_setting_under_a_heading_exists() -> None:
    sections = {each.section: each for each in SECTIONS}
    for section, headings in HEADINGS.items():
        known = settings_of(sections[section])
        for keys in headings.values():
            assert set(keys) <= set(known)
    assert heading_of(settings_of(BrokerSettings)["port"]) == "Connection"
    assert heading_of(settings_of(BrokerSettings)["maximum_connections"]) == "Limits"
