"""Dead letters without Spark: each once, also if a batch is repeated with another landing file."""

from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from semel.pipeline.app_transactions import dead_id
from semel.pipeline.arrow_types import with_plain_types
from semel.pipeline.dead_letters import (
    commit_dead_letters,
    count_letters,
    dead_letters_layout,
    message_keys,
    read_letters,
)
from semel.pipeline.files import write_files
from semel.pipeline.table import Table

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("table_name", pa.string()),
        ("node", pa.string()),
        ("seq", pa.int64()),
        ("payload", pa.binary()),
        ("date", pa.date32()),
    ]
)


class Letters:
    """A table of dead letters."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "dead_letters")

    def put(self, table: str, *seqs: int, node: str = "n1") -> None:
        """A batch brings these dead letters of a table."""
        rows = pa.Table.from_pylist(
            [
                {
                    "stream": "all",
                    "table_name": table,
                    "node": node,
                    "seq": seq,
                    "payload": b"%d" % seq,
                    "date": date(2026, 3, 1 + seq % 2),
                }
                for seq in seqs
            ],
            schema=SCHEMA,
        )
        files = write_files(rows.to_batches(), dead_letters_layout(self.address))
        schema = Schema.from_arrow(SCHEMA).to_json()
        commit_dead_letters(self.address, "all", table, files, schema)

    def found(self, table: str) -> list[tuple[str, int]]:
        rows = DeltaTable(self.address).to_pyarrow_table().to_pylist()
        mine = [(row["node"], row["seq"]) for row in rows if row["table_name"] == table]
        return sorted(mine)

    def read(self, table: str) -> list[int]:
        loaded = Table(self.address).load()
        assert loaded is not None
        pieces = list(read_letters(loaded, "all", table))
        assert all(piece.num_rows for piece in pieces)
        return sorted(seq for piece in pieces for seq in piece.column("seq").to_pylist())


@pytest.fixture
def letters(tmp_path: Path) -> Letters:
    return Letters(tmp_path)


def test_a_repeated_batch_adds_nothing_and_a_longer_one_the_rest(letters: Letters) -> None:
    letters.put("a", 3, 7)
    letters.put("a", 3, 7)
    assert letters.found("a") == [("n1", 3), ("n1", 7)]
    letters.put("a", 3, 7, 9, 12)
    letters.put("a", 9, 12)
    assert [seq for _, seq in letters.found("a")] == [3, 7, 9, 12]


def test_a_repeated_batch_may_have_other_dead_letters(letters: Letters) -> None:
    """The landing was killed before the rows of the table, and its file has become stricter."""
    letters.put("a", 7, 18)
    letters.put("a", 7, 14, 18, 20)
    assert [seq for _, seq in letters.found("a")] == [7, 14, 18, 20]


def test_a_batch_may_be_repeated_more_than_once(letters: Letters) -> None:
    """The second time it adds a dead letter before the last one, which must not come again."""
    letters.put("a", 7, 18)
    for _ in range(2):
        letters.put("a", 7, 14, 18)
    assert [seq for _, seq in letters.found("a")] == [7, 14, 18]
    assert DeltaTable(letters.address).transaction_version(dead_id("all", "a", "n1")) == 18


def test_tables_and_nodes_have_dead_letters_of_their_own(letters: Letters) -> None:
    letters.put("a", 7)
    letters.put("b", 3, 7)
    letters.put("a", 5, node="n2")
    assert letters.found("a") == [("n1", 7), ("n2", 5)]
    assert letters.found("b") == [("n1", 3), ("n1", 7)]


def test_dead_letters_of_some_tables_are_counted(letters: Letters) -> None:
    letters.put("t", 7, 9, 10)
    letters.put("u", 8)
    letters.put("w", 8)
    DeltaTable(letters.address).delete("seq = 10")
    loaded = DeltaTable(letters.address)
    assert count_letters(loaded, "all", ["t"]) == 2
    assert count_letters(loaded, "all", ["t", "u"]) == 3
    assert count_letters(loaded, "other", ["t", "u"]) == 0
    assert count_letters(loaded, "all", ["x"]) == 0


def test_dead_letters_are_read_after_others_were_deleted_by_delta_rs(letters: Letters) -> None:
    letters.put("a", 1, 2, 3, 4)
    letters.put("b", 5, 6)
    DeltaTable(letters.address).delete("table_name = 'a' AND seq IN (1, 2)")
    assert letters.read("a") == [3, 4]
    assert letters.read("b") == [5, 6]
    # And a repeated batch is still compared with them. Those that were deleted have landed, so that
    # no batch has them again.
    letters.put("a", 3, 4, 8)
    assert letters.read("a") == [3, 4, 8]


def test_arrow_types_of_text_become_plain_ones() -> None:
    inner = pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.large_string())]))
    rows = pa.table(
        {
            "node": pa.array(["n1"], pa.string_view()),
            "seq": [7],
            "payload": pa.array([b"x"], pa.binary_view()),
            "properties": pa.array([[{"key": "a", "value": "b"}]], inner),
        }
    )
    found = with_plain_types(rows)
    assert found.to_pylist() == rows.to_pylist()
    assert [str(field.type) for field in found.schema][:3] == ["string", "int64", "binary"]
    assert "view" not in str(found.schema)
    assert "large" not in str(found.schema)
    assert message_keys(found).to_pylist() == ["n1/7"]
