"""The parts of `semel up`: what is run, what its lines mean, and what there is to tell of them.

    broker    `semel broker`, with the stream that is landed; it runs its sealer by itself
    landing   `semel land --json`, from the record of the broker into the lake

Both read the same file and the same environment as `semel up` itself. What it was told by flags,
and what is otherwise by default (below the data folder), goes to them by their own flags; addresses
that may have keys in them go by the environment, which other users cannot see. The broker's lines
say how serious they are (levels.py); what a landing logs are warnings, all of them.

    <data>/store.db …         the broker's store          <data>/streams   the record
    <data>/lake/<table>       the Delta tables

To add a part: write a function that makes it, and put it into `parts`.
"""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from semel.broker.settings import LOG_LEVELS, BrokerSettings
from semel.extras import EXTRAS, MissingExtra, missing
from semel.pipeline.errors import PipelineError
from semel.pipeline.lake_address import check_table_name, local_folder
from semel.pipeline.landing import landing_table
from semel.pipeline.settings import LandSettings
from semel.settings import Section, Settings, SettingsError, load, setting
from semel.store.folder import STREAMS
from semel.store.landing_notes import declare_landing
from semel.store.reading import StoreRows
from semel.store.roots import RootError, open_root, without_secrets
from semel.store.schema import Unusable
from semel.store.sealing import environment_for_python
from semel.store.settings import StoreSettings, StreamSettings, check_streams
from semel.up import levels
from semel.up.supervisor import LOGGED, PROBLEM, PROGRESS, READY, STDOUT, LineEvent, Part

BROKER: Final = "broker"
LANDING: Final = "landing"

DATA: Final = "semel-data"
# Who says nothing of a lake gets this one.
LAKE: Final = "<data>/lake"
LAKE_FOLDER: Final = "lake"
ALL: Final = "#"
# A broker writes what it has and ends its sealer; a landing lands what is sealed, and may have to
# start its Spark for that.
BROKER_STOP_SECONDS: Final = 60.0
LANDING_STOP_SECONDS: Final = 90.0

NEEDED: Final = {"broker": ("pyarrow",), "spark": ("deltalake", "pyarrow", "pyspark")}
EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}

_STAMP: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
_LISTENING: Final = re.compile(r"listening on (.+):(\d+), MQTT")
_ERROR: Final = "Error: "
# A name that SQL takes without quotation marks, and what a shell does something with between them.
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TO_A_SHELL: Final = re.compile(r'["$`\\!]')


@dataclass(frozen=True)
class UpLandSettings(LandSettings):
    """Landing, into a lake in the data folder if nobody says otherwise."""

    lake: str = setting(LAKE, "Where the tables are: a folder, or an object store.")


@dataclass(frozen=True)
class UpBrokerSettings(BrokerSettings):
    """The broker, whose every connection is no news if nobody says otherwise."""

    connection_messages: bool = setting(
        False, "Whether a line is logged for each client that connects and disconnects."
    )


@dataclass(frozen=True)
class UpPlan:
    """What runs where, checked."""

    config: Path | None
    data: Path
    host: str
    port: int
    # Where the segments are; None: in the data folder.
    root: str | None
    # To be recorded, besides what the file says.
    streams: tuple[str, ...]
    stream: str
    lake: str
    table: str
    checkpoint: Path | None
    interval: str | None
    lands: bool
    # What is shown of the broker's log.
    log_level: str = "info"
    connection_messages: bool = False
    # Whether the landing looks after its table.
    maintenance: bool = True
    # What the file alone says just so: who is given --config need not be told.
    by_file: frozenset[str] = frozenset()

    @property
    def record(self) -> str:
        """Where the segments are."""
        return str(self.data / STREAMS) if self.root is None else self.root

    @property
    def places(self) -> dict[str, str]:
        """Where everything lies, for people: without keys."""
        found = {"data": str(self.data), "record": without_secrets(self.record)}
        if self.lands:
            found["lake"] = without_secrets(self.lake)
        return found


