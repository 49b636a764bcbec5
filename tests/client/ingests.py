"""What the tests of Ingest have in common: one at work, a broker, and the record."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from semel.broker.settings import BrokerSettings
from semel.client.ingest import Ingest
from semel.client.ingest_plan import IngestPlan, make_plan
from semel.client.ingest_settings import IngestSettings
from semel.mqtt import MQTT5, MQTT311
from semel.store.care import describe
from semel.store.settings import StoreSettings
from tests.broker.serving import serving
from tests.client.mosquitto import NEEDS_MOSQUITTO, mosquitto
from tests.kills.ingesting import Publisher
from tests.kills.record import pick

BROKERS = pytest.mark.parametrize(
    "kind", ["semel", pytest.param("mosquitto", marks=NEEDS_MOSQUITTO)]
)
VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
# Each broker, and each version, once.
PAIRS = pytest.mark.parametrize(
    ("kind", "version"),
    [("semel", MQTT5), pytest.param("mosquitto", MQTT311, marks=NEEDS_MOSQUITTO)],
    ids=["semel-5.0", "mosquitto-3.1.1"],
)
NAMES = {MQTT311: "3.1.1", MQTT5: "5"}


def plan_of(
    url: str,
    folder: Path,
    *topics: str,
    version: int = MQTT5,
    client_id: str | None = None,
    share: str | None = None,
    store: StoreSettings | None = None,
) -> IngestPlan:
    """What to ingest. Nothing is sealed but what an earlier run has left."""
    wanted = IngestSettings(
        url=url,
        topic=topics or ("plant/#",),
        stream="plant",
        mqtt_version=NAMES[version],
        client_id=client_id,
        share=share,
        longest_wait=0.05,
    )
    kept = store or StoreSettings(
        data=folder / "data", root=str(folder / "root"), seal_after=3600.0, durability="os"
    )
    return make_plan(wanted, kept)


@asynccontextmanager
async def ingesting(plan: IngestPlan, *, start_clean: bool = False) -> AsyncIterator[Ingest]:
    """One at work. What ends it before its time comes out."""
    work = Ingest(plan, start_clean=start_clean)
    running = asyncio.get_running_loop().create_task(work.run())
    try:
        yield work
    finally:
        work.stop()
        await running


async def until(reached: Callable[[], bool]) -> None:
    """Wait until something is so."""
    while not reached():
        await asyncio.sleep(0.01)


async def said(caplog: pytest.LogCaptureFixture, words: str, times: int = 1) -> None:
    """Wait until the log has these words."""
    await until(lambda: sum(words in line for line in caplog.messages) >= times)


def publish(port: int, *messages: tuple[str, str, int], retain: bool = False) -> None:
    """Topics, payloads and QoS; the broker has them when this returns."""
    with Publisher(port) as publisher:
        for topic, payload, qos in messages:
            publisher.publish(topic, payload.encode(), qos, retain=retain)
        publisher.finish()


async def send(port: int, *messages: tuple[str, str, int], retain: bool = False) -> None:
    await asyncio.to_thread(publish, port, *messages, retain=retain)


class Row(NamedTuple):
    """A row of the record."""

    topic: str
    payload: str
    qos: int
    retain: bool
    dup: bool
    version: int
    packet_id: int
    client_id: str


def rows_in(folder: Path) -> list[Row]:
    """The record by its numbers, which are dense: the store, and what was sealed at a restart."""
    found: dict[int, Row] = {}
    store = f"file:{folder / 'data' / 'store.db'}?mode=ro"
    with closing(sqlite3.connect(store, uri=True)) as connection:
        for seq, topic, payload, flags, *rest in connection.execute(
            "SELECT seq, topic, payload, flags, protocol_version, packet_id, client_id FROM record"
        ):
            flag = (flags & 3, bool(flags & 4), bool(flags & 8))
            found[seq] = Row(topic, payload.decode(), *flag, *rest)
    parquet: Any = import_module("pyarrow.parquet")
    columns = ["seq", "topic", "payload", "qos", "retain", "dup"]
    columns += ["protocol_version", "packet_id", "client_id"]
    for _, _, path in pick(folder / "root" / "plant"):
        table = parquet.read_table(path, columns=columns).to_pydict()
        for seq, *values in zip(*(table[name] for name in columns), strict=True):
            row = Row(*values)
            payload = bytes(table["payload"][seq - table["seq"][0]]).decode()
            found[seq] = row._replace(payload=payload, packet_id=row.packet_id or 0)
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[seq] for seq in sorted(found)]


def breaks_in(folder: Path) -> object:
    streams = describe(folder / "data")["streams"]
    assert isinstance(streams, list)
    (stream,) = streams
    return stream["breaks"]


@contextmanager
def served(kind: str, folder: Path, settings: BrokerSettings | None = None) -> Iterator[int]:
    """A broker of either kind. Its port."""
    if kind == "semel":
        with serving(settings or BrokerSettings(port=0, sys_interval=0.0)) as server:
            yield server.address[1]
    else:
        with mosquitto(folder, []) as (port,):
            yield port


def url_of(port: int) -> str:
    return f"mqtt://127.0.0.1:{port}"
