"""The plan of `semel up`, made from the settings: what to run, and where to keep the data.

<data>/store.db …         the broker's store          <data>/streams   the record
<data>/lake/<table>       the Delta tables
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from semel.broker.network.listener_settings import ListenerSettings, choose_listeners
from semel.broker.settings import BrokerSettings
from semel.extras import EXTRAS, MissingExtra, missing
from semel.pipeline.errors import PipelineError
from semel.pipeline.lake_address import check_table_name, local_folder
from semel.pipeline.landing_file import read_landing_file
from semel.pipeline.landing_plan import LANDING_FILE, landing_table
from semel.pipeline.settings import LandSettings
from semel.settings import Section, Settings, SettingsError, load, setting
from semel.store.folder import STREAMS
from semel.store.landing_notes import declare_landing
from semel.store.roots import RootError, open_root, without_secrets
from semel.store.settings import StoreSettings, StreamSettings, check_streams

DATA: Final = "semel-data"
# The default of [land] lake, as users see it.
LAKE: Final = "<data>/lake"
LAKE_FOLDER: Final = "lake"
# The topic filter of all messages, and the stream that is added for them.
EVERY_TOPIC: Final = "#"
EVERY_MESSAGE: Final = "all"

REQUIRED_PACKAGES: Final = {
    "broker": ("pyarrow",),
    "spark": ("deltalake", "pyarrow", "pyspark"),
}


@dataclass(frozen=True)
class UpLandSettings(LandSettings):
    """The landing's settings, with a lake in the data folder by default."""

    lake: str = setting(LAKE, "Where the tables are: a folder, or an object store.")


@dataclass(frozen=True)
class UpBrokerSettings(BrokerSettings):
    """The broker's settings, with connection messages off by default."""

    connection_messages: bool = setting(
        False, "Whether a line is logged for each client that connects and disconnects."
    )


@dataclass(frozen=True)
class UpPlan:
    """The settings of the parts, checked."""

    config: Path | None
    data: Path
    host: str
    port: int
    # The location of the segments; None: in the data folder.
    root: str | None
    # Streams to record besides those of the file, as NAME=FILTER.
    streams: tuple[str, ...]
    # The stream to land, its table, and the landing file with the tables that it has instead.
    stream: str
    lake: str
    table: str
    checkpoint: Path | None
    interval: str | None
    lands: bool
    # The lowest level of the broker's log that is shown.
    log_level: str = "info"
    # Whether the broker listens as the [[listener]] sections of the file say, and not at host and
    # port; whether it admits anonymous clients there.
    has_listeners: bool = False
    anonymous: bool | None = None
    connection_messages: bool = False
    # Whether the landing maintains its tables.
    maintenance: bool = True
    landing: Path | None = None
    # The tables that are landed.
    tables: tuple[str, ...] = ()
    # Whether the page is served, and where, if flags say so.
    serves_page: bool = False
    web_port: str | None = None
    # Those of data, root, lake, stream and table that have the same value if only the file is
    # read: a suggested command with --config does not need flags for them.
    by_file: frozenset[str] = frozenset()

    @property
    def record(self) -> str:
        """The location of the segments."""
        return str(self.data / STREAMS) if self.root is None else self.root

    @property
    def locations(self) -> dict[str, str]:
        """The locations of the data by name, without the secrets in addresses."""
        found = {"data": str(self.data), "record": without_secrets(self.record)}
        if self.lands:
            found["lake"] = without_secrets(self.lake)
        return found


def sections(known: Sequence[type[Section]]) -> tuple[type[Section], ...]:
    """These sections, with the defaults of `semel up`."""
    ours = (UpBrokerSettings, UpLandSettings)
    names = [each.section for each in ours]
    return (*(each for each in known if each.section not in names), *ours)


