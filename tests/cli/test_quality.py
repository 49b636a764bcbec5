"""`semel quality` prints who is silent, loses messages or is late, and saves it if told to."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.cli.quality import (
    ASCII_BLOCKS,
    BLOCKS,
    chart_of,
    command,
    find_range,
    shown_number,
    shown_seconds,
)
from tests.store.keeper import Keeper
from tests.up.test_quality import BEGIN, SECOND, MadeRecord, Message

HOME = Path(__file__).resolve().parents[2]
PAGE = HOME / "docs" / "data" / "quality.md"
RANGE = ("--from", "2026-03-01T12:00:00Z", "--to", "2026-03-01T13:00:00Z")
PATHS = ("--sequence", "$.seq", "--event-time", "$.at")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lake is where a command is started, and nothing of the user's is set."""
    monkeypatch.chdir(tmp_path)


def every(seconds: float, *, until: float = 3_600, late: float = 0.2) -> list[Message]:
    """Messages at a steady rate, each with its number and time."""
    start = BEGIN / SECOND
    return [
        (at * seconds, {"seq": at, "at": start + at * seconds - late, "value": 20 + at % 5})
        for at in range(int(until / seconds))
    ]


@pytest.fixture
def plant(tmp_path: Path) -> MadeRecord:
    """The devices of the page: one is silent, one loses, one is late, one repeats, one is good."""
    made = MadeRecord(tmp_path)
    made.add(every(60, until=1_260), client_id="pump-4", topic="plant/pump/4")
    lossy = every(10)
    del lossy[100:112]
    made.add(lossy, client_id="pump-2", topic="plant/pump/2")
    late = every(30, late=0.5)
    made.add([*late[:-3], *every(30, late=90)[-3:]], client_id="pump-5", topic="plant/pump/5")
    repeated = every(20)
    made.add(
        [*repeated[:10], repeated[9], *repeated[10:]], client_id="pump-3", topic="plant/pump/3"
    )
    made.add(every(5), client_id="pump-1", topic="plant/pump/1")
    made.seal(landed=5)
    return made


