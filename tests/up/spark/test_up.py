"""The parts of `semel up`: what is run and said, the real broker under the supervisor, and once the
whole with Spark."""

import asyncio
import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from semel import cli
from semel.cli import up as up_command
from semel.cli.sections import SECTIONS
from semel.extras import MissingExtra
from semel.pipeline.landing_plan import make_plan as landing_plan
from semel.pipeline.settings import LandSettings
from semel.processes import descendants, list_processes
from semel.settings import SettingsError, load
from semel.store.landing_notes import read_landing_notes, write_landing_note
from semel.store.roots import open_root
from semel.store.schema import VERSION
from semel.up.parts import (
    BROKER,
    LANDING,
    landing_part,
    parse_landing_line,
    parse_line,
    parts,
)
from semel.up.plan import UpPlan, check_extras, make_plan, note_landing, sections
from semel.up.positions import RecordExtent, read_extent, read_landed
from semel.up.suggestions import program_name, suggested_commands
from semel.up.supervisor import (
    DIED,
    LOGGED,
    PROBLEM,
    PROGRESS,
    READY,
    STDERR,
    STDOUT,
    STOPPED,
    CannotStart,
    LineEvent,
    Supervisor,
)
from tests.broker.broker_process import PATIENCE
from tests.broker.broker_process import Process as Broker
from tests.kills.ingesting import Publisher
from tests.up.test_supervisor import QUICK, Log, Story, gone
from tests.up.test_supervisor import supervise as supervise_parts

# Spark may take a minute to start on a machine that has other things to do.
SPARK_PATIENCE = 400.0


def plan_of(
    *,
    text: str = "",
    environ: dict[str, str] | None = None,
    folder: Path | None = None,
    **flags: Any,
) -> UpPlan:
    """A plan from a file, variables and flags."""
    path = None
    if folder is not None:
        path = folder / "semel.toml"
        path.write_text(text)
    homes = {"host": "broker", "port": "broker", "data": "store", "root": "store", "lake": "land"}
    given: dict[str, dict[str, object]] = {}
    for key, value in flags.items():
        given.setdefault(homes[key], {})[key] = value
    settings = load(sections(SECTIONS), path=path, environ=environ or {}, flags=given)
    return make_plan(settings, config=path, lands=True, interval=None)


# --- what is run ----------------------------------------------------------------------------------


def test_everything_lies_in_semel_data_by_default() -> None:
    plan = plan_of()
    assert plan.locations == {
        "data": "semel-data",
        "record": "semel-data/streams",
        "lake": "semel-data/lake",
    }
    assert (plan.host, plan.port, plan.streams) == ("127.0.0.1", 1883, ("all=#",))


def test_another_data_folder_takes_the_lake_along_unless_somebody_says_where_it_is() -> None:
    assert plan_of(data="other").lake == "other/lake"
    assert plan_of(data="other", lake="semel-data/lake").lake == "semel-data/lake"
    environ = {"SEMEL_LAND_LAKE": "semel-data/lake"}
    assert plan_of(data="other", environ=environ).lake == "semel-data/lake"


def test_maintenance_of_the_table_can_be_turned_off() -> None:
    key = "SEMEL_LAND_MAINTENANCE"
    assert key not in (landing_part(plan_of(), {}).environment or {})
    off = plan_of(environ={key: "false"})
    assert (landing_part(off, {}).environment or {})[key] == "false"
    assert "--no-maintenance" in CliRunner().invoke(cli.group, ["up", "--help"]).stdout


def test_what_maintenance_did_is_said_and_nothing_is_wrong_with_it() -> None:
    event = {"event": "maintenance", "at": "…", "text": "deleted 2 files", "action": "vacuumed"}
    line_event = parse_landing_line(STDOUT, json.dumps({**event, "files": 2}))
    assert line_event == LineEvent(
        LOGGED, "deleted 2 files", {"action": "vacuumed", "files": 2, "level": "info"}
    )


