"""The record as a loop reads it: rows, segments, and what moves from one to the other meanwhile.

A real database, real segments in a folder, and the real thread. The loop is the test itself: what
the thread has for it is done when the test says so.
"""

import logging
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from semel.mqtt import Properties
from semel.store.commit import Commit, RecordedMessage
from semel.store.database import Database
from semel.store.gaps import gap_name
from semel.store.record import (
    CACHE_BYTES,
    CACHE_CHUNKS,
    CHUNK_BYTES,
    CHUNK_ROWS,
    FIRST_ROWS,
    MAXIMUM_SOUGHT,
    RETURNED_BYTES,
    RecordReader,
    ReplaySegments,
    committed_records,
    committed_since,
)
from semel.store.retention import trim
from semel.store.roots import open_root
from semel.store.segment_names import segment_name
from semel.store.segment_reader import SegmentReader
from semel.store.segment_writer import seal_rows
from semel.store.segments import RecordError, SegmentFile

STREAM = "plant"
NODE = "n1"
# Generous: it only ends what would hang.
PATIENCE = 60.0


class Place:
    """A store with one stream, and a reader of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        self.database = Database.open(self.path, "os")
        self.store = self.database.unique_id()
        self.id = self.database.stream(STREAM).id
        self.database.stream("other")
        self.root = open_root(folder / "streams")
        self.last = 0
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.told: list[int] = []
        self.thread_names: set[str] = set()
        self.reader = self.new_reader(NODE)

    def new_reader(self, node: str) -> RecordReader:
        shelf = ReplaySegments(
            self.path,
            root=self.root.address,
            node=node,
            store=self.store,
            names={self.id: STREAM},
        )
        self.looking = Database.reader(self.path)
        reader = RecordReader(self.looking, shelf)
        reader.connect(
            post=self._post,
            later=lambda seconds, what: self.later.append((seconds, what)),
            read=self.told.append,
        )
        return reader

    def _post(self, what: Callable[[], None]) -> None:
        self.thread_names.add(threading.current_thread().name)
        self.posted.put(what)

    def commit(self, count: int, *, at: float = 0.0, size: int = 10) -> None:
        """So many rows more; row n is received at second n unless `at` says when."""
        commits = []
        for seq in range(self.last + 1, self.last + count + 1):
            pairs = [("n", str(seq))] if seq % 5 == 0 else []
            commit = Commit()
            commit.at = at or float(seq)
            commit.records.append(
                RecordedMessage(
                    self.id,
                    seq,
                    f"plant/{seq % 7}",
                    b"%d:" % seq + b"x" * size,
                    qos=seq % 3,
                    client_id="p",
                    properties=Properties(user_properties=pairs),
                )
            )
            commits.append(commit)
        self.database.apply(commits)
        self.last += count

    def seal(self, first: int, last: int, *, node: str = NODE, delete: bool = True) -> None:
        seal_rows(
            self.database.connection,
            self.root,
            STREAM,
            node,
            stream_id=self.id,
            first=first,
            last=last,
        )
        if delete:
            self.database.end_sealing(self.id, last)

    def answer(self) -> None:
        """What the thread has done reaches the loop."""
        self.posted.get(timeout=PATIENCE)()

    def read(
        self, first: int, limit: int = 50, reader: RecordReader | None = None
    ) -> list[RecordedMessage]:
        """What there is from `first` on, however long it takes."""
        while True:
            found = (reader or self.reader).records(self.id, first, limit)
            if found is not None:
                return found
            self.answer()

    def seek(self, received: int) -> int:
        while (found := self.reader.seek(self.id, received)) is None:
            self.answer()
        return found

    def close(self) -> None:
        self.reader.close()
        self.database.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def seqs(records: list[RecordedMessage]) -> list[int]:
    return [record.seq for record in records]


# --- rows of the table ----------------------------------------------------------------------------


def test_rows_that_are_not_sealed_are_there_at_once_as_they_were_written(place: Place) -> None:
    place.commit(12)
    found = place.reader.records(place.id, 3, 100)
    assert found is not None
    assert seqs(found) == list(range(3, 13))
    row = found[2]
    assert (row.stream, row.seq, row.topic_name) == (place.id, 5, "plant/5")
    assert (row.payload, row.qos, row.client_id) == (b"5:" + b"x" * 10, 2, "p")
    assert row.received == 5_000_000
    assert row.properties.user_properties == (("n", "5"),)
    assert seqs(place.reader.records(place.id, 3, 2) or []) == [3, 4]


def test_after_the_last_row_there_is_nothing_until_there_is_one_more(place: Place) -> None:
    assert place.reader.records(place.id, 1, 10) == []
    place.commit(2)
    assert place.reader.records(place.id, 3, 10) == []
    assert place.reader.records(place.id, 9, 10) == []
    place.commit(1)
    assert seqs(place.reader.records(place.id, 3, 10) or []) == [3]
    # Nobody had to look anywhere else.
    assert place.thread_names == set()


def test_a_row_that_comes_between_two_looks_is_not_looked_for_elsewhere(place: Place) -> None:
    place.commit(3)

    def before(statement: str) -> None:
        if "last_seq" in statement and place.last == 3:
            place.commit(1)

    place.looking.connection.set_trace_callback(before)
    assert seqs(place.reader.records(place.id, 4, 10) or []) == [4]


def test_a_stream_that_nobody_knows_has_no_rows(place: Place) -> None:
    assert place.reader.records(99, 1, 10) == []


def test_large_rows_are_given_a_few_at_a_time_and_one_in_any_case(place: Place) -> None:
    place.commit(9, size=RETURNED_BYTES // 3)
    connection = place.database.connection
    assert seqs(committed_records(connection, place.id, 1, 9)) == [1, 2, 3]
    place.commit(1, size=RETURNED_BYTES * 2)
    assert seqs(committed_records(connection, place.id, 10, 9)) == [10]


def test_a_look_at_the_rows_leaves_no_transaction_open(place: Place) -> None:
    """Else the log could not be copied into the tables any more."""
    place.commit(50, size=RETURNED_BYTES // 10)
    assert len(place.reader.records(place.id, 1, 50) or []) < 50
    checkpoint = place.database.connection.execute("PRAGMA wal_checkpoint(RESTART)")
    assert checkpoint.fetchone()[0] == 0  # nobody was in the way


# --- segments -------------------------------------------------------------------------------------


def test_sealed_rows_are_read_by_a_thread_and_are_there_when_it_says_so(place: Place) -> None:
    place.commit(30)
    place.seal(1, 20)
    assert place.reader.records(place.id, 1, 10) is None
    assert place.reader.records(place.id, 1, 10) is None  # asked for once
    place.answer()
    assert place.told == [place.id]
    assert place.posted.empty()
    assert place.thread_names == {"semel-record"}
    found = place.reader.records(place.id, 1, 10)
    assert found is not None
    assert seqs(found) == list(range(1, 11))
    assert found[4].received == 5_000_000
    assert found[4].properties.user_properties == (("n", "5"),)
    # What was read is kept, and what comes after it is in the table.
    assert seqs(place.reader.records(place.id, 11, 50) or []) == list(range(11, 21))
    assert seqs(place.reader.records(place.id, 21, 50) or []) == list(range(21, 31))


def test_rows_that_are_in_both_places_come_once(place: Place) -> None:
    place.commit(10)
    place.seal(1, 6, delete=False)
    place.database.set_sealed(place.id, 6)
    assert seqs(place.reader.records(place.id, 1, 50) or []) == list(range(1, 11))


def test_a_piece_is_bounded_in_rows_and_in_bytes(place: Place) -> None:
    place.commit(CHUNK_ROWS + 100, size=1)
    place.seal(1, CHUNK_ROWS + 100)
    assert len(place.read(1, 10_000)) < 2 * CHUNK_ROWS
    first = place.last + 1
    place.commit(40, size=CHUNK_BYTES // 8)
    place.seal(first, place.last)
    assert len(place.read(first, 10_000)) <= 24


@pytest.mark.slow
def test_what_is_kept_is_bounded_and_what_was_used_last_stays(place: Place) -> None:
    fitting = CACHE_BYTES // (FIRST_ROWS * CHUNK_BYTES)
    place.commit(FIRST_ROWS * 2 * fitting, size=CHUNK_BYTES)
    place.seal(1, place.last)
    for first in range(1, place.last, FIRST_ROWS):
        assert seqs(place.read(first, 1)) == [first]
        # The first piece is wanted again and again.
        assert place.reader.records(place.id, 1, 1) is not None
        assert sum(piece.size for piece in place.reader.chunks) <= CACHE_BYTES
    assert place.reader.records(place.id, place.last, 1) is not None
    assert place.reader.records(place.id, 1 + FIRST_ROWS, 1) is None
    place.answer()


def test_many_small_pieces_are_bounded_too(place: Place) -> None:
    """Whoever begins at each row of a long record has pieces that overlap."""
    place.commit(CACHE_CHUNKS * 2 + 1, size=1)
    place.seal(1, place.last)
    for first in range(place.last, 0, -1):
        assert seqs(place.read(first, 1)) == [first]
    assert place.reader.records(place.id, 1, 1) is not None
    assert len(place.reader.chunks) <= CACHE_CHUNKS


@pytest.mark.slow
def test_several_readers_go_through_a_record_and_each_gets_every_row_once(place: Place) -> None:
    place.commit(9_000, size=1)
    for first in range(1, 8_001, 1_000):
        place.seal(first, first + 999)
    at = dict.fromkeys(range(6), 1)
    generator = random.Random(4)
    while min(at.values()) <= place.last:
        who = generator.randrange(6)
        found = place.reader.records(place.id, at[who], generator.choice((1, 30, 500)))
        if found is None:
            place.answer()
        elif found:
            assert seqs(found) == list(range(at[who], at[who] + len(found)))
            at[who] += len(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_row_is_passed_over_or_doubled_while_rows_become_segments(
    place: Place, seed: int
) -> None:
    """The thread reads while rows are written, sealed and deleted, in any order of the steps."""
    generator = random.Random(seed)
    at = sealed = in_segment = 0
    while at < 3_000:
        event = generator.randrange(6)
        if event == 0 and place.last < 3_000:
            place.commit(generator.choice((1, 40, 300)))
        elif event == 1 and place.last > in_segment:
            last = generator.randint(in_segment + 1, place.last)
            place.seal(in_segment + 1, last, delete=False)
            in_segment = last
        elif event == 2 and in_segment > sealed:
            sealed = in_segment
            place.database.set_sealed(place.id, sealed)
        elif event == 3 and sealed:
            place.database.chunk = generator.choice((10, 200))
            place.database.delete_sealed(place.id, sealed)
        elif event == 4 and not place.posted.empty():
            place.answer()
        else:
            found = place.reader.records(place.id, at + 1, generator.choice((1, 20, 400)))
            if found is None:
                place.answer()
            elif found:
                assert seqs(found) == list(range(at + 1, at + 1 + len(found)))
                at = found[-1].seq


# --- what is not kept any more --------------------------------------------------------------------


def test_what_retention_has_deleted_is_skipped_and_told_by_the_first_seq(place: Place) -> None:
    place.commit(40)
    for first in (1, 11, 21):
        place.seal(first, first + 9)
    assert trim(place.root, STREAM, NODE, before_seq=15) == 10
    assert seqs(place.read(4))[:2] == [11, 12]
    assert seqs(place.read(11))[:2] == [11, 12]
    assert trim(place.root, STREAM, NODE, before_seq=31) == 30
    other = place.new_reader(NODE)
    # Nothing is left of the segments: it goes on with the rows of the table.
    assert seqs(place.read(5, reader=other)) == list(range(31, 41))
    other.close()


def test_where_all_is_deleted_there_is_nothing_until_there_is_one_more(place: Place) -> None:
    place.commit(10)
    place.seal(1, 10)
    trim(place.root, STREAM, NODE, before_seq=11)
    assert place.read(3) == []
    place.commit(1)
    assert seqs(place.read(3)) == [11]


def test_rows_that_a_repair_has_lost_are_skipped_and_others_are_not(place: Place) -> None:
    place.commit(30)
    place.seal(1, 10)
    delete = "DELETE FROM record WHERE seq BETWEEN 15 AND 19"
    place.database.connection.execute(delete)
    assert seqs(place.read(8)) == [8, 9, 10]
    assert seqs(place.read(11)) == [11, 12, 13, 14]
    assert place.reader.records(place.id, 15, 10) is None
    place.answer()
    assert len(place.later) == 1  # it is missing, and that is a fault
    place.database.set_metadata(gap_name(place.id, 15, 19), "now")
    place.later.pop()[1]()
    assert seqs(place.read(15)) == list(range(20, 31))


def test_a_record_goes_on_where_its_node_got_another_name(place: Place) -> None:
    place.commit(20)
    place.root.claim(STREAM, "before", place.store)
    place.seal(1, 12, node="before")
    place.root.claim(STREAM, NODE, place.store)
    assert seqs(place.read(5)) == list(range(13, 21))
    place.seal(13, 15)
    assert seqs(place.read(5))[:2] == [13, 14]


def test_a_folder_of_another_store_explains_nothing(place: Place) -> None:
    place.commit(20)
    place.root.claim(STREAM, "stranger", "another store")
    place.seal(1, 12, node="stranger")
    assert place.reader.records(place.id, 5, 10) is None
    place.answer()
    assert len(place.later) == 1


# --- what fails -----------------------------------------------------------------------------------


def test_a_damaged_segment_is_told_once_in_a_while_and_tried_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.commit(30)
    place.seal(1, 20)
    segment = Path(place.root.address, STREAM, NODE, segment_name(1, 20))
    whole = segment.read_bytes()
    segment.write_bytes(b"PAR1 and nothing else PAR1")
    waits = []
    with caplog.at_level(logging.WARNING, "semel.store"):
        for _ in range(3):
            assert place.reader.records(place.id, 7, 10) is None
            place.answer()
            # Who asks meanwhile does not make it be tried more often.
            assert place.reader.records(place.id, 7, 10) is None
            assert place.posted.empty()
            ((seconds, again),) = place.later
            place.later.clear()
            waits.append(seconds)
            again()
    assert len(caplog.records) == 1
    assert "retrying" in caplog.text
    assert segment.name in caplog.text
    assert "Traceback" not in caplog.text
    assert waits == sorted(waits)
    assert waits[0] < waits[2]
    # The rows that need no segment were there all the time.
    assert seqs(place.reader.records(place.id, 21, 50) or []) == list(range(21, 31))
    segment.write_bytes(whole)
    assert seqs(place.read(7)) == list(range(7, 21))
    segment.write_bytes(b"")
    assert place.reader.records(place.id, 1, 10) is None
    place.answer()
    # After a success it begins with a short wait.
    assert place.later[0][0] == waits[0]


def test_one_flipped_bit_is_never_replayed_and_what_is_whole_goes_on(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.commit(30)
    place.seal(1, 20)
    place.seal(21, 30)
    segment = Path(place.root.address, STREAM, NODE, segment_name(1, 20))
    whole = segment.read_bytes()
    for at in range(100, len(whole) - 100, len(whole) // 20):
        segment.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert place.reader.records(place.id, 1, 10) is None
        place.answer()
        assert place.reader.records(place.id, 1, 10) is None
        place.later.pop()[1]()
        # The thread is there for others.
        assert seqs(place.read(21)) == list(range(21, 31))
        place.reader.chunks.clear()
    assert f"{segment} of stream {STREAM}, node {NODE}, is damaged" in caplog.text
    assert "Traceback" not in caplog.text
    segment.write_bytes(whole)
    assert seqs(place.read(1)) == list(range(1, 31))


def test_a_segment_that_gives_fewer_rows_than_it_says_is_not_read_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.commit(20)
    place.seal(1, 20)
    iter_batches = SegmentFile.iter_batches

    def some(self: SegmentFile, **wanted: Any) -> Iterator[Any]:
        for batch in iter_batches(self, **wanted):
            yield batch.slice(0, 12)

    monkeypatch.setattr(SegmentFile, "iter_batches", some)
    with SegmentReader(place.root, STREAM, NODE) as reading:
        assert seqs(reading.read(1, 12)) == list(range(1, 13))
        with pytest.raises(RecordError, match=f"row 13 .* is not in {segment_name(1, 20)}"):
            reading.read(13, 5)


def test_a_root_that_is_not_there_fails_and_works_when_it_is(place: Place) -> None:
    place.commit(30)
    place.seal(1, 20)
    folder = Path(place.root.address)
    moved = folder.rename(folder.with_name("elsewhere"))
    assert place.reader.records(place.id, 7, 10) is None
    place.answer()
    assert len(place.later) == 1
    moved.rename(folder)
    place.later.pop()[1]()
    assert place.told == [place.id]
    assert seqs(place.read(7)) == list(range(7, 21))


def test_the_thread_ends_with_its_reader(place: Place) -> None:
    place.commit(5)
    place.seal(1, 5)
    place.read(1)
    threads = [each for each in threading.enumerate() if each.name == "semel-record"]
    assert len(threads) == 1
    place.reader.close()
    assert not threads[0].is_alive()


# --- times ----------------------------------------------------------------------------------------


def test_a_time_leads_to_the_first_row_received_then_or_later(place: Place) -> None:
    """Row n is received at second n."""
    place.commit(30)
    assert place.seek(7_000_000) == 7
    place.seal(1, 10)
    place.seal(11, 20)
    assert [place.seek(seconds * 1_000_000) for seconds in (0, 1, 10, 11, 20, 21, 30)] == [
        1,
        1,
        10,
        11,
        20,
        21,
        30,
    ]
    assert place.seek(10_000_001) == 11
    assert place.seek(20_000_001) == 21
    assert place.seek(30_000_001) == 31


def test_a_clock_that_was_set_back_does_not_hide_the_first_row(place: Place) -> None:
    for at in (50, 60, 20, 30, 70):
        place.commit(1, at=float(at))
    assert place.seek(55_000_000) == 2
    assert place.seek(25_000_000) == 1
    place.seal(1, 3)
    assert place.seek(55_000_000) == 2
    assert place.seek(65_000_000) == 5


def test_rows_are_looked_through_in_many_steps(place: Place) -> None:
    place.commit(30)
    connection = place.database.connection
    for at, seq in ((0, 1), (7, 7), (8, 8), (30, 30), (31, 31)):
        assert committed_since(connection, place.id, at * 1_000_000, step=7) == seq


def test_a_time_in_an_empty_stream_is_at_its_first_row(place: Place) -> None:
    assert place.seek(5) == 1


def test_times_that_nobody_asks_for_again_are_forgotten(place: Place) -> None:
    place.commit(1)
    for at in range(MAXIMUM_SOUGHT + 5):
        assert place.reader.seek(place.id, at) is None
    for _ in range(MAXIMUM_SOUGHT + 5):
        place.answer()
    assert place.reader.seek(place.id, 0) is None
    assert place.reader.seek(place.id, MAXIMUM_SOUGHT + 4) == 1
    place.answer()