def run(made: MadeRecord, *arguments: object) -> Result:
    where = ("--lake", made.lake, "--root", made.root)
    return CliRunner().invoke(command, list(map(str, (*where, *RANGE, *arguments))))


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def devices(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return {each["client_id"]: each for each in json.loads(result.stdout)["devices"]}


# --- output ---------------------------------------------------------------------------------------


def test_the_worst_devices_are_first_and_totals_below(plant: MadeRecord) -> None:
    header, *rows = lines(run(plant, *PATHS))
    assert header.split() == [
        *("client", "topic", "messages", "per", "minute", "last", "over", "1", "h", "problems"),
    ]
    clients = [row.split()[0] for row in rows[:5]]
    assert clients == ["pump-4", "pump-2", "pump-5", "pump-3", "pump-1"]
    assert "silent for 40 min" in rows[0]
    assert "12 missing" in rows[1]
    assert "3 late (99 %: 1.5 min)" in rows[2]
    assert "1 repeat" in rows[3]
    assert rows[4].endswith("none")
    assert "  █▆█▆█▆█▆▃  " in rows[0]
    assert rows[5:] == [
        "",
        "1,390 messages (62.1 kB) of 5 clients, 5 pairs of client and topic, from"
        " 2026-03-01T12:00:00Z to 2026-03-01T13:00:00Z",
        "4 of 5 have problems: 1 silent now, 12 missing, 3 late, 1 repeat, 1 silence",
    ]


def test_without_paths_only_what_needs_none_is_reported(plant: MadeRecord) -> None:
    text = run(plant).stdout
    assert "missing" not in text
    assert "late" not in text
    assert "silent for 40 min" in text


def test_at_most_so_many_lines_are_printed_and_all_are_counted(plant: MadeRecord) -> None:
    _, first, more, *totals = lines(run(plant, *PATHS, "--count", 1))
    assert first.startswith("pump-4")
    assert more == "and 4 more: --count prints them"
    assert "of 5 clients" in totals[1]


def test_json_has_all_measures_of_all_devices(plant: MadeRecord) -> None:
    result = run(plant, *PATHS, "--json")
    found = json.loads(result.stdout)
    assert (found["table"], found["saved"]) == ("messages", None)
    assert (found["from"], found["to"]) == (
        *("2026-03-01T12:00:00.000000Z", "2026-03-01T13:00:00.000000Z"),
    )
    assert found["options"]["sequence"] == "$.seq"
    assert found["totals"]["missing"] == 12
    measured = devices(result)
    assert len(measured) == 5
    assert measured["pump-2"]["missing"] == 12
    assert measured["pump-1"]["first_received"] == "2026-03-01T12:00:00.000000Z"
    assert measured["pump-1"]["is_silent"] is False
    assert len(measured["pump-1"]["chart"]) == 24
    assert list(devices(run(plant, *PATHS, "--json", "--count", 2))) == ["pump-4", "pump-2"]


def test_a_client_is_shown_in_detail(plant: MadeRecord) -> None:
    text = run(plant, *PATHS, "--client-id", "pump-2").stdout
    assert text.startswith("pump-2  plant/pump/2\n")
    assert "12 missing, 0 restarts, 0 out of order, 0 without a number" in text
    assert "every 10 s, 1 silence, the longest 2.17 min" in text
    assert "pump-1" not in text
    assert "sequence" not in run(plant, "--client-id", "pump-2").stdout


def test_text_of_devices_cannot_control_the_terminal(tmp_path: Path) -> None:
    made = MadeRecord(tmp_path)
    made.add(every(60), client_id="\x1b[2J", topic="日本")
    made.add(every(60), client_id=None, topic="t")
    made.seal(landed=1)
    rows = lines(run(made))
    assert any(row.startswith("\\x1b[2J  日本   ") for row in rows)
    assert any(row.startswith("-        t      ") for row in rows)


def test_a_topic_filter_selects(plant: MadeRecord) -> None:
    assert list(devices(run(plant, "--json", "-t", "plant/+/3"))) == ["pump-3"]
    assert len(devices(run(plant, "--json", "-t", "plant/#"))) == 5


def test_the_range_may_be_a_duration_before_its_end(plant: MadeRecord) -> None:
    where = ["--lake", str(plant.lake), "--root", str(plant.root)]
    arguments = [*where, "--since", "10m", "--to", "2026-03-01T13:00:00", "--json"]
    found = devices(CliRunner().invoke(command, arguments))
    assert found["pump-1"]["messages"] == 120
    assert "pump-4" not in found


# --- nothing to measure ---------------------------------------------------------------------------


def test_an_empty_range_is_explained(plant: MadeRecord) -> None:
    result = run(plant, "--client-id", "pump-9", "--topic", "a/#")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == (
        "no message of client pump-9 with a topic that matches a/# was received from"
        " 2026-03-01T12:00:00Z to 2026-03-01T13:00:00Z; the stream has messages from"
        " 2026-03-01T12:00:00Z to 2026-03-01T12:59:55Z\n"
    )
    result = run(plant, "--client-id", "pump-9", "--json")
    assert json.loads(result.stdout)["devices"] == []


def test_an_empty_record_is_explained(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "semel-data", stream="all")
    keeper.close()
    result = CliRunner().invoke(command, [])
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines()[-1] == "the stream of table messages has no messages yet"


def test_what_semel_up_has_made_is_found_without_options(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "semel-data", stream="all")
    keeper.commit(10)
    keeper.close()
    result = CliRunner().invoke(command, ["--from", "2023-11-14", "--to", "2023-11-15", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["totals"]["messages"] == 10


def test_an_unknown_table_and_an_unknown_lake_are_errors(plant: MadeRecord) -> None:
    result = run(plant, "--table", "reading")
    assert result.exit_code == 1
    assert result.stderr == ("Error: there is no stream in a table reading: there are messages\n")
    result = CliRunner().invoke(command, ["--lake", "nowhere"])
    assert result.exit_code == 1
    assert "nowhere" in result.stderr


def test_a_wrong_amount_of_memory_is_an_error(plant: MadeRecord) -> None:
    result = run(plant, "--memory", "much")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: --memory much: ")
    assert run(plant, "--memory", "200MB").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--since", "1h"], "give one of --since and --from"),
        (["--from", "2026-03-01T13:00:00Z"], "the range is empty: it begins at 2026-03-01T13:00"),
        (["--to", "soon"], "'soon' is not a time such as"),
        (["--from", "0001-01-01T00:00:00+14:00"], "is not a time such as"),
        (["--from", "9999-12-31T23:59:59-14:00"], "is not a time such as"),
        (["--sequence", "seq"], "'seq' is not a JSON path to one value such as $.seq"),
        (["--event-time", "$.*"], "'$.*' is not a JSON path"),
        (["--topic", "a/#/b"], "is not a topic filter"),
        (["--silence", "0.5"], "0.5 is not"),
        (["--deviations", "nan"], "is not"),
    ],
)
def test_wrong_usage_is_explained(plant: MadeRecord, arguments: list[str], sentence: str) -> None:
    result = run(plant, *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())


# --- saving ---------------------------------------------------------------------------------------


def test_saved_measures_can_be_queried(plant: MadeRecord) -> None:
    assert lines(run(plant, *PATHS, "--save"))[-1] == (
        f"saved 5 rows to table quality of {plant.lake}, version 0"
    )
    assert json.loads(run(plant, "--save", "--json").stdout)["saved"] == 1
    query = "select run, sum(missing) as missing from quality group by 1 order by 1"
    arguments = ["sql", query, "--json", "--lake", str(plant.lake)]
    result = CliRunner().invoke(cli.group, arguments)
    assert [json.loads(line)["missing"] for line in result.stdout.splitlines()] == [12, None]


def test_nothing_is_saved_of_an_empty_range(plant: MadeRecord) -> None:
    result = run(plant, "--client-id", "pump-9", "--save")
    assert result.exit_code == 0
    assert "saved" not in result.output
    assert not (plant.lake / "quality").exists()


# --- parts ----------------------------------------------------------------------------------------


def test_a_range_may_begin_with_the_first_moment_of_time(plant: MadeRecord) -> None:
    for arguments in (("--from", "0001-01-01"), ("--since", "36500d", "--to", "0050-01-01")):
        where = ["--lake", str(plant.lake), "--root", str(plant.root), *arguments]
        result = CliRunner().invoke(command, where)
        assert result.exit_code == 0, result.output
        assert "from 0001-01-01T00:00:00Z to " in result.output


def test_the_range_ends_now_at_the_latest() -> None:
    day = 86_400 * SECOND
    assert find_range(None, None, None, now=3 * day) == (2 * day, 3 * day)
    assert find_range(60.0, None, day, now=3 * day) == (day - 60 * SECOND, day)
    assert find_range(None, 0, 5 * day, now=3 * day) == (0, 3 * day)


def test_a_chart_is_relative_to_its_highest() -> None:
    counts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 1_000_000]
    assert chart_of(counts[:9], BLOCKS) == " " + BLOCKS
    assert chart_of(counts, BLOCKS) == " ▁▁▁▁▁▁▁▁█"
    assert chart_of([7, 7], BLOCKS) == "██"
    assert chart_of(counts[:9], ASCII_BLOCKS) == " " + ASCII_BLOCKS


