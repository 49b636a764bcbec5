"""The options and columns of `write.format("mqtt")`, checked before a query starts.

The options of a connection are those of a live broker (`live_options`), with the same names, values
and checks. Option values are strings, and option names are case-insensitive, as everywhere in
Spark.
"""

import hashlib
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.client.address import Address
from semel.client.connection_settings import CONNECTION_KEYS, VERSIONS
from semel.client.ingest_plan import Credentials, broker_address, credentials, tls_context
from semel.client.ingest_settings import IngestSettings
from semel.client.outbox import make_client_id
from semel.extras import MissingExtra
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.connect import Connect
from semel.mqtt.violation import Violation
from semel.pipeline.errors import OptionError, TableError
from semel.pipeline.lake_address import checkpoint_folder, split_address
from semel.pipeline.live_options import OPTIONS as LIVE_OPTIONS
from semel.pipeline.sink_options import SPARKS
from semel.pipeline.source_columns import COLUMNS
from semel.pipeline.source_options import near
from semel.settings import SECONDS, SettingProblem, SettingsError
from semel.settings_values import Setting, Value, read_text, unfit

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A week, as for any client with an outbox.
SESSION_EXPIRY: Final = 7 * 86_400
# For a write that is not remembered: long enough to reconnect.
BRIEF_EXPIRY: Final = 300
# The default of option timeout, in seconds.
TIMEOUT: Final = 60.0
# The folder of the state in the checkpoint of a query.
STATE_FOLDER: Final = "publish"
# The file of a checkpoint with its ID.
CHECKPOINT_METADATA: Final = "metadata"

REQUIRED_COLUMNS: Final = ("topic", "payload")
# Columns that need MQTT 5.0.
COLUMNS_5: Final = (
    "payload_format",
    "content_type",
    "response_topic",
    "correlation_data",
    "message_expiry",
    "user_properties",
)
PUBLISH_COLUMNS: Final = {
    name: COLUMNS[name] for name in (*REQUIRED_COLUMNS, "qos", "retain", *COLUMNS_5)
}


def _option(key: str, kind: type, default: Value, about: str, **more: Any) -> Setting:
    return Setting("publish", key, kind, default is None, default, about, **more)


OWN_OPTIONS: Final = {
    "maxRate": _option("maxRate", float, None, "Messages per second, at most.", minimum=0.001),
    "state": _option("state", str, None, "The local folder of the outbox."),
    "failures": _option("failures", str, None, "The table of rows that can never be sent."),
    "timeout": _option(
        "timeout",
        float,
        TIMEOUT,
        "How long a batch waits for a broker that cannot be reached.",
        minimum=0.1,
        unit=SECONDS,
    ),
    "batch": _option("batch", str, None, "A unique name of this write, such as a date."),
    "appId": _option("appId", str, None, "Identifies the query, instead of its checkpoint."),
    "checkpointLocation": _option("checkpointLocation", str, None, "The checkpoint of the query."),
}
# Settings of an ingest that are options here: those of the connection, and the default QoS.
_SHARED: Final = ("url", "qos", "keep_alive", "session_expiry", *CONNECTION_KEYS)
PUBLISH_OPTIONS: Final[Mapping[str, Setting]] = {
    **{name: each for name, each in LIVE_OPTIONS.items() if each.key in _SHARED},
    **OWN_OPTIONS,
}
_NAMES: Final = {name.lower(): name for name in PUBLISH_OPTIONS}
_BY_SETTING: Final = {each.key: name for name, each in PUBLISH_OPTIONS.items()}
# Options that other writers have, or that are columns here.
_ELSEWHERE: Final = {
    "topic": "the topic of each message is column topic",
    "topics": "the topic of each message is column topic",
    "retain": "whether a message is retained is column retain",
    "brokerurl": "did you mean url?",
    "host": "did you mean url?",
    "path": "a broker has no path: give its address with option url",
    "root": "a broker has no root: give its address with option url",
    "rate": "did you mean maxRate?",
}


@dataclass(frozen=True)
class ChunkLimits:
    """The size of a chunk: the rows that are put into the outbox in one transaction."""

    rows: int = 4_000
    bytes: int = 4 * 1024 * 1024


CHUNKS: Final = ChunkLimits()


