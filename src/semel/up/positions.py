"""The last rows of the record and of the table of `semel up`, read from store and lake."""

from dataclasses import dataclass

from semel.pipeline.errors import PipelineError
from semel.store.reading import StoreRows
from semel.store.roots import RootError
from semel.store.schema import Unusable
from semel.up.plan import UpPlan


@dataclass(frozen=True)
class RecordExtent:
    """The last row of the stream that the broker has recorded, and the last one that is sealed."""

    node: str
    recorded: int
    sealed: int


def read_extent(plan: UpPlan) -> RecordExtent | None:
    """The extent of the stream in the store; None if there is no store, or it is unreadable now."""
    try:
        store = StoreRows(plan.data)
    except Unusable:
        return None
    # Close it at once: the last process to close the database removes its log, and that should be
    # the broker.
    try:
        number = store.streams().get(plan.stream)
        if number is None:
            return RecordExtent(store.node() or "", 0, 0)
        recorded, sealed = store.extent(number)
        return RecordExtent(store.node() or "", recorded, sealed)
    except Unusable:
        return None
    finally:
        store.close()


def read_landed(plan: UpPlan, node: str) -> int:
    """The last row of a node that all tables have; blocks. Raises PipelineError and OSError."""
    from semel.pipeline.lake_address import table_address
    from semel.pipeline.table import Table

    try:
        return min(
            Table(table_address(plan.lake, name)).positions(plan.stream, [node]).get(node, 0)
            for name in plan.tables
        )
    except RootError as problem:
        raise PipelineError(str(problem)) from None