def test_the_file_and_the_environment_are_obeyed(tmp_path: Path) -> None:
    text = """
    [broker]
    port = 1999
    [store]
    data = "kept"
    [land]
    stream = "plant"
    table = "plant"
    [[stream]]
    name = "plant"
    filter = "plant/#"
    """
    plan = plan_of(text=text, folder=tmp_path, environ={"SEMEL_BROKER_HOST": "::1"})
    assert (plan.host, plan.port, plan.data, plan.table) == ("::1", 1999, Path("kept"), "plant")
    # The file has the stream that is landed: none is added.
    assert plan.streams == ()
    broker, landing = parts(plan, {})
    place = broker.command.index("--config")
    assert broker.command[place - 2 : place] == ("semel", "broker")
    assert broker.command[place + 1] == str(tmp_path / "semel.toml")
    assert "--stream" not in broker.command
    assert "--config" in landing.command


def test_listeners_of_the_file_are_left_to_the_broker(tmp_path: Path) -> None:
    text = '[[listener]]\nname = "web"\ntransport = "ws"\n'
    (broker, _) = parts(plan_of(text=text, folder=tmp_path), {})
    assert not {"--host", "--port", "--anonymous"} & set(broker.command)
    with pytest.raises(SettingsError, match=r"flag --port: \[broker\] port has no effect beside"):
        plan_of(text=text, folder=tmp_path, port=1884)


@pytest.mark.parametrize(
    ("value", "flag"), [("true", "--anonymous"), ("false", "--no-anonymous"), (None, None)]
)
def test_the_broker_admits_strangers_only_if_that_was_asked_for(
    value: str | None, flag: str | None
) -> None:
    environ = {} if value is None else {"SEMEL_BROKER_ANONYMOUS": value}
    (broker, _) = parts(plan_of(environ=environ), {})
    found = {"--anonymous", "--no-anonymous"} & set(broker.command)
    assert found == ({flag} if flag else set())


def test_the_stream_all_is_added_to_those_of_the_file(tmp_path: Path) -> None:
    text = '[[stream]]\nname = "plant"\nfilter = "plant/#"\n'
    assert plan_of(text=text, folder=tmp_path).streams == ("all=#",)


def test_landing_a_stream_that_nobody_records_is_refused(tmp_path: Path) -> None:
    text = '[land]\nstream = "plnt"\n[[stream]]\nname = "plant"\nfilter = "plant/#"\n'
    with pytest.raises(SettingsError, match=r"\[land\] stream is plnt, and no \[\[stream\]\]"):
        plan_of(text=text, folder=tmp_path)


def test_broker_and_landing_cannot_serve_metrics_on_one_port(tmp_path: Path) -> None:
    text = "[broker]\nmetrics_port = {}\n[land]\nmetrics_port = {}\n"
    words = r"\[land\] metrics_port is 9883, as \[broker\] metrics_port is: .* choose another"
    with pytest.raises(SettingsError, match=words):
        plan_of(text=text.format(9883, 9883), folder=tmp_path)
    for ports in ((9883, 9884), (0, 0)):
        assert plan_of(text=text.format(*ports), folder=tmp_path).lands


def test_a_store_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="durability memory keeps nothing"):
        plan_of(environ={"SEMEL_STORE_DURABILITY": "memory"})
    assert plan_of(environ={"SEMEL_STORE_DURABILITY": "os"}).lands


@pytest.mark.parametrize("table", ["_hidden", "a/b"])
def test_a_table_that_cannot_be_is_refused(table: str) -> None:
    with pytest.raises(SettingsError, match=r"\[land\]: .* cannot name a table"):
        plan_of(environ={"SEMEL_LAND_TABLE": table})


def test_addresses_with_keys_are_neither_on_command_lines_nor_shown() -> None:
    lake = "s3://key:secret@bucket/lake?region=eu-1"
    plan = plan_of(lake=lake, root="s3://key:secret@bucket/root?region=eu-1")
    for part in parts(plan, {}):
        assert "secret" not in " ".join(part.command)
        assert part.environment is not None
        assert "secret" in " ".join(part.environment.values())
    assert "secret" not in " ".join(plan.locations.values())
    # A lake that is no folder has Spark's notes with the data.
    environment = landing_part(plan, {}).environment
    assert environment is not None
    assert environment["SEMEL_LAND_CHECKPOINT"] == "semel-data/checkpoints/messages"


