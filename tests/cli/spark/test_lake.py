"""`semel lake` merges, cleans and tells the history of a table."""

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from semel.cli.lake import command
from semel.pipeline.app_transactions import position_id


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Table t, by three commits of two rows each."""
    for seq in (2, 4, 6):
        write_deltalake(
            tmp_path / "lake" / "t",
            pa.table({"a": [seq - 1, seq]}),
            mode="append",
            commit_properties=CommitProperties(
                app_transactions=[Transaction(position_id("all", "n1"), seq)]
            ),
        )
    return tmp_path / "lake"


@pytest.fixture
def orphan(lake: Path) -> Path:
    """A file that no version needs, of eight days ago."""
    path = lake / "t" / "orphan.parquet"
    path.write_bytes(b"x" * 1234)
    moment = time.time() - 8 * 86_400
    os.utime(path, (moment, moment))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_optimize_says_what_it_merged(lake: Path) -> None:
    result = run("optimize", "t", "--lake", lake)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("t: compacted 3 files (")
    assert result.stdout.endswith("), version 3\n")
    assert run("optimize", "t", "--lake", lake).stdout == "t: nothing to compact\n"
    again = json.loads(run("optimize", "t", "--lake", lake, "--json").stdout)
    assert again == {
        "table": "t",
        "version": None,
        "files_added": 0,
        "bytes_added": 0,
        "files_removed": 0,
        "bytes_removed": 0,
        "notice": "",
    }


def test_optimize_takes_a_size_with_its_unit(lake: Path) -> None:
    done = json.loads(run("optimize", "t", "--lake", lake, "--target-size", "1MB", "--json").stdout)
    assert (done["files_removed"], done["files_added"], done["version"]) == (3, 1, 3)


def test_vacuum_lists_asks_and_deletes(lake: Path, orphan: Path) -> None:
    result = run("vacuum", "t", "--lake", lake, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "orphan.parquet\n")
    assert result.stderr == "t: 1 file (1.2 kB) can be deleted\n"
    result = run("vacuum", "t", "--lake", lake)
    assert (result.exit_code, result.stdout) == (1, "orphan.parquet\n")
    assert result.stderr.startswith("Delete 1 file (1.2 kB)? [y/N]: ")
    assert orphan.exists()
    found = json.loads(run("vacuum", "t", "--lake", lake, "--json", "--dry-run").stdout)
    assert found == {"table": "t", "deleted": False, "bytes": 1234, "files": ["orphan.parquet"]}
    result = run("vacuum", "t", "--lake", lake, "--yes")
    assert (result.exit_code, result.stdout) == (0, "t: deleted 1 file (1.2 kB)\n")
    assert not orphan.exists()
    assert run("vacuum", "t", "--lake", lake).stderr == "t: nothing to delete\n"
    assert DeltaTable(lake / "t").to_pyarrow_dataset().count_rows() == 6


@pytest.mark.parametrize("age", ["6d", "0.5d", "1h", "604799s"])
def test_vacuum_of_younger_files_is_refused_by_name(lake: Path, orphan: Path, age: str) -> None:
    result = run("vacuum", "t", "--lake", lake, "--yes", "--older-than", age)
    assert result.exit_code == 2
    assert "Invalid value for --older-than: at least 7d" in result.stderr
    assert orphan.exists()


@pytest.mark.parametrize(("age", "is_deleted"), [("7d", True), ("168h", True), ("9d", False)])
def test_vacuum_keeps_what_is_younger_than_is_said(
    lake: Path, orphan: Path, age: str, is_deleted: bool
) -> None:
    result = run("vacuum", "t", "--lake", lake, "--yes", "--older-than", age)
    assert result.exit_code == 0, result.output
    assert orphan.exists() is not is_deleted


def test_history_is_newest_first_and_says_how_far_landing_got(lake: Path) -> None:
    run("optimize", "t", "--lake", lake)
    result = run("history", "t", "--lake", lake, "--count", 2)
    assert result.exit_code == 0, result.output
    head, merged, landed = result.stdout.splitlines()
    assert head.startswith("version")
    assert merged.split()[0::2][:2] == ["3", "OPTIMIZE"]
    assert landed.split()[2:] == ["WRITE", "2", "1", "0", "all/n1:", "6"]
    steps = json.loads(run("history", "t", "--lake", lake, "--json").stdout)
    assert [step["version"] for step in steps] == [3, 2, 1, 0]
    assert steps[1]["positions"] == {"all/n1": 6}
    assert (steps[1]["rows_added"], steps[1]["files_added"]) == (2, 1)
    assert steps[0]["committed"].endswith("Z")


@pytest.mark.parametrize("action", ["optimize", "vacuum", "history"])
def test_a_table_that_is_none_is_one_sentence(lake: Path, action: str) -> None:
    result = run(action, "nothing", "--lake", lake)
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: there is no table at {lake}/nothing: there is no such folder; "
        "the tables there are t\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", "t", "--target-size", "large"),
        ("optimize", "t", "--target-size", "0"),
        ("optimize", "t", "--target-size", "1d"),
        ("optimize", "t", "--target-size", "0.5B"),
        ("optimize", "t", "--target-size", "1.1TiB"),
        ("optimize", "t", "--target-size", "99999999999TB"),
        ("vacuum", "t", "--older-than", "soon"),
        ("vacuum", "t", "--older-than", "1" * 25 + "d"),
        ("history", "t", "--count", "0"),
        ("history",),
    ],
)
def test_wrong_usage_exits_with_2(lake: Path, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--lake", lake)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    if len(arguments) > 2:
        assert f"Invalid value for {arguments[2]}" in result.stderr.replace("'", "")


@pytest.mark.parametrize("size", ["1B", "1TiB"])
def test_optimize_takes_every_size_that_a_file_may_have(lake: Path, size: str) -> None:
    result = run("optimize", "t", "--lake", lake, "--target-size", size)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("action", ["optimize", "vacuum", "history"])
def test_the_record_is_no_concern_of_the_commands_of_a_lake(
    lake: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setenv("SEMEL_LAND_ROOT", "s3://b/x?color=red")
    result = run(action, "t", "--lake", lake)
    assert result.exit_code == 0, result.output


def test_the_lake_is_in_the_data_folder_that_the_settings_name(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (elsewhere / "up.toml").write_text(f'[store]\ndata = "{lake.parent}"\n')
    assert run("history", "t", "--config", "up.toml").exit_code == 0
    result = run("history", "t")
    assert result.exit_code == 1
    assert result.stderr == (
        "Error: there is no lake at semel-data/lake: there is no such folder\n"
    )
