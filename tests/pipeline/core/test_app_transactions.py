"""What the log of a table says about the rows that have landed."""

from typing import TYPE_CHECKING, cast

import pytest

from semel.pipeline.app_transactions import copy_id, position_id, positions_in
from semel.pipeline.errors import TableError

if TYPE_CHECKING:
    from deltalake import DeltaTable

PLACE = position_id("plant", "n1")
COPY = copy_id("plant", "n1")


class Log:
    """A table that has app transactions, and nothing else."""

    def __init__(self, versions: dict[str, int], uri: str = "/lake/t") -> None:
        self.versions = versions
        self.table_uri = uri

    def transaction_version(self, app: str) -> int | None:
        return self.versions.get(app)


def positions(versions: dict[str, int], uri: str = "/lake/t") -> dict[str, int]:
    return positions_in(cast("DeltaTable", Log(versions, uri)), "plant", ["n1", "n2"])


def test_a_node_has_landed_up_to_its_position() -> None:
    assert positions({PLACE: 7, COPY: 7}) == {"n1": 7}
    assert positions({PLACE: 0, COPY: 0}) == {"n1": 0}
    assert positions({}) == {}


def test_a_position_of_an_earlier_version_has_no_copy() -> None:
    assert positions({PLACE: 7}) == {"n1": 7}


def test_a_position_that_differs_from_its_copy_is_damage() -> None:
    with pytest.raises(TableError, match=r"row 7 is the last .*, and also that row 5 is;") as found:
        positions({PLACE: 5, COPY: 7})
    assert str(found.value).startswith("/lake/t: its log is damaged")
    with pytest.raises(TableError, match=r"row 7 is the last .*, and also that none has;"):
        positions({COPY: 7})
    with pytest.raises(TableError, match=r"^s3://lake/t: its log is damaged"):
        positions({PLACE: 5, COPY: 7}, "s3://lake/t")