@dataclass(frozen=True)
class PublishOptions:
    """Checked options of a writer. It is sent to tasks and to the process of the commit."""

    # The settings of the connection as values; a password may be among them.
    connection: Mapping[str, Any] = field(repr=False)
    qos: int
    max_rate: float | None
    timeout: float
    state: Path
    # Whether the state is deleted after the write: nothing is remembered of it.
    is_temporary: bool
    failures: str | None = field(repr=False)
    # The name of a batch write; None for a stream.
    batch: str | None
    app_id: str | None
    # The checkpoint of a stream, if it is a local folder.
    checkpoint: Path | None
    # Whether the state remembers that a batch was sent.
    is_named: bool = True
    chunks: ChunkLimits = CHUNKS
    # Seconds between two lines about the progress of a long batch.
    progress_seconds: float = 10.0

    @property
    def settings(self) -> IngestSettings:
        """The settings of the connection."""
        return IngestSettings(**self.connection)

    @property
    def version(self) -> int:
        """The version of MQTT."""
        return VERSIONS[self.settings.mqtt_version or "5"]

    @property
    def task_folder(self) -> Path:
        """The folder for the rows of this query's tasks."""
        name = f"{self.app_id}\0{self.checkpoint}\0{self.batch}"
        return self.state / "tasks" / hashlib.sha256(name.encode()).hexdigest()[:16]

    def query(self) -> str:
        """The identity of the query: option appId, or the ID of its checkpoint."""
        if self.batch is not None:
            return f"batch {self.batch}"
        if self.app_id is not None:
            return self.app_id
        assert self.checkpoint is not None
        try:
            text = (self.checkpoint / CHECKPOINT_METADATA).read_text("utf-8")
            return str(json.loads(text)["id"])
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise OptionError(
                f"checkpointLocation: the ID in {self.checkpoint} cannot be read: {problem}; give"
                " option appId with a unique name"
            ) from None

    def new_client_id(self) -> str:
        """The client identifier for a new outbox."""
        if self.connection.get("client_id"):
            return str(self.connection["client_id"])
        if self.batch is not None:
            return make_client_id()
        # [MQTT-3.1.3-5] at most 23 letters and digits
        return f"semel{hashlib.sha256(self.query().encode()).hexdigest()[:18]}"


@dataclass(frozen=True)
class BrokerAccess:
    """The broker, and how to connect to it. It has secrets and stays in one process."""

    address: Address
    tls: ssl.SSLContext | None
    user: Credentials


# --- options --------------------------------------------------------------------------------------


def parse_publish_options(given: Mapping[str, str], *, is_stream: bool) -> PublishOptions:
    """Parse the options of a writer. Raises OptionError; reads certificates and password files."""
    values = _values(given)
    connection = {
        PUBLISH_OPTIONS[name].key: value
        for name, value in values.items()
        if name not in OWN_OPTIONS
    }
    failures = values.get("failures")
    if failures is not None:
        try:
            split_address(failures)
        except TableError as problem:
            raise OptionError(f"option failures: {problem}") from None
    options = PublishOptions(
        connection=connection,
        qos=values.get("qos", 2),
        max_rate=values.get("maxRate"),
        timeout=values.get("timeout", TIMEOUT),
        state=Path(),
        is_temporary=False,
        failures=failures,
        batch=values.get("batch"),
        app_id=values.get("appId"),
        checkpoint=None,
    )
    options = _of_stream(options, values) if is_stream else _of_batch(options, values)
    connection.setdefault(
        "session_expiry", BRIEF_EXPIRY if options.is_temporary else SESSION_EXPIRY
    )
    broker_access(options)
    return options


def _values(given: Mapping[str, str]) -> dict[str, Any]:
    """The values by the names of their options. Raises OptionError."""
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in SPARKS:
            continue
        known = _NAMES.get(name.lower())
        if known is None:
            raise OptionError(f"writing to mqtt has no option {name}: {_hint(name)}")
        declared = PUBLISH_OPTIONS[known]
        try:
            value = read_text(declared, text)
        except ValueError:
            raise OptionError(unfit("option", replace(declared, key=known), text)) from None
        if value is not None:
            values[known] = value
    return values


def _hint(name: str) -> str:
    if name.lower() in _ELSEWHERE:
        return _ELSEWHERE[name.lower()]
    meant = near(name, _NAMES)
    return f"did you mean {meant}?" if meant else f"the options are {', '.join(PUBLISH_OPTIONS)}"


