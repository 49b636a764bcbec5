"""Rights files: what each line means, and how mistakes are reported."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.broker.access.mosquitto_acl import parse_mosquitto_acl
from semel.broker.access.rights_file import MAXIMUM_FILE_BYTES, parse_rights, read_text
from semel.broker.access.rights_loading import load_rights
from semel.broker.access.rights_rules import (
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    RightsError,
    RightsRule,
    Who,
)
from semel.broker.access.rights_settings import CACHED_DECISIONS, RightsSettings
from semel.broker.access.topic_template import USER_NAME, Variable
from semel.broker.identity import PASSWORD, Identity
from semel.mqtt.rules import HASH_IS_LAST_LEVEL
from semel.settings import SettingsError, load

ALL = PUBLISH | SUBSCRIBE | RECEIVE


def rule(line: str) -> RightsRule:
    (found,) = parse_rights(line, name="rights.txt")
    return found


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(RightsError) as caught:
        parse_rights(text, name="rights.txt")
    return caught.value.problems


# --- what is valid --------------------------------------------------------------------------------


def test_a_rule_has_all_its_parts() -> None:
    found = rule("allow   user:alice  publish,subscribe\tusers/%u/#  max-qos 1 no-retain \r")
    assert found == RightsRule(
        0,
        1,
        "allow user:alice publish,subscribe users/%u/# max-qos 1 no-retain",
        True,
        Who("user", "alice"),
        ALL,
        ("users", (Variable(USER_NAME),), "#"),
        1,
        False,
    )


def test_rules_have_their_lines_and_their_order() -> None:
    text = "# first\n\nallow * all a\n   # second\n \t\ndeny * all #\n"
    found = parse_rights(text, name="r")
    assert [(each.order, each.line, each.is_allow) for each in found] == [
        (0, 3, True),
        (1, 6, False),
    ]
    assert found[1].topic == ("+", "#")


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("*", Who("*")),
        ("anonymous", Who("anonymous")),
        ("user:alice", Who("user", "alice")),
        ("user:*", Who("user", "*")),
        ("user:a:b", Who("user", "a:b")),
        ("group:ops", Who("group", "ops")),
        ("cert:press-7", Who("cert", "press-7")),
        ("client:x/y", Who("client", "x/y")),
        ("claim:tenant=acme", Who("claim", "tenant=acme")),
        ("claim:x=", Who("claim", "x=")),
        ("claim:x=a=b", Who("claim", "x=a=b")),
        ('user:"Ann Lee"', Who("user", "Ann Lee")),
        ('"user:Ann Lee"', Who("user", "Ann Lee")),
        (r'user:"a\"b\\c"', Who("user", 'a"b\\c')),
        (r"user:a\b", Who("user", r"a\b")),
        ("user:größe", Who("user", "größe")),
    ],
)
def test_who(who: str, expected: Who) -> None:
    assert rule(f"allow {who} all a").who == expected


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("publish", PUBLISH),
        ("subscribe", SUBSCRIBE | RECEIVE),
        ("receive", RECEIVE),
        ("publish,receive", PUBLISH | RECEIVE),
        ("subscribe,publish", ALL),
        ("all", ALL),
    ],
)
def test_what(what: str, expected: int) -> None:
    assert rule(f"deny * {what} a").actions == expected


def test_a_rule_is_shown_as_it_is_written() -> None:
    assert rule('allow  user:"a  b"\tall  "x"').text == 'allow user:"a  b" all "x"'


def test_a_topic_with_a_space_is_quoted() -> None:
    assert rule('allow * all "a b/+"').topic == ("a b", "+")
    assert rule('allow * all a" "b/+').topic == ("a b", "+")


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("", (2, True)),
        ("max-qos 0", (0, True)),
        ("max-qos 2", (2, True)),
        ("no-retain", (2, False)),
        ("no-retain max-qos 1", (1, False)),
    ],
)
def test_limits(limits: str, expected: tuple[int, bool]) -> None:
    found = rule(f"allow * publish a {limits}")
    assert (found.max_qos, found.allows_retain) == expected


# --- what is not ----------------------------------------------------------------------------------

WHO = "user:NAME, group:NAME, cert:NAME, client:ID, claim:NAME=VALUE, anonymous, or * for everyone"


@pytest.mark.parametrize(
    ("line", "column", "sentence"),
    [
        ("alow * all a", 1, "expected allow or deny, found 'alow'; did you mean allow?"),
        ("  x", 3, "expected allow or deny, found 'x'"),
        ("allow", 6, "WHO is missing: a rule is `allow WHO WHAT TOPIC`"),
        ("deny *", 7, "WHAT is missing: a rule is `deny WHO WHAT TOPIC`"),
        ("allow * all", 12, "TOPIC is missing: a rule is `allow WHO WHAT TOPIC`"),
        ("allow usr:x all a", 7, f"expected {WHO}, found 'usr:x'; did you mean user?"),
        ("allow alice all a", 7, f"expected {WHO}, found 'alice'"),
        ("allow anonymos all a", 7, f"expected {WHO}, found 'anonymos'; did you mean anonymous?"),
        ("allow user: all a", 7, "there is no name after user:"),
        ('allow user:"" all a', 7, "there is no name after user:"),
        ("allow claim:x all a", 7, "'claim:x' has no value: write claim:NAME=VALUE"),
        ("allow claim:=x all a", 7, "'claim:=x' has no value: write claim:NAME=VALUE"),
        (
            "allow * publish,subscibe a",
            17,
            "expected publish, subscribe, receive (with commas between them) or all, found "
            "'subscibe'; did you mean subscribe?",
        ),
        (
            'allow * "publish, subscribe" a',
            9,
            "expected publish, subscribe, receive (with commas between them) or all, found "
            "' subscribe'; did you mean subscribe?",
        ),
        (
            "allow * publish, a",
            17,
            "expected publish, subscribe, receive (with commas between them) or all, found ''",
        ),
        (
            "allow * all a/%x",
            15,
            "'%x' is not a substitution: use %u, %c or %{claim:NAME}, and %% for a percent sign",
        ),
        (
            'allow * all "a b/%x"',
            13,
            "'%x' is not a substitution: use %u, %c or %{claim:NAME}, and %% for a percent sign",
        ),
        (
            "allow * all a/#/b",
            13,
            f"'a/#/b' is not a topic filter: {HASH_IS_LAST_LEVEL.sentence.removesuffix(chr(46))}",
        ),
        ("allow * all a # b", 15, "a comment must have a line of its own"),
        ("allow * all a b", 15, "expected max-qos or no-retain, found 'b'"),
        (
            "allow * all a maxqos 1",
            15,
            "expected max-qos or no-retain, found 'maxqos'; did you mean max-qos?",
        ),
        ("allow * all a max-qos", 15, "expected 0, 1 or 2 after max-qos, found nothing"),
        ("allow * all a max-qos 3", 23, "expected 0, 1 or 2 after max-qos, found '3'"),
        ("allow * all a max-qos 1 max-qos 1", 25, "max-qos is given twice"),
        (
            "deny * all a max-qos 1",
            14,
            "max-qos limits what is allowed: a deny rule has no limits",
        ),
        (
            "allow * receive a max-qos 1",
            19,
            "max-qos has no effect on this rule: it limits publish and subscribe",
        ),
        (
            "allow * subscribe a no-retain",
            21,
            "no-retain has no effect on this rule: it limits publish",
        ),
        ('allow user:"x all a', 12, 'there is no second " after this one'),
        (
            r'allow "user:a\b" all a',
            14,
            'in quotes, a backslash stands before another one or before ": write \\\\',
        ),
        (
            'allow "user:a\\',
            14,
            'in quotes, a backslash stands before another one or before ": write \\\\',
        ),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_column(
    line: str, column: int, sentence: str
) -> None:
    text = f"allow * all a\n{line}\n"
    assert problems(text) == (f"rights.txt, line 2, column {column}: {sentence}",)


def test_all_mistakes_are_reported_at_once() -> None:
    text = "alow * all a\nallow * all a\nallow * al a\n"
    found = problems(text)
    assert [each.partition(":")[0] for each in found] == [
        "rights.txt, line 1, column 1",
        "rights.txt, line 3, column 9",
    ]
    assert str(RightsError(found)) == f"2 mistakes in the rights:\n  {found[0]}\n  {found[1]}"
    assert str(RightsError(found[:1])) == found[0]


def test_a_file_that_is_something_else_does_not_fill_the_screen() -> None:
    found = problems("x\n" * 1_000)
    assert len(found) == 1_000
    lines = str(RightsError(found)).splitlines()
    assert len(lines) == 22
    assert lines[0] == "1,000 mistakes in the rights:"
    assert lines[-1] == "  and 980 more"


# --- files ----------------------------------------------------------------------------------------


def test_a_file_is_read_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "rights.txt"
    path.write_bytes(b"\xef\xbb\xbfallow user:\xc3\xa4 all a\r\n")
    (found,) = parse_rights(read_text(path)[0], name="r")
    assert found.who == Who("user", "ä")
    path.write_bytes(b"allow * all a\nallow user:\xff all a\n")
    with pytest.raises(RightsError) as caught:
        read_text(path)
    assert str(caught.value) == f"{path}, line 2: the text is not UTF-8"


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in (
        (tmp_path / "missing", "cannot be read: No such file or directory"),
        (tmp_path, "is a directory, not a file"),
        (pipe, "is not a regular file"),
    ):
        with pytest.raises(RightsError) as caught:
            read_text(path)
        assert str(caught.value) == f"{path}: {reason}"


def test_a_file_has_a_maximum_size(tmp_path: Path) -> None:
    path = tmp_path / "rights.txt"
    text = "allow * all a\n".ljust(MAXIMUM_FILE_BYTES, "\n")
    path.write_text(text)
    assert read_text(path)[0] == text
    path.write_text(text + "\n")
    with pytest.raises(RightsError) as caught:
        read_text(path)
    assert str(caught.value) == f"{path}: has more than {MAXIMUM_FILE_BYTES:,} bytes"


@pytest.mark.parametrize("is_mosquitto", [False, True])
def test_a_file_that_everyone_can_change_is_warned_of(tmp_path: Path, is_mosquitto: bool) -> None:
    path = tmp_path / "rights.txt"
    path.write_text("topic a\n" if is_mosquitto else "allow * all a\n")
    settings = (
        RightsSettings(mosquitto_acl_file=path) if is_mosquitto else RightsSettings(file=path)
    )
    for mode, is_warned in ((0o600, False), (0o664, False), (0o602, True)):
        path.chmod(mode)
        rights = load_rights(settings)
        assert rights is not None
        expected = f"{path}: every user of this machine can change the rights: run chmod o-w {path}"
        assert rights.warnings == ((expected,) if is_warned else ())


@pytest.mark.parametrize("parse", [parse_rights, parse_mosquitto_acl])
def test_a_file_of_mistakes_is_not_checked_to_its_end(
    parse: Callable[..., list[RightsRule]],
) -> None:
    with pytest.raises(RightsError) as caught:
        parse("wrong\n" * 5_000, name="r")
    assert len(caught.value.problems) == 1_000


def test_rights_are_loaded_from_the_file_that_the_settings_name(tmp_path: Path) -> None:
    ann = Identity("id", user_name="ann", proof=PASSWORD)
    own = tmp_path / "rights.txt"
    own.write_text("allow user:ann publish a\n")
    theirs = tmp_path / "acl"
    theirs.write_text("user ann\ntopic write b\n")
    assert load_rights(RightsSettings()) is None
    for settings, allowed, denied in (
        (RightsSettings(file=own), "a", "b"),
        (RightsSettings(mosquitto_acl_file=theirs, cached_decisions=100), "b", "a"),
    ):
        rights = load_rights(settings)
        assert rights is not None
        assert rights.may_publish(ann, allowed, qos=0, retain=False)
        assert not rights.may_publish(ann, denied, qos=0, retain=False)
        assert rights.source in (str(own), str(theirs))
        assert len(rights.lines) == 1


def test_two_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    path.write_text('[rights]\nfile = "a"\nmosquitto_acl_file = "b"\n')
    with pytest.raises(SettingsError) as caught:
        load([RightsSettings], path=path, environ={}, flags={})
    assert str(caught.value) == "[rights] has both file and mosquitto_acl_file: give one of them"
    path.write_text('[rights]\nmosquitto_acl_file = "b"\n')
    settings = load([RightsSettings], path=path, environ={}, flags={}).of(RightsSettings)
    assert settings.mosquitto_acl_file == Path("b")
    assert settings.cached_decisions == CACHED_DECISIONS
