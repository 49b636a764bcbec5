"""`semel demo`: every fault that its reconciliation can find, and a small demo."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from semel import cli
from semel.cli.demo import LEAST_MESSAGES, MESSAGES, as_line, command
from semel.client import Client
from semel.lab.demo import Demo, DemoFailed, DemoOptions, DemoStatus, add_everything
from semel.lab.demo_faults import (
    BEFORE_SPARK,
    BROKER,
    CUTS,
    KILLS,
    LAST_OF_SPARK,
    REPEATED,
    REPEATS,
    SEALER,
    SPARK,
    Process,
    descendants,
    kill_part,
    plan_faults,
)
from semel.lab.demo_reconciliation import MOST_MESSAGES, SHOWN_FAULTS, Reconciliation, Verdict
from semel.lab.fleet.devices import Devices, FleetMessage
from semel.lab.fleet.journal import BEGIN, DONE, REFUSED, JournalLine
from semel.store.reading import StreamCatalog
from tests.broker.broker_process import PATIENCE
from tests.kills.brokers import STREAM, free_port, is_alive, semel

MANY = 300
DEVICES = Devices(4, 7)

Row = tuple[str, int, str, bytes]


# --- reconciliation -------------------------------------------------------------------------------


def lines(count: int = MANY) -> list[JournalLine]:
    names = [DEVICES.name_of(index) for index in range(count)]
    return [JournalLine(word, *name) for name in names for word in (BEGIN, DONE)]


# All are complete but the last, which was begun.
BUT_ONE = lines()[:-1]


def rows(node: str = "n", count: int = MANY) -> list[Row]:
    """Rows as they should be."""
    return [(node, index + 1, *DEVICES.message(index)) for index in range(count)]


def verdict_of(
    journal: list[JournalLine] | None = None,
    record: list[Row] | None = None,
    table: list[Row] | None = None,
    *,
    lands: bool = True,
    unknown: int = 0,
) -> Verdict:
    reconciliation = Reconciliation(DEVICES, MANY, lands=lands)
    reconciliation.add_journal(lines() if journal is None else journal)
    reconciliation.add_record("n", 1, (row[1:] for row in (rows() if record is None else record)))
    if lands:
        reconciliation.add_landed(rows() if table is None else table)
    return reconciliation.reconcile(17, unknown=unknown)


def test_totals_without_a_fault_reconcile() -> None:
    verdict = verdict_of(table=rows()[::-1])
    assert verdict.holds
    assert verdict.faults == ()
    assert str(verdict) == (
        "published 300 · redelivered by faults 17 · recorded 300 · landed 300"
        " · lost 0 · duplicated 0"
    )


def test_without_a_landing_the_record_is_checked() -> None:
    verdict = verdict_of(lands=False)
    assert verdict.holds
    assert str(verdict) == (
        "published 300 · redelivered by faults 17 · recorded 300 · lost 0 · duplicated 0"
    )


def without(which: int) -> list[Row]:
    return [row for at, row in enumerate(rows()) if at != which]


def duplicated_in_record() -> list[Row]:
    return [*rows(), ("n", MANY + 1, *DEVICES.message(5))]


def changed(which: int, message: FleetMessage) -> list[Row]:
    found = rows()
    found[which] = ("n", which + 1, *message)
    return found


OTHER_BYTES = FleetMessage(
    DEVICES.message(10).topic, DEVICES.message(10).payload.replace(b"ok", b"ko")
)
OTHER_TOPIC = FleetMessage("plant/elsewhere", DEVICES.message(9).payload)
FOREIGN = FleetMessage("plant/a", b"21.5")
NEVER = DEVICES.message(MANY + 3)


@pytest.mark.parametrize(
    ("given", "lost", "duplicated", "words"),
    [
        ({"table": without(9)}, 1, 0, "is recorded, but not landed"),
        ({"table": [*rows(), rows()[9]]}, 0, 1, "the table has node n, row 10 more than once"),
        (
            {"table": [*rows(), ("n", MANY + 1, *DEVICES.message(9))]},
            0,
            1,
            f"the table has node n, row {MANY + 1}, which is not in the record",
        ),
        ({"table": [*without(9), ("m", 10, *DEVICES.message(9))]}, 0, 0, "the table has node m"),
        (
            {"record": duplicated_in_record(), "table": duplicated_in_record()},
            0,
            1,
            "is in the record 2 times",
        ),
        # The record has it twice, and the landing once: nothing is duplicated in the table.
        ({"record": duplicated_in_record()}, 0, 0, "is in the record 2 times"),
        ({"record": rows(count=MANY - 1), "table": rows(count=MANY - 1)}, 1, 0, "not recorded"),
        ({"record": without(9), "table": without(9)}, 1, 0, "has a gap before row"),
        ({"table": changed(9, DEVICES.message(10))}, 1, 1, "a different message in the table"),
        ({"table": changed(10, OTHER_BYTES)}, 0, 0, "differs from what was published"),
        ({"table": changed(9, OTHER_TOPIC)}, 0, 0, "differs from what was published"),
        ({"table": changed(9, FOREIGN)}, 1, 0, "not a message of the fleet"),
        ({"table": changed(9, NEVER)}, 1, 0, "was never published"),
        ({"journal": lines(MANY + 1)}, 0, 0, "was published, but not requested"),
        ({"journal": [*lines(), JournalLine(REFUSED, 0, 1)]}, 0, 0, "was refused by the broker"),
    ],
)
def test_totals_with_a_fault_do_not_reconcile(
    given: dict[str, Any], lost: int, duplicated: int, words: str
) -> None:
    verdict = verdict_of(**given)
    assert not verdict.holds
    assert (verdict.lost, verdict.duplicated) == (lost, duplicated)
    assert any(words in fault for fault in verdict.faults), verdict.faults


@pytest.mark.parametrize(
    ("record", "lost", "duplicated"),
    [(rows(count=MANY - 1), 1, 0), (duplicated_in_record(), 0, 1)],
)
def test_without_a_landing_a_fault_of_the_record_is_found(
    record: list[Row], lost: int, duplicated: int
) -> None:
    verdict = verdict_of(record=record, lands=False)
    assert not verdict.holds
    assert (verdict.lost, verdict.duplicated) == (lost, duplicated)


def test_a_message_that_was_begun_and_is_not_done_may_be_there_once_or_not_at_all() -> None:
    there = verdict_of(BUT_ONE, unknown=1)
    assert there.holds
    assert there.published == MANY - 1
    absent = verdict_of(BUT_ONE, rows(count=MANY - 1), rows(count=MANY - 1), unknown=1)
    assert absent.holds
    twice = verdict_of(BUT_ONE, rows(), [*rows(), rows()[-1]], unknown=1)
    assert not twice.holds
    assert twice.duplicated == 1


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize(
    ("journal", "there", "published", "fault"),
    [
        ([], 0, 0, "300 of 300 messages were not published"),
        (lines(MANY - 2), MANY - 2, MANY - 2, "2 of 300 messages were not published"),
        (BUT_ONE, MANY, MANY - 1, "1 of 300 messages are not complete at their publisher"),
        (BUT_ONE, MANY - 1, MANY - 1, "1 of 300 messages are not complete at their publisher"),
    ],
)
def test_messages_that_were_not_published_are_a_fault(
    journal: list[JournalLine], there: int, published: int, fault: str, lands: bool
) -> None:
    verdict = verdict_of(journal, rows(count=there), rows(count=there), lands=lands)
    assert not verdict.holds
    assert (verdict.published, verdict.lost, verdict.duplicated) == (published, 0, 0)
    assert verdict.faults == (fault,)
    assert verdict_of(lands=lands).holds


def test_a_fleet_that_was_killed_may_not_know_of_messages_that_it_has_begun_only() -> None:
    some = rows(count=MANY - 1)
    assert verdict_of(BUT_ONE, some, some, unknown=1).holds
    assert not verdict_of(lines(MANY - 1), some, some, unknown=1).holds


def test_only_the_first_faults_are_put_into_words() -> None:
    verdict = verdict_of(table=[])
    assert len(verdict.faults) == SHOWN_FAULTS
    assert verdict.more_faults == MANY - SHOWN_FAULTS
    assert verdict.lost == MANY


# --- reconciliation of files ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a demo leaves it, without a table: a real broker has recorded a real fleet."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("demo")
    broker = semel(free_port(), folder)
    broker.start()
    try:
        broker.serve_seconds()
        words = ["-p", str(broker.port), "--seed", "4", "--devices", "7", "--count", str(MANY)]
        result = CliRunner().invoke(
            cli.group, ["fleet", *words, "--rate", "0", "--data", str(folder / "fleet")]
        )
        assert result.exit_code == 0, result.output
        assert broker.terminate() == 0
    finally:
        broker.end()
    return folder


def as_it_is(table: Any) -> Any:
    return table


def one_row_less(table: Any) -> Any:
    return table.slice(1)


def one_row_twice(table: Any) -> Any:
    pa = pytest.importorskip("pyarrow")
    return pa.concat_tables([table, table.slice(3, 1)])


@pytest.mark.parametrize(
    ("change", "landed", "lost", "duplicated"),
    [
        (as_it_is, MANY, 0, 0),
        (one_row_less, MANY - 1, 1, 0),
        (one_row_twice, MANY + 1, 0, 1),
    ],
)
def test_a_missing_or_duplicated_row_of_a_delta_table_is_found(
    recorded: Path,
    tmp_path: Path,
    change: Callable[[Any], Any],
    landed: int,
    lost: int,
    duplicated: int,
) -> None:
    deltalake = pytest.importorskip("deltalake")
    pa = pytest.importorskip("pyarrow")
    with StreamCatalog(recorded / "data", None) as catalog:
        (record,) = catalog.records(STREAM)
        landing = pa.concat_tables(record.tables(1, record.last()))
    deltalake.write_deltalake(str(tmp_path / "messages"), change(landing))
    reconciliation = Reconciliation(DEVICES, MANY)
    table = deltalake.DeltaTable(str(tmp_path / "messages"))
    add_everything(reconciliation, recorded / "fleet" / "journal", recorded / "data", table)
    verdict = reconciliation.reconcile(0)
    numbers = (
        verdict.published,
        verdict.recorded,
        verdict.landed,
        verdict.lost,
        verdict.duplicated,
    )
    assert numbers == (MANY, MANY, landed, lost, duplicated)
    assert verdict.holds == (change is as_it_is), verdict.faults


# --- faults ---------------------------------------------------------------------------------------


def test_the_same_seed_plans_the_same_faults_and_another_one_others() -> None:
    assert plan_faults(1, 50_000) == plan_faults(1, 50_000)
    assert plan_faults(1, 50_000) != plan_faults(2, 50_000)


@pytest.mark.parametrize("seed", range(20))
def test_every_plan_has_all_faults_while_messages_are_under_way(seed: int) -> None:
    plan = plan_faults(seed, 50_000)
    kinds = [each.kind for each in plan]
    assert {part: kinds.count(part) for part in KILLS} == KILLS
    assert len(plan) == CUTS + REPEATS + sum(KILLS.values())
    assert all(0 < each.at < 50_000 for each in plan)
    assert [each.at for each in plan] == sorted(each.at for each in plan)
    # It has landed some of what was published before, and others are still to come.
    (spark,) = [each.at for each in plan if each.kind == SPARK]
    assert 50_000 * BEFORE_SPARK < spark <= 50_000 * LAST_OF_SPARK
    assert SPARK not in [each.kind for each in plan_faults(seed, 50_000, lands=False)]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("python -P -m semel broker --port 1", BROKER),
        ("/usr/bin/python /opt/bin/semel broker", BROKER),
        ("python -P -m semel land --json", SPARK),
        ("python -P -m semel.store.sealer /data/store.db", SEALER),
        # What only starts a part is none.
        ("python -I -S /x/tether.py 60.0 python -P -m semel broker --port 1", None),
        ("python -m semel up --data broker", None),
        ("python -m semel pub -m land", None),
    ],
)
def test_a_part_is_known_by_its_command(words: str, part: str | None) -> None:
    process = Process(1, 0, tuple(words.split()))
    assert [each for each in KILLS if process.runs(each)] == ([] if part is None else [part])


def test_a_sealer_is_killed_alone_and_its_broker_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    broker = semel(free_port(), tmp_path)
    broker.start()
    try:
        broker.serve_seconds()
        deadline = time.monotonic() + PATIENCE
        while not (old := [each.pid for each in descendants(os.getpid()) if each.runs(SEALER)]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert kill_part(os.getpid(), SEALER) == 1
        while is_alive(old[0]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert is_alive(broker.running.pid)
        assert kill_part(os.getpid(), SPARK) == 0
        assert kill_part(os.getpid(), BROKER) == 1
        assert broker.running.wait(PATIENCE) == -signal.SIGKILL
    finally:
        broker.end()


# --- the command ----------------------------------------------------------------------------------


def demo(folder: Path | None, *arguments: object) -> list[str]:
    """A command; without a folder it makes one."""
    options = ["--no-land", "--count", "1500", "--rate", "150", "--duration", "600"]
    data = [] if folder is None else ["--data", str(folder)]
    given = [*options, *data, *map(str, arguments)]
    return [sys.executable, "-m", "semel", "demo", *given]


def left_of(folder: Path) -> list[int]:
    """Processes that work in this folder."""
    mark = os.fsencode(str(folder))
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark in line and is_alive(int(entry.name)):
                found.append(int(entry.name))
    return found


def kill_three(pid: int, part: str) -> int:
    """As if a part had three processes."""
    return 3


def test_a_demo_says_what_it_waits_for_and_for_how_long(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    statuses: list[DemoStatus] = []
    events: list[str] = []
    demo = Demo(
        DemoOptions(tmp_path, 1_000, 60.0, 1),
        statuses.append,
        lambda seconds, words: events.append(words),
        kill=kill_three,
    )
    demo._show_status()
    assert re.fullmatch(r"Spark to start \(.+\), \d+ s", statuses[-1].waiting)
    assert "s  waiting for Spark to start (" in as_line(statuses[-1], lands=True)

    async def until_landed() -> None:
        polling = asyncio.create_task(demo._poll_progress(lambda: (900, 500)))
        async with asyncio.timeout(PATIENCE):
            while not demo.status.landed:
                await asyncio.sleep(0.01)
        polling.cancel()

    asyncio.run(until_landed())
    demo._show_status()
    assert statuses[-1].waiting == ""
    assert "waiting" not in as_line(statuses[-1], lands=True)
    # Spark is killed.
    (kill,) = [planned for planned in demo._faults_left if planned.kind == SPARK]
    up = SimpleNamespace(pid=0)
    assert demo._inject(kill, up, None)  # type: ignore[arg-type]
    assert events[-2:] == [
        "kill -9 Spark (3 processes)",
        "semel up restarts Spark; the broker keeps running",
    ]
    demo._awaited_since -= 34
    demo._show_status()
    found = re.fullmatch(r"Spark to restart \(.+\), (\d+) s", statuses[-1].waiting)
    assert found
    assert int(found[1]) >= 34


def test_rows_that_landed_before_a_kill_do_not_mean_that_spark_runs_again(tmp_path: Path) -> None:
    """Of the rows that the last count before a kill has missed, the next count knows."""
    pytest.importorskip("deltalake")
    events: list[str] = []
    demo = Demo(
        DemoOptions(tmp_path, 1_000, 60.0, 1),
        lambda status: None,
        lambda seconds, words: events.append(words),
        kill=kill_three,
    )
    (kill,) = [planned for planned in demo._faults_left if planned.kind == SPARK]
    # Spark is killed while the second count is under way; the fifth has the rows of the new Spark.
    counts = iter([500, 500, 580, 580, 600])

    def poll() -> tuple[int, int]:
        landed = next(counts, 600)
        if demo.status.landed == 500 and SPARK not in demo.kills:
            demo._inject(kill, SimpleNamespace(pid=0), None)  # type: ignore[arg-type]
        events.append(f"counted {landed}")
        return 1_000, landed

    async def until_landed() -> None:
        polling = asyncio.create_task(demo._poll_progress(poll, seconds=0.0))
        async with asyncio.timeout(PATIENCE):
            while demo.status.landed < 600:
                await asyncio.sleep(0.01)
        polling.cancel()

    asyncio.run(until_landed())
    runs = "Spark is running and lands messages"
    landings = [event for event in events if event == runs or event.startswith("counted ")]
    assert landings[:7] == [
        "counted 500",
        runs,
        "counted 500",
        "counted 580",
        "counted 580",
        "counted 600",
        runs,
    ]


@pytest.fixture
def half_written(tmp_path: Path) -> tuple[Demo, Path, bytes]:
    """A demo whose table has a log entry that a kill has cut: also the entry, and what it was."""
    deltalake = pytest.importorskip("deltalake")
    pa = pytest.importorskip("pyarrow")
    table = tmp_path / "data" / "lake" / "messages"
    table.parent.mkdir(parents=True)
    deltalake.write_deltalake(str(table), pa.table({"seq": [1, 2, 3]}))
    (entry,) = (table / "_delta_log").glob("*.json")
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])
    options = DemoOptions(tmp_path, 1_000, 60.0, 1)
    return Demo(options, lambda status: None, lambda seconds, words: None), entry, whole


def test_a_table_that_cannot_be_read_is_read_at_the_next_poll(
    half_written: tuple[Demo, Path, bytes],
) -> None:
    demo, entry, whole = half_written
    assert demo._poll_counts() == (0, 0)

    async def until_landed() -> None:
        polling = asyncio.create_task(demo._poll_progress(demo._poll_counts, seconds=0.01))
        await asyncio.sleep(0.1)
        assert not polling.done()
        entry.write_bytes(whole)
        async with asyncio.timeout(PATIENCE):
            while not demo.status.landed:
                assert not polling.done()
                await asyncio.sleep(0.01)
        polling.cancel()

    asyncio.run(until_landed())
    assert demo.status.landed == 3


def test_a_table_that_cannot_be_read_at_the_end_is_one_fault(
    half_written: tuple[Demo, Path, bytes], recorded: Path
) -> None:
    demo, entry, _ = half_written
    demo._devices = DEVICES
    demo.options = replace(demo.options, messages=MANY)
    demo._fleet_data = recorded / "fleet"
    shutil.copytree(recorded / "data", demo._data, dirs_exist_ok=True)
    verdict = demo._reconcile()
    assert not verdict.holds
    assert (verdict.published, verdict.recorded, verdict.landed) == (MANY, MANY, 0)
    (fault,) = [each for each in verdict.faults if str(entry.parent.parent) in each]
    assert "\n" not in fault


def test_a_demo_ends_with_an_error_of_its_polling(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    options = DemoOptions(tmp_path, 1_000, 60.0, 1, lands=False)
    demo = Demo(options, lambda status: None, lambda seconds, words: None)
    demo._faults_left.clear()

    def fail() -> tuple[int, int]:
        raise ZeroDivisionError

    async def main() -> None:
        up: Any = SimpleNamespace(returncode=None)
        publishing = asyncio.create_task(asyncio.sleep(PATIENCE))
        polling = asyncio.create_task(demo._poll_progress(fail))
        proxy: Any = None
        try:
            async with asyncio.timeout(PATIENCE):
                await demo._run_until_landed(up, publishing, polling, proxy)
        finally:
            publishing.cancel()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_a_demo_shows_its_status_while_it_waits_for_the_end(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    statuses: list[DemoStatus] = []
    options = DemoOptions(tmp_path, 1_000, 60.0, 1, lands=False)
    demo = Demo(options, statuses.append, lambda seconds, words: None)

    async def slow() -> int:
        while len(statuses) < 3:
            await asyncio.sleep(0.01)
        return 7

    demo._set_awaited("semel up to stop")
    assert asyncio.run(asyncio.wait_for(demo._while_showing(slow()), PATIENCE)) == 7
    assert all(status.waiting.startswith("semel up to stop, ") for status in statuses)


def test_a_small_demo_holds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        demo(tmp_path / "demo"), capture_output=True, text=True, timeout=5 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    last = (
        r"published 1,500 · redelivered by faults ([\d,]+) · recorded 1,500 · lost 0 · duplicated 0"
    )
    found = re.fullmatch(last, said[-1])
    assert found, done.stdout
    assert int(found[1].replace(",", "")) > 0
    assert said[-2] == "killed: broker 2, sealer 2"
    assert len([line for line in said if "kill -9 broker" in line]) == 2
    assert left_of(tmp_path) == []


@pytest.mark.long
def test_a_demo_with_a_message_that_comes_twice_does_not_hold(tmp_path: Path) -> None:
    """Somebody publishes a copy of a device's message: the reconciliation must find it."""
    pytest.importorskip("pyarrow")
    copied = Devices(1, 200).message(3)

    async def copy(port: int) -> None:
        async with Client(f"mqtt://127.0.0.1:{port}") as client:
            await client.publish(copied.topic, copied.payload, qos=2)

    with subprocess.Popen(
        demo(tmp_path / "demo", "--json"), stdout=subprocess.PIPE, text=True
    ) as process:
        events = []
        port = 0
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            events.append(event)
            if found := re.search(r"listens on 127\.0\.0\.1:(\d+)", event.get("text", "")):
                port = int(found[1])
            # The broker runs: the first kill is still to come.
            if port and event["event"] == "status":
                asyncio.run(copy(port))
                port = 0
        assert process.wait(PATIENCE) == 1
    last = events[-1]
    assert last["event"] == "ended"
    assert last["holds"] is False
    assert (last["published"], last["recorded"]) == (1_500, 1_501)
    assert (last["lost"], last["duplicated"]) == (0, 1)
    name = Devices(1, 200).all[3].name
    assert last["faults"] == [f"message 1 of {name} is in the record 2 times"]


