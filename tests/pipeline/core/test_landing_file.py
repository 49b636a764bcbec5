"""The landing file, as far as it is checked without Spark."""

import textwrap
from pathlib import Path

import pytest

from semel.pipeline.errors import OptionError
from semel.pipeline.landing_file import LandingFile, read_landing_file
from semel.pipeline.landing_target import behind_line

TABLE = '[[table]]\nname = "t"\ntopic = "a/{b}"\n'
LATE = TABLE + 'event_time = "received"\nlate_after = '


def read(folder: Path, text: str) -> LandingFile:
    path = folder / "landing.toml"
    path.write_text(textwrap.dedent(text))
    return read_landing_file(path)


def test_a_table_needs_a_name_and_a_topic_and_lands_raw_by_default(tmp_path: Path) -> None:
    found = read(tmp_path, TABLE)
    (table,) = found.tables
    assert (table.name, table.template.text, table.decoder) == ("t", "a/{b}", "raw")
    assert table.columns == "payload BINARY"
    assert table.partition_by == ("date",)
    assert found.dead_letters == "dead_letters"


@pytest.mark.parametrize("column", ["topic", "b", "received"])
def test_a_table_can_be_partitioned_by_other_columns_of_the_record(
    tmp_path: Path, column: str
) -> None:
    (table,) = read(tmp_path, f'{TABLE}partition_by = ["{column}"]').tables
    assert table.partition_by == (column,)