def declare(plan: UpPlan) -> None:
    """Note under the root that its stream is landed, so that retention waits for that."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    # What fails here the landing tries again when it starts, and tells.
    with suppress(OSError, RootError, PipelineError, MissingExtra):
        table = without_secrets(landing_table(plan.lake, plan.table))
        declare_landing(open_root(plan.record), plan.stream, table, at=at)


def sections(known: Sequence[type[Section]]) -> tuple[type[Section], ...]:
    """All sections, of which those with defaults of our own are ours."""
    ours = (UpBrokerSettings, UpLandSettings)
    names = [each.section for each in ours]
    return (*(each for each in known if each.section not in names), *ours)


def make_plan(
    settings: Settings, *, config: Path | None, lands: bool, interval: str | None
) -> UpPlan:
    """What these settings mean together. Raises SettingsError."""
    broker, store = settings.of(UpBrokerSettings), settings.of(StoreSettings)
    land = settings.of(UpLandSettings)
    data = Path(DATA) if store.data is None else store.data
    streams = settings.all_of(StreamSettings)
    check_streams(store if store.data else StoreSettings(data=data), streams)
    if not StoreSettings(data=data, durability=store.durability).is_durable:
        raise SettingsError(
            [f"[store] durability {store.durability} keeps nothing: choose disk or os"]
        )
    added: tuple[str, ...] = ()
    if land.stream not in [each.name for each in streams]:
        if streams and land.stream != "all":
            raise SettingsError(
                [f"[land] stream is {land.stream}, and no [[stream]] has that name: add one"]
            )
        added = (f"{land.stream}={ALL}",)
    lake = str(data / LAKE_FOLDER) if land.lake == LAKE else land.lake
    checkpoint = land.checkpoint
    try:
        check_table_name(land.table)
        if local_folder(lake) is None and checkpoint is None:
            checkpoint = data / "checkpoints" / land.table
    except PipelineError as problem:
        raise SettingsError([f"[land]: {problem}"]) from None
    return UpPlan(
        config=config,
        data=data,
        host=broker.host,
        port=broker.port,
        root=store.root,
        streams=added,
        stream=land.stream,
        lake=lake,
        table=land.table,
        checkpoint=checkpoint,
        interval=interval,
        lands=lands,
        log_level=broker.log_level,
        connection_messages=broker.connection_messages,
        maintenance=land.maintenance,
        by_file=frozenset() if config is None else _named_by_file(settings, config, lake),
    )


def _named_by_file(settings: Settings, config: Path, lake: str) -> frozenset[str]:
    """Of data, root, lake, stream and table those that a file gives by itself."""
    try:
        alone = load(settings.loaded, path=config, environ={}, flags={})
    except SettingsError:
        # It is whole with the environment only.
        return frozenset()
    store, land = settings.of(StoreSettings), settings.of(UpLandSettings)
    store_alone, land_alone = alone.of(StoreSettings), alone.of(UpLandSettings)
    lake_alone = land_alone.lake
    if lake_alone == LAKE and store_alone.data is None:
        lake_alone = str(Path(DATA) / LAKE_FOLDER)
    # Without a word of it, it is where the lake is.
    is_known = store_alone.data is not None or lake == str(Path(DATA) / LAKE_FOLDER)
    found = {
        "data": is_known and store_alone.data == store.data,
        "root": (land_alone.root or store_alone.root) == store.root,
        "lake": lake_alone == lake,
        "stream": land_alone.stream == land.stream,
        "table": land_alone.table == land.table,
    }
    return frozenset(name for name, is_so in found.items() if is_so)


def check_extras(plan: UpPlan) -> None:
    """Raise MissingExtra, with one sentence, if packages are not installed."""
    extras = ["broker", "spark"] if plan.lands else ["broker"]
    lacking = sorted({each for extra in extras for each in NEEDED[extra] if each in missing(extra)})
    if not lacking:
        return
    wanted = [extra for extra in extras if set(lacking) & set(EXTRAS[extra])]
    sentence = f"semel up needs {', '.join(lacking)}: pip install 'semel[{','.join(wanted)}]'"
    if wanted == ["spark"]:
        sentence += ", or leave the landing out with --no-land"
    raise MissingExtra(sentence)


# --- the parts ------------------------------------------------------------------------------------


def parts(plan: UpPlan, environ: Mapping[str, str]) -> list[Part]:
    """All of them, in the order in which they start and stop."""
    found = [broker_part(plan, environ)]
    if plan.lands:
        found.append(landing_part(plan, environ))
    return found


def broker_part(plan: UpPlan, environ: Mapping[str, str]) -> Part:
    """The broker. Nothing is recorded or landed without it."""
    command = [*_semel(plan, "broker", has_levels=True), "--data", str(plan.data)]
    command += ["--host", plan.host, "--port", str(plan.port)]
    for stream in plan.streams:
        command += ["--stream", stream]
    environment = _environment(environ)
    # We have to hear that it listens, whatever is shown.
    environment["SEMEL_BROKER_LOG_LEVEL"] = LOG_LEVELS[0]
    environment["SEMEL_BROKER_CONNECTION_MESSAGES"] = str(plan.connection_messages).lower()
    if plan.root is not None:
        environment["SEMEL_STORE_ROOT"] = plan.root
    return Part(
        BROKER,
        tuple(command),
        parse_broker_line,
        environment=environment,
        is_needed=True,
        stop_seconds=BROKER_STOP_SECONDS,
    )


def landing_part(plan: UpPlan, environ: Mapping[str, str]) -> Part:
    """The landing, and the Spark that it brings."""
    command = [*_semel(plan, "land"), "--json"]
    environment = _environment(environ)
    environment["SEMEL_LAND_ROOT"] = plan.record
    environment["SEMEL_LAND_LAKE"] = plan.lake
    if plan.checkpoint is not None:
        environment["SEMEL_LAND_CHECKPOINT"] = str(plan.checkpoint)
    if plan.interval is not None:
        environment["SEMEL_LAND_INTERVAL"] = plan.interval
    if not plan.maintenance:
        environment["SEMEL_LAND_MAINTENANCE"] = "false"
    return Part(
        LANDING,
        tuple(command),
        parse_landing_line,
        environment=environment,
        stop_seconds=LANDING_STOP_SECONDS,
    )


def _semel(plan: UpPlan, name: str, *, has_levels: bool = False) -> list[str]:
    """A command of this very semel; -P: a folder of that name where we are is not it."""
    before = ["-m", levels.MODULE] if has_levels else []
    command = [sys.executable, "-P", *before, "-m", "semel", name]
    return command if plan.config is None else [*command, "--config", str(plan.config)]


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    # Their lines are read as UTF-8, whatever the terminal has.
    own = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    return {**environment_for_python(environ), **own}


# --- what they say --------------------------------------------------------------------------------


def parse_broker_line(source: int, line: str) -> LineEvent | None:
    """A line of a broker's log."""
    level, text = levels.split(line)
    if found := _LISTENING.match(text):
        return LineEvent(READY, text, {"host": found[1], "port": int(found[2])})
    return _log_event(text, level)