def published_by(process: "subprocess.Popen[str]") -> None:
    """Wait until the demo that this process is has both of its own."""
    assert process.stdout is not None
    for line in process.stdout:
        if "a fleet publishes" in line:
            return
    raise AssertionError("it ended")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_demo_without_a_verdict_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("pyarrow")
    with subprocess.Popen(
        demo(None),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        published_by(process)
        # It works in a temporary folder, and `semel up` does so too.
        assert left_of(tmp_path) != []
        process.send_signal(number)
        rest, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert said == "interrupted: no result\n"
    assert "lost" not in rest
    assert left_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_under_nohup_a_demo_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with subprocess.Popen(
        ["nohup", *demo(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        published_by(process)
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        # Something more happens to it, and it is still at work.
        assert any("cut a connection" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert left_of(tmp_path) == []


def test_a_demo_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with subprocess.Popen(
        demo(tmp_path / "demo"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        published_by(process)
        started = [each.pid for each in descendants(process.pid)]
        # Two tethers, `semel up` with its own, and a broker; a fleet and a sealer may be to come.
        assert len(started) >= 4
        process.kill()
        process.communicate(timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while left_of(tmp_path) or any(map(is_alive, started)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_fleet_that_is_stopped_before_its_end_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with subprocess.Popen(
        demo(tmp_path / "demo"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + PATIENCE
        journal = tmp_path / "demo" / "fleet" / "journal"
        # It publishes, and so it ends in order.
        while not (journal.exists() and b"done" in journal.read_bytes()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (fleet,) = [
            each.pid
            for each in descendants(process.pid)
            if each.arguments[-1] == "--json" and each.arguments[3:5] == ("semel", "fleet")
        ]
        os.kill(fleet, signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.fullmatch(r"Error: the fleet ended after [\d,]+ of 1,500 messages\n", said)
    assert left_of(tmp_path) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--rate", "nan"),
        ("--rate", "inf"),
        ("--rate", "1e300"),
        ("--rate", "0.5"),
        ("--duration", "nan"),
        ("--duration", "inf"),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused(tmp_path: Path, option: str, value: str) -> None:
    words = ["demo", "--no-land", "--data", str(tmp_path / "demo"), option, value]
    result = CliRunner().invoke(cli.group, words)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr
    assert not (tmp_path / "demo").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = CliRunner().invoke(cli.group, ["demo", "--no-land", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not empty: give a new or empty folder" in result.stderr


def test_what_cannot_start_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    words = ["demo", "--no-land", "--data", str(tmp_path / "demo")]
    result = CliRunner().invoke(cli.group, words)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: semel up cannot be started: ")
    assert result.stderr.count("\n") == 1


def test_a_semel_up_that_ends_is_one_sentence_with_its_reason(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    folder = tmp_path / "demo"
    folder.mkdir()
    statuses: list[str] = []

    def events(seconds: float, sentence: str) -> None:
        statuses.append(sentence)
        # Between the start of the demo and that of the broker, somebody else is quicker.
        (folder / "data").write_text("no folder")

    options = DemoOptions(folder, 1_000, 60.0, 1, lands=False)
    with pytest.raises(DemoFailed, match=r"semel up ended: broker cannot start: .*demo/data"):
        asyncio.run(Demo(options, lambda status: None, events).run())
    assert statuses == ["starting semel up"]


# --- its page -------------------------------------------------------------------------------------


def test_the_page_tells_of_every_option_and_of_every_fault() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "start" / "demo.md").read_text("utf-8")
    options = [each.opts[0] for each in command.params if isinstance(each, click.Option)]
    assert len(options) == 8
    assert [option for option in options if f"`{option}`" not in text] == []
    times = {1: "once", 2: "twice"}
    for part, count in KILLS.items():
        assert re.search(rf"kill -9 of (the )?{part} \| {times[count]} ", text)
    assert f"a connection is cut | {CUTS} times" in text
    assert f"packets are repeated | {REPEATS} times" in text
    assert f"{REPEATED[0]} to {REPEATED[1]} PUBLISH packets" in text
    assert f"publishes {BEFORE_SPARK:.0%} of".replace("%", " %") in text
    assert f"{MESSAGES:,}; from {LEAST_MESSAGES:,} to {MOST_MESSAGES:,}" in text
