"""The decision behind every commit, by all histories of three batches."""

from itertools import product

import pytest

from semel.pipeline.coverage import REFUSE, TAKE, TRIM, Span, decide

LAST = 4
SPANS = [(first, last) for first in range(1, LAST + 1) for last in range(first, LAST + 1)]


class ModelTable:
    """A table that does what is decided: which rows it has, how often, and how far it is."""

    def __init__(self, beginning: int) -> None:
        self.beginning = beginning
        self.rows: list[tuple[str, int]] = []
        self.positions: dict[str, int] = {}

    def offer(self, spans: dict[str, Span]) -> str:
        beginnings = {node: self.beginning for node in spans if node not in self.positions}
        decision = decide(self.positions, spans, beginnings)
        if decision.verdict == REFUSE:
            return decision.verdict
        brought = [(node, seq) for node, (a, b) in spans.items() for seq in range(a, b + 1)]
        new = [(node, seq) for node, seq in brought if seq > decision.landed[node]]
        if decision.verdict == TAKE:
            # Nothing has to be left out.
            assert new == brought
        self.rows += new
        self.positions |= decision.positions
        return decision.verdict

    def check(self) -> None:
        """Each row from the beginning to the position is there once."""
        expected = [
            (node, seq)
            for node, position in sorted(self.positions.items())
            for seq in range(self.beginning, position + 1)
        ]
        assert sorted(self.rows) == expected


@pytest.mark.parametrize("beginning", [1, 2])
def test_every_history_of_three_batches_has_each_row_once(beginning: int) -> None:
    spans = [span for span in SPANS if span[0] >= beginning]
    for history in product(spans, repeat=3):
        table = ModelTable(beginning)
        for first, last in history:
            before = table.positions.get("a", beginning - 1)
            verdict = table.offer({"a": (first, last)})
            # By the meaning of the words, not by the code.
            if first > before + 1:
                assert verdict == REFUSE
                assert table.positions.get("a", beginning - 1) == before
            else:
                assert verdict == (TAKE if first == before + 1 else TRIM)
                assert table.positions["a"] == max(before, last)
            table.check()


def test_two_nodes_of_a_batch_are_taken_or_refused_together() -> None:
    spans: list[Span | None] = [None, *((a, b) for a, b in SPANS if b <= 3)]
    for history in product(product(spans, repeat=2), repeat=2):
        table = ModelTable(1)
        for one, other in history:
            batch = {node: span for node, span in (("a", one), ("b", other)) if span is not None}
            before = dict(table.positions)
            follows = all(span[0] <= before.get(node, 0) + 1 for node, span in batch.items())
            verdict = table.offer(batch)
            assert (verdict != REFUSE) is follows
            if not follows:
                assert table.positions == before
            table.check()


def test_a_gap_is_named_and_what_may_be_skipped_is_still_trimmed() -> None:
    """Where the record lacks the rows of a gap, the caller may commit the batch all the same."""
    decision = decide({"a": 3, "b": 3}, {"a": (6, 7), "b": (2, 5)}, {})
    assert decision.verdict == REFUSE
    assert decision.gaps == {"a": (4, 5)}
    assert decision.landed == {"a": 3, "b": 3}
    assert decision.positions == {"a": 7, "b": 5}


def test_a_batch_that_covers_nothing_changes_nothing() -> None:
    decision = decide({"a": 3}, {}, {})
    assert (decision.verdict, decision.positions, decision.gaps) == (TAKE, {}, {})