def test_that_a_stream_is_landed_is_noted_where_the_landing_finds_it(tmp_path: Path) -> None:
    plan = plan_of(data=str(tmp_path / "data"))
    root = open_root(plan.record)
    note_landing(plan)
    (note,) = read_landing_notes(root, "all")
    assert note.landed == {}
    # As `semel land` names its table.
    settings = LandSettings(root=plan.record, lake=plan.lake, table=plan.table)
    assert note.table == landing_plan(settings).shown
    write_landing_note(root, "all", note.table, {"n1": 7}, at="now")
    note_landing(plan)
    (note,) = read_landing_notes(root, "all")
    assert note.landed == {"n1": 7}


def test_parts_are_heard_in_utf_8_whatever_the_terminal_has() -> None:
    for part in parts(plan_of(), {"PYTHONIOENCODING": "latin-1"}):
        assert part.environment is not None
        assert part.environment["PYTHONIOENCODING"] == "utf-8"


def test_without_landing_there_is_the_broker_alone() -> None:
    assert [part.name for part in parts(replace(plan_of(), lands=False), {})] == [BROKER]
    assert [part.name for part in parts(plan_of(), {})] == [BROKER, LANDING]


@pytest.mark.parametrize(
    ("lacking", "sentence"),
    [
        ({"pyspark"}, "needs pyspark: pip install 'semel[spark]', or leave the landing out"),
        ({"pyarrow", "pyspark"}, "needs pyarrow, pyspark: pip install 'semel[broker,spark]'"),
    ],
)
def test_packages_that_are_not_installed_are_named_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, lacking: set[str], sentence: str
) -> None:
    for package in ("pyarrow", "pyspark", "deltalake"):
        pytest.importorskip(package)
    plan = plan_of()
    check_extras(plan)
    for package in lacking:
        # As where it is not installed.
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as caught:
        check_extras(plan)
    assert sentence in str(caught.value)
    if "pyarrow" not in lacking:
        check_extras(replace(plan, lands=False))


# --- what they say --------------------------------------------------------------------------------


LISTENING = "listening on ::1:1884, MQTT 3.1.1 and 5.0, up to 9 open files"


@pytest.mark.parametrize(
    ("event", "line_event"),
    [
        (
            {"event": "ready", "level": "info", "text": LISTENING, "host": "::1", "port": 1884},
            LineEvent(READY, LISTENING, {"host": "::1", "port": 1884}),
        ),
        (
            {"event": "log", "level": "info", "text": "stopping"},
            LineEvent(LOGGED, "stopping", {"level": "info"}),
        ),
        (
            {"event": "log", "level": "error", "text": "it failed\nTraceback"},
            LineEvent(LOGGED, "it failed\nTraceback", {"level": "error"}),
        ),
        (
            {"event": "failed", "problem": "127.0.0.1:1883 is in use", "text": "…"},
            LineEvent(PROBLEM, "127.0.0.1:1883 is in use"),
        ),
        ({"event": "failed"}, LineEvent(PROBLEM, "it reports no reason")),
    ],
)
def test_events_of_a_broker_are_understood(event: dict[str, Any], line_event: LineEvent) -> None:
    line = json.dumps({"at": "2026-11-16T09:10:46.021Z", **event})
    assert parse_line(STDOUT, line) == line_event


@pytest.mark.parametrize("source", [STDOUT, STDERR])
@pytest.mark.parametrize(
    ("line", "line_event"),
    [
        ("MemoryError", LineEvent(LOGGED, "MemoryError")),
        ("  File x", LineEvent(LOGGED, "  File x")),
        ('{"event": "log"', LineEvent(LOGGED, '{"event": "log"')),
        ('{"text": "another program"}', LineEvent(LOGGED, '{"text": "another program"}')),
        ("Error: 127.0.0.1:1883 is in use", LineEvent(PROBLEM, "127.0.0.1:1883 is in use")),
    ],
)
def test_what_is_no_event_is_a_log_line_of_unknown_level(
    source: int, line: str, line_event: LineEvent
) -> None:
    assert parse_line(source, line) == line_event


