"""`semel passwd`: what it writes, what it prints, and the exit codes."""

import json
import os
import select
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.broker.access.password_file import load_password_file
from tests.broker.core.test_access_password_hashes import mosquitto_2
from tests.terminals import open_terminal

QUICK = mosquitto_2(b"secret", iterations=1)
# Long enough for any machine.
TIMEOUT = 60.0


def run(*arguments: object, password: bytes | None = None) -> Result:
    given = list(map(str, arguments))
    if password is not None:
        given.append("--password-stdin")
    result = CliRunner().invoke(cli.group, ["passwd", *given], input=password)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*arguments: object, password: bytes | None = None, code: int = 1) -> str:
    """What a command says that does not work: on stderr only."""
    result = run(*arguments, password=password)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    return result.stderr


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users.txt"
    path.write_text(f"ann:{QUICK}:ops,staff\npress-7:*:machines\n", "utf-8")
    path.chmod(0o600)
    return path


def test_a_user_is_added_to_a_new_private_file(tmp_path: Path) -> None:
    path = tmp_path / "users.txt"
    result = run("add", "ann", "--file", path, "--group", "ops", password=b"secret\n")
    assert (result.exit_code, result.stdout) == (0, f"added user ann to {path}\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = load_password_file(path)
    assert found.verify("ann", b"secret")
    assert found.users["ann"].groups == ("ops",)
    assert found.users["ann"].scram is None
    assert "secret" not in path.read_text("utf-8")


def test_a_password_is_changed_and_groups_are_kept(users: Path) -> None:
    result = run("add", "ann", "-f", users, password=b"new\r\n")
    assert result.stdout == f"changed user ann in {users}\n"
    found = load_password_file(users)
    assert found.verify("ann", b"new")
    assert found.users["ann"].groups == ("ops", "staff")
    run("add", "ann", "-f", users, "--group", "guests", password=b"new")
    assert load_password_file(users).users["ann"].groups == ("guests",)


def test_scram_keys_are_stored_beside_the_hash(users: Path) -> None:
    result = run("add", "bob", "-f", users, "--scram", "--json", password=b"secret")
    assert json.loads(result.stdout) == {
        "user": "bob",
        "file": str(users),
        "new": True,
        "groups": [],
    }
    found = load_password_file(users)
    assert found.verify("bob", b"secret")
    assert found.users["bob"].scram is not None
    assert found.has_secret
    assert "--scram: the password is not UTF-8" in refused(
        "add", "bob", "-f", users, "--scram", password=b"\xff"
    )
    assert "--scram: the password contains the character U+0007" in refused(
        "add", "bob", "-f", users, "--scram", password=b"\x07"
    )
    # Without SCRAM any bytes are a password.
    assert run("add", "bob", "-f", users, password=b"\xff\x07").exit_code == 0


def test_a_user_may_have_no_password(users: Path) -> None:
    result = run("add", "press-8", "-f", users, "--no-password", "--group", "machines")
    assert result.exit_code == 0
    assert users.read_text("utf-8").splitlines()[-1] == "press-8:*:machines"
    for flag in ("--scram", "--password-stdin"):
        assert f"give one of --no-password and {flag}" in refused(
            "add", "x", "-f", users, "--no-password", flag, code=2
        )


def test_a_user_is_removed(users: Path) -> None:
    assert run("remove", "ann", "-f", users).stdout == f"removed user ann from {users}\n"
    assert list(load_password_file(users).users) == ["press-7"]
    assert refused("remove", "ann", "-f", users) == f"Error: {users} has no user ann\n"
    result = run("remove", "press-7", "-f", users, "--json")
    assert json.loads(result.stdout) == {"user": "press-7", "file": str(users)}


@pytest.mark.parametrize(
    ("name", "password", "code", "sentence"),
    [
        ("ann", b"secret", 0, "the password of ann is right"),
        ("ann", b"guess", 1, "ann: the password is wrong"),
        ("nobody", b"secret", 1, "nobody: there is no such user"),
        ("press-7", b"secret", 1, "press-7: the user has no password"),
    ],
)
def test_a_password_is_checked(
    name: str, password: bytes, code: int, sentence: str, users: Path
) -> None:
    result = run("check", name, "-f", users, password=password)
    assert (result.exit_code, result.stdout) == (code, f"{sentence}\n")
    result = run("check", name, "-f", users, "--json", password=password)
    assert result.exit_code == code
    assert json.loads(result.stdout)["right"] is (code == 0)


def test_users_are_listed(users: Path) -> None:
    lines = run("list", "-f", users).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["user", "password", "SCRAM", "groups"],
        ["ann", "PBKDF2-SHA512", "no", "ops,", "staff"],
        ["press-7", "none", "no", "machines"],
    ]
    found = json.loads(run("list", "-f", users, "--json").stdout)
    assert found == {
        "file": str(users),
        "users": [
            {
                "user": "ann",
                "password": "PBKDF2-SHA512",
                "scram": False,
                "groups": ["ops", "staff"],
            },
            {"user": "press-7", "password": None, "scram": False, "groups": ["machines"]},
        ],
    }
    assert QUICK not in run("list", "-f", users).stdout


