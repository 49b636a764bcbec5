"""Damage: what is not what was written is not used, and a check finds it."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel.store.care import export
from semel.store.database import Database
from semel.store.folder import open_folder, store_row_errors
from semel.store.forensics.check import check_store
from semel.store.forensics.repair import repair_store
from semel.store.forensics.salvage import salvage
from semel.store.opening import open_store
from semel.store.record import committed_records
from semel.store.schema import Damaged, Unusable
from semel.store.segment_writer import read_rows
from semel.store.segments import RecordError
from semel.store.settings import StoreSettings, StreamSettings
from tests.modes import repeats
from tests.store.faults import FAULTS
from tests.store.recorded import fields, reader
from tests.store.stores import change, contents, copied, damage, rows

# What it is, and what it says.
Read = tuple[object, ...]
Shape = Callable[[bytearray, random.Random, int], None]


def words(folder: Path) -> str:
    """All that a check says."""
    try:
        return str([each.problem for each in check_store(folder).findings])
    except Unusable as problem:
        return str(problem)


def is_noticed(folder: Path) -> bool:
    try:
        return not check_store(folder).is_clean
    except Unusable:
        return True


# --- everything that a broker, a client or a sealer reads -----------------------------------------


def everything(database: Database) -> Iterator[Read]:
    """Piece by piece, as its owner asks; each may raise."""
    saved = database.restore()
    for session in saved.sessions:
        yield ("session", *vars_of(session))
    yield from (("subscription", number, str(each), n) for number, each, n in saved.subscriptions)
    yield from (("cursor", *each) for each in saved.cursors)
    yield from (("retained", str(each)) for each in saved.retained)
    yield from (("will", *vars_of(each)) for each in saved.wills)
    for session in saved.sessions:
        deliveries, stored = database.exchanges(session.store_id)
        yield from (("inbound", session.store_id, each) for each in stored)
        deliveries += database.queue(session.store_id, session.first_waiting, 10_000)
        for each in deliveries:
            about = (each.number, each.packet_id, each.released, each.qos, each.share)
            yield ("delivery", session.store_id, *about, str(each.message))
        for number, key, record in database.inbox(session.store_id):
            yield ("inbox", session.store_id, number, key, fields(record))
        yield from (
            ("expired", session.store_id, *each)
            for each in database.expired(session.store_id, 0, 3_000_000_000.0)
        )
    for stream in database.streams():
        yield ("stream", *vars_of(stream))
        at = 1
        while found := committed_records(database.connection, stream.id, at, 100):
            yield from (("record", each.received, fields(each)) for each in found)
            at += len(found)


def vars_of(thing: object) -> tuple[str, ...]:
    """What an object says, compiled or not."""
    names = [each for each in dir(thing) if not each.startswith("_")]
    return tuple(str(getattr(thing, each)) for each in names)


def read_all(folder: Path) -> tuple[list[Read], bool]:
    """What was read until something was not right; whether it was to the end."""
    found: list[Read] = []
    try:
        with (
            open_folder(folder) as opened,
            closing(opened.open()) as database,
            store_row_errors(folder),
        ):
            for each in everything(database):
                found.append(each)
    except Unusable:
        return found, False
    return found, True


# --- damage by chance -----------------------------------------------------------------------------


def one_bit(data: bytearray, choose: random.Random, size: int) -> None:
    data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def bits(data: bytearray, choose: random.Random, size: int) -> None:
    for _ in range(choose.randrange(2, 50)):
        one_bit(data, choose, size)


def bits_of_one_page(data: bytearray, choose: random.Random, size: int) -> None:
    start = choose.randrange(len(data) // size) * size
    for _ in range(8):
        data[start + choose.randrange(size)] ^= 1 << choose.randrange(8)


def bytes_in_a_row(data: bytearray, choose: random.Random, size: int) -> None:
    start = choose.randrange(len(data) - 64)
    data[start : start + 64] = choose.randbytes(64)


def a_sector_of_zeros(data: bytearray, choose: random.Random, size: int) -> None:
    start = choose.randrange(len(data) // 512) * 512
    data[start : start + 512] = bytes(512)


def a_page_over_another(data: bytearray, choose: random.Random, size: int) -> None:
    source, target = choose.sample(range(1, len(data) // size), 2)
    data[target * size : (target + 1) * size] = data[source * size : (source + 1) * size]


def two_pages_for_each_other(data: bytearray, choose: random.Random, size: int) -> None:
    one, other = (number * size for number in choose.sample(range(1, len(data) // size), 2))
    kept = bytes(data[one : one + size])
    data[one : one + size] = data[other : other + size]
    data[other : other + size] = kept


def digits(data: bytearray, choose: random.Random, size: int) -> None:
    """Where anything is written: text and payloads, keys and numbers."""
    places = [at for at, byte in enumerate(data) if byte and at > 100]
    for _ in range(3):
        data[choose.choice(places)] ^= 1 << choose.randrange(8)


SHAPES = [
    one_bit,
    bits,
    bits_of_one_page,
    bytes_in_a_row,
    a_sector_of_zeros,
    a_page_over_another,
    two_pages_for_each_other,
    digits,
]


@pytest.fixture(scope="module", params=["small", "large"])
def whole(request: pytest.FixtureRequest) -> tuple[str, Path]:
    folder = request.getfixturevalue(f"{request.param}_once")
    assert isinstance(folder, Path)
    return request.param, folder


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_damage_is_found_by_a_check_or_changes_nothing_and_nothing_else_is_ever_read(
    whole: tuple[str, Path], tmp_path: Path, shape: Shape
) -> None:
    kind, source = whole
    before = contents(source)
    read, is_whole = read_all(copied(source, tmp_path / "before"))
    assert is_whole
    written = set(read)
    noticed = 0
    for seed in range(repeats(30, 15) if kind == "small" else 1):
        folder = copied(source, tmp_path / str(seed))
        path = folder / "store.db"
        data = bytearray(path.read_bytes())
        size = int.from_bytes(data[16:18], "big")
        shape(data, random.Random(f"{shape.__name__} {seed}"), size)
        path.write_bytes(data)
        if is_noticed(folder):
            noticed += 1
            found, _ = read_all(folder)
            # Counters of a session may lack what cannot be read; everything else was written so.
            wrong = [each for each in set(found) - written if each[0] != "session"]
            assert wrong == [], (seed, words(folder))
        else:
            assert contents(folder) == before, seed
            assert read_all(folder) == (read, True), seed
    assert noticed or shape is one_bit or kind == "large"


@pytest.mark.slow
@pytest.mark.parametrize(("statements", "_", "__", "___"), FAULTS)
def test_what_another_program_changes_is_found(
    small: Path, statements: list[str], _: str, __: str, ___: str
) -> None:
    damage(small, *statements)
    assert is_noticed(small)


# --- values that could be right -------------------------------------------------------------------

_D = "WHERE session_id = 1 AND number = "
PLAUSIBLE = [
    "UPDATE metadata SET value = 'abc' WHERE name = 'id'",
    "UPDATE metadata SET value = '7' WHERE name = 'next_session'",
    "UPDATE session SET client_id = 'c' WHERE id = 2",
    "UPDATE session SET expiry_interval = 5 WHERE id = 2",
    "UPDATE session SET ends_at = 5.5 WHERE id = 2",
    "UPDATE session SET identity = '' WHERE id = 1",
    "UPDATE session SET identity = '{}' WHERE id = 2",
    "UPDATE session SET identity = replace(identity, 'ann', 'bob') WHERE id = 1",
    "UPDATE subscription SET options = 2 WHERE session_id = 2",
    "UPDATE subscription SET identifier = 6 WHERE session_id = 2",
    "UPDATE subscription SET cursor = 0 WHERE session_id = 2",
    "UPDATE subscription SET topic_filter = 'u/#' WHERE session_id = 2",
    "UPDATE inbound SET packet_id = 8",
    f"UPDATE delivery SET payload = x'00' {_D} 3",
    f"UPDATE delivery SET topic = 'u' {_D} 3",
    f"UPDATE delivery SET packet_id = 9 {_D} 1",
    f"UPDATE delivery SET flags = 5 {_D} 1",
    f"UPDATE delivery SET release_number = 7 {_D} 2",
    f"UPDATE delivery SET number = 77 {_D} 5",
    f"UPDATE delivery SET session_id = 2 {_D} 3",
    f"UPDATE delivery_extra SET expires_at = 5.0 {_D} 4",
    f"UPDATE delivery_extra SET share = '$share/g/u' {_D} 4",
    f"UPDATE delivery_extra SET properties = NULL {_D} 4",
    f"DELETE FROM delivery_extra {_D} 4",
    "UPDATE shared_payload SET payload = CAST(zeroblob(10000) AS BLOB)",
    "UPDATE will SET payload = x'01'",
    "UPDATE will SET due_at = 6.0",
    "UPDATE will SET identity = ''",
    "UPDATE will SET identity = replace(identity, 'user', 'root')",
    "UPDATE retained SET payload = x'01' WHERE topic = 't'",
    "UPDATE retained SET topic = 'v' WHERE topic = 't'",
    "UPDATE retained SET expires_at = 3.0 WHERE topic = 't'",
    "UPDATE retained SET position = 9 WHERE topic = 't'",
    "UPDATE stream SET name = 'other' WHERE id = 1",
    "UPDATE stream SET last_seq = 6 WHERE id = 2",
    "UPDATE record SET payload = x'01' WHERE seq = 3",
    "UPDATE record SET topic = 'u' WHERE seq = 3",
    "UPDATE record SET received_at = 1 WHERE seq = 3",
    "UPDATE record SET client_id = 'x' WHERE seq = 3",
    "UPDATE record SET user_name = '' WHERE seq = 3",
    "UPDATE record SET packet_id = 77 WHERE seq = 3",
    "UPDATE inbox SET payload = x'01' WHERE number = 1",
    "UPDATE inbox SET key = 'run-2' WHERE number = 1",
    "UPDATE inbox SET number = 2 WHERE number = 1",
]


@pytest.mark.slow
@pytest.mark.parametrize("statement", PLAUSIBLE)
def test_a_value_that_could_be_right_but_was_not_written_is_not_used(
    small: Path, statement: str
) -> None:
    assert read_all(small)[1]
    damage(small, statement)
    assert not read_all(small)[1]
    assert is_noticed(small)
    if not statement.startswith("DELETE"):
        with pytest.raises(Unusable, match="is damaged"):
            list(export(small))
    result = repair_store(small, "20240131T101500")
    assert not result.is_complete
    assert check_store(small).is_clean
    assert read_all(small)[1]


def test_the_same_values_are_used_if_they_were_written(small: Path) -> None:
    change(small, "UPDATE retained SET payload = x'01' WHERE topic = 't'")
    change(small, "UPDATE record SET received_at = 1 WHERE seq = 3")
    assert not is_noticed(small)
    assert read_all(small)[1]
    assert len(list(export(small))) > 20


def test_a_salvage_prints_a_damaged_row_and_says_so(small: Path) -> None:
    damage(small, "UPDATE retained SET payload = x'41' WHERE topic = 't'")
    found = [each for each in salvage(small) if isinstance(each, dict)]
    (wrong,) = [each for each in found if "damaged" in each]
    assert (wrong["table"], wrong["payload"]) == ("retained", "A")
    assert "wrong checksum" in str(wrong["damaged"])


def test_the_sealer_does_not_seal_a_row_that_was_not_written_so(small: Path) -> None:
    with closing(reader(small / "store.db")) as connection:
        assert len(next(read_rows(connection, 1, 1, 5))) == 5
    damage(small, "UPDATE record SET payload = x'01' WHERE seq = 3")
    with (
        closing(reader(small / "store.db")) as connection,
        pytest.raises(RecordError, match="seq 3: it differs from what was written"),
    ):
        list(read_rows(connection, 1, 1, 5))


@pytest.mark.parametrize(
    ("wrong", "act"),
    [
        ("UPDATE delivery SET packet_id = 9 WHERE number = 1", "assigned"),
        ("UPDATE delivery SET packet_id = 9 WHERE number = 1", "moved"),
        ("UPDATE delivery SET payload = x'00' WHERE number = 1", "assigned"),
        ("UPDATE stream SET sealed_seq = 1 WHERE id = 1", "stream"),
        ("UPDATE shared_payload SET use_count = 7", "shared_payload"),
        ("UPDATE session SET client_id = 'z' WHERE id = 1", "session"),
        ("UPDATE subscription SET options = 2 WHERE session_id = 1", "cursor"),
    ],
)
def test_an_update_does_not_make_damage_right(small: Path, wrong: str, act: str) -> None:
    """Each changes another column of the row, or the same one."""

    def update() -> None:
        with open_folder(small) as opened, closing(opened.open()) as database:
            batch = database.batch([])
            if act == "assigned":
                batch.assigned.append((5, 1, 1))
            elif act == "moved":
                batch.assigned.append((3, 1, 1))
            elif act == "stream":
                batch.streams.append((6, 1))
            elif act == "shared_payload":
                batch.finished.append((1, 5, 5))
            elif act == "session":
                batch.ends.append((7.5, 1))
            else:
                batch.cursors.append((0, 1, "t/#"))
            database.write(batch)

    table = wrong.split()[1]
    key = {"delivery": "session_id = 1 AND number = 1", "stream": "id = 1"}.get(table, "1")
    question = f"SELECT * FROM {table} WHERE {key}"
    update()
    assert "checksum" not in words(small)
    damage(small, wrong)
    update()
    assert rows(small, question)
    assert "wrong checksum" in words(small)


def test_damage_of_one_session_does_not_keep_others_from_their_messages(small: Path) -> None:
    """While a broker runs: the reads of one session fail, those of another do not."""
    with open_folder(small) as opened, closing(opened.open()) as database:
        database.restore()
        database.connection.execute(
            "UPDATE delivery SET payload = x'00' WHERE session_id = 1 AND number = 3"
        )
        with pytest.raises(Damaged, match="session 1, number 3: it differs from what was written"):
            database.queue(1, 3, 10)
        assert [each.number for each in database.queue(2, 1, 10)] == [1]
        assert database.exchanges(1)[1] == [7]


def test_damage_in_the_table_of_streams_names_the_store_and_the_way_out(small: Path) -> None:
    settings = StoreSettings(data=small)
    damage(small, "UPDATE stream SET last_seq = last_seq + 1")
    with pytest.raises(Unusable, match="it differs from what was written") as refused:
        open_store(settings, [StreamSettings(name="yard", filter="#")])
    assert str(small) in str(refused.value)
    assert "semel store repair" in str(refused.value)
