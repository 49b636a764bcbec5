"""`semel tables` lists the tables of a lake, and how far they are behind their record."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake

from semel.cli.tables import command
from semel.cli.text_tables import shown_age
from semel.pipeline.app_transactions import position_id
from semel.store.reading import NodeRecord
from tests.store.keeper import Keeper
from tests.up.landed import land


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    """As `semel up` lays things out: ten rows, 1 to 5 landed; beside them a table of others."""
    monkeypatch.chdir(tmp_path)
    made = Keeper(tmp_path / "semel-data", stream="all")
    made.commit(10)
    made.seal(3, 3)
    lake = tmp_path / "semel-data" / "lake"
    land(lake, NodeRecord(made.root, "all", "n1"), 1, 5)
    write_deltalake(lake / "other", pa.table({"a": [1, 2]}))
    yield made
    made.close()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_tables_are_listed_with_what_is_not_landed(keeper: Keeper) -> None:
    result = run()
    assert result.exit_code == 0, result.output
    head, messages, other = (line.split() for line in result.stdout.splitlines())
    assert head[:4] == ["table", "rows", "size", "files"]
    assert head[-2:] == ["not", "landed"]
    assert messages[:2] == ["messages", "5"]
    # Age, partition and what is not landed.
    assert messages[-4].isdigit()
    assert messages[-3:] == ["s", "date", "5"]
    assert other[:2] == ["other", "2"]
    assert other[-1] == "s"


def test_tables_for_programs_are_a_json_list(keeper: Keeper) -> None:
    messages, other = json.loads(run("--json").stdout)
    assert {key: messages[key] for key in ("table", "rows", "files", "version")} == {
        "table": "messages",
        "rows": 5,
        "files": 1,
        "version": 1,
    }
    assert messages["partition_by"] == ["date"]
    assert messages["stream"] == "all"
    assert messages["not_landed"] == 5
    assert messages["nodes"] == [{"node": "n1", "landed": 5, "last": 10, "deleted": 0}]
    assert messages["committed"].endswith("Z")
    assert messages["problem"] is None
    assert (other["stream"], other["not_landed"], other["nodes"]) == (None, None, None)


def test_by_the_root_alone_what_is_sealed_counts(keeper: Keeper, tmp_path: Path) -> None:
    lake = keeper.folder.path / "lake"
    root = tmp_path / "root"
    (keeper.folder.path / "streams").rename(root)
    messages, _ = json.loads(run("--lake", lake, "--root", root, "--json").stdout)
    assert messages["not_landed"] == 1


def test_without_a_record_nothing_is_said_of_it(keeper: Keeper, tmp_path: Path) -> None:
    far = tmp_path / "far"
    (keeper.folder.path / "lake").rename(far)
    result = run("--lake", far)
    assert "not landed" not in result.stdout
    assert len(result.stdout.splitlines()) == 3
    assert json.loads(run("--lake", far, "--json").stdout)[0]["not_landed"] is None


def test_an_empty_lake_and_no_lake_are_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("--lake", tmp_path / "empty")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{tmp_path}/empty has no table\n"
    assert run("--lake", tmp_path / "empty", "--json").stdout == "[]\n"
    result = run("--lake", tmp_path / "none")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: there is no lake at {tmp_path}/none: there is no such folder\n"
    )


def test_rows_that_retention_has_deleted_are_not_waiting(keeper: Keeper) -> None:
    NodeRecord(keeper.root, "all", "n1").trim(6)
    messages, _ = json.loads(run("--json").stdout)
    assert messages["not_landed"] == 4
    assert messages["nodes"] == [{"node": "n1", "landed": 5, "last": 10, "deleted": 6}]
    assert run().stdout.splitlines()[1].split()[-1] == "4"


def test_before_anything_is_landed_the_rows_that_wait_are_told(tmp_path: Path) -> None:
    made = Keeper(tmp_path / "data", stream="all")
    made.commit(3)
    for lake in (tmp_path / "data" / "lake", tmp_path / "far"):
        waiting = (
            f"nothing has landed in messages of {lake} yet; 3 rows of stream all are waiting\n"
        )
        arguments = ("--data", tmp_path / "data", "--lake", lake)
        if lake.name == "far":
            lake.mkdir()
        result = run(*arguments)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", waiting)
        result = run(*arguments, "--json")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "[]\n", waiting)
    # A lake that is named and is not there is a mistake.
    for typo in (tmp_path / "typo", tmp_path / "data" / "lkae"):
        result = run("--data", tmp_path / "data", "--lake", typo)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"Error: there is no lake at {typo}: there is no such folder\n"
    made.close()


def test_with_the_tables_of_a_landing_file_nothing_waits_for_another(tmp_path: Path) -> None:
    made = Keeper(tmp_path / "data", stream="all")
    made.commit(4)
    made.seal(4)
    lake = tmp_path / "data" / "lake"
    land(lake, NodeRecord(made.root, "all", "n1"), 1, 3, table="typed")
    result = run("--data", tmp_path / "data")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:2] == ["typed", "3"]
    assert result.stdout.splitlines()[1].split()[-1] == "1"
    assert result.stderr == ""
    made.close()


def test_the_lake_is_in_the_data_folder_that_anybody_names(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    data = keeper.folder.path
    (elsewhere / "up.toml").write_text(f'[store]\ndata = "{data}"\n')
    for arguments in (("--data", data), ("--config", "up.toml")):
        result = run(*arguments)
        assert result.stdout.splitlines()[1].split()[:2] == ["messages", "5"], result.output
    assert run().exit_code == 1
    monkeypatch.setenv("SEMEL_STORE_DATA", str(data))
    assert run().exit_code == 0


def test_a_commit_that_does_not_say_what_it_did_has_its_place(keeper: Keeper) -> None:
    silence(keeper.folder.path / "lake" / "other", 0)
    result = run()
    assert result.exit_code == 0, result.output
    _, other = json.loads(run("--json").stdout)
    assert (other["operation"], other["rows"], other["problem"]) == ("", 2, None)
    assert other["committed"].endswith("Z")


def silence(table: Path, version: int) -> None:
    """A commit as Delta allows it: without what it did, and when."""
    entry = table / "_delta_log" / f"{version:020}.json"
    lines = [line for line in entry.read_text().splitlines() if "commitInfo" not in line]
    entry.write_text("\n".join(lines) + "\n")


def test_a_table_with_damaged_positions_is_told_beside_the_others(keeper: Keeper) -> None:
    entry = keeper.folder.path / "lake" / "messages" / "_delta_log" / f"{1:020}.json"
    whole = entry.read_text()
    name = position_id("all", "n1")
    assert f'"{name}","version":5' in whole
    entry.write_text(whole.replace(f'"{name}","version":5', f'"{name}","version":7'))
    result = run()
    assert result.exit_code == 1
    assert "messages: its log is damaged: of stream all, node n1, it says" in result.stderr
    _, other = (line.split() for line in result.stdout.splitlines())
    assert other[:2] == ["other", "2"]
    entry.write_text(whole)
    assert run().exit_code == 0


def test_a_table_that_cannot_be_read_is_told_beside_the_others(keeper: Keeper) -> None:
    entry = keeper.folder.path / "lake" / "other" / "_delta_log" / f"{0:020}.json"
    entry.write_text("{broken")
    result = run()
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].startswith("messages")
    assert len(result.stdout.splitlines()) == 2
    assert "/lake/other: " in result.stderr
    assert len(result.stderr.splitlines()) == 1
    _, other = json.loads(run("--json").stdout)
    assert other.keys() == {"table", "problem"}


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-1, "0 s"), (59.4, "59 s"), (61, "1 min"), (7200, "2 h"), (2e5, "2 d")]
)
def test_an_age_is_in_its_largest_unit(seconds: float, shown: str) -> None:
    assert shown_age(seconds) == shown
