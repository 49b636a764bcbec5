"""Converts a configuration of Mosquitto into a semel.toml."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from semel.broker.network.listener_settings import ListenerSettings
from semel.broker.settings import EACH, KIB, ONCE, BrokerSettings
from semel.cli.conversion import (
    CHANGED,
    CONVERTED,
    NO_EQUIVALENT,
    NOT_NEEDED,
    Conversion,
    TableDraft,
)
from semel.cli.mosquitto_bridges import convert_bridges
from semel.cli.mosquitto_config import (
    EXPIRATION,
    GLOBAL,
    SCOPES,
    Directive,
    MosquittoConfig,
)
from semel.cli.mosquitto_listeners import DEFAULT_REMARK, OVERRIDDEN, convert_listeners
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.wire import MAXIMUM_TWO_BYTES
from semel.settings import Section, settings_of
from semel.settings_values import written
from semel.store.settings import StoreSettings

# The store in the folder of Mosquitto's database, and the one if Mosquitto has no folder.
STORE_NAME: Final = "semel"
STORE_FOLDER: Final = "semel-data"
# What may be around a payload: a topic, and as many bytes of properties.
AROUND_PAYLOAD: Final = 2 * MAXIMUM_TWO_BYTES
HOUR: Final = 3600
EXPIRATION_UNITS: Final[Mapping[str, int]] = {
    "h": HOUR,
    "d": 24 * HOUR,
    "w": 7 * 24 * HOUR,
    "m": 30 * 24 * HOUR,
    "y": 365 * 24 * HOUR,
}
# Numbers of Mosquitto, of which 0 sets no limit, and keys of [broker].
LIMITS: Final[Mapping[str, tuple[str, ...]]] = {
    "max_inflight_bytes": ("maximum_inflight_bytes",),
    "max_inflight_messages": ("inflight_window", "maximum_inflight_messages", "receive_maximum"),
    "max_packet_size": ("maximum_packet_size",),
    "max_queued_bytes": ("maximum_queued_bytes",),
    "max_queued_messages": ("maximum_queued_messages",),
    "memory_limit": ("maximum_memory",),
}
# The types of messages that Mosquitto logs, by level of semel; the first level with one counts.
LOG_TYPES: Final[Mapping[str, frozenset[str]]] = {
    "info": frozenset(
        {
            *("all", "debug", "information", "internal", "notice", "subscribe", "unsubscribe"),
            "websockets",
        }
    ),
    "warning": frozenset({"warning"}),
    "error": frozenset({"error", "none"}),
}
DETAILED_TYPES: Final = frozenset(
    {"all", "debug", "internal", "subscribe", "unsubscribe", "websockets"}
)

NEVER_NEEDED: Final = {
    "autosave_interval": "semel writes to disk before it acknowledges",
    "autosave_on_changes": "semel writes to disk before it acknowledges",
    "include_dir": "its files are converted, too",
    "log_timestamp": "each line of the log has its time",
    "packet_buffer_size": "semel has no such buffer",
    "per_listener_settings": "it says how the other directives are read",
    "persistence_file": "the store has its own file names",
    "pid_file": "a service manager such as systemd knows the process",
    "retry_interval": "messages are sent again when a client reconnects, as MQTT requires",
    "set_tcp_nodelay": "semel always sets TCP_NODELAY",
    "store_clean_interval": "the store has no unused messages",
    "user": "start semel as the user that it should have: User= in systemd",
}
WITHOUT_EQUIVALENT: Final = {
    "bridge_session_expiry": "set session_expiry in each [[bridge]]",
    "check_retain_source": "rights are checked when a retained message is delivered",
    "clientid_prefixes": "semel does not restrict client identifiers: use users and rights",
    "enable_control_api": "semel is controlled by `semel ctl`",
    "global_max_clients": "set [broker] maximum_sessions",
    "log_facility": "semel does not log to syslog: systemd forwards standard error to its journal",
    "log_timestamp_format": "the format of the time is fixed; --json prints it as a number",
    "retain_expiry_interval": "retained messages expire only if their publisher says so",
    "websockets_log_level": "set [broker] log_level",
}
# Booleans that semel has in one way only: that way, and what to do if the other one is wanted.
FIXED: Final[Mapping[str, tuple[bool, str]]] = {
    "queue_qos0_messages": (False, "QoS 0 messages are not queued: publish them at QoS 1"),
    "retain_available": (True, "deny retained messages by rules in a rights file"),
    "upgrade_outgoing_qos": (
        False,
        "a message is delivered at the lower QoS of publisher and subscription",
    ),
}


def convert(config: MosquittoConfig) -> Conversion:
    """The conversion of a configuration. Each directive has an outcome."""
    conversion = Conversion(config.path)
    broker = TableDraft(BrokerSettings)
    conversion.tables.append(broker)
    _convert_general(config, conversion, broker)
    listeners = convert_listeners(config, conversion, broker=broker)
    store = _convert_persistence(config, conversion)
    convert_bridges(config, conversion, listeners=listeners, data=store)
    _note_rest(config, conversion)
    conversion.defaults += _different_defaults(broker)
    conversion.tables = [each for each in conversion.tables if each.values]
    return conversion


# --- [broker] -------------------------------------------------------------------------------------


def _convert_general(config: MosquittoConfig, conversion: Conversion, table: TableDraft) -> None:
    general = config.general
    for keyword, keys in LIMITS.items():
        directive = general.last(keyword)
        if directive is not None:
            _convert_limit(conversion, table, directive, keys=keys)
    _convert_message_size(config, conversion, table)
    for keyword, key in (
        ("sys_interval", "sys_interval"),
        ("max_keepalive", "maximum_keep_alive"),
    ):
        directive = general.last(keyword)
        if directive is not None:
            conversion.number(table, key, directive, directive.number)
    connections = general.last("global_max_connections")
    if connections is not None and connections.number > 0:
        conversion.number(table, "maximum_connections", connections, connections.number)
    elif connections is not None:
        conversion.note(connections, CHANGED, "semel always limits the number of connections")
    messages = general.last("connection_messages")
    if messages is not None:
        table.set("connection_messages", messages.is_true, messages.place)
        conversion.note(messages, CONVERTED)
    _convert_duplicates(general.last("allow_duplicate_messages"), conversion, table)
    _convert_expiration(general.last("persistent_client_expiration"), conversion, table)
    _convert_log(config, conversion, table)
    for keyword, (value, sentence) in FIXED.items():
        for directive in general.all_of(keyword):
            if directive.is_true is value:
                conversion.note(directive, NOT_NEEDED, "semel does it this way")
            else:
                conversion.note(directive, NO_EQUIVALENT, sentence)


def _convert_limit(
    conversion: Conversion, table: TableDraft, directive: Directive, *, keys: tuple[str, ...]
) -> None:
    """Set the keys to a limit of Mosquitto, of which 0 means none."""
    if directive.number > 0:
        for key in keys:
            conversion.number(table, key, directive, directive.number)
        return
    if directive.keyword == "max_inflight_messages":
        for key in keys:
            conversion.number(table, key, directive, MAXIMUM_TWO_BYTES)
        return
    conversion.note(
        directive, CHANGED, f"semel always has a limit: {keys[0]} keeps its default, or raise it"
    )


def _convert_message_size(
    config: MosquittoConfig, conversion: Conversion, table: TableDraft
) -> None:
    """message_size_limit is about payloads, and the limit of semel about packets."""
    directive = config.general.last("message_size_limit")
    if directive is None:
        return
    if directive.number == 0:
        conversion.note(
            directive, CHANGED, "semel always has a limit: raise maximum_packet_size if needed"
        )
        return
    size = -(-(directive.number + AROUND_PAYLOAD) // KIB) * KIB
    given = table.values.get("maximum_packet_size")
    if isinstance(given, int) and given <= size:
        conversion.note(directive, CHANGED, "max_packet_size is the stricter limit")
        return
    conversion.number(table, "maximum_packet_size", directive, size)
    conversion.note(
        directive,
        CHANGED,
        "maximum_packet_size counts the topic and the properties, too, and a client that exceeds "
        "it is disconnected",
    )


def _convert_duplicates(
    directive: Directive | None, conversion: Conversion, table: TableDraft
) -> None:
    if directive is None:
        table.set("overlapping", EACH, DEFAULT_REMARK)
        return
    table.set("overlapping", EACH if directive.is_true else ONCE, directive.place)
    conversion.note(directive, CONVERTED)


def _convert_expiration(
    directive: Directive | None, conversion: Conversion, table: TableDraft
) -> None:
    if directive is None:
        table.set("maximum_session_expiry", NEVER_EXPIRES, f"forever, {DEFAULT_REMARK}")
        return
    found = EXPIRATION.fullmatch(directive.value)
    assert found is not None
    seconds = int(found[1]) * EXPIRATION_UNITS[found[2]]
    conversion.number(table, "maximum_session_expiry", directive, seconds)


def _convert_log(config: MosquittoConfig, conversion: Conversion, table: TableDraft) -> None:
    types = config.general.all_of("log_type")
    if types:
        given = {each.value for each in types}
        level = next(level for level, names in LOG_TYPES.items() if names & given)
        table.set("log_level", level, types[-1].place)
    for each in types:
        if each.value in DETAILED_TYPES:
            conversion.note(each, CHANGED, "semel logs nothing below level info")
        elif each.value == "none":
            conversion.note(each, CHANGED, "semel always logs its own failures")
        else:
            conversion.note(each, CONVERTED)
    for each in config.general.all_of("log_dest"):
        destination = each.value.split(" ")[0]
        if destination in ("stdout", "stderr"):
            conversion.note(each, NOT_NEEDED, "semel logs to standard error")
        elif destination == "none":
            conversion.note(each, NO_EQUIVALENT, "send standard error to /dev/null")
        else:
            conversion.note(
                each,
                NO_EQUIVALENT,
                "semel logs to standard error: systemd keeps it in the journal, or redirect it",
            )


# --- [store] --------------------------------------------------------------------------------------


def _convert_persistence(config: MosquittoConfig, conversion: Conversion) -> Path | None:
    """Add the store, if Mosquitto keeps anything. Returns its folder."""
    persistence = config.general.last("persistence")
    location = config.general.last("persistence_location")
    if persistence is None or not persistence.is_true:
        if persistence is not None:
            conversion.note(persistence, NOT_NEEDED, "without [store] data nothing is kept")
        if location is not None:
            conversion.note(location, NOT_NEEDED, "persistence is not true")
        return None
    data = Path(STORE_FOLDER) if location is None else Path(location.value, STORE_NAME)
    table = TableDraft(StoreSettings)
    table.set("data", data, (location or persistence).place)
    conversion.tables.append(table)
    conversion.note(
        persistence,
        CHANGED,
        "semel begins with an empty store and writes before it acknowledges; it does not read "
        "mosquitto.db, so retained messages must be published again",
    )
    if location is not None:
        conversion.note(location, CONVERTED)
    return data


# --- the rest -------------------------------------------------------------------------------------


def _note_rest(config: MosquittoConfig, conversion: Conversion) -> None:
    """Note what became of the other global directives. A repeated one: the last counts."""
    for directive in config.directives:
        keyword = directive.keyword
        if directive in conversion.outcomes:
            continue
        if SCOPES.get(keyword) == GLOBAL and keyword in NEVER_NEEDED:
            conversion.note(directive, NOT_NEEDED, NEVER_NEEDED[keyword])
        elif SCOPES.get(keyword) == GLOBAL and keyword in WITHOUT_EQUIVALENT:
            conversion.note(directive, NO_EQUIVALENT, WITHOUT_EQUIVALENT[keyword])
        else:
            conversion.note(directive, NOT_NEEDED, OVERRIDDEN)


def _different_defaults(broker: TableDraft) -> list[str]:
    """Sentences about limits that Mosquitto does not have by default."""

    def default(section: type[Section], key: str) -> str:
        declared = settings_of(section)[key]
        return written(declared, declared.default)

    sentences = []
    if "maximum_packet_size" not in broker.values:
        size = default(BrokerSettings, "maximum_packet_size")
        sentences.append(
            f"A packet of a client has at most {size}, where Mosquitto sets no limit: see "
            "maximum_packet_size."
        )
    if "maximum_connections" not in broker.values:
        most = default(BrokerSettings, "maximum_connections")
        sentences.append(
            f"At most {most} clients are connected, where Mosquitto sets no limit: see "
            "maximum_connections."
        )
    path = default(ListenerSettings, "ws_path")
    sentences.append(
        "A session belongs to its user: see bind_client_ids of [users]. A WebSocket has the path "
        f"{path}: see ws_path."
    )
    return sentences