def parse_landing_line(source: int, line: str) -> LineEvent | None:
    """An event of a landing, or a line of its log."""
    if source != STDOUT:
        return _log_event(_STAMP.sub("", line, count=1))
    try:
        event = json.loads(line)
    except ValueError:
        return _log_event(line)
    if not isinstance(event, dict):
        return _log_event(line)
    kind = event.pop("event", None)
    event.pop("at", None)
    if kind == "ready":
        return LineEvent(READY, "ready: landing messages", event)
    if kind == "maintenance":
        return LineEvent(LOGGED, str(event.pop("text", "")), {**event, "level": levels.WELL})
    if kind == "failed":
        return LineEvent(PROBLEM, str(event.get("problem") or "it does not say why"))
    return LineEvent(PROGRESS, str(kind), event)


def _log_event(text: str, level: str | None = None) -> LineEvent | None:
    if text.startswith(_ERROR):
        return LineEvent(PROBLEM, text.removeprefix(_ERROR))
    return LineEvent(LOGGED, text, {} if level is None else {"level": level})


# --- the account ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordExtent:
    """How far the broker's record of the stream goes."""

    node: str
    recorded: int
    sealed: int


def extent(plan: UpPlan) -> RecordExtent | None:
    """What the store says of the stream; None: nothing yet, or it cannot be read now."""
    try:
        store = StoreRows(plan.data)
    except Unusable:
        return None
    # It is closed at once: the last to close a database is to tidy it up, and that is the broker.
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


