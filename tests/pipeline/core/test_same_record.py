"""A table and a record that was restored from an older copy, and has gone on since."""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semel.pipeline.errors import TableError
from semel.pipeline.lake_address import table_address
from semel.pipeline.landing import Landing
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.same_record import check_same_record
from semel.pipeline.settings import LandSettings
from semel.store.reading import NodeRecord
from tests.up.asked import Kept
from tests.up.landed import land_rows, with_date


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path, nodes=("n1", "n2"))
    for keeper in made.keepers:
        keeper.commit(12)
        keeper.seal(12)
    yield made
    made.close()


def check(kept: Kept) -> None:
    check_same_record(table_address(str(kept.lake), "messages"), "plant", kept.keeper.root)


def land_from_elsewhere(kept: Kept, last: int, *, since: int, first: int = 1, of: int = 0) -> None:
    """Land rows up to `last` of a record that had other messages from row `since` on."""
    keeper = kept.keepers[of]
    record = NodeRecord(keeper.root, "plant", keeper.node)
    rows = pa.concat_tables(record.tables(first, last))
    later = pc.add(rows.column("received"), pa.scalar(timedelta(seconds=1)))
    is_other = pc.greater_equal(rows.column("seq"), since)
    received = pc.if_else(is_other, later, rows.column("received")).cast(
        rows.schema.field("received").type
    )
    place = rows.schema.get_field_index("received")
    land_rows(kept.lake, with_date(rows.set_column(place, "received", received)))


def test_a_table_of_this_record_passes(kept: Kept) -> None:
    check(kept)
    for of in (0, 1):
        kept.land(10, of=of)
    check(kept)


@pytest.mark.slow
@pytest.mark.parametrize("of", [0, 1])
def test_another_message_under_the_same_number_is_found(kept: Kept, of: int) -> None:
    kept.land(10, of=1 - of)
    land_from_elsewhere(kept, 10, since=6, of=of)
    with pytest.raises(TableError, match="restored from a copy that is older") as caught:
        check(kept)
    assert f"row 10 of stream plant, node n{of + 1}" in str(caught.value)
    assert "rows up to 10 would not land" in str(caught.value)


def test_of_several_files_the_one_with_the_newest_row_of_a_node_counts(kept: Kept) -> None:
    # The newest row of n2 is in an older file, with older rows of n1.
    records = [NodeRecord(keeper.root, "plant", keeper.node) for keeper in kept.keepers]
    rows = pa.concat_tables([*records[0].tables(1, 5), *records[1].tables(1, 2)])
    land_rows(kept.lake, with_date(rows))
    check(kept)
    land_from_elsewhere(kept, 10, since=6, first=6)
    with pytest.raises(TableError, match="row 10 of stream plant, node n1"):
        check(kept)


def test_a_table_without_the_columns_to_compare_passes(kept: Kept) -> None:
    record = NodeRecord(kept.keeper.root, "plant", kept.keeper.node)
    rows = with_date(pa.concat_tables(record.tables(1, 10)))
    land_rows(kept.lake, rows.drop_columns(["received"]))
    check(kept)


def test_a_record_that_went_on_after_what_has_landed_passes(kept: Kept) -> None:
    """As after `semel store adopt --after`: the newest row of the table is not in the record."""
    land_from_elsewhere(kept, 10, since=6)
    keeper = kept.keeper
    before = keeper.root.segments("plant", keeper.node)
    keeper.commit(3)
    keeper.seal(3)
    for segment in before:
        os.unlink(Path(keeper.root.address) / "plant" / keeper.node / segment.name)
    check(kept)


@pytest.mark.parametrize("of", [0, 1])
def test_a_table_that_is_ahead_of_the_record_is_refused(kept: Kept, of: int) -> None:
    """Each table of a landing file: another one may need rows that the record has."""
    kept.land(12, of=of)
    check(kept)
    keeper = kept.keepers[of]
    for segment in keeper.root.segments("plant", keeper.node):
        os.unlink(Path(keeper.root.address) / "plant" / keeper.node / segment.name)
    with pytest.raises(TableError) as caught:
        check(kept)
    assert f"has rows up to 12 of stream plant, node n{of + 1}, but {kept.root} has none" in str(
        caught.value
    )
    assert "new messages up to row 12 would not land" in str(caught.value)
    # They were trimmed: that is known, and they have landed.
    keeper.root.set_trimmed("plant", keeper.node, 12)
    check(kept)


def test_a_damaged_file_of_the_table_is_left_to_maintenance(kept: Kept) -> None:
    land_from_elsewhere(kept, 10, since=6)
    for path in (kept.lake / "messages").rglob("*.parquet"):
        path.write_bytes(b"damaged")
    check(kept)


def test_a_landing_refuses_before_spark_starts(kept: Kept) -> None:
    land_from_elsewhere(kept, 10, since=6)
    settings = LandSettings(root=str(kept.root), lake=str(kept.lake), stream="plant")
    landing = Landing(make_plan(settings), lambda event: None)
    with pytest.raises(TableError, match="is another message"):
        landing.run(once=True)