@pytest.mark.parametrize(
    ("source", "line", "kind", "text"),
    [
        (STDOUT, '{"at": "…", "event": "starting"}', PROGRESS, "starting"),
        (STDOUT, '{"event": "ready", "landed_before": 3}', READY, "ready: landing messages"),
        (STDOUT, '{"event": "batch", "landed": 5}', PROGRESS, "batch"),
        (STDOUT, '{"event": "failed", "problem": "no Java"}', PROBLEM, "no Java"),
        (STDOUT, "[1]", LOGGED, "[1]"),
        (STDOUT, "WARN something", LOGGED, "WARN something"),
        (STDERR, '{"event": "ready"}', LOGGED, '{"event": "ready"}'),
        (STDERR, "2026-11-16 09:10:46,021 the root is away", LOGGED, "the root is away"),
        (STDERR, "Error: no Java", PROBLEM, "no Java"),
    ],
)
def test_lines_of_a_landing_are_understood(source: int, line: str, kind: str, text: str) -> None:
    line_event = parse_landing_line(source, line)
    assert line_event.kind == kind
    assert line_event.text.startswith(text)
    assert not {"at", "event"} & line_event.facts.keys()


# --- what to try ----------------------------------------------------------------------------------


def tcp_at(host: str, port: int) -> list[dict[str, object]]:
    """What a broker with one listener says about it."""
    return [{"name": "default", "transport": "tcp", "host": host, "port": port}]


@pytest.mark.parametrize(
    ("listeners", "options"),
    [
        ([{"transport": "unix", "path": "/run/a b"}], ["--unix", "/run/a b"]),
        ([{"transport": "ws", "host": "127.0.0.1", "port": 8083}], ["-p", "8083", "--ws"]),
        (
            [{"transport": "tls", "host": "0.0.0.0", "port": 8883}],
            ["-p", "8883", "--tls-use-os-certs"],
        ),
        (
            [{"transport": "wss", "host": "plant", "port": 1}],
            ["-h", "plant", "-p", "1", "--ws", "--tls-use-os-certs"],
        ),
        ([{"transport": "unix", "path": "s"}, *tcp_at("127.0.0.1", 1883)], []),
        ([*tcp_at("127.0.0.1", 5), *tcp_at("127.0.0.1", 6)], ["-p", "5"]),
        ([], []),
        (None, []),
    ],
)
def test_the_line_to_try_suits_the_simplest_listener(listeners: object, options: list[str]) -> None:
    publish, _ = suggested_commands(plan_of(), "semel", listeners=listeners)
    words = shlex.split(publish)
    assert words[:2] == ["semel", "pub"]
    assert words[2 : words.index("-t")] == options


def test_the_lines_to_try_are_short_where_nothing_was_said_otherwise() -> None:
    assert suggested_commands(plan_of(), "semel", listeners=tcp_at("127.0.0.1", 1883)) == [
        "semel pub -t plant/1/temp -m 21.5 -q 2",
        'semel sql "select topic, count(*) from messages_now group by 1"',
    ]


def test_the_lines_to_try_name_another_port_host_folder_and_lake() -> None:
    publish, ask = suggested_commands(
        plan_of(data="my data"), "semel", listeners=tcp_at("0.0.0.0", 1884)
    )
    assert publish.startswith("semel pub -p 1884 -t")
    assert shlex.split(ask)[2:4] == ["--lake", "my data/lake"]
    publish, ask = suggested_commands(
        plan_of(data="d", lake="elsewhere", root="r"), "semel", listeners=tcp_at("::", 1883)
    )
    assert publish.startswith("semel pub -h ::1 -t")
    assert shlex.split(ask)[2:8] == ["--lake", "elsewhere", "--data", "d", "--root", "r"]
    _, read = suggested_commands(
        replace(plan_of(), lands=False), "semel", listeners=tcp_at("127.0.0.1", 1883)
    )
    assert read == "semel stream read all --data semel-data"
    plan = replace(plan_of(root="my root"), lands=False)
    _, read = suggested_commands(plan, "semel", listeners=tcp_at("127.0.0.1", 1883))
    assert read == "semel stream read all --data semel-data --root 'my root'"


