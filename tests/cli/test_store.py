"""`semel store`: what people see, what programs read, and the exit codes."""

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.store.folder import open_folder
from semel.store.schema import VERSION
from tests.store.stores import (
    change,
    contents,
    copied,
    damage,
    make_large,
    make_small,
    pages_of,
    rows,
    wipe,
)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(cli.group, ["store", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refused(*arguments: object) -> str:
    """What a command says that does not work: one sentence, on stderr."""
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def small_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="module")
def large_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_large(tmp_path_factory.mktemp("large") / "data")


@pytest.fixture
def small(small_once: Path, tmp_path: Path) -> Path:
    return copied(small_once, tmp_path / "data")


@pytest.fixture
def damaged(large_once: Path, tmp_path: Path) -> Path:
    """A data folder whose streams have lost a page."""
    folder = copied(large_once, tmp_path / "data")
    _, leaves = pages_of(folder, "record")
    wipe(folder, [leaves[3]])
    return folder


COMMANDS = ("info", "check", "repair", "export", "backup", "adopt")


def test_help_names_every_command() -> None:
    text = run("--help").output
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", text, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"store {name} [OPTIONS] [DIR]" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_where_there_is_no_store_each_says_so_and_makes_nothing(tmp_path: Path, name: str) -> None:
    more: dict[str, list[object]] = {
        "backup": [tmp_path / "copy"],
        "adopt": ["--stream", "x", "--after", "1"],
    }
    assert "is not a data folder" in refused(name, tmp_path / "nowhere", *more.get(name, []))
    assert not (tmp_path / "nowhere").exists()


def test_a_mistake_in_the_options_is_wrong_usage(small: Path) -> None:
    for arguments in (
        ("adopt", small, "--stream", "plant"),
        ("adopt", small, "--stream", "plant", "--after", "-1"),
        ("adopt", small, "--stream", "plant", "--after", str(2**63)),
        ("adopt", small, "--stream", "plant", "--after", "9", "--discard", "3"),
        ("backup", small),
        ("check",),
    ):
        assert run(*arguments).exit_code == 2


def test_the_data_folder_is_an_argument_a_flag_or_a_setting(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run("info", small, "--json").stdout
    assert run("info", "--data", small, "--json").stdout == expected
    file = tmp_path / "semel.toml"
    file.write_text(f'[store]\ndata = "{small}"\n')
    assert run("info", "--config", file, "--json").stdout == expected
    monkeypatch.setenv("SEMEL_STORE_DATA", str(small))
    assert run("info", "--json").stdout == expected
    assert "give one of DIR and --data" in run("info", small, "--data", small).stderr
    monkeypatch.delenv("SEMEL_STORE_DATA")
    result = run("info")
    assert result.exit_code == 2
    assert "no data folder is given: use DIR or --data DIR" in result.stderr


def test_a_backup_takes_the_data_folder_by_a_flag_too(small: Path, tmp_path: Path) -> None:
    result = run("backup", "--data", small, tmp_path / "copy", "--quiet")
    assert result.exit_code == 0, result.output
    assert run("check", tmp_path / "copy").exit_code == 0
    assert run("backup", "--data", small).exit_code == 2


@pytest.mark.parametrize("kind", ["sessions", "retained"])
def test_what_is_deleted_is_listed_and_asked_for_first(small: Path, kind: str) -> None:
    result = run(kind, "delete", small, "--all")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:]
    assert result.stderr.startswith("Delete 2 ")
    assert len(json.loads(run(kind, "list", small, "--json").stdout)[kind]) == 2
    deleted = json.loads(run(kind, "delete", small, "--all", "--yes", "--json").stdout)
    assert len(deleted[kind]) == 2
    assert json.loads(run(kind, "list", small, "--json").stdout)[kind] == []


# --- info -----------------------------------------------------------------------------------------


def test_info_is_a_table_or_an_object(small: Path) -> None:
    text = run("info", small).output
    assert re.search(r"^sessions +2$", text, re.MULTILINE)
    assert re.search(r"^plant +5 +0 +5", text, re.MULTILINE)
    assert re.search(r"^made +20\d\d-", text, re.MULTILINE)
    found = json.loads(run("info", "--json", small).output)
    assert found["format"] == VERSION
    assert found["queued"] == 4
    assert found["streams"][0]["name"] == "plant"


# --- check ----------------------------------------------------------------------------------------


def test_check_exits_with_0_if_nothing_is_wrong(small: Path) -> None:
    result = run("check", small)
    assert result.exit_code == 0
    assert "nothing is wrong" in result.output
    found = json.loads(run("check", "--json", small).output)
    assert found["findings"] == []
    assert found["rows"]["session"] == 2


def test_check_lists_what_is_wrong_and_exits_with_1(small: Path) -> None:
    change(small, "UPDATE retained SET topic = 'a/+' WHERE topic = 't'")
    result = run("check", small)
    assert result.exit_code == 1
    assert re.search(
        r"^retained +position 1 +TOPIC_NAME_WITHOUT_WILDCARDS", result.stdout, re.MULTILINE
    )
    assert f"semel store repair {small}" in result.stdout
    result = run("check", "--json", small)
    assert result.exit_code == 1
    (finding,) = json.loads(result.stdout)["findings"]
    assert finding["table"] == "retained"


def test_a_peers_text_is_escaped(small: Path) -> None:
    change(
        small,
        "UPDATE session SET client_id = char(27) || '[31m', expiry_interval = -1 WHERE id = 2",
    )
    for command in ("check", "repair"):
        assert "\x1b" not in run(command, small).output


# --- repair ---------------------------------------------------------------------------------------


def test_a_store_with_nothing_wrong_is_left_alone(small: Path) -> None:
    result = run("repair", small)
    assert result.exit_code == 0
    assert "nothing was changed" in result.output
    assert json.loads(run("repair", "--json", small).output)["saved"] is None


def test_repair_says_what_is_lost_and_exits_with_1(damaged: Path) -> None:
    before = len(rows(damaged, "SELECT * FROM will"))
    result = run("repair", damaged)
    assert result.exit_code == 1
    assert re.search(rf"^will +{before} +0 +0$", result.stdout, re.MULTILINE)
    assert re.search(r"^record +\d+ +0 +1$", result.stdout, re.MULTILINE)
    assert re.search(r"^one +\d+ +\d+ +\d+$", result.stdout, re.MULTILINE)
    assert "the rows listed above are lost" in result.stdout
    assert run("check", damaged).exit_code == 0
    # Told once is told: the next has nothing to do.
    assert run("repair", damaged).exit_code == 0


def test_repair_exits_with_0_if_nothing_is_lost(small: Path) -> None:
    change(small, "UPDATE shared_payload SET use_count = 5")
    result = run("repair", "--json", small)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["complete"]
    assert Path(found["saved"]).exists()
    assert found["kept"]["session"] == 2


def test_repair_tells_programs_by_client_and_stream(small: Path) -> None:
    change(
        small,
        "UPDATE delivery SET flags = 3 WHERE session_id = 1 AND number = 3",
        "DELETE FROM record WHERE seq = 2",
    )
    result = run("repair", "--json", small)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["dropped"] == {"delivery": 1}
    assert found["sessions"] == {"'a'": ["delivery: session 1, number 3"]}
    assert found["streams"] == [{"stream": "plant", "first": 2, "last": 2}]


def test_a_store_in_use_is_neither_repaired_nor_adopted_for(small: Path) -> None:
    with open_folder(small):
        for arguments in (
            ("repair", small),
            ("adopt", small, "--stream", "yard", "--after", 9),
            ("export", "--salvage", small),
        ):
            assert f"in use by another process (process {os.getpid()})" in refused(*arguments)


# --- export ---------------------------------------------------------------------------------------


def test_export_prints_one_row_a_line(small: Path, tmp_path: Path) -> None:
    result = run("export", small)
    assert result.exit_code == 0
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert Counter(each["table"] for each in printed) == {
        table: len(found) for table, found in contents(small).items()
    }
    assert all(line.startswith('{"table": "') for line in result.stdout.splitlines())
    out = tmp_path / "out.jsonl"
    old = os.umask(0)
    try:
        assert run("export", small, "--out", out).exit_code == 0
    finally:
        os.umask(old)
    assert out.read_text() == result.stdout
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "exists already" in refused("export", small, "--out", out)
    assert out.read_text() == result.stdout


def test_export_of_a_damaged_store_says_how_to_get_the_rest(damaged: Path, tmp_path: Path) -> None:
    result = run("export", damaged)
    assert result.exit_code == 1
    assert "is damaged" in result.stderr
    result = run("export", "--salvage", damaged, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr == "Error: 1 part could not be read; the rest is exported\n"
    lines = (tmp_path / "out").read_text().splitlines()
    assert Counter(json.loads(line)["table"] for line in lines)["record"] > 1000


def test_export_into_a_pipe_that_is_closed_is_no_accident(damaged: Path) -> None:
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-m", "semel", "store", "export", "--salvage", str(damaged)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


# --- backup ---------------------------------------------------------------------------------------


def test_backup_makes_a_data_folder_beside_a_broker(small: Path, tmp_path: Path) -> None:
    with open_folder(small) as opened, closing(opened.open()) as database:
        database.set_metadata("new", "yes")
        result = run("backup", small, tmp_path / "copy")
    assert result.exit_code == 0
    assert (
        f"{tmp_path / 'copy'} is a copy of {small}, and nothing is wrong with it" in result.output
    )
    assert contents(tmp_path / "copy") == contents(small)
    assert "is not empty" in refused("backup", small, tmp_path / "copy")
    found = json.loads(run("backup", "--json", small, tmp_path / "again").output)
    assert found["findings"] == []


def test_a_backup_of_a_damaged_store_exits_with_1(damaged: Path, tmp_path: Path) -> None:
    result = run("backup", damaged, tmp_path / "copy")
    assert result.exit_code == 1
    assert "record" in result.stdout


# --- adopt ----------------------------------------------------------------------------------------


def test_adopt_goes_on_after_the_record_and_loses_nothing_silently(small: Path) -> None:
    result = run("adopt", small, "--stream", "yard", "--after", 41)
    assert result.exit_code == 0
    assert result.output == "stream yard continues with row 42\n"
    said = refused("adopt", small, "--stream", "plant", "--after", 41)
    assert "--discard 1-5" in said
    assert (
        run(
            "adopt", small, "--stream", "plant", "--after", 41, "--discard", "1-5", "--yes"
        ).exit_code
        == 0
    )
    assert rows(small, "SELECT DISTINCT last_seq FROM stream") == [(41,)]


def test_a_dry_run_of_adopt_changes_no_file(small: Path) -> None:
    def checksums() -> dict[str, str]:
        return {
            each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in small.iterdir()
        }

    before = checksums()
    result = run("adopt", small, "--stream", "yard", "--after", 41, "--dry-run")
    assert (result.exit_code, result.output) == (0, "stream yard would continue with row 42\n")
    result = run("adopt", small, "--stream", "yard", "--after", 41, "--dry-run", "--json")
    assert json.loads(result.output)["done"] is False
    assert "--discard 1-5" in refused("adopt", small, "--stream", "plant", "--after", 41)
    assert checksums() == before
    assert run("adopt", small, "--stream", "yard", "--after", 41).exit_code == 0
    assert checksums() != before


# --- sessions and retained messages ---------------------------------------------------------------


def clients(folder: Path) -> list[object]:
    return [each for (each,) in rows(folder, "SELECT client_id FROM session ORDER BY id")]


def test_sessions_are_listed_for_people_and_for_programs(small: Path) -> None:
    result = run("sessions", "list", small)
    assert result.exit_code == 0
    head, first, second = result.stdout.splitlines()
    assert head.split() == ["client", "user", "expires", "subscriptions", "queued", "in", "flight"]
    assert first.split() == ["'a'", "'ann'", "1970-01-01", "00:01:00+00:00", "1", "3", "2"]
    assert second.split() == ["'b'", "never", "1", "1", "0"]
    found = json.loads(run("sessions", "list", small, "--json").stdout)["sessions"]
    assert found[0] == {
        "number": 1,
        "client_id": "a",
        "expiry": 0xFFFF_FFFF,
        "ends_at": 60.0,
        "user_name": "ann",
        "subscriptions": 1,
        "queued": 3,
        "in_flight": 2,
        "inbound": 1,
    }
    assert found[1]["user_name"] is None


@pytest.mark.parametrize(
    ("identity", "user_name"),
    [
        ('{"user_name":"\\u001b[31m"}', "\x1b[31m"),
        ('{"user_name":7}', None),
        ("{}", None),
        ("[]", None),
        ("{", None),
        ("[" * 30_000, None),
    ],
)
def test_an_owner_is_listed_if_the_store_has_a_user_name(
    small: Path, identity: str, user_name: str | None
) -> None:
    change(small, f"UPDATE session SET identity = '{identity}' WHERE id = 1")
    (found, _) = json.loads(run("sessions", "list", small, "--json").stdout)["sessions"]
    assert found["user_name"] == user_name
    # Escaped, so that a name cannot control the terminal.
    (_, line, _) = run("sessions", "list", small).stdout.splitlines()
    assert ("'\\x1b[31m'" in line) == (user_name is not None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--client-id", "a"], ["a"]),
        (["--client-id", "a", "--client-id", "b"], ["a", "b"]),
        (["--client-id", "A"], []),
        (["--match", "?"], ["a", "b"]),
        (["--match", "[b-z]"], ["b"]),
        (["--match", "b*", "--client-id", "a"], ["a", "b"]),
    ],
)
def test_the_sessions_that_are_meant_are_listed(
    small: Path, options: list[str], expected: list[str]
) -> None:
    found = json.loads(run("sessions", "list", small, "--json", *options).stdout)["sessions"]
    assert [each["client_id"] for each in found] == expected


def test_an_end_that_is_known_is_listed_as_a_time(small: Path) -> None:
    change(
        small,
        "UPDATE session SET expiry_interval = 60, ends_at = 1700000000.5 WHERE id = 1",
        "UPDATE session SET expiry_interval = 3600 WHERE id = 2",
    )
    _, first, second = run("sessions", "list", small).stdout.splitlines()
    assert "2023-11-14 22:13:20+00:00" in first
    assert "3,600 s after its connection" in second


def test_a_session_is_deleted_with_all_that_is_kept_for_it_and_nothing_else(small: Path) -> None:
    result = run("sessions", "delete", small, "--client-id", "a", "--yes")
    assert (result.exit_code, result.stdout) == (0, "1 session deleted\n")
    assert clients(small) == ["b"]
    for table in ("subscription", "delivery", "delivery_extra"):
        assert rows(small, f"SELECT DISTINCT session_id FROM {table}") == [(2,)]
    for table in ("inbound", "inbox"):
        assert rows(small, f"SELECT * FROM {table}") == []
    # The payload that both waited for has one use left; the will is published at the next start.
    assert rows(small, "SELECT use_count FROM shared_payload") == [(1,)]
    assert rows(small, "SELECT client_id FROM will") == [("a",)]
    assert run("check", small).exit_code == 0
    with open_folder(small) as opened, closing(opened.open()) as database:
        saved = database.restore()
        assert [each.client_id for each in saved.sessions] == ["b"]
        assert saved.next_session == 3
        assert [each.number for each in database.queue(2, 1, 9)] == [1]


def test_many_sessions_are_deleted_at_once(large_once: Path, tmp_path: Path) -> None:
    large = copied(large_once, tmp_path / "large")
    many = len(clients(large))
    result = run("sessions", "delete", large, "--match", "one of many clients*", "--json", "--yes")
    gone = len(json.loads(result.stdout)["sessions"])
    assert gone == 600
    assert len(clients(large)) == many - gone
    assert run("sessions", "delete", large, "--all", "--yes").exit_code == 0
    assert clients(large) == []
    assert run("check", large).exit_code == 0


def test_a_dry_run_deletes_nothing(small: Path) -> None:
    result = run("sessions", "delete", small, "--all", "--dry-run")
    assert result.stdout.splitlines()[-1] == "2 sessions would be deleted"
    assert clients(small) == ["a", "b"]
    result = run("retained", "delete", small, "--all", "--dry-run")
    assert result.stdout.splitlines()[-1] == "2 retained messages would be deleted"
    assert len(rows(small, "SELECT * FROM retained")) == 2


@pytest.mark.parametrize("kind", ["sessions", "retained"])
def test_nothing_is_deleted_because_an_option_was_forgotten(small: Path, kind: str) -> None:
    option = "--client-id" if kind == "sessions" else "--topic"
    for options in ([], [option, "t", "--all"]):
        result = run(kind, "delete", small, *options, "--yes")
        assert result.exit_code == 2
        assert option in result.stderr
    assert clients(small) == ["a", "b"]
    assert len(rows(small, "SELECT * FROM retained")) == 2


def test_what_is_not_there_cannot_be_deleted(small: Path, tmp_path: Path) -> None:
    assert "nothing was deleted" in refused(
        "sessions", "delete", small, "--client-id", "x", "--yes"
    )
    assert "no retained message" in refused("retained", "delete", small, "--topic", "x", "--yes")
    assert "not a data folder" in refused("sessions", "delete", tmp_path / "no", "--all", "--yes")
    assert "not a data folder" in refused("retained", "list", tmp_path / "no")


@pytest.mark.parametrize("kind", ["sessions", "retained"])
def test_what_a_broker_has_is_listed_but_not_deleted(small: Path, kind: str) -> None:
    with open_folder(small) as opened, closing(opened.open()):
        assert len(json.loads(run(kind, "list", small, "--json").stdout)[kind]) == 2
        assert "is in use by another process" in refused(kind, "delete", small, "--all", "--yes")
    assert run(kind, "delete", small, "--all", "--yes").exit_code == 0


def test_sessions_of_a_client_are_not_deleted(small: Path) -> None:
    change(small, "INSERT INTO metadata VALUES ('keeper', 0, 'client')")
    assert "is the store of a client" in refused("sessions", "delete", small, "--all", "--yes")
    assert len(json.loads(run("sessions", "list", small, "--json").stdout)["sessions"]) == 2


def test_retained_messages_are_listed_and_deleted_by_topic_filter(small: Path) -> None:
    head, first, second = run("retained", "list", small).stdout.splitlines()
    assert head.split() == ["topic", "qos", "bytes", "expires"]
    assert first.split() == ["'t'", "0", "4", "never"]
    assert second.split() == ["'u'", "0", "4", "never"]
    found = json.loads(run("retained", "list", small, "--topic", "u/#", "--json").stdout)
    assert found == {"retained": [{"topic": "u", "qos": 0, "bytes": 4, "expires_at": None}]}
    result = run("retained", "delete", small, "--topic", "u/#", "--yes")
    assert result.stdout == "1 retained message deleted\n"
    assert rows(small, "SELECT topic FROM retained") == [("t",)]
    assert run("check", small).exit_code == 0


def test_a_filter_that_is_none_is_refused(small: Path) -> None:
    result = run("retained", "list", small, "--topic", "a/#/b")
    assert result.exit_code == 2
    assert "--topic" in result.stderr


def test_a_damaged_row_is_not_listed_as_if_it_were_right(small: Path) -> None:
    damage(small, "UPDATE session SET client_id = 'z' WHERE id = 2")
    damage(small, "UPDATE retained SET topic = 'z' WHERE topic = 't'")
    assert "is damaged" in refused("sessions", "list", small)
    assert "is damaged" in refused("retained", "list", small)