def _of_stream(options: PublishOptions, values: Mapping[str, Any]) -> PublishOptions:
    if options.batch is not None:
        raise OptionError("option batch is for write: the batches of writeStream have numbers")
    location = values.get("checkpointLocation")
    folder = None if location is None else checkpoint_folder(location)
    if folder is None and (options.app_id is None or "state" not in values):
        found = (
            f"checkpointLocation {location} is not a local folder"
            if location
            else "option checkpointLocation is not given on the query itself"
        )
        raise OptionError(
            f"{found}: give a local folder, or option appId with a unique name and option state"
            " with a local folder"
        )
    checkpoint = None if folder is None else folder.absolute()
    state = _folder(values["state"]) if "state" in values else None
    if state is None:
        assert checkpoint is not None
        state = checkpoint / STATE_FOLDER
    return replace(options, checkpoint=checkpoint, state=state)


def _of_batch(options: PublishOptions, values: Mapping[str, Any]) -> PublishOptions:
    for name in ("appId", "checkpointLocation"):
        if name in values:
            raise OptionError(f"option {name} is for writeStream: name a write with option batch")
    run = os.urandom(8).hex()
    if "state" in values:
        # Without a name, no other write is the same as this one.
        return replace(
            options,
            state=_folder(values["state"]),
            batch=f"write {run}" if options.batch is None else options.batch,
            is_named=options.batch is not None,
        )
    if options.batch is not None:
        raise OptionError(
            "option batch needs option state: a local folder that remembers which batches were sent"
        )
    temporary = Path(tempfile.gettempdir()) / f"semel-publish-{run}"
    return replace(options, state=temporary, batch=f"write {run}", is_temporary=True)


def _folder(text: str) -> Path:
    folder = checkpoint_folder(text)
    if folder is None:
        raise OptionError(f"option state: {text} is not a local folder")
    return folder.absolute()


def broker_access(options: PublishOptions) -> BrokerAccess:
    """The broker of a writer. Raises OptionError with every problem."""
    problems: list[str] = []
    try:
        settings = options.settings
    except SettingsError as problem:
        raise OptionError("; ".join(_with_option(each) for each in problem.problems)) from None
    address = broker_address(settings, problems)
    try:
        tls = None if address is None else tls_context(settings, address, problems)
    except MissingExtra as problem:
        raise OptionError(str(problem)) from None
    user = credentials(settings, address, problems)
    if problems:
        raise OptionError("; ".join(_with_option(each) for each in problems))
    assert address is not None
    if settings.client_id is not None:
        try:
            Connect(settings.client_id, version=options.version)
        except Violation as violation:
            raise OptionError(f"option clientId: {violation}") from None
    return BrokerAccess(address, tls, user)


def _with_option(problem: str) -> str:
    """A problem with a setting as a sentence that names the option."""
    if not isinstance(problem, SettingProblem) or problem.setting not in _BY_SETTING:
        return problem
    return f"option {_BY_SETTING[problem.setting]}{problem.rest}"


# --- columns --------------------------------------------------------------------------------------


def check_publish_columns(schema: "StructType", options: PublishOptions) -> None:
    """Raise OptionError for columns that a message does not have, or of another type."""
    names = [column.name for column in schema.fields]
    for column in schema.fields:
        wanted = PUBLISH_COLUMNS.get(column.name)
        if wanted is None:
            meant = near(column.name, {name: name for name in PUBLISH_COLUMNS})
            hint = (
                f"did you mean {meant}?"
                if meant
                else f"select only columns among {', '.join(PUBLISH_COLUMNS)}"
            )
            raise OptionError(f"a message has no column {column.name}: {hint}")
        found = column.dataType.simpleString()
        allowed = (wanted, "string") if column.name == "payload" else (wanted,)
        if found not in allowed:
            raise OptionError(
                f"column {column.name} must be {' or '.join(allowed)}, not {found}:"
                f" cast({column.name} as {wanted})"
            )
        if names.count(column.name) > 1:
            raise OptionError(f"column {column.name} is there twice")
        if column.name in COLUMNS_5 and options.version != MQTT5:
            raise OptionError(
                f"column {column.name} needs MQTT 5.0: leave the column out, or option mqttVersion"
            )
    for name in REQUIRED_COLUMNS:
        if name not in names:
            raise OptionError(f"column {name} is missing: a message needs topic and payload")
