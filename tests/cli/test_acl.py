"""`semel acl`: what people see, what programs read, and the exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "rights.md"

RIGHTS = """\
# action  who               what                 on
allow     user:alice        publish,subscribe    plant/1/#          max-qos 1
allow     group:ops         all                  #
allow     cert:press-7      publish              plant/press-7/+    no-retain
allow     client:gateway-3  publish,receive      gw/%c/#
deny      user:bob          subscribe            plant/secret/#
deny      anonymous         subscribe            $SYS/#
allow     *                 publish              users/%u/#
allow     claim:tenant=acme subscribe            acme/%{claim:site}/#
allow     user:bob          subscribe            plant/#
"""
LINES = [" ".join(line.split()) for line in RIGHTS.splitlines()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SEMEL_CONFIG", "SEMEL_RIGHTS_FILE"):
        monkeypatch.delenv(name, raising=False)
    Path("rights.txt").write_text(RIGHTS)
    Path("acl").write_text("user alice\ntopic read a\n")
    Path("bad.txt").write_text("alow * all a\nallow * all a/#b\n")
    Path("semel.toml").write_text('[rights]\nfile = "rights.txt"\n')
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli.group, ["acl", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def by_line(verdict: str, line: int, more: str = "") -> str:
    return f"{verdict} by line {line} of rights.txt: {LINES[line - 1]}{more}\n"


# --- test -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        ("alice publish plant/1/temp", 0, by_line("allowed", 2)),
        ("alice publish plant/1/temp --qos 1 --retain", 0, by_line("allowed", 2)),
        (
            "alice publish plant/1/temp -q 2",
            1,
            by_line("denied", 2, " (QoS 2 is higher than max-qos 1)"),
        ),
        ("alice subscribe plant/1/# -q 2", 0, by_line("allowed", 2, " (QoS 1 is granted)")),
        ("alice subscribe plant/#", 1, "denied: no rule matches\n"),
        ("alice receive plant/1/x", 0, by_line("allowed", 2)),
        ("eve publish a --group staff --group ops", 0, by_line("allowed", 3)),
        ("eve publish a --group staff", 1, "denied: no rule matches\n"),
        ("eve publish plant/press-7/n --certificate press-7", 0, by_line("allowed", 4)),
        (
            "eve publish plant/press-7/n --certificate press-7 --retain",
            1,
            by_line("denied", 4, " (the message is retained, which no-retain forbids)"),
        ),
        ("- publish gw/gateway-3/x --client-id gateway-3", 0, by_line("allowed", 5)),
        ("- publish gw/gateway-3/x -i gateway-4", 1, "denied: no rule matches\n"),
        ("- subscribe $SYS/#", 1, by_line("denied", 7)),
        ("eve publish users/eve", 0, by_line("allowed", 8)),
        ("- publish users/-", 1, "denied: no rule matches\n"),
        (
            "tom subscribe acme/bonn/# --claim tenant=acme --claim site=bonn",
            0,
            by_line("allowed", 9),
        ),
        ("tom subscribe acme/bonn/# --claim tenant=acme", 1, "denied: no rule matches\n"),
        (
            "bob subscribe plant/#",
            0,
            by_line("allowed", 10) + f"except for messages that line 6 denies: {LINES[5]}\n",
        ),
        ("bob subscribe $share/g/plant/x", 0, by_line("allowed", 10)),
        (
            "bob subscribe $stream/+/x",
            1,
            "denied: the filter for a stream is $stream/<name>/<filter>\n",
        ),
    ],
)
def test_the_decision_and_its_rule_are_printed(arguments: str, code: int, output: str) -> None:
    for source in (("--file", "rights.txt"), ("--config", "semel.toml")):
        result = run("test", *arguments.split(), *source)
        assert result.output == output
        assert result.exit_code == code


def test_the_file_may_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_RIGHTS_FILE", "rights.txt")
    assert run("test", "alice", "publish", "plant/1/x").exit_code == 0
    monkeypatch.setenv("SEMEL_RIGHTS_FILE", "bad.txt")
    assert run("test", "alice", "publish", "plant/1/x").exit_code == 2


def test_json_has_the_decision() -> None:
    result = run("test", "bob", "subscribe", "plant/#", "-q", "1", "--json", "-f", "rights.txt")
    assert json.loads(result.output) == {
        "allowed": True,
        "file": "rights.txt",
        "line": 10,
        "rule": LINES[9],
        "reason": None,
        "granted_qos": 1,
        "withheld": [{"line": 6, "rule": LINES[5]}],
    }
    result = run("test", "eve", "publish", "a", "--json", "-f", "rights.txt")
    assert result.exit_code == 1
    assert json.loads(result.output) == {
        "allowed": False,
        "file": "rights.txt",
        "line": None,
        "rule": None,
        "reason": "no rule matches",
        "granted_qos": None,
        "withheld": [],
    }


def test_an_acl_file_of_mosquitto_decides() -> None:
    common = ("--file", "acl", "--mosquitto")
    result = run("test", "alice", "receive", "a", *common)
    assert (result.output, result.exit_code) == ("allowed by line 2 of acl: topic read a\n", 0)
    result = run("test", "alice", "publish", "a", *common)
    assert (result.output, result.exit_code) == ("denied: no rule matches\n", 1)
    result = run("test", "alice", "subscribe", "#", *common)
    assert result.output == (
        "allowed: every subscription is granted (only messages that another rule allows are "
        "delivered)\n"
    )
    result = run("test", "alice", "subscribe", "#", "--json", *common)
    assert json.loads(result.output)["line"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("alice publish a --file bad.txt", "Error: 2 mistakes in the rights:"),
        ("alice publish a --file none", "Error: none: cannot be read: No such file"),
        ("alice publish a --config none", "Error: none: "),
        ("alice publish a", "Error: no rights are configured: name FILE, or settings with"),
        ("alice publish a --mosquitto", "Error: --mosquitto needs FILE"),
        ("alice publish a/+ --file rights.txt", "Error: TOPIC 'a/+': A Topic Name has neither"),
        ("alice subscribe a/+b -f rights.txt", "Error: TOPIC 'a/+b': "),
        ("alice subscribe $share/a -f rights.txt", "Error: TOPIC '$share/a': "),
        ("alice write a --file rights.txt", "Error: Invalid value for 'ACTION'"),
        ("alice publish a --qos 3 -f rights.txt", "Error: Invalid value for '-q'"),
        ("alice publish a --claim x -f rights.txt", "Error: Invalid value for '--claim'"),
        ("alice publish a --claim =x -f rights.txt", "Error: Invalid value for '--claim'"),
        ("alice publish", "Error: Missing argument 'TOPIC'"),
    ],
)
def test_a_mistake_is_not_a_refusal(arguments: str, sentence: str) -> None:
    result = run("test", *arguments.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr


def test_invalid_settings_are_not_a_refusal() -> None:
    Path("semel.toml").write_text('[rights]\nfile = "a"\nmosquitto_acl_file = "b"\n')
    result = run("test", "alice", "publish", "a", "--config", "semel.toml")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: [rights] has both file and mosquitto_acl_file: give one of them\n"
    )


def test_the_command_exits_with_these_codes_in_a_shell(folder: Path) -> None:
    for arguments, code in (
        (("eve", "publish", "users/eve", "--file", "rights.txt"), 0),
        (("eve", "publish", "users/ann", "--file", "rights.txt"), 1),
        (("eve", "publish", "users/eve", "--file", "bad.txt"), 2),
    ):
        command = [sys.executable, "-m", "semel", "acl", "test", *arguments]
        result = subprocess.run(command, capture_output=True, cwd=folder, env=dict(os.environ))
        assert result.returncode == code
        assert b"Traceback" not in result.stderr


def test_a_rule_cannot_control_the_terminal() -> None:
    Path("odd.txt").write_text("allow user:\x1b[31m publish a\n")
    result = run("test", "\x1b[31m", "publish", "a", "--file", "odd.txt")
    assert result.output == "allowed by line 1 of odd.txt: allow user:\\x1b[31m publish a\n"


# --- the page -------------------------------------------------------------------------------------


def test_the_commands_of_the_page_print_what_is_shown() -> None:
    text = PAGE.read_text("utf-8")
    (rules,) = re.findall(r"^```\n(# action.*?)^```$", text, re.MULTILINE | re.DOTALL)
    Path("rights.txt").write_text(rules)
    shown = re.findall(r"^\$ semel acl (.*)\n((?:(?![$`]).*\n)*)", text, re.MULTILINE)
    assert len(shown) == 5
    for command, output in shown:
        assert run(*shlex.split(command)).output == output, command


# --- check ----------------------------------------------------------------------------------------


def test_a_valid_file_is_reported_with_its_rules() -> None:
    for source in (("rights.txt",), ("--config", "semel.toml")):
        result = run("check", *source)
        assert result.output == "nothing is wrong with rights.txt: 9 rules\n"
        assert result.exit_code == 0
    result = run("check", "acl", "--mosquitto")
    assert result.output == "nothing is wrong with acl: 1 rule\n"
    Path("empty.txt").write_text("# nothing\n")
    result = run("check", "empty.txt")
    assert result.output == (
        "nothing is wrong with empty.txt: 0 rules, so that everything is denied\n"
    )


def test_all_mistakes_are_listed() -> None:
    result = run("check", "bad.txt")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "Error: 2 mistakes in the rights:"
    assert lines[1].startswith("  bad.txt, line 1, column 1: expected allow or deny")
    assert lines[2].startswith("  bad.txt, line 2, column 13: 'a/#b' is not a topic filter")
    result = run("check", "bad.txt", "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert [each.strip() for each in lines[1:]] == found["problems"]
    assert (found["rules"], found["unused"]) == (0, [])


def test_rules_that_never_decide_are_listed() -> None:
    Path("rights.txt").write_text("allow * all a/#\ndeny user:eve publish a/b\n")
    result = run("check", "rights.txt")
    assert result.exit_code == 0
    assert result.output == (
        "line 2 never decides, because line 1 comes first: deny user:eve publish a/b\n"
        "nothing is wrong with rights.txt: 2 rules\n"
    )
    assert json.loads(run("check", "rights.txt", "--json").output) == {
        "rules": 2,
        "problems": [],
        "warnings": [],
        "unused": [{"line": 2, "rule": "deny user:eve publish a/b", "covered_by": 1}],
    }


def test_a_file_that_everyone_can_change_is_warned_of() -> None:
    commands = (
        ("check", "rights.txt"),
        ("test", "alice", "publish", "plant/1/a", "-f", "rights.txt"),
    )
    for command in commands:
        assert run(*command).stderr == ""
    Path("rights.txt").chmod(0o666)
    warning = (
        "rights.txt: every user of this machine can change the rights: run chmod o-w rights.txt"
    )
    for command in commands:
        result = run(*command)
        assert (result.exit_code, result.stderr) == (0, f"Warning: {warning}\n")
    assert json.loads(run("check", "rights.txt", "--json").stdout)["warnings"] == [warning]
    assert json.loads(run("check", "bad.txt", "--json").stdout)["warnings"] == []


def test_check_needs_a_file() -> None:
    result = run("check")
    assert result.exit_code == 2
    assert "no rights are configured" in result.stderr
    assert run("check", "--mosquitto").exit_code == 2
    assert run("check", "none").exit_code == 1
