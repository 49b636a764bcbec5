"""`semel land` as far as it needs no Spark: its flags, its mistakes, and what it prints."""

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, write_deltalake

from semel import __version__, cli
from semel.cli.land_file import others_line
from semel.cli.land_run import as_line
from semel.pipeline.app_transactions import position_transactions, stream_id
from semel.pipeline.errors import PipelineError
from semel.pipeline.landing_check import InferredTable
from semel.pipeline.landing_plan import policy_of
from semel.pipeline.landing_target import RunCheckpoints
from semel.pipeline.maintenance_process import describe
from semel.pipeline.settings import LandSettings
from semel.settings import settings_of
from semel.settings_values import toml_text
from tests.pipeline.made import write_messages

PAGE = Path(__file__).resolve().parents[3] / "docs" / "data" / "landing.md"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.group, ["land", *arguments])


def test_help_names_every_setting() -> None:
    text = invoke("--help").stdout
    for name in ("--root", "--lake", "--stream", "--table", "--once", "--json", "--master"):
        assert name in text
    assert invoke("--version").stdout == f"semel {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--root is missing: give the folder or object store of the segments"),
        (["--root", "ftp://x/y"], "--root: ftp://x/y is not a root"),
        (["--root", "r", "--once"], "r is not a root: there is no such folder"),
        (["--root", "r", "--lake", "ftp://x"], "ftp://x is not a lake"),
        (["--root", "r", "--lake", "s3://b/l?region=eu-1"], "give --checkpoint"),
        (["--root", "r", "--lake", "s3://b/l?nonesuch=1"], "option 'nonesuch' of the address"),
        (["--root", "r", "--table", "a/b"], "'a/b' cannot name a table"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_a_secret_of_an_address_is_not_told(tmp_path: Path) -> None:
    result = invoke("--root", str(tmp_path), "--lake", "s3://key:secret@b/l?x=1", "--once")
    assert result.exit_code == 1
    assert "s3://b/l" in result.stderr
    assert "secret" not in result.stderr


def test_a_failure_is_an_event_too(tmp_path: Path) -> None:
    result = invoke("--root", str(tmp_path / "none"), "--once", "--json")
    assert result.exit_code == 1
    assert '"event": "failed"' in result.stdout
    assert "there is no such folder" in result.stdout


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with two streams, where a Spark that is started fails."""
    for stream in ("plant", "office"):
        write_messages(tmp_path / "root", stream, "n1", 1, 3)

    def start(name: str, *, master: str) -> None:
        raise PipelineError("Spark is started")

    monkeypatch.setattr(import_module("semel.pipeline.session"), "session", start)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "root"


def land(root: Path, *arguments: str) -> str:
    """The sentence with which a landing ends."""
    result = invoke("--root", str(root), "--once", "--quiet", *arguments)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("stream", "hint"), [("plants", "; did you mean plant?"), ("unheard-of", "")]
)
def test_a_stream_that_is_not_recorded_is_told_before_spark_is_started(
    root: Path, stream: str, hint: str
) -> None:
    assert land(root, "--stream", stream) == (
        f"Error: --stream {stream}: there is no such stream in {root}, which has office, plant"
        f"{hint}"
    )
    # One that is recorded needs a Spark.
    assert "Spark is started" in land(root, "--stream", "plant")


def test_a_table_of_another_stream_is_told_before_spark_is_started(root: Path) -> None:
    lake = root.parent / "lake"
    made = pa.table({"seq": [1]})
    write_deltalake(lake / "messages", made, name="semel/stream/office")
    table = lake / "messages"
    words = ["--stream", "plant", "--lake", str(lake)]
    assert land(root, *words) == (
        f"Error: {table} is the table of stream office, not of plant: give --stream office, or "
        "another --table"
    )
    assert "Spark is started" in land(root, "--stream", "office", "--lake", str(lake))
    assert "Spark is started" in land(root, *words, "--table", "others")
    write_deltalake(lake / "foreign", made)
    assert land(root, *words, "--table", "foreign") == (
        f"Error: {lake / 'foreign'} is not a table of stream plant, because no landing created it: "
        "give another --table"
    )


def test_a_root_that_has_no_stream_yet_may_get_one(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "Spark is started" in land(tmp_path / "empty", "--stream", "plant")


def test_events_are_lines_for_people() -> None:
    batch = {
        "event": "batch",
        "batch": 12,
        "rows": 4_031,
        "landed": 52_207,
        "lag_rows": 0,
        "lag_seconds": 1.92,
        "rate": 9_402,
        "seconds": 0.4,
    }
    line = "batch 12  4,031 rows  52,207 landed  0 rows behind  latency 1.9 s  9,402 rows/s"
    assert as_line(batch) == line
    assert line in PAGE.read_text("utf-8")
    unknown = {**batch, "lag_rows": None, "lag_seconds": None, "rate": None}
    assert as_line(unknown) == "batch 12  4,031 rows  52,207 landed"


def test_what_maintenance_did_is_a_line_that_the_page_shows() -> None:
    did = {
        "action": "compacted",
        "files_removed": 200,
        "bytes_removed": 3_100_000,
        "files_added": 1,
        "bytes_added": 1_200_000,
        "rows": 20_000,
        "seconds": 0.9,
    }
    checkpoint = {"action": "checkpointed", "version": 4300, "commits": 101, "seconds": 0.1}
    cleaned = {"action": "cleaned log", "entries": 104, "seconds": 0.01}
    vacuumed = {"action": "vacuumed", "files": 3620, "seconds": 0.4}
    for event in (did, checkpoint, cleaned, vacuumed):
        line = as_line({"event": "maintenance", "text": describe(event), **event})
        assert line in PAGE.read_text("utf-8")


def test_maintenance_is_turned_off_by_one_flag() -> None:
    assert policy_of(LandSettings(maintenance=False)) is None
    policy = policy_of(LandSettings(small_files=7))
    assert policy is not None
    assert (policy.small_files, policy.target_file_size) == (7, 2**30)
    assert "--no-maintenance" in invoke("--help").stdout


def test_the_page_lists_exactly_the_settings_of_the_section() -> None:
    declared = settings_of(LandSettings)
    expected = [
        f"| `{each.name}` | `{toml_text(declared[each.name], declared[each.name].default)}`"
        f" | {declared[each.name].help} |"
        for each in fields(LandSettings)
    ]
    page = PAGE.read_text("utf-8").partition("\n## The settings\n")[2]
    assert [line for line in page.splitlines() if line.startswith("| `")] == expected


def test_the_links_of_the_page_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text("utf-8")):
        assert (PAGE.parent / link).is_file(), link


LANDING = """
[[table]]
name = "temperature"
topic = "plant/{line}/temperature"
decoder = "text"
"""


def of_file(root: Path, command: str, *arguments: str) -> Result:
    """Run one of the commands of a landing file, on stream plant."""
    (root.parent / "landing.toml").write_text(LANDING)
    words = ["--quiet", "--root", str(root), "--stream", "plant", *arguments]
    result = invoke(command, *words)
    assert isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["retry", "nonesuch"], "landing.toml has no table nonesuch: its tables are temperature"),
        (["retry", "--lake", "file"], "file is not a lake but a file"),
        (["retry", "--lake", "nowhere"], "there is no lake at nowhere: there is no such folder"),
        (
            ["backfill", "nonesuch"],
            "landing.toml has no table nonesuch: its tables are temperature",
        ),
        (["backfill", "../temperature"], "landing.toml has no table ../temperature: its tables"),
        (["backfill", "a'b"], "landing.toml has no table a'b: its tables are temperature"),
        (["check", "--stream", "plants"], "did you mean plant?"),
        (["check", "--lake", "file"], "file is not a folder but a file"),
        (["check", "--root", "nowhere"], "nowhere is not a root: there is no such folder"),
        (["infer", "a/#", "--stream", "plants"], "did you mean plant?"),
        (["infer", "a/#", "--root", "nowhere"], "nowhere is not a root: there is no such folder"),
        (["check"], "Spark is started"),
        (["infer", "a/#"], "Spark is started"),
        (["backfill", "temperature", "--from", "2026-03-01T12:00:00Z"], "Spark is started"),
        (["retry", "--lake", "lake"], "Spark is started"),
    ],
)
def test_a_mistake_about_a_landing_file_is_told_before_spark_is_started(
    root: Path, command: list[str], said: str
) -> None:
    (root.parent / "file").write_text("")
    (root.parent / "lake").mkdir()
    result = of_file(root, *command)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()[-1:]
    assert line.startswith("Error: ")
    assert said in line


@pytest.mark.parametrize(
    ("decoder", "others", "undecodable", "kinds", "line"),
    [
        ("raw", 2, 0, ("json",), "2 of them look like another format (json), which raw takes, too"),
        (
            "json",
            1,
            1,
            ("raw",),
            "1 of them looks like another format (raw); json cannot decode it",
        ),
        (
            *("text", 1_002, 2, ("json", "raw")),
            "1,002 of them look like another format (json or raw); text cannot decode 2 of these",
        ),
    ],
)
def test_messages_of_another_format_than_the_inferred_one_are_counted(
    decoder: str, others: int, undecodable: int, kinds: tuple[str, ...], line: str
) -> None:
    found = InferredTable(
        name="t",
        topic="#",
        decoder=decoder,
        columns=None,
        messages=2_000,
        others=others,
        undecodable=undecodable,
        other_decoders=kinds,
    )
    assert others_line(found) == line


@pytest.mark.parametrize("start", ["never", "-5", "0", '{"n1": true}', "{"])
def test_a_backfill_begins_at_a_row_or_a_time(root: Path, start: str) -> None:
    result = of_file(root, "backfill", "temperature", "--from", start)
    assert result.exit_code == 2
    assert "Error: Invalid value for --from: " in result.stderr
    assert "option start" not in result.stderr


def test_a_backfill_of_a_table_that_has_messages_begins_nowhere_else(root: Path) -> None:
    table = root.parent / "lake" / "temperature"
    begin = ["backfill", "temperature", "--lake", str(root.parent / "lake")]
    rows = pa.table({"node": ["n1"], "seq": [3]})
    # Another stream has landed there; that is refused later, with a reason of its own.
    refused = "temperature exists, and a backfill continues after the messages that it has: leave"
    for stream, said in (("other", "Spark is started"), ("plant", refused)):
        write_deltalake(
            str(table),
            rows,
            name=stream_id("plant"),
            mode="overwrite",
            commit_properties=CommitProperties(
                app_transactions=position_transactions(stream, "n1", 3)
            ),
        )
        result = of_file(root, *begin, "--from", "2")
        assert result.exit_code == 1
        assert said in result.stderr.splitlines()[-1]
    for more in ([], ["--from", "earliest"]):
        result = of_file(root, *begin, *more)
        assert "Spark is started" in result.stderr.splitlines()[-1]


def test_a_backfill_has_a_checkpoint_beside_that_of_the_landing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the settings name that of the landing, which may be running."""
    monkeypatch.setenv("SEMEL_LAND_CHECKPOINT", str(root.parent / "checkpoint"))
    with RunCheckpoints(root.parent / "checkpoint").locked():
        assert "Spark is started" in of_file(root, "backfill", "temperature").stderr