def question_of(plan: UpPlan) -> list[str]:
    """The words of the question, as a shell takes them."""
    _, ask = suggested_commands(plan, "semel", listeners=tcp_at("127.0.0.1", 1883))
    return shlex.split(ask)


@pytest.mark.parametrize(
    ("table", "view"),
    [
        ("readings", "readings_now"),
        ("my table", '"my table_now"'),
        ("plant-1", '"plant-1_now"'),
        ("$(id)", '"$(id)_now"'),
        ("it's!", '"it\'s!_now"'),
        ('a"b', '"a""b_now"'),
    ],
)
def test_the_question_names_the_table_as_sql_and_the_shell_want_it(table: str, view: str) -> None:
    words = question_of(plan_of(environ={"SEMEL_LAND_TABLE": table}))
    assert words[:2] == ["env", f"SEMEL_LAND_TABLE={table}"]
    assert words[2:] == ["semel", "sql", f"select topic, count(*) from {view} group by 1"]


def test_the_question_gives_what_the_file_does_not_say(tmp_path: Path) -> None:
    text = """
    [store]
    data = "kept"
    [land]
    lake = "s3://key:secret@bucket/lake?region=eu-1"
    table = "readings"
    """
    file = str(tmp_path / "semel.toml")
    words = question_of(plan_of(text=text, folder=tmp_path))
    assert words[:-1] == ["semel", "sql", "--config", file]
    words = question_of(plan_of(text=text, folder=tmp_path, data="other", root="r", lake="l"))
    assert words[:4] == ["semel", "sql", "--config", file]
    assert words[4:-1] == ["--lake", "l", "--data", "other", "--root", "r"]
    environ = {"SEMEL_LAND_TABLE": "messages"}
    words = question_of(plan_of(text=text, folder=tmp_path, environ=environ))
    assert words[:-1] == ["env", "SEMEL_LAND_TABLE=messages", "semel", "sql", "--config", file]
    assert "messages_now" in words[-1]
    # A file that is about other things.
    words = question_of(plan_of(text="[broker]\nport = 1999\n", folder=tmp_path))
    assert words[:-1] == ["semel", "sql", "--config", file]


def test_the_command_is_named_as_it_can_be_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / ".venv" / "bin" / "semel"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    # On the path; not on it but below this folder; somewhere else.
    assert program_name([str(program)], {"PATH": str(program.parent)}) == "semel"
    assert program_name([str(program)], {"PATH": "/nonesuch"}) == ".venv/bin/semel"
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert program_name([str(program)], {"PATH": "/nonesuch"}) == str(program)
    # By `python -m semel`, where no command was installed.
    monkeypatch.setattr(sys, "executable", "/nonesuch/python")
    called = program_name(["/somewhere/semel/__main__.py"], {"PATH": "/nonesuch"})
    assert called == "/nonesuch/python -m semel"


# --- the broker -----------------------------------------------------------------------------------


def supervise(plan: UpPlan, story: Story) -> Log:
    """Run the parts of a plan while the story happens."""
    return supervise_parts(parts(plan, os.environ), story, QUICK)


def broker_plan(folder: Path, **flags: Any) -> UpPlan:
    pytest.importorskip("pyarrow")
    return replace(plan_of(data=str(folder / "data"), **{"port": "0", **flags}), lands=False)


async def publish(port: object, *payloads: str) -> None:
    """At QoS 2, and acknowledged."""

    def send() -> None:
        with Publisher(int(str(port))) as publisher:
            for payload in payloads:
                publisher.publish("plant/1", payload.encode(), 2)
            publisher.finish()

    await asyncio.to_thread(send)


def ports(log: Log) -> list[object]:
    return [each.facts["port"] for each in log.all(READY, BROKER)]


