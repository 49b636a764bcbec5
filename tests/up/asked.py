"""A record that is kept, sealed and landed step by step, and what SQL says of it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from semel.store.reading import NodeRecord
from semel.store.roots import open_root
from semel.up.sql import LakeSql, QueryResult, RecordLocation
from tests.store.keeper import Keeper
from tests.up.landed import land


class Kept:
    """A stream that is kept, sealed and landed, when it is told to."""

    def __init__(self, folder: Path, *, nodes: tuple[str, ...] = ("n1",)) -> None:
        self.lake = folder / "lake"
        self.root = folder / "root"
        self.keepers = [
            Keeper(folder / node, node=node, root=open_root(self.root)) for node in nodes
        ]
        for keeper in self.keepers:
            # As a broker does when it starts.
            keeper.root.claim("plant", keeper.node, keeper.database.unique_id())
        self.landed = dict.fromkeys(nodes, 0)

    @property
    def keeper(self) -> Keeper:
        return self.keepers[0]

    @property
    def record(self) -> RecordLocation:
        """What a stranger knows: the root, and the store of the first node."""
        return RecordLocation(str(self.root), self.keeper.folder.path, "plant", "messages")

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.close()

    def land(self, rows: int, *, of: int = 0) -> None:
        """Land so many rows more of a node, as far as they are sealed."""
        keeper = self.keepers[of]
        sealed = keeper.root.highest_seq("plant", keeper.node)
        first = self.landed[keeper.node] + 1
        last = min(sealed, first + rows - 1)
        if last >= first:
            land(self.lake, NodeRecord(keeper.root, "plant", keeper.node), first, last)
            self.landed[keeper.node] = last

    def sql(self) -> LakeSql:
        return LakeSql(str(self.lake), record=self.record)


def ask(sql: LakeSql, question: str) -> list[dict[str, Any]]:
    with sql:
        answer = sql.query(question)
        return rows_of(answer)


def rows_of(answer: QueryResult) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in answer.batches:
        found += batch.to_pylist()
    return found


def simple_lake(folder: Path, **tables: pa.Table) -> str:
    for name, rows in tables.items():
        write_deltalake(folder / name, rows)
    return str(folder)


NUMBERS = pa.table({"a": [1, 2, 3]})