def test_the_settings_can_name_the_file(
    users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "semel.toml"
    config.write_text(f'[users]\npassword_file = "{users}"\n', "utf-8")
    assert "press-7" in run("list", "--config", config).stdout
    monkeypatch.setenv("SEMEL_USERS_PASSWORD_FILE", str(users))
    assert "press-7" in run("list").stdout
    monkeypatch.delenv("SEMEL_USERS_PASSWORD_FILE")
    assert "no password file is given: use --file FILE, or set [users] password_file" in refused(
        "list", code=2
    )


@pytest.mark.parametrize(
    ("arguments", "password", "code", "sentence"),
    [
        (("add", "a:b"), b"secret", 2, "NAME 'a:b' contains a colon"),
        (("add", "#a"), b"secret", 2, "NAME '#a' begins with #"),
        (("add", ""), b"secret", 2, "NAME '' is empty"),
        (("add", "\u2168", "--scram"), b"secret", 2, "--scram: clients send this NAME as 'IX'"),
        (("add", "\ue000", "--scram"), b"secret", 2, "--scram: NAME contains the character U+E000"),
        (("add", "x", "--group", "a,b"), b"secret", 2, "--group: a group name contains a comma"),
        (("add", "x"), b"", 1, "the password is empty"),
        (("add", "x"), b"\n", 1, "the password is empty"),
        (("add", "x"), b"x" * 65_536, 1, "the password has more than 65,535 bytes"),
        (("add", "x"), None, 2, "standard input is not a terminal: use --password-stdin"),
        (("check", "x"), None, 2, "standard input is not a terminal: use --password-stdin"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    arguments: tuple[str, ...], password: bytes | None, code: int, sentence: str, users: Path
) -> None:
    before = users.read_bytes()
    assert sentence in refused(*arguments, "-f", users, password=password, code=code)
    assert users.read_bytes() == before


def test_the_longest_password_of_mqtt_is_accepted(users: Path) -> None:
    longest = b"x" * 65_535
    assert run("add", "x", "-f", users, password=longest + b"\r\n").exit_code == 0
    assert load_password_file(users).verify("x", longest)


def test_a_file_with_mistakes_is_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "users.txt"
    path.write_text("ann\n", "utf-8")
    path.chmod(0o600)
    for arguments in (("list",), ("add", "x", "--no-password"), ("remove", "ann")):
        result = subprocess.run(
            [sys.executable, "-m", "semel", "passwd", *arguments, "--file", path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1
        assert result.stderr == (
            f"Error: {path}, line 1: a line must be name:password hash[:group,group[:SCRAM keys]]\n"
        )
    missing = tmp_path / "no" / "users.txt"
    assert "No such file or directory" in refused("add", "x", "--no-password", "--file", missing)


# --- on a terminal --------------------------------------------------------------------------------


def on_terminal(arguments: list[object], typed: list[str]) -> tuple[int, str]:
    """Run a command on a terminal, and type a line at each question. Returns code and screen."""
    ours, theirs = open_terminal()
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", "passwd", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    screen = b""
    questions = 0
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        screen += data
        while typed and screen.count(b": ") > questions:
            questions += 1
            os.write(ours, f"{typed.pop(0)}\n".encode())
    os.close(ours)
    return process.wait(TIMEOUT), screen.decode()


def test_a_terminal_is_asked_twice_without_echo(tmp_path: Path) -> None:
    path = tmp_path / "users.txt"
    code, screen = on_terminal(["add", "ann", "--file", path], ["hush-hush", "hush-hush"])
    assert code == 0, screen
    assert "hush" not in screen
    assert screen.startswith("Password of ann: ")
    assert load_password_file(path).verify("ann", b"hush-hush")
    code, screen = on_terminal(["check", "ann", "--file", path], ["hush-hush"])
    assert code == 0, screen
    assert "hush" not in screen
    assert "the password of ann is right" in screen


@pytest.mark.parametrize("command", ["add", "check", "list", "remove"])
def test_a_file_that_everyone_can_read_is_warned_of(users: Path, command: str) -> None:
    arguments = [command, *([] if command == "list" else ["ann"]), "--file", users]
    password = b"secret" if command in ("add", "check") else None
    users.chmod(0o604)
    result = run(*arguments, "--json", password=password)
    assert result.exit_code == 0
    json.loads(result.stdout)
    assert result.stderr == (
        f"Warning: {users}: every user of this machine can read the password hashes: "
        f"run chmod o-rwx {users}\n"
    )
    users.chmod(0o600)
    result = run("list", "--file", users)
    assert (result.exit_code, result.stderr) == (0, "")
