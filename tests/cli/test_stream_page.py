"""The pages on store and streams say what is true: commands print what they show, links lead."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.mqtt import Properties
from semel.store.commit import Commit, RecordedMessage
from semel.store.reading import RecordRow
from semel.store.segments import schema
from tests.store.keeper import Keeper

DATA_PAGES = Path(__file__).resolve().parents[2] / "docs" / "data"
PAGE = (DATA_PAGES / "streams.md").read_text("utf-8")


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    """What the page shows: five rows, of which three are sealed."""
    properties = Properties(content_type="text/plain", user_properties=[("unit", "C")])
    made = Keeper(tmp_path / "data")
    for seq, at, record in (
        (1, 25.071568, {"topic_name": "plant/1/temp", "payload": b"21.1", "qos": 1}),
        (2, 26.393962, {"topic_name": "plant/1/temp", "payload": b"21.2", "qos": 1}),
        (3, 27.724941, {"topic_name": "plant/1/temp", "payload": b"21.3", "qos": 1}),
        (4, 29.049231, {"topic_name": "plant/2/raw", "payload": b"\0\xff\x10", "qos": 2}),
        (5, 29.064833, {"topic_name": "plant/1/state", "payload": b"running", "retain": True}),
    ):
        commit = Commit()
        commit.at = datetime(2026, 11, 16, 4, 0, tzinfo=UTC).timestamp() + at
        values: dict[str, Any] = {**record, "properties": properties if seq < 4 else Properties()}
        commit.records.append(RecordedMessage(1, seq, **values))
        made.database.apply([commit])
        made.last = seq
    made.seal(1, 1, 1)
    monkeypatch.chdir(tmp_path)
    yield made
    made.close()


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(cli.group, ["stream", *map(str, arguments)], input=text)


def words(text: str) -> list[str]:
    """Without what depends on versions of packages: the sizes of files."""
    return re.sub(r"[\d.]+ kB", "SIZE", text).split()


@pytest.mark.usefixtures("keeper")
def test_the_commands_of_the_page_print_what_it_shows() -> None:
    shown = re.findall(r"^\$ semel stream (.*)\n((?:[^`]|`(?!``))*)^```", PAGE, re.M)
    assert len(shown) == 5
    for command, output in shown:
        if "| jq" in command:
            fields = json.loads(run(*command.partition(" | jq")[0].split()).stdout)
            assert [fields[name] for name in ("seq", "topic", "payload_base64")] == json.loads(
                output
            )
            continue
        forms = ["--text"] if command.startswith("read") else []
        result = run(*command.split(), *forms, text="y\n" if "[y/N]: y" in output else None)
        assert words(result.output) == words(output), command
        assert result.exit_code == ("Error" in output)


def test_the_program_of_the_page_reads_by_the_readers_rule(keeper: Keeper) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    keeper = keeper
    keeper.seal(2)
    keeper.merge()
    assert len(keeper.names()) == 5

    def numbers() -> list[int]:
        names: dict[str, Any] = {}
        exec(program, names)
        found: list[int] = names["table"].column("seq").to_pylist()
        return found

    assert numbers() == [1, 2, 3, 4, 5]
    keeper.tidy()
    keeper.commit(1)
    keeper.seal(1)
    run("trim", "plant", "--data", "data", "--before", 6, "--yes")
    assert numbers() == [6]


def test_the_page_has_a_line_for_each_column_with_its_type() -> None:
    table = PAGE[PAGE.index("| column |") :].split("\n\n")[0]
    found = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.M))
    types = {
        "timestamp[us, tz=UTC]": "timestamp, µs, UTC",
        "list<element: struct<key: string, value: string>>": (
            "list of struct `key`, `value`, both string"
        ),
    }
    assert found == {field.name: types.get(str(field.type), str(field.type)) for field in schema()}
    assert list(found) == list(RecordRow._fields)
