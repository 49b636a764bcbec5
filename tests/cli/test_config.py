"""`semel config show` and `semel config check`."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.cli.sections import SECTIONS
from semel.settings import load

FILE = """\
[broker]
maximum_connections = 500
maximum_packet_size = "2MiB"

[rights]
cached_decisions = 50_000

[[listener]]
name = "local"

[[listener]]
name = "pages"
transport = "ws"
port = 9001
origins = ["https://example.org"]

[[bridge]]
name = "site"
data = "bridge"
remote = "mqtts://ann:hidden@broker.example"
to_remote = ["#"]
remote_password = "hidden too"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SEMEL_CONFIG", "SEMEL_BROKER_PORT", "SEMEL_STORE_DATA", "SEMEL_WEB_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    Path("semel.toml").write_text(FILE)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.group, ["config", *words])


def succeed(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


# --- show -----------------------------------------------------------------------------------------


def test_show_prints_every_setting_with_its_origin() -> None:
    text = succeed("show", "--config", "semel.toml")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "maximum_connections = 500 # semel.toml, line 2" in lines
    assert 'maximum_packet_size = "2MiB" # semel.toml, line 3' in lines
    assert "port = 1883 # default" in lines
    assert 'name = "pages" # semel.toml, line 12' in lines
    assert 'origins = ["https://example.org"] # semel.toml, line 15' in lines
    assert lines.count("[[listener]]") == 2
    for section in ("broker", "users", "rights", "store", "ingest", "land"):
        assert f"[{section}]" in lines


def test_show_hides_secrets_and_nothing_else() -> None:
    for flags in ((), ("--json",), ("--changed",)):
        text = succeed("show", "--config", "semel.toml", *flags)
        assert "hidden" not in text
        assert text.count("(set)") == 2
    lines = succeed("show", "--config", "semel.toml", "--section", "bridge").splitlines()
    shown = {line.split(" = ")[0]: line for line in lines[1:]}
    assert "(set)" in shown["#remote"]
    assert "(set)" in shown["#remote_password"]
    # Secrets that are not set, or have their default, are no secrets.
    assert shown["local_password"].split("=")[1].split() == ['""', "#", "default"]
    assert "mqtt://127.0.0.1:1883" in shown["local"]


def test_what_show_prints_is_a_file_with_the_same_settings() -> None:
    text = succeed("show", "--config", "semel.toml")
    path = Path("again.toml")
    # Secrets are the only values that it lacks.
    path.write_text(text.replace("#remote = (set)", 'remote = "mqtts://other"'))
    given = load(SECTIONS, path=Path("semel.toml"), environ={}, flags={})
    again = load(SECTIONS, path=path, environ={}, flags={})
    for section in SECTIONS:
        if section.section != "bridge":
            assert given.all_of(section) == again.all_of(section)


def test_show_changed_leaves_out_what_equals_the_default() -> None:
    found = tomllib.loads(succeed("show", "--config", "semel.toml", "--changed"))
    assert found["broker"] == {"maximum_connections": 500, "maximum_packet_size": "2MiB"}
    assert [each["name"] for each in found["listener"]] == ["local", "pages"]
    # It is given, and equals the default.
    assert "rights" not in found
    assert succeed("show", "--changed") == ""


def test_show_names_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_BROKER_MAXIMUM_CONNECTIONS", "7")
    monkeypatch.setenv("SEMEL_CONFIG", "semel.toml")
    (found,) = json.loads(succeed("show", "--section", "broker", "--changed", "--json"))["sections"]
    assert found["section"] == "broker"
    by_key = {each["key"]: each for each in found["settings"]}
    assert by_key["maximum_connections"] == {
        "key": "maximum_connections",
        "value": 7,
        "default": 10_000,
        "changed": True,
        "origin": "environment",
        "source": "environment variable SEMEL_BROKER_MAXIMUM_CONNECTIONS",
    }
    assert by_key["maximum_packet_size"]["origin"] == "file"
    assert by_key["maximum_packet_size"]["source"] == "semel.toml (from SEMEL_CONFIG), line 3"


def test_show_json_has_plain_values() -> None:
    found = json.loads(succeed("show", "--config", "semel.toml", "--json"))
    assert found["file"] == "semel.toml"
    bridge = next(each for each in found["sections"] if each["section"] == "bridge")
    by_key = {each["key"]: each for each in bridge["settings"]}
    assert bridge["name"] == "site"
    assert by_key["data"]["value"] == "bridge"
    assert by_key["to_remote"]["value"] == ["#"]
    assert by_key["remote"] == {
        "key": "remote",
        "value": "(set)",
        "default": None,
        "changed": True,
        "origin": "file",
        "source": "semel.toml, line 20",
    }
    store = next(each for each in found["sections"] if each["section"] == "store")
    assert store["name"] is None
    assert {each["origin"] for each in store["settings"]} == {"default"}


def test_show_refuses_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("semel.toml").write_text("[brokr]\nport = 1\n")
    result = run("show", "--config", "semel.toml")
    assert "semel.toml, line 1: there is no section" in str(result.exception)
    result = run("show", "--section", "brokr")
    assert result.exit_code == 2
    assert "'brokr' is not one of 'broker'" in result.output
    monkeypatch.setenv("SEMEL_BROKER_PORTS", "1")
    assert "did you mean SEMEL_BROKER_PORT?" in str(run("show").exception)


# --- check ----------------------------------------------------------------------------------------


def test_check_accepts_valid_settings() -> None:
    assert succeed("check", "semel.toml") == "the settings are valid\n"
    assert json.loads(succeed("check", "semel.toml", "--json")) == {
        "valid": True,
        "problems": [],
        "warnings": [],
    }
    assert succeed("check") == "the settings are valid\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[broker]\nports = 1\n", "semel.toml, line 2: [broker] has no key"),
        ('[[stream]]\nname = "a"\nfilter = "#"\n', "streams need a data folder"),
        ('[broker]\nhost = "0.0.0.0"\n', "would let strangers in"),
        (
            '[[listener]]\nname = "a"\nport = 1\n[[listener]]\nname = "b"\nport = 1\n',
            "have the same address",
        ),
        ('[users]\npassword_file = "none"\n', "none: cannot be read"),
        ('[rights]\nfile = "none"\n', "none: cannot be read"),
        ('[rights]\nfile = "bad"\n', "bad, line 1, column 1: "),
        (
            '[[bridge]]\nname = "a"\ndata = "a"\nremote = "mqtt://a"\n',
            "[[bridge]] a: there is no topic to move",
        ),
    ],
)
def test_check_names_what_is_wrong(text: str, sentence: str) -> None:
    Path("bad").write_text("alow * all a\n")
    Path("semel.toml").write_text(text)
    result = run("check", "semel.toml")
    assert result.exit_code == 1
    assert sentence in str(result.exception)
    result = run("check", "semel.toml", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["valid"] is False
    assert sentence in found["problems"][0]
    # The broker says the same.
    result = CliRunner().invoke(cli.group, ["broker", "--config", "semel.toml", "--check-config"])
    assert result.exit_code == 1
    assert sentence in str(result.exception)


def test_check_lists_everything_that_is_wrong() -> None:
    Path("semel.toml").write_text(
        '[users]\npassword_file = "no-users"\n[rights]\nfile = "no-rights"\n'
        '[[stream]]\nname = "a"\nfilter = "#"\n'
    )
    problems = json.loads(run("check", "semel.toml", "--json").stdout)["problems"]
    assert len(problems) == 3


def test_check_reads_the_files_that_are_named(tmp_path: Path) -> None:
    Path("rights").write_text("allow * all #\n")
    Path("users").write_text("")
    Path("users").chmod(0o600)
    Path("semel.toml").write_text(
        '[broker]\nhost = "0.0.0.0"\n[users]\npassword_file = "users"\n[rights]\nfile = "rights"\n'
    )
    assert succeed("check", "semel.toml") == "the settings are valid\n"


def test_check_warns_of_files_that_everyone_can_change(tmp_path: Path) -> None:
    rights = tmp_path / "rights"
    rights.write_text("allow * all #\n")
    rights.chmod(0o666)
    Path("semel.toml").write_text(f'[rights]\nfile = "{rights}"\n')
    warning = f"{rights}: every user of this machine can change the rights: run chmod o-w {rights}"
    result = run("check", "semel.toml")
    assert (result.exit_code, result.stdout) == (0, "the settings are valid\n")
    assert result.stderr == f"Warning: {warning}\n"
    assert json.loads(run("check", "semel.toml", "--json").stdout)["warnings"] == [warning]
    rights.chmod(0o664)
    assert run("check", "semel.toml").stderr == ""


def test_the_flags_of_the_broker_are_checked_too() -> None:
    words = ["broker", "--check-config", "--stream", "all=#"]
    assert CliRunner().invoke(cli.group, [*words, "--data", "data"]).exit_code == 0
    assert CliRunner().invoke(cli.group, words).exit_code == 1
    words = ["broker", "--check-config", "--listener", "mqtt://0.0.0.0"]
    result = CliRunner().invoke(cli.group, words)
    assert "would let strangers in" in str(result.exception)
    words[-1] += "?anonymous=true"
    assert CliRunner().invoke(cli.group, words).exit_code == 0