def test_a_chart_is_ascii_where_the_output_is(plant: MadeRecord) -> None:
    where = ["--lake", str(plant.lake), "--root", str(plant.root)]
    for charset, is_ascii in (("latin-1", True), ("utf-8", False)):
        result = CliRunner(charset=charset).invoke(command, [*where, *RANGE])
        assert result.exit_code == 0, result.output
        assert ("@@@@" in result.stdout) is is_ascii
        assert ("████" in result.stdout) is not is_ascii


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0125, "12.5 ms"),
        (0.9999, "1 s"),
        (59, "59 s"),
        (90, "1.5 min"),
        (7_200, "2 h"),
        (86_400 * 200, "200 d"),
        (-2.5, "-2.5 s"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert shown_seconds(seconds) == text


def test_numbers_are_short() -> None:
    assert [shown_number(each) for each in (None, 0.25, 12.345, 1_234.5)] == [
        *("-", "0.25", "12.3", "1,234"),
    ]


# --- the page -------------------------------------------------------------------------------------


def test_the_examples_of_the_page_print_what_is_shown(plant: MadeRecord) -> None:
    """Those with output; a page has no room for trailing spaces."""
    found = re.findall(
        r"^\$ semel quality (.*)\n((?:(?![$`]).*\n)+)", PAGE.read_text("utf-8"), re.M
    )
    assert len(found) == 2
    for arguments, shown in found:
        printed = lines(run(plant, *shlex.split(arguments.replace("--since 1h", ""))))
        assert [line.rstrip() for line in printed] == shown.rstrip("\n").splitlines()


def test_the_query_of_the_page_runs(plant: MadeRecord) -> None:
    run(plant, *PATHS, "--save")
    queries = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.DOTALL)
    assert queries
    for query in queries:
        result = CliRunner().invoke(cli.group, ["sql", query, "--lake", str(plant.lake)])
        assert result.exit_code == 0, result.output