def landed(plan: UpPlan, node: str) -> int:
    """The last row of a node that is in the table; blocks. Raises PipelineError and OSError."""
    from semel.pipeline.lake_address import table_address
    from semel.pipeline.table import Table

    try:
        found = Table(table_address(plan.lake, plan.table)).positions(plan.stream, [node])
    except RootError as problem:
        raise PipelineError(str(problem)) from None
    return found.get(node, 0)


# --- what to try ----------------------------------------------------------------------------------


def as_called(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """The `semel` command as whoever started us can call it from the same folder."""
    ours = Path(sys.executable).with_name("semel")
    if Path(argv[0]).name == "semel" and (called := shutil.which(argv[0])):
        ours = Path(called).absolute()
    if not ours.exists():
        command = [sys.executable, "-m", "semel"]
        if environ.get("PYTHONPATH"):
            command = ["env", f"PYTHONPATH={environ['PYTHONPATH']}", *command]
        return shlex.join(command)
    on_path = shutil.which("semel", path=environ.get("PATH"))
    if on_path is not None and os.path.realpath(on_path) == os.path.realpath(ours):
        return "semel"
    with_folder = os.path.relpath(ours)
    return shlex.quote(str(ours) if with_folder.startswith("..") else with_folder)


def make_lake(plan: UpPlan) -> None:
    """A lake that is a folder elsewhere is there before its first table is, which is slow to come.

    Who asks it then is told that nothing has landed yet, and not that there is no such lake.
    """
    folder = local_folder(plan.lake)
    if plan.lands and folder is not None and folder != (plan.data / LAKE_FOLDER).absolute():
        # The landing says what is in the way.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)


def to_try(plan: UpPlan, program: str, *, host: str, port: int) -> list[str]:
    """Two lines that work when they are pasted into a shell in the same folder."""
    where = ""
    host = EVERY_ADDRESS.get(host, host)
    if host not in ("127.0.0.1", "localhost"):
        where += f" -h {shlex.quote(host)}"
    if port != 1883:
        where += f" -p {port}"
    publish = f"{program} pub{where} -t plant/1/temp -m 21.5 -q 2"
    if plan.lands:
        return [publish, _question(plan, program)]
    read = f"{program} stream read {plan.stream} --data {shlex.quote(str(plan.data))}"
    if plan.root is not None:
        read += f" --root {shlex.quote(without_secrets(plan.root))}"
    return [publish, read]


def _question(plan: UpPlan, program: str) -> str:
    """The question after what is recorded, with all that `semel sql` cannot know by itself.

    What the file says it takes from there, with the keys that are not shown.
    """
    words: list[str] = []
    variables: list[str] = []
    if plan.config is None:
        needs_lake = plan.lake != str(Path(DATA) / LAKE_FOLDER)
        needs_data = plan.lake != str(plan.data / LAKE_FOLDER)
        needs_root = plan.root is not None
    else:
        words += ["--config", str(plan.config)]
        needs_lake, needs_data, needs_root = (
            name not in plan.by_file for name in ("lake", "data", "root")
        )
    if needs_lake:
        words += ["--lake", without_secrets(plan.lake)]
    if needs_data:
        words += ["--data", str(plan.data)]
    if needs_root:
        words += ["--root", without_secrets(plan.record)]
    # There are no flags for these two.
    for name, value, default in (
        ("stream", plan.stream, LandSettings.stream),
        ("table", plan.table, LandSettings.table),
    ):
        if name not in plan.by_file and (value != default or plan.config is not None):
            variables.append(f"SEMEL_LAND_{name.upper()}={value}")
    before = f"{shlex.join(['env', *variables])} " if variables else ""
    places = f" {shlex.join(words)}" if words else ""
    # With the rows that are not landed yet: it has an answer before Spark is there.
    view = f"{plan.table}_now"
    if not _WORD.fullmatch(view):
        quoted = view.replace('"', '""')
        view = f'"{quoted}"'
    question = f"select topic, count(*) from {view} group by 1"
    quoted = shlex.quote(question) if _TO_A_SHELL.search(question) else f'"{question}"'
    return f"{before}{program} sql{places} {quoted}"
