"""The locations of a store, of the record of streams and of a lake, from flags and settings.

A flag takes precedence over the environment, and the environment over the file of --config.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from semel.cli.flags import CONFIG, data_option, shared_option
from semel.cli.sections import SECTIONS
from semel.pipeline.lake import no_lake
from semel.pipeline.lake_address import local_folder
from semel.pipeline.settings import LandSettings
from semel.settings import Flags, load
from semel.store.folder import STREAMS
from semel.store.settings import StoreSettings
from semel.up.plan import DATA as DATA_FOLDER
from semel.up.plan import LAKE as NO_LAKE
from semel.up.plan import LAKE_FOLDER, UpLandSettings, sections
from semel.up.sql import RecordLocation, record_beside
from semel.up.sql_connection import MEMORY

LAKE: Final = shared_option(
    "--lake",
    help="Where the tables are: a directory, or the address of an object store.  "
    f"[or SEMEL_LAND_LAKE; default: {LAKE_FOLDER} in the data folder, {LandSettings().lake}]",
)
ROOT: Final = shared_option(
    "--root",
    help="Where the segments of the landed streams are: a directory, or the address of an object "
    "store.  [or SEMEL_LAND_ROOT]",
)
DATA: Final = data_option(
    "The data folder of the broker whose messages are landed. By default the one that contains "
    "the lake.  [or SEMEL_STORE_DATA]",
)
QUERY_MEMORY: Final = click.option(
    "--memory",
    metavar="SIZE",
    default=MEMORY,
    show_default=True,
    help="Memory for the query; what does not fit is written to temporary files.",
)


# --- lakes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LakeLocation:
    """The location of a lake, and of the record that is landed in it, if known."""

    lake: str
    record: RecordLocation | None

    @property
    def exists(self) -> bool:
        """Whether the directory exists; an object store is assumed to."""
        folder = local_folder(self.lake)
        return folder is None or folder.exists()


def lake_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --config, --lake, --root and --data.

    The function receives `locate`, which returns a LakeLocation; see `locate_lake` for its errors.
    """

    @wraps(function)
    def with_location(**values: Any) -> None:
        given = [values.pop(name) for name in ("config", "lake", "root", "data")]
        function(locate=lambda: locate_lake(*given), **values)

    decorated: Callable[..., None] = with_location
    for option in (DATA, ROOT, LAKE, CONFIG):
        decorated = option(decorated)
    return decorated


def locate_lake(
    config: Path | None, lake: str | None, root: str | None, data: Path | None
) -> LakeLocation:
    """The lake and its record, from flags, environment and file.

    Before the first landing there is a record, but no lake. Still, a lake that the user names must
    exist: with a mistyped name, all rows would count as not landed. Only the lake in the data
    folder of `semel up` may be missing. Raises TableError, RootError and SettingsError.
    """
    land, store, address = _lake_settings(config, lake, root, data)
    record = record_beside(
        address,
        root=land.root or store.root,
        data=store.data,
        stream=land.stream,
        table=land.table,
    )
    location = LakeLocation(address, record)
    if land.lake == NO_LAKE or location.exists:
        return location
    folder = local_folder(address)
    assert folder is not None
    if record is None or record.data is None:
        raise no_lake(address)
    if folder.resolve() != _lake_in(record.data).resolve():
        raise no_lake(address)
    return location


def lake_address(config: Path | None, lake: str | None) -> str:
    """The address of the lake, for a command that does not need its record."""
    return _lake_settings(config, lake, None, None)[-1]


def landing_settings(
    *,
    config: Path | None,
    landing: str | None,
    lake: str | None,
    root: str | None,
    stream: str | None,
    data: Path | None,
) -> LandSettings:
    """The settings of a landing, by default with the record and lake of the data folder."""
    flags = _given(
        land={"landing": landing, "lake": lake, "root": root, "stream": stream},
        store={"data": data},
    )
    settings = load(sections(SECTIONS), path=config, environ=os.environ, flags=flags)
    land, store = settings.of(UpLandSettings), settings.of(StoreSettings)
    folder = Path(DATA_FOLDER) if store.data is None else store.data
    return replace(
        land,
        lake=str(_lake_in(folder)) if land.lake == NO_LAKE else land.lake,
        root=land.root or store.root or str(folder / STREAMS),
    )


def _lake_settings(
    config: Path | None, lake: str | None, root: str | None, data: Path | None
) -> tuple[LandSettings, StoreSettings, str]:
    """The settings, and the address of the lake, by default in the data folder."""
    flags = _given(land={"lake": lake, "root": root}, store={"data": data})
    settings = load(sections(SECTIONS), path=config, environ=os.environ, flags=flags)
    land, store = settings.of(UpLandSettings), settings.of(StoreSettings)
    if land.lake != NO_LAKE:
        return land, store, land.lake
    return land, store, str(_lake_in(Path(DATA_FOLDER) if store.data is None else store.data))


def _lake_in(data: Path) -> Path:
    return data / LAKE_FOLDER


def _given(**flags: dict[str, object]) -> Flags:
    """The flags that are on the command line, as `load` expects them."""
    return {
        section: {key: str(value) for key, value in keys.items() if value is not None}
        for section, keys in flags.items()
    }


# --- records and stores ---------------------------------------------------------------------------


def record_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add --config, --data and --root. The function receives `data` and `root` of the settings."""

    @wraps(function)
    def with_record(
        *, config: Path | None, data: Path | None, root: str | None, **values: Any
    ) -> None:
        flags = _given(store={"data": data, "root": root})
        settings = load(SECTIONS, path=config, environ=os.environ, flags=flags)
        store = settings.of(StoreSettings)
        function(data=store.data, root=store.root, **values)

    decorated: Callable[..., None] = with_record
    for option in (
        shared_option(
            "--root",
            help="Where the segments are: a directory, or the address of an object store. By "
            "default the directory streams in the data folder.  [or SEMEL_STORE_ROOT]",
        ),
        data_option("The data folder of a broker, which may be running.  [or SEMEL_STORE_DATA]"),
        CONFIG,
    ):
        decorated = option(decorated)
    return decorated


def store_folder(function: Callable[..., None]) -> Callable[..., None]:
    """Add DIR, --data and --config. The function receives the data folder as `folder`."""

    @wraps(function)
    def with_folder(
        *, folder: Path | None, config: Path | None, data: Path | None, **values: Any
    ) -> None:
        if "target" in values and values["target"] is None:
            # `semel store backup TARGET`: the only argument is the last one.
            values["target"], folder = folder, None
        if folder is not None and data is not None:
            raise click.UsageError("give one of DIR and --data")
        if folder is None:
            flags = _given(store={"data": data})
            settings = load(SECTIONS, path=config, environ=os.environ, flags=flags)
            folder = settings.of(StoreSettings).data
        if folder is None:
            raise click.UsageError(
                "no data folder is given: use DIR or --data DIR (semel up uses semel-data)"
            )
        function(folder=folder, **values)

    decorated: Callable[..., None] = with_folder
    for option in (
        data_option("The data folder, as DIR.  [or SEMEL_STORE_DATA]"),
        CONFIG,
        click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path)),
    ):
        decorated = option(decorated)
    return decorated