def make_plan(
    settings: Settings,
    *,
    config: Path | None,
    lands: bool,
    interval: str | None,
    serves_page: bool = False,
    web_port: str | None = None,
) -> UpPlan:
    """Make the plan from settings of `sections`. Raises SettingsError."""
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
        if streams and land.stream != EVERY_MESSAGE:
            raise SettingsError(
                [f"[land] stream is {land.stream}, and no [[stream]] has that name: add one"]
            )
        added = (f"{land.stream}={EVERY_TOPIC}",)
    choose_listeners(settings, broker)
    lake = str(data / LAKE_FOLDER) if land.lake == LAKE else land.lake
    checkpoint = land.checkpoint
    tables: tuple[str, ...] = (land.table,)
    try:
        if land.landing is None:
            check_table_name(land.table)
        elif lands:
            tables = tuple(each.name for each in read_landing_file(land.landing).tables)
        if local_folder(lake) is None and checkpoint is None:
            name = land.table if land.landing is None else f"{LANDING_FILE}-{land.stream}"
            checkpoint = data / "checkpoints" / name
    except PipelineError as problem:
        raise SettingsError([f"[land]: {problem}"]) from None
    if land.metrics_port and land.metrics_port == broker.metrics_port:
        # Even with another host: 0.0.0.0 includes all others.
        raise SettingsError(
            [
                f"[land] metrics_port is {land.metrics_port}, as [broker] metrics_port is: broker"
                " and landing are two processes, so choose another port for one of them"
            ]
        )
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
        has_listeners=bool(settings.all_of(ListenerSettings)),
        anonymous=broker.anonymous,
        connection_messages=broker.connection_messages,
        maintenance=land.maintenance,
        landing=land.landing,
        tables=tables,
        serves_page=serves_page,
        web_port=web_port,
        by_file=frozenset() if config is None else _given_by_file(settings, config, lake),
    )


def _given_by_file(settings: Settings, config: Path, lake: str) -> frozenset[str]:
    """Those of data, root, lake, stream and table that have this value if only the file is read."""
    try:
        alone = load(settings.loaded, path=config, environ={}, flags={})
    except SettingsError:
        # The file is valid only together with the environment.
        return frozenset()
    store, land = settings.of(StoreSettings), settings.of(UpLandSettings)
    store_alone, land_alone = alone.of(StoreSettings), alone.of(UpLandSettings)
    lake_alone = land_alone.lake
    if lake_alone == LAKE and store_alone.data is None:
        lake_alone = str(Path(DATA) / LAKE_FOLDER)
    # Without [store] data, a command searches for the data folder around the lake.
    has_data = store_alone.data is not None or lake == str(Path(DATA) / LAKE_FOLDER)
    found = {
        "data": has_data and store_alone.data == store.data,
        "root": (land_alone.root or store_alone.root) == store.root,
        "lake": lake_alone == lake,
        "stream": land_alone.stream == land.stream,
        "table": land_alone.table == land.table,
    }
    return frozenset(name for name, is_given in found.items() if is_given)


def check_extras(plan: UpPlan) -> None:
    """Raise MissingExtra, with one sentence, if a required package is not installed."""
    extras = ["broker", "spark"] if plan.lands else ["broker"]
    absent = sorted(
        {each for extra in extras for each in REQUIRED_PACKAGES[extra] if each in missing(extra)}
    )
    if not absent:
        return
    to_install = [extra for extra in extras if set(absent) & set(EXTRAS[extra])]
    sentence = f"semel up needs {', '.join(absent)}: pip install 'semel[{','.join(to_install)}]'"
    if to_install == ["spark"]:
        sentence += ", or leave the landing out with --no-land"
    raise MissingExtra(sentence)


def note_landing(plan: UpPlan) -> None:
    """Write landing notes under the root, so that retention keeps rows that have not landed.

    Blocks. A failure is ignored: the landing writes the note too when it starts, and reports
    problems.
    """
    at = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError, RootError, PipelineError, MissingExtra):
        for name in plan.tables:
            table = without_secrets(landing_table(plan.lake, name))
            declare_landing(open_root(plan.record), plan.stream, table, at=at)


def create_lake_folder(plan: UpPlan) -> None:
    """Create the folder of a lake outside of the data folder before its first table exists.

    So queries report "nothing has landed yet" rather than a missing lake.
    """
    folder = local_folder(plan.lake)
    if plan.lands and folder is not None and folder != (plan.data / LAKE_FOLDER).absolute():
        # If this fails, the landing reports why.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