def test_a_broker_serves_records_and_keeps_what_it_has(tmp_path: Path) -> None:
    plan = broker_plan(tmp_path)
    assert read_extent(plan) is None

    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, BROKER)
        await publish(ports(log)[0], "a", "b")

    supervise(plan, story)
    found = read_extent(plan)
    assert found is not None
    assert found.recorded == 2

    async def second(_: Supervisor, log: Log) -> None:
        await log.has(READY, BROKER)
        await publish(ports(log)[0], "c")

    supervise(plan, second)
    found = read_extent(plan)
    assert found is not None
    assert found.recorded == 3


@pytest.mark.parametrize(
    ("environ", "lines"),
    [
        ({}, 0),
        # That it listens has to be heard, whatever is logged.
        ({"SEMEL_BROKER_LOG_LEVEL": "error"}, 0),
        ({"SEMEL_BROKER_CONNECTION_MESSAGES": "true"}, 2),
    ],
)
def test_connections_are_logged_only_if_somebody_wants_it(
    tmp_path: Path, environ: dict[str, str], lines: int
) -> None:
    plan = broker_plan(tmp_path, environ=environ)

    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, BROKER)
        await publish(ports(log)[0], "a")

    log = supervise(plan, story)
    said = [each.text for each in log.all(LOGGED, BROKER)]
    assert len([text for text in said if "'publisher'" in text]) == lines