def test_everything_that_can_be_said_about_a_table(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        dead_letters = "refused"

        [[table]]
        name = "t"
        topic = "a/{b}"
        decoder = "protobuf"
        descriptor_file = "all.pb"
        message = "plant.Reading"
        compression = "zstd"
        columns = "value DOUBLE NOT NULL"
        message_columns = ["qos", "client_id"]
        event_time = "received"
        late_after = "1h"
        explode = "values"
        computed = { double = "value * 2" }
        where = "value > 0"
        partition_by = ["date", "b"]

        [[table]]
        name = "u"
        topic = "c"
        decoder = "json"
        columns = "x INT"
        """,
    )
    table = found.table("t")
    assert table.options == {
        "descriptor_file": str(tmp_path / "all.pb"),
        "message": "plant.Reading",
    }
    assert table.compression == "zstd"
    assert table.message_columns == ("qos", "client_id")
    assert (table.event_time, table.where) == ("received", "value > 0")
    assert (table.late_after, table.explode) == (3_600.0, "values")
    assert table.computed == {"double": "value * 2"}
    assert table.partition_by == ("date", "b")
    assert found.dead_letters == "refused"
    assert [each.name for each in found.only("u").tables] == ["u"]
    with pytest.raises(OptionError, match="has no table v: its tables are t, u"):
        found.table("v")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no table: add a [[table]]"),
        ("table = 3", "there is no table"),
        ("table = [3]", "write [[table]]"),
        ("[[tabel]]", "there is no key tabel: did you mean table?"),
        ("x = ", "is not TOML"),
        ('[[table]]\ntopic = "a"', "table 1: name is missing"),
        ('[[table]]\nname = "t"', "table t: topic is missing"),
        ('[[table]]\nname = "a/b"\ntopic = "a"', "table a/b: 'a/b' cannot name a table"),
        ('[[table]]\nname = 3\ntopic = "a"', "name must be text"),
        ('[[table]]\nname = "t"\ntopic = "a/{"', "table t: topic 'a/{': level 2"),
        (TABLE + 'decoder = "jsno"', "there is no decoder jsno: did you mean json?"),
        (TABLE + 'decoder = "json"', "columns are missing: decoder json needs them"),
        (TABLE + 'columns = "x INT"', "decoder raw has one column, payload BINARY"),
        (TABLE + 'colums = "x INT"', "there is no key colums: did you mean columns?"),
        (TABLE + 'message = "x"', "there is no key message"),
        (TABLE + 'compression = "zip"', "compression is 'zip': did you mean gzip?"),
        (TABLE + 'message_columns = ["seq"]', "every table has seq"),
        (TABLE + 'message_columns = ["qoss"]', "no column qoss: did you mean qos?"),
        (TABLE + 'message_columns = "qos"', "message_columns must be a list"),
        (TABLE + 'partition_by = ["date", "date"]', "partition_by names something twice"),
        (TABLE + 'partition_by = ["date", "node"]', "a table cannot be partitioned by node"),
        (TABLE + 'partition_by = ["seq"]', "a table cannot be partitioned by seq"),
        (TABLE + "computed = { x = 3 }", "computed must be names with expressions"),
        (TABLE + 'where = ""', "where must be text in quotation marks, and not empty"),
        (TABLE + 'explode = ["x"]', "explode must be text in quotation marks"),
        (TABLE + 'late_after = "10m"', "table t: late_after needs event_time"),
        (LATE + '"10 minutes"', 'late_after is "10 minutes", but must be a duration such as 90'),
        (LATE + '"-1s"', 'late_after is "-1s", but must be a duration'),
        (LATE + "-1", "late_after is -1, but must be a duration"),
        (LATE + '"1kB"', 'late_after is "1kB", but must be a duration'),
        (LATE + "true", "late_after is true, but must be a duration"),
        (LATE + '""', 'late_after is "", but must be a duration'),
        (
            TABLE + 'decoder = "csv"\ncolumns = "x INT"\nseparator = "ab"',
            "separator must be one character",
        ),
        *(
            (
                TABLE + f"decoder = 'csv'\ncolumns = 'x INT'\nseparator = {separator}",
                "separator must be one character, but no quotation mark or line break",
            )
            for separator in ("'\"'", r'"\n"', r'"\r"', "3")
        ),
        (TABLE + TABLE.replace('"t"', '"T"'), "table t: another table has the same name"),
        (
            'dead_letters = "T"\n' + TABLE,
            "table t: the table of dead letters has the same name",
        ),
        (f"x = {'[' * 5_000}{']' * 5_000}", "its values are nested too deeply"),
    ],
)
def test_a_wrong_file_is_refused_with_the_table_and_the_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(OptionError) as caught:
        read(tmp_path, text)
    assert problem in str(caught.value)
    assert str(tmp_path / "landing.toml") in str(caught.value)


def test_a_duration_is_written_as_in_all_settings(tmp_path: Path) -> None:
    for text, seconds in (('"10m"', 600.0), ('"1.5h"', 5_400.0), ('"250ms"', 0.25), ("90", 90.0)):
        (table,) = read(tmp_path, LATE + text).tables
        assert table.late_after == seconds
    assert read(tmp_path, TABLE).tables[0].late_after is None


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.toml cannot be read: No such file"):
        read_landing_file(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(OptionError, match="is not UTF-8, from byte 2"):
        read_landing_file(tmp_path / "latin.toml")


NEW = "; `semel land backfill` fills a new table while the landing runs"


@pytest.mark.parametrize(
    ("landed", "first", "line"),
    [
        (
            {"t": 0, "c": 40, "b": 40},
            0,
            f"table t is 40 messages behind the other tables, which wait for it{NEW}",
        ),
        (
            {"t": 0, "c": 0, "b": 1},
            0,
            f"tables t, c are 1 message behind the other table, which waits for them{NEW}",
        ),
        (
            {"t": 7, "c": 7, "b": 1_040},
            7,
            "tables t, c are 1,033 messages behind the other table, which waits for them",
        ),
        # Each is behind the other with another node.
        (
            {"t": 30, "b": 40},
            20,
            "table t is 20 messages behind the other table, which waits for it",
        ),
        ({"t": 40, "c": 40}, 40, None),
        ({"t": 0, "c": 0}, 0, None),
        ({}, 0, None),
    ],
)
def test_tables_that_others_wait_for_are_named(
    landed: dict[str, int], first: int, line: str | None
) -> None:
    assert behind_line(landed, {"n1": first}) == line
