"""Kill -9 of an ingester under load, cuts of its connection at any byte, and brokers that restart.

Many more kills are in `tests/long/ingest_kills.py`. That the account can fail is shown here too.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.kills.brokers import Broker, free_port, mosquitto, semel
from tests.kills.ingesting import (
    STREAM,
    Ingester,
    Plan,
    Publisher,
    faults_of,
    rows_of,
    run,
)
from tests.kills.wire import V5, V311

pytest.importorskip("pyarrow")

NEEDS_MOSQUITTO = pytest.mark.skipif(
    shutil.which("mosquitto") is None, reason="not installed: mosquitto"
)
BROKERS = pytest.mark.parametrize(
    "kind", ["semel", pytest.param("mosquitto", marks=NEEDS_MOSQUITTO)]
)


@pytest.mark.parametrize(
    ("kind", "version"),
    [("semel", V5), pytest.param("mosquitto", V311, marks=NEEDS_MOSQUITTO)],
    ids=["semel-5.0", "mosquitto-3.1.1"],
)
def test_an_ingester_that_is_killed_and_cut_off_has_every_message_once(
    kind: str, version: int, tmp_path: Path
) -> None:
    result = run(Plan(kind, version, seed=1, kills=4, cuts=5), tmp_path)
    assert not result.faults, f"{result}\n" + "\n".join(result.faults[:20])
    assert result.rows >= result.sent > 100
    assert (result.kills, result.cuts >= 5) == (4, True)


# --- brokers that restart -------------------------------------------------------------------------


@contextmanager
def started(broker: Broker, ingester: Ingester) -> Iterator[None]:
    """Both at work, and nothing left of them in the end."""
    try:
        broker.start()
        broker.serve_seconds()
        ingester.start()
        ingester.says("at QoS 2")
        yield
    finally:
        left = ingester.end()
        broker.end()
    assert not left


def broker_of(kind: str, folder: Path) -> Broker:
    port = free_port()
    return semel(port, folder, streams=False) if kind == "semel" else mosquitto(port, folder)


def publish(broker: Broker, names: list[str], count: int) -> None:
    """So many messages more, at QoS 1 and 2 in turn; the broker has them when this returns."""
    with Publisher(broker.port) as publisher:
        publisher.sent = names
        for number in range(count):
            publisher.number(1 + number % 2)
        publisher.finish()


def breaks(ingester: Ingester) -> list[str]:
    """The breaks that its store has noted."""
    store = f"file:{ingester.store / 'store.db'}?mode=ro"
    with closing(sqlite3.connect(store, uri=True)) as connection:
        rows = connection.execute(
            "SELECT name FROM metadata WHERE name LIKE 'break:%' ORDER BY name"
        )
        return [name for (name,) in rows]


@BROKERS
def test_a_broker_that_keeps_its_sessions_may_restart(kind: str, tmp_path: Path) -> None:
    """semel is killed; mosquitto writes its sessions when it ends, and so is asked to."""
    broker = broker_of(kind, tmp_path)
    # Mosquitto 2.0.11 forgets the sessions of 5.0 clients when it restarts.
    version = "5" if kind == "semel" else "3.1.1"
    ingester = Ingester(
        f"mqtt://127.0.0.1:{broker.port}", tmp_path / "ingest", "--mqtt-version", version
    )
    sent: list[str] = []
    with started(broker, ingester):
        publish(broker, sent, 150)
        if kind == "semel":
            broker.kill()
        else:
            assert broker.terminate() == 0
        broker.start()
        broker.serve_seconds()
        publish(broker, sent, 150)
        ingester.reaches(len(sent))
        # What comes while nobody ingests is kept by the broker, over a restart of its own.
        ingester.kill()
        publish(broker, sent, 150)
        assert broker.terminate() == 0
        broker.start()
        broker.serve_seconds()
        ingester.start()
        ingester.reaches(len(sent))
        assert ingester.terminate() == 0
        assert faults_of(ingester.store, sent) == []
        assert breaks(ingester) == []


@NEEDS_MOSQUITTO
def test_a_broker_that_forgets_its_sessions_leaves_a_note_before_which_row(tmp_path: Path) -> None:
    broker = mosquitto(free_port(), tmp_path)
    configuration = tmp_path / "mosquitto.conf"
    configuration.write_text(
        configuration.read_text().replace("persistence true", "persistence false")
    )
    ingester = Ingester(f"mqtt://127.0.0.1:{broker.port}", tmp_path / "ingest")
    sent: list[str] = []
    with started(broker, ingester):
        publish(broker, sent, 20)
        ingester.reaches(20)
        broker.kill()
        broker.start()
        broker.serve_seconds()
        ingester.says("messages may be missing before row 21 of stream plant")
        ingester.says("at QoS 2", 2)
        publish(broker, sent, 20)
        ingester.reaches(40)
        assert ingester.terminate() == 0
        assert faults_of(ingester.store, sent) == []
        assert breaks(ingester) == ["break:1:21"]


# --- the account ----------------------------------------------------------------------------------


def test_the_account_finds_what_is_lost_doubled_or_not_dense(tmp_path: Path) -> None:
    broker = semel(free_port(), tmp_path, streams=False)
    # Nothing is sealed, so that rows can be changed.
    ingester = Ingester(
        f"mqtt://127.0.0.1:{broker.port}", tmp_path / "ingest", "--seal-after", "1h"
    )
    sent: list[str] = []
    with started(broker, ingester):
        publish(broker, sent, 10)
        ingester.reaches(10)
        assert ingester.terminate() == 0
    assert faults_of(ingester.store, sent, in_order=True) == []
    assert [row.payload for row in rows_of(ingester.store)] == sent
    faults = faults_of(ingester.store, [*sent, "2-99"])
    assert faults == ["1 are lost, the first is 2-99"]
    assert faults_of(ingester.store, sent[1:]) == [f"1 were never sent, the first is {sent[0]}"]

    def change(statement: str, *values: object) -> list[str]:
        with closing(sqlite3.connect(ingester.store / "store.db")) as connection:
            connection.execute(statement, values)
            connection.commit()
        return faults_of(ingester.store, sent, in_order=True)

    number = "(SELECT id FROM stream WHERE name = ?)"
    again = f"UPDATE record SET payload = ? WHERE stream_id = {number} AND seq = ?"
    # Row 5 says what row 3 says; both are of QoS 1.
    assert "without DUP" in str(change(again, sent[2].encode(), STREAM, 5))
    change(again, sent[4].encode(), STREAM, 5)
    assert "there twice" in str(change(again, sent[3].encode(), STREAM, 6))
    assert "out of order" in str(change(again, sent[9].encode(), STREAM, 4))
    assert "no row" in str(
        change(f"DELETE FROM record WHERE stream_id = {number} AND seq = 6", STREAM)
    )
