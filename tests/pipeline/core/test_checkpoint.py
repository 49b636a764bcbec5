"""What a batch of a query covers, by the offsets in its checkpoint."""

from pathlib import Path

import pytest

from semel.pipeline.checkpoint import spans_of_batch
from semel.pipeline.errors import OptionError
from semel.pipeline.offsets import began_after, positions_of, with_beginnings
from tests.pipeline.core.test_resuming import write_checkpoint


def test_a_batch_covers_what_is_after_the_end_of_the_one_before(tmp_path: Path) -> None:
    offsets = ({"a": 10}, {"a": 20, "b": 5}, {"a": 20, "b": 6})
    checkpoint = write_checkpoint(tmp_path, *offsets, done=2)
    assert spans_of_batch(checkpoint, 0) == {"a": (1, 10)}
    # A node that is new begins with its first row.
    assert spans_of_batch(checkpoint, 1) == {"a": (11, 20), "b": (1, 5)}
    assert spans_of_batch(checkpoint, 2) == {"b": (6, 6)}


def test_the_first_batch_covers_what_is_after_where_the_query_began(tmp_path: Path) -> None:
    first = with_beginnings({"a": 7, "b": 0})
    assert (began_after(first, "a"), began_after(first, "b")) == (7, 0)
    assert positions_of(first) == {"a": 7, "b": 0}
    offsets = [with_beginnings({"a": 9, "b": 2}, first), with_beginnings({"a": 9, "b": 3}, first)]
    assert list(offsets[0].items()) == [("a", 9), ("a/began", 7), ("b", 2)]
    checkpoint = write_checkpoint(tmp_path, *offsets, done=1)
    assert spans_of_batch(checkpoint, 0) == {"a": (8, 9), "b": (1, 2)}
    assert spans_of_batch(checkpoint, 1) == {"b": (3, 3)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "the offsets of the query cannot be read: No such file or directory"),
        ("v1\n{}\n{", "has no offset of format"),
        ('v1\n{}\n{"a": "x"}', "has no offset of format"),
        ('v1\n{}\n{"a": true}', "has no offset of format"),
        ("v1\n{}\n7", "has no offset of format"),
        ('v1\n{}\n{"a": 1}\n{"a": 2}', "the query has 2 sources"),
        ("v1\n{}", "the query has 0 sources"),
    ],
)
def test_a_checkpoint_that_does_not_tell_is_refused(
    text: str | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "offsets").mkdir()
    if text is not None:
        (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(OptionError, match=said):
        spans_of_batch(tmp_path, 0)
