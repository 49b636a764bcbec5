"""Offsets: where a query begins, how far the next batch goes, and what is a loss."""

import logging
import random
from pathlib import Path

import pytest

from semel.pipeline.errors import DataLoss
from semel.pipeline.offsets import (
    Losses,
    NodeExtent,
    Offset,
    first_offset,
    last_offset,
    list_all_extents,
    list_extents,
    next_offset,
    share,
    spans_of,
)
from semel.pipeline.source_options import Points, parse_source_options
from semel.store.roots import LocalRoot, Segment
from semel.store.segment_names import segment_name
from tests.pipeline.made import compact, trim_before, write_messages
from tests.store.memory_root import MemoryRoot


def extent(node: str, *ranges: tuple[int, int], trimmed: int = 0, size: int = 100) -> NodeExtent:
    return NodeExtent(node, trimmed, tuple(Segment(*each, size, 0.0) for each in ranges))


def by_node(*extents: NodeExtent) -> dict[str, NodeExtent]:
    return {each.node: each for each in extents}


def losses(*, fail: bool = True) -> Losses:
    return Losses("all", "/root", fail=fail)


def points(text: str) -> Points:
    return parse_source_options({"root": "/root", "start": text}).start


def since(extent: NodeExtent, time: int) -> int | None:
    """Row n is received at n seconds, up to row 100."""
    found = max(-(-time // 1_000_000), 1)
    return found if found <= 100 else None


def begin(text: str, *extents: NodeExtent, fail: bool = True) -> Offset:
    return first_offset(points(text), by_node(*extents), since, losses(fail=fail))


def step(
    start: Offset,
    *extents: NodeExtent,
    limit: int | None = None,
    fail: bool = True,
    target: Offset | None = None,
) -> Offset:
    return next_offset(start, by_node(*extents), limit, losses(fail=fail), target)


# --- where a query begins -------------------------------------------------------------------------


def test_earliest_is_the_first_row_that_there_is() -> None:
    n1, n2 = extent("n1", (1, 10), (11, 20)), extent("n2", (51, 60), trimmed=50)
    assert begin("earliest", n1, n2) == {"n1": 0, "n2": 50}
    assert begin("earliest") == {}
    assert begin("earliest", extent("n3", trimmed=7), extent("n4")) == {"n3": 7}


def test_latest_is_what_comes_after_the_last_row() -> None:
    assert begin("latest", extent("n1", (1, 20)), extent("n2", trimmed=7)) == {"n1": 20, "n2": 7}


def test_a_seq_is_the_first_row_that_is_read() -> None:
    assert begin("11", extent("n1", (1, 20))) == {"n1": 10}
    assert begin("1", extent("n1", (1, 20))) == {"n1": 0}
    assert begin("21", extent("n1", (1, 20))) == {"n1": 20}
    # This node had another name before.
    assert begin("11", extent("n1", (15, 20))) == {"n1": 14}


def test_a_time_is_the_first_row_received_then_or_later() -> None:
    n1 = extent("n1", (1, 100))
    assert begin("1970-01-01T00:00:42Z", n1) == {"n1": 41}
    assert begin("1970-01-01T00:00:41.5Z", n1) == {"n1": 41}
    assert begin("1969-01-01", n1) == {"n1": 0}
    assert begin("2026-01-01", n1) == {"n1": 100}


def test_each_node_may_begin_elsewhere() -> None:
    three = (extent("n1", (1, 9)), extent("n2", (1, 9)), extent("n3", (4, 9), trimmed=3))
    assert begin('{"n1": 5, "n2": "latest"}', *three) == {"n1": 4, "n2": 9, "n3": 3}
    assert begin('{"later": 1}', extent("n1", (1, 9))) == {"later": 0, "n1": 0}


def test_to_begin_with_a_row_that_was_deleted_is_a_loss() -> None:
    n1 = extent("n1", (51, 60), trimmed=50)
    with pytest.raises(DataLoss) as caught:
        begin("11", n1)
    assert str(caught.value) == (
        "rows 11 to 50 of stream all, node n1, which this query still needs, were deleted, by "
        "retention or by `semel stream trim`; failOnDataLoss=false continues with the next "
        "existing row"
    )
    assert begin("11", n1, fail=False) == {"n1": 50}
    assert begin("51", n1) == {"n1": 50}


def test_a_seq_is_for_the_nodes_that_have_come_so_far() -> None:
    assert begin("15", extent("n1", (1, 20)), extent("n2", (1, 9))) == {"n1": 14, "n2": 9}
    assert begin("21", extent("n1", (1, 20)), extent("n2", (1, 9))) == {"n1": 20, "n2": 9}
    with pytest.raises(DataLoss, match="node n2, but the last row is 9"):
        begin('{"n2": 15}', extent("n1", (1, 20)), extent("n2", (1, 9)))


def test_to_begin_behind_the_end_is_a_loss() -> None:
    with pytest.raises(
        DataLoss, match="start is row 22 of stream all, node n1, but the last row is 20"
    ):
        begin("22", extent("n1", (1, 20)))
    with pytest.raises(DataLoss, match="node n9, but it has no rows yet"):
        begin('{"n9": 2}', extent("n1", (1, 20)))
    assert begin("22", extent("n1", (1, 20)), fail=False) == {"n1": 21}


def test_a_batch_read_ends_with_a_row_or_before_a_time() -> None:
    there = by_node(extent("n1", (1, 60)), extent("n2", (1, 30), trimmed=2))

    def end(text: str) -> Offset:
        found = parse_source_options({"root": "/root", "end": text}).end
        return last_offset(found, there, since)

    assert last_offset(None, there, since) == {"n1": 60, "n2": 30}
    assert end("latest") == {"n1": 60, "n2": 30}
    assert end("40") == {"n1": 40, "n2": 30}
    assert end("1970-01-01T00:00:20Z") == {"n1": 19, "n2": 19}
    assert end('{"n1": 5}') == {"n1": 5, "n2": 30}
    assert end("earliest") == {"n1": 0, "n2": 0}


# --- the next batch -------------------------------------------------------------------------------


def test_all_that_is_there_is_one_batch() -> None:
    n1, n2 = extent("n1", (1, 10), (11, 20)), extent("n2", (1, 5))
    assert step({"n1": 0, "n2": 0}, n1, n2) == {"n1": 20, "n2": 5}
    assert step({"n1": 13, "n2": 5}, n1, n2) == {"n1": 20, "n2": 5}


def test_without_new_rows_the_offset_stays_as_it_is() -> None:
    start = {"n1": 20, "n2": 5}
    assert step(start, extent("n1", (1, 20)), extent("n2", trimmed=5)) == start
    assert step(start, extent("n3")) == start
    assert step({}) == {}


def test_a_new_node_is_read_from_its_beginning() -> None:
    assert step({"n1": 20}, extent("n1", (1, 20)), extent("n2", (1, 5))) == {"n1": 20, "n2": 5}


def test_a_new_node_that_does_not_begin_with_row_1_enters_before_it_is_read() -> None:
    n2 = extent("n2", (501, 600))
    entered = step({"n1": 5}, extent("n1", (1, 9)), n2)
    assert entered == {"n1": 9, "n2": 500}
    assert step(entered, n2) == {"n1": 9, "n2": 600}
    assert step({}, extent("n1", (2, 9))) == {"n1": 1}


def test_a_new_node_that_has_lost_rows_already_is_a_loss() -> None:
    n2 = extent("n2", (51, 60), trimmed=50)
    with pytest.raises(DataLoss, match="rows 1 to 50 of stream all, node n2"):
        step({"n1": 9}, n2)
    assert step({"n1": 9}, n2, fail=False) == {"n1": 9, "n2": 50}


def test_rows_that_retention_deleted_before_they_were_read_are_a_loss() -> None:
    n1 = extent("n1", (51, 60), trimmed=50)
    with pytest.raises(DataLoss, match="rows 21 to 50 of stream all, node n1, which this query"):
        step({"n1": 20}, n1)
    assert step({"n1": 20}, n1, fail=False) == {"n1": 60}
    assert step({"n1": 50}, n1) == {"n1": 60}


def test_a_node_of_which_all_was_deleted_is_a_loss_only_if_there_was_more() -> None:
    n1 = extent("n1", trimmed=50)
    assert step({"n1": 50}, n1) == {"n1": 50}
    with pytest.raises(DataLoss, match=r"row 50 of stream all, node n1, .* was deleted"):
        step({"n1": 49}, n1)
    assert step({"n1": 49}, n1, fail=False) == {"n1": 50}


def test_a_gap_is_a_loss_when_it_is_reached() -> None:
    n1 = extent("n1", (1, 10), (21, 30))
    assert step({"n1": 5}, n1) == {"n1": 10}
    with pytest.raises(DataLoss, match=r"rows 11 to 20 .* are missing from /root"):
        step({"n1": 10}, n1)
    assert step({"n1": 10}, n1, fail=False) == {"n1": 30}


def test_a_node_that_has_vanished_is_a_loss_unless_nothing_was_there() -> None:
    with pytest.raises(DataLoss, match=r"processed the rows up to 20 .* but /root has none of"):
        step({"n1": 20}, extent("n1"))
    with pytest.raises(DataLoss, match="has only rows up to 12"):
        step({"n1": 20}, extent("n1", (1, 12)))
    assert step({"n1": 20}, extent("n1"), fail=False) == {"n1": 20}
    assert step({"n1": 0}, extent("n1")) == {"n1": 0}


def test_a_loss_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    told = losses(fail=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            next_offset({"n1": 20}, by_node(extent("n1", (51, 60), trimmed=50)), None, told)
    (record,) = caplog.records
    assert "rows 21 to 50" in record.getMessage()
    assert "failOnDataLoss is false" in record.getMessage()


# --- limits ---------------------------------------------------------------------------------------


def test_a_busy_node_does_not_starve_another() -> None:
    busy, calm = extent("busy", (1, 1_000_000)), extent("calm", (1, 10))
    start = {"busy": 0, "calm": 0}
    assert step(start, busy, calm, limit=100) == {"busy": 90, "calm": 10}
    assert step(start, busy, calm, limit=4) == {"busy": 2, "calm": 2}


def test_each_has_its_turn_where_there_are_fewer_rows_than_nodes() -> None:
    nodes = [extent(f"n{at}", (1, 100)) for at in range(7)]
    at: Offset = {}
    for batch in range(1, 50):
        at = step(at, *nodes, limit=3)
        assert sum(at.values()) == 3 * batch
        assert max(at.values()) - min(at.get(each.node, 0) for each in nodes) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_what_is_shared_is_fair_and_all_of_it(seed: int) -> None:
    chance = random.Random(seed)
    have = {f"n{at}": chance.choice([0, 1, 5, 1000, 10**6]) for at in range(chance.randint(1, 9))}
    limit = chance.choice([1, 2, 10, 999, 10**5, 10**8])
    given = share(have, limit, turn=chance.randint(0, 10**6))
    assert sum(given.values()) == min(limit, sum(have.values()))
    assert all(0 <= given[node] <= have[node] for node in have)
    unserved = [given[node] for node in have if given[node] < have[node]]
    # Who has to wait has as much as anybody, but for the one row that cannot be divided.
    assert not unserved or min(unserved) >= max(given.values()) - 1


def test_a_limit_of_rows_counts_rows_behind_a_loss() -> None:
    n1 = extent("n1", (1001, 2000), trimmed=1000)
    assert step({"n1": 0}, n1, limit=10, fail=False) == {"n1": 1010}


# --- a target -------------------------------------------------------------------------------------


def test_nothing_goes_beyond_a_target() -> None:
    n1, n2 = extent("n1", (1, 100)), extent("n2", (1, 5))
    assert step({"n1": 0}, n1, n2, target={"n1": 50}) == {"n1": 50}
    assert step({"n1": 50}, n1, n2, target={"n1": 50}) == {"n1": 50}
    assert step({"n1": 60}, n1, target={"n1": 50}) == {"n1": 60}


@pytest.mark.parametrize("seed", range(20))
def test_a_target_is_reached_and_then_stays(seed: int) -> None:
    chance = random.Random(seed)
    nodes = []
    for name in ("a", "b", "c"):
        trimmed = chance.choice([0, 0, 40])
        begins = trimmed + 1 + chance.choice([0, 0, 10])
        nodes.append(extent(name, (begins, begins + 29), (begins + 30, 200), trimmed=trimmed))
    target = {each.node: chance.randint(10, 200) for each in nodes[: chance.randint(1, 3)]}
    at: Offset = {"b": 3} if chance.random() < 0.5 else {}
    for _ in range(200):
        after = step(at, *nodes, limit=17, fail=False, target=target)
        assert all(after[node] >= at[node] for node in at)
        if after == at:
            break
        at = after
    else:
        pytest.fail(f"never done: {at} of {target}")
    assert {node: at[node] for node in target} == target


# --- what there is --------------------------------------------------------------------------------


def test_a_listing_tells_what_there_is_by_the_readers_rule(tmp_path: Path) -> None:
    for first in (1, 11, 21):
        write_messages(tmp_path, "all", "n1", first, 10)
    write_messages(tmp_path, "all", "n2", 1, 3)
    root = LocalRoot(tmp_path)

    def ranges(node: str) -> list[tuple[int, int]]:
        return [each.range for each in list_extents(root, "all", [node])[node].segments]

    assert list(list_extents(root, "all", ["n2", "n1"])) == ["n1", "n2"]
    assert ranges("n1") == [(1, 10), (11, 20), (21, 30)]
    compact(tmp_path, "all", "n1", 1, 20)
    assert ranges("n1") == [(1, 20), (21, 30)]
    trim_before(tmp_path, "all", "n1", 25)
    assert ranges("n1") == [(21, 30)]
    assert list_extents(root, "all", ["n1"])["n1"].trimmed == 20
    assert ranges("n9") == []
    assert list_all_extents(root, "all") == list_extents(root, "all", ["n1", "n2"])
    assert list_all_extents(root, "none") == {}


def test_a_batch_has_the_rows_behind_its_start_up_to_its_end() -> None:
    extents = by_node(extent("n1", (1, 20)), extent("n2", (1, 1)))
    assert spans_of({"n1": 5}, {"n1": 9, "n2": 1}, extents) == {"n1": (6, 9), "n2": (1, 1)}
    assert spans_of({"n1": 9}, {"n1": 9, "n2": 0}, extents) == {}
    # A node that enters the offset before it is read has no rows in the batch,
    late = by_node(extent("n1", (11, 20)))
    assert spans_of({}, {"n1": 10}, late) == {}
    assert spans_of({"n1": 10}, {"n1": 15}, late) == {"n1": (11, 15)}
    # and one whose first rows were deleted lacks them.
    trimmed = by_node(extent("n1", (11, 20), trimmed=10))
    assert spans_of({}, {"n1": 10}, trimmed) == {"n1": (1, 10)}


def test_a_listing_that_shows_a_gap_is_repeated() -> None:
    root = MemoryRoot()
    listings: list[str] = []
    for first, last in ((1, 10), (21, 30)):
        root.files[f"all/n1/{segment_name(first, last)}"] = (b"x", 0.0)

    def merged_meanwhile(what: str, path: str) -> None:
        listings.append(path)
        if len(listings) == 2:
            root.files[f"all/n1/{segment_name(11, 20)}"] = (b"x", 0.0)

    root.hook = merged_meanwhile
    extent = list_extents(root, "all", ["n1"])["n1"]
    assert [each.range for each in extent.segments] == [(1, 10), (11, 20), (21, 30)]
    assert len(listings) == 2


def test_pieces_are_what_segments_have_of_some_rows() -> None:
    n1 = extent("n1", (1, 10), (11, 20), (31, 40))
    found = [(first, last, each.range) for first, last, each in n1.pieces(5, 33)]
    assert found == [(5, 10, (1, 10)), (11, 20, (11, 20)), (31, 33, (31, 40))]
    assert list(n1.pieces(21, 30)) == []
    assert list(n1.pieces(41, 50)) == []