def test_retention_knows_of_the_landing_as_soon_as_the_broker_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long Spark takes to start, or if it never does."""
    without = broker_plan(tmp_path)
    plan = replace(without, lands=True)
    monkeypatch.setattr(up_command, "parts", lambda _, environ: parts(without, environ))

    async def story() -> None:
        report = up_command.UpReport(plan, is_json=False, quiet=True)
        running = asyncio.ensure_future(up_command.supervise(plan, report))
        async with asyncio.timeout(PATIENCE):
            while not read_landing_notes(open_root(plan.record), "all"):
                assert not running.done()
                await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
            await running

    asyncio.run(story())


def test_a_broker_that_is_killed_is_back_with_all_that_it_acknowledged(tmp_path: Path) -> None:
    plan = broker_plan(tmp_path)

    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(READY, BROKER)
        await publish(ports(log)[0], "a", "b", "c")
        lock = (plan.data / "lock").read_text()
        os.kill(int(lock), signal.SIGKILL)
        await log.has(READY, BROKER, times=2)
        await publish(ports(log)[1], "d")

    log = supervise(plan, story)
    assert log.all(DIED, BROKER)[0].text.startswith("signal 9, SIGKILL")
    found = read_extent(plan)
    assert found is not None
    assert found.recorded == 4


async def never(_: Supervisor, log: Log) -> None:
    await asyncio.Event().wait()


def test_a_port_in_use_is_one_sentence_and_the_end(tmp_path: Path) -> None:
    with Broker() as other:
        port = other.address[1]
        with pytest.raises(CannotStart) as caught:
            supervise(broker_plan(tmp_path, port=str(port)), never)
    sentence = f"broker cannot start: 127.0.0.1:{port} is in use by another program"
    assert str(caught.value) == sentence


def test_a_locked_store_is_one_sentence_and_the_end(tmp_path: Path) -> None:
    plan = broker_plan(tmp_path)
    with Broker("--data", str(plan.data)), pytest.raises(CannotStart) as caught:
        supervise(plan, never)
    assert f"{plan.data} is in use by another process" in str(caught.value)


def test_a_newer_store_is_one_sentence_and_the_end(tmp_path: Path) -> None:
    plan = broker_plan(tmp_path)
    with Broker("--data", str(plan.data)):
        pass
    connection = sqlite3.connect(plan.data / "store.db")
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.execute("CREATE TABLE later (x)")
    connection.close()
    with pytest.raises(CannotStart, match="written by a newer semel"):
        supervise(plan, never)


@pytest.fixture
def little(tmp_path: Path) -> Iterator[Path]:
    """A disk that is too small for a store."""
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    place = tmp_path / "little"
    place.mkdir()
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)], capture_output=True
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_without_space_is_one_sentence_and_the_end(little: Path) -> None:
    with pytest.raises(CannotStart) as caught:
        supervise(broker_plan(little), never)
    assert "is full" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_landing_that_cannot_start_says_why_while_the_broker_serves(tmp_path: Path) -> None:
    plan = broker_plan(tmp_path)
    hopeless = landing_part(replace(plan, root="ftp://host/root"), os.environ)

    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(DIED, LANDING, times=2)
        await publish(ports(log)[0], "a")
        assert supervisor.states[BROKER] == "ready"

    log = supervise_parts([*parts(plan, os.environ), hopeless], story)
    first, second = log.all(DIED, LANDING)[:2]
    assert first.text == second.text
    assert "ftp://host/root is not a root" in first.text
    assert "\n" not in first.text
    assert log.all(DIED, BROKER) == []
    found = read_extent(plan)
    assert found is not None
    assert found.recorded == 1


def test_what_cannot_be_read_of_a_store_is_no_account(tmp_path: Path) -> None:
    plan = broker_plan(tmp_path)
    plan.data.mkdir()
    (plan.data / "store.db").write_bytes(b"no database at all" * 1000)
    assert read_extent(plan) is None


# --- the whole ------------------------------------------------------------------------------------


class Up:
    """`semel up --json` as a program runs it."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.err = folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "semel", "up", "--json", "--port", "0"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "SEMEL_LAND_MASTER": "local[2]"},
            )

    def objects(self) -> list[dict[str, Any]]:
        lines = self.out.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first object of which it is so."""
        end = time.monotonic() + SPARK_PATIENCE
        while True:
            for found in self.objects():
                if is_so(found):
                    return found
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < end, self.err.read_text()
            time.sleep(0.1)

    def port(self) -> int:
        return int(self.until(lambda each: each["event"] == "try")["port"])

    def family(self) -> dict[int, str]:
        """Processes below it, with their commands."""
        ours = [self.process.pid, *descendants([self.process.pid], list_processes())]
        return {pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in ours}


@contextmanager
def up(folder: Path) -> Iterator[Up]:
    made = Up(folder)
    try:
        yield made
    finally:
        left = made.family() if made.process.poll() is None else {}
        made.process.kill()
        made.process.wait(PATIENCE)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def test_what_is_published_lands_once_and_nothing_is_left_of_what_was_killed(
    tmp_path: Path,
) -> None:
    for package in ("pyspark", "deltalake", "pyarrow"):
        pytest.importorskip(package)
    first = [f"first-{number}" for number in range(50)]
    with up(tmp_path) as running:
        asyncio.run(publish(running.port(), *first))
        running.until(lambda each: each["event"] == "status" and each["landed"] == 50)
        family = running.family()
        commands = " ".join(family.values())
        for name in ("semel broker", "semel.store.sealer", "semel land", "java", "pyspark"):
            assert name in commands, name
        running.process.kill()
        assert gone(*family)
        running.process.wait(PATIENCE)
    second = [f"second-{number}" for number in range(30)]
    with up(tmp_path) as running:
        # The broker takes them while Spark starts.
        asyncio.run(publish(running.port(), *second))
        running.until(lambda each: each["event"] == "ready" and each["part"] == LANDING)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(SPARK_PATIENCE) == 0, running.err.read_text()
        last = running.objects()[-1]
        ends = [each["part"] for each in running.objects() if each["event"] == STOPPED]
    assert ends == [BROKER, LANDING]
    del last["at"]
    assert last == {
        "event": "ended",
        "recorded": 80,
        "recorded_since_start": 30,
        "landed": 80,
        "waiting": 0,
    }
    plan = plan_of(data=str(tmp_path / "semel-data"))
    found = read_extent(plan)
    assert found is not None
    assert found == RecordExtent(found.node, 80, 80)
    assert read_landed(plan, found.node) == 80
    from deltalake import DeltaTable

    table = DeltaTable(str(tmp_path / "semel-data" / "lake" / "messages")).to_pyarrow_table()
    assert sorted(table.column("seq").to_pylist()) == list(range(1, 81))
    payloads = [payload.decode() for payload in table.column("payload").to_pylist()]
    assert sorted(payloads) == sorted(first + second)
