"""Reads mosquitto.conf: directives with their place, and the listeners and bridges they belong to.

As in Mosquitto 2, a directive is global, or belongs to the `listener` or `connection` before it.
What comes before the first `listener` is about a default listener, which exists only if one of
these directives says so. With `per_listener_settings true`, directives about access belong to a
listener, too. `include_dir` is replaced by the files of the directory.

Numbers are stricter than in Mosquitto, which reads `12abc` as 12.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from semel.mqtt.topics import quoted

# The scope of a directive. ACCESS: of a listener with per_listener_settings, otherwise global.
GLOBAL: Final = "global"
ACCESS: Final = "access"
LISTENER: Final = "listener"
BRIDGE: Final = "bridge"

# What follows a directive. A pair of numbers is a number between these bounds.
TEXT: Final = "text"
BOOLEAN: Final = "boolean"
MOST: Final = 2**63 - 1
PORT: Final = (1, 65_535)
COUNT: Final = (0, MOST)
TWO_BYTES: Final = (0, 65_535)
Kind = str | tuple[int, int]

# The directives of Mosquitto 2.0 and 2.1 by scope, with what follows them.
DIRECTIVES: Final[Mapping[str, Mapping[str, Kind]]] = {
    GLOBAL: {
        "allow_duplicate_messages": BOOLEAN,
        "autosave_interval": COUNT,
        "autosave_on_changes": BOOLEAN,
        "bridge_session_expiry": COUNT,
        "check_retain_source": BOOLEAN,
        "clientid_prefixes": TEXT,
        "connection_messages": BOOLEAN,
        "enable_control_api": BOOLEAN,
        "global_max_clients": (-1, MOST),
        "global_max_connections": (-1, MOST),
        "include_dir": TEXT,
        "log_dest": TEXT,
        "log_facility": TEXT,
        "log_timestamp": BOOLEAN,
        "log_timestamp_format": TEXT,
        "log_type": TEXT,
        "max_inflight_bytes": COUNT,
        "max_inflight_messages": TWO_BYTES,
        "max_keepalive": TWO_BYTES,
        "max_packet_size": COUNT,
        "max_queued_bytes": COUNT,
        "max_queued_messages": COUNT,
        "memory_limit": COUNT,
        "message_size_limit": COUNT,
        "packet_buffer_size": COUNT,
        "per_listener_settings": BOOLEAN,
        "persistence": BOOLEAN,
        "persistence_file": TEXT,
        "persistence_location": TEXT,
        "persistent_client_expiration": TEXT,
        "pid_file": TEXT,
        "queue_qos0_messages": BOOLEAN,
        "retain_available": BOOLEAN,
        "retain_expiry_interval": COUNT,
        "retry_interval": COUNT,
        "set_tcp_nodelay": BOOLEAN,
        "store_clean_interval": COUNT,
        "sys_interval": TWO_BYTES,
        "upgrade_outgoing_qos": BOOLEAN,
        "user": TEXT,
        "websockets_log_level": COUNT,
    },
    ACCESS: {
        "acl_file": TEXT,
        "allow_anonymous": BOOLEAN,
        "allow_zero_length_clientid": BOOLEAN,
        "auth_plugin": TEXT,
        "auth_plugin_deny_special_chars": BOOLEAN,
        "auto_id_prefix": TEXT,
        "global_plugin": TEXT,
        "password_file": TEXT,
        "plugin": TEXT,
        "plugin_load": TEXT,
        "plugin_use": TEXT,
        "psk_file": TEXT,
    },
    LISTENER: {
        "accept_protocol_versions": TEXT,
        "bind_address": TEXT,
        "bind_interface": TEXT,
        "cafile": TEXT,
        "capath": TEXT,
        "certfile": TEXT,
        "ciphers": TEXT,
        "ciphers_tls1.3": TEXT,
        "crlfile": TEXT,
        "dhparamfile": TEXT,
        "disable_client_cert_date_checks": BOOLEAN,
        "enable_proxy_protocol": (0, 2),
        "http_dir": TEXT,
        "keyfile": TEXT,
        "listener_allow_anonymous": BOOLEAN,
        "listener_auto_id_prefix": TEXT,
        "max_connections": (-1, MOST),
        "max_qos": (0, 2),
        "max_topic_alias": TWO_BYTES,
        "max_topic_alias_broker": TWO_BYTES,
        "mount_point": TEXT,
        "port": PORT,
        "protocol": TEXT,
        "proxy_protocol_v2_require_tls": BOOLEAN,
        "psk_hint": TEXT,
        "require_certificate": BOOLEAN,
        "socket_domain": TEXT,
        "tls_engine": TEXT,
        "tls_engine_kpass_sha1": TEXT,
        "tls_keyform": TEXT,
        "tls_version": TEXT,
        "use_identity_as_username": BOOLEAN,
        "use_subject_as_username": BOOLEAN,
        "use_username_as_clientid": BOOLEAN,
        "websockets_headers_size": TWO_BYTES,
        "websockets_origin": TEXT,
    },
    BRIDGE: {
        "address": TEXT,
        "addresses": TEXT,
        "bridge_alpn": TEXT,
        "bridge_attempt_unsubscribe": BOOLEAN,
        "bridge_bind_address": TEXT,
        "bridge_cafile": TEXT,
        "bridge_capath": TEXT,
        "bridge_certfile": TEXT,
        "bridge_ciphers": TEXT,
        "bridge_ciphers_tls1.3": TEXT,
        "bridge_clean_start": BOOLEAN,
        "bridge_identity": TEXT,
        "bridge_insecure": BOOLEAN,
        "bridge_keyfile": TEXT,
        "bridge_max_packet_size": COUNT,
        "bridge_max_topic_alias": TWO_BYTES,
        "bridge_outgoing_retain": BOOLEAN,
        "bridge_protocol_version": TEXT,
        "bridge_psk": TEXT,
        "bridge_receive_maximum": TWO_BYTES,
        "bridge_reload_type": TEXT,
        "bridge_require_ocsp": BOOLEAN,
        "bridge_tcp_keepalive": TEXT,
        "bridge_tcp_user_timeout": COUNT,
        "bridge_tls_engine": TEXT,
        "bridge_tls_use_os_certs": BOOLEAN,
        "bridge_tls_version": TEXT,
        "cleansession": BOOLEAN,
        "clientid": TEXT,
        "idle_timeout": COUNT,
        "keepalive_interval": TWO_BYTES,
        "local_cleansession": BOOLEAN,
        "local_clientid": TEXT,
        "local_password": TEXT,
        "local_username": TEXT,
        "notification_topic": TEXT,
        "notifications": BOOLEAN,
        "notifications_local_only": BOOLEAN,
        "password": TEXT,
        "remote_clientid": TEXT,
        "remote_password": TEXT,
        "remote_username": TEXT,
        "restart_timeout": TEXT,
        "round_robin": BOOLEAN,
        "start_type": TEXT,
        "threshold": COUNT,
        "topic": TEXT,
        "try_private": BOOLEAN,
        "username": TEXT,
    },
}
SCOPES: Final = {name: scope for scope, names in DIRECTIVES.items() for name in names}
KINDS: Final = {name: kind for names in DIRECTIVES.values() for name, kind in names.items()}
# Options of plugins, whose names begin like this.
PLUGIN_OPTIONS: Final = ("auth_opt_", "plugin_opt_")
OPENING: Final = ("listener", "connection")
# Directives that may occur several times in one place.
REPEATABLE: Final = frozenset(
    {
        *("accept_protocol_versions", "auth_plugin", "global_plugin", "log_dest", "log_type"),
        *("plugin", "plugin_load", "plugin_use", "topic", "websockets_origin"),
    }
)
SECRETS: Final = frozenset({"bridge_psk", "local_password", "password", "remote_password"})
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "protocol": ("mqtt", "mqttsn", "websockets", "http_api"),
    "socket_domain": ("ipv4", "ipv6"),
    "tls_version": ("tlsv1.1", "tlsv1.2", "tlsv1.3"),
    "bridge_tls_version": ("tlsv1.1", "tlsv1.2", "tlsv1.3"),
    "bridge_protocol_version": ("mqttv31", "mqttv311", "mqttv50"),
    "start_type": ("automatic", "lazy", "once"),
    "log_type": (
        *("all", "debug", "error", "information", "internal", "none", "notice", "subscribe"),
        *("unsubscribe", "warning", "websockets"),
    ),
}
# The default listener exists if one of its directives has another value than this.
WITHOUT_LISTENER: Final[Mapping[str, frozenset[str]]] = {
    "allow_zero_length_clientid": frozenset({"true", "1"}),
    "max_connections": frozenset({"-1"}),
    "max_qos": frozenset({"2"}),
    "protocol": frozenset({"mqtt"}),
    "require_certificate": frozenset({"false", "0"}),
    "tls_keyform": frozenset({"pem"}),
    "use_identity_as_username": frozenset({"false", "0"}),
    "use_subject_as_username": frozenset({"false", "0"}),
    "use_username_as_clientid": frozenset({"false", "0"}),
}
# Directives that have no influence on whether there is a default listener.
NO_LISTENER: Final = frozenset(
    {
        *("acl_file", "allow_anonymous", "auto_id_prefix", "auth_plugin_deny_special_chars"),
        *("http_dir", "max_topic_alias", "max_topic_alias_broker", "tls_version"),
        *("websockets_headers_size", "websockets_origin"),
    }
)
# Much more than any configuration has.
LARGEST_FILE: Final = 4 * 2**20
INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
# An expiration: hours, days, weeks, months or years.
EXPIRATION: Final = re.compile(r"([0-9]{1,9}) *([hdwmy])")


class MosquittoConfigError(Exception):
    """A file that Mosquitto would not accept. `problems` has one sentence for each mistake."""

    problems: Final[tuple[str, ...]]

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Directive:
    """One line of a configuration file, with a valid value."""

    file: str
    line: int
    keyword: str
    value: str

    @property
    def place(self) -> str:
        """Where it is, as errors say it."""
        return f"{self.file}, line {self.line}"

    @property
    def text(self) -> str:
        """The line, without a secret."""
        return f"{self.keyword} {'***' if self.keyword in SECRETS else self.value}".rstrip()

    @property
    def is_true(self) -> bool:
        """The value of a boolean."""
        return self.value in ("true", "1")

    @property
    def number(self) -> int:
        """The value of a number."""
        return int(self.value)


@dataclass
class Block:
    """The directives of one listener, of one bridge, or of everything."""

    # None: the default listener, or everything.
    opening: Directive | None = None
    directives: dict[str, list[Directive]] = field(default_factory=dict)

    def all_of(self, keyword: str) -> list[Directive]:
        """All directives with this keyword, in order."""
        return self.directives.get(keyword, [])

    def last(self, *keywords: str) -> Directive | None:
        """The directive that counts, if there is one with any of these keywords."""
        found = [each for keyword in keywords for each in self.all_of(keyword)]
        return found[-1] if found else None

    def is_on(self, keyword: str) -> bool:
        """Whether a boolean is given and true."""
        found = self.last(keyword)
        return found is not None and found.is_true


@dataclass
class MosquittoConfig:
    """A configuration of Mosquitto."""

    path: str
    # All directives, in order.
    directives: list[Directive] = field(default_factory=list)
    general: Block = field(default_factory=Block)
    default_listener: Block = field(default_factory=Block)
    # Those of `listener`, without the default one.
    listeners: list[Block] = field(default_factory=list)
    bridges: list[Block] = field(default_factory=list)

    @property
    def is_per_listener(self) -> bool:
        """Whether access is configured for each listener."""
        return self.general.is_on("per_listener_settings")

    def all_listeners(self) -> list[Block]:
        """The listeners that Mosquitto opens; none: it listens on loopback addresses only."""
        is_open = any(
            keyword not in NO_LISTENER
            and found[-1].value not in WITHOUT_LISTENER.get(keyword, frozenset())
            for keyword, found in self.default_listener.directives.items()
        )
        return [self.default_listener, *self.listeners] if is_open else list(self.listeners)

    def access_of(self, listener: Block) -> Block:
        """Where the directives about access of a listener are."""
        return listener if self.is_per_listener else self.general


def read_mosquitto_config(path: Path) -> MosquittoConfig:
    """Read a file and those that it includes. Raises MosquittoConfigError with all mistakes."""
    reading = _Reading(str(path))
    reading.read_file(path, is_main=True)
    reading.check_bridges()
    if reading.problems:
        raise MosquittoConfigError(reading.problems)
    return reading.config


class _Reading:
    """What was read so far."""

    def __init__(self, path: str) -> None:
        self.config = MosquittoConfig(path)
        self.problems: list[str] = []
        self._listener = self.config.default_listener
        self._bridge: Block | None = None
        self._has_access = False

    def read_file(self, path: Path, *, is_main: bool) -> None:
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_FILE + 1)
        except OSError as problem:
            self.problems.append(f"{path}: cannot be read: {problem.strerror or problem}")
            return
        if len(content) > LARGEST_FILE or b"\0" in content:
            self.problems.append(f"{path}: is not a configuration file of Mosquitto")
            return
        # Mosquitto ends lines at LF only, and ignores CR before it.
        for number, raw in enumerate(content.split(b"\n"), 1):
            try:
                line = raw.rstrip(b"\r").decode()
            except UnicodeDecodeError:
                self.problems.append(f"{path}, line {number}: is not UTF-8")
                continue
            keyword, _, value = line.strip(" ").partition(" ")
            if not keyword or keyword.startswith("#"):
                continue
            directive = Directive(str(path), number, keyword, value.strip(" \t"))
            mistake = self._take(directive, is_main=is_main)
            if mistake is not None:
                self.problems.append(f"{directive.place}: {mistake}")

    def _take(self, directive: Directive, *, is_main: bool) -> str | None:
        """Add a directive where it belongs. Returns what is wrong with it, if anything is."""
        keyword = directive.keyword
        is_plugin_option = keyword.startswith(PLUGIN_OPTIONS)
        if keyword not in KINDS and keyword not in OPENING and not is_plugin_option:
            return _unknown(keyword)
        if not directive.value and not is_plugin_option:
            return f"{keyword} has no value"
        problem = None if is_plugin_option else _value_problem(directive)
        if problem is not None:
            return problem
        self.config.directives.append(directive)
        if keyword == "listener":
            self._listener = Block(directive)
            self.config.listeners.append(self._listener)
            return None
        if keyword == "connection":
            self._bridge = Block(directive)
            self.config.bridges.append(self._bridge)
            return None
        scope = ACCESS if is_plugin_option else SCOPES[keyword]
        if keyword == "per_listener_settings" and self._has_access and directive.is_true:
            return "per_listener_settings must come before all directives about access"
        self._has_access = self._has_access or scope == ACCESS
        if keyword == "mount_point" and self._listener.opening is None:
            return "mount_point must come after a listener"
        if keyword == "include_dir" and is_main:
            self._include(Path(directive.value))
        block = self._block_of(scope)
        if block is None:
            return f"{keyword} is outside of a bridge: it must come after `connection NAME`"
        earlier = block.directives.setdefault(keyword, [])
        if earlier and KINDS.get(keyword) == TEXT and keyword not in REPEATABLE:
            return f"{keyword} is given a second time, after {earlier[-1].place}: remove one"
        earlier.append(directive)
        return None

    def _block_of(self, scope: str) -> Block | None:
        if scope == BRIDGE:
            return self._bridge
        is_of_listener = scope == LISTENER or (scope == ACCESS and self.config.is_per_listener)
        return self._listener if is_of_listener else self.config.general

    def _include(self, folder: Path) -> None:
        """Read the files of include_dir in Mosquitto's order."""
        try:
            names = [each.name for each in folder.iterdir() if each.name.endswith(".conf")]
        except OSError as problem:
            words = f"include_dir {folder} cannot be read: {problem.strerror or problem}"
            self.problems.append(f"{self.config.directives[-1].place}: {words}")
            return
        for name in sorted(names, key=lambda name: (name.lower(), name)):
            self.read_file(folder / name, is_main=False)

    def check_bridges(self) -> None:
        """Note what every bridge must have."""
        for bridge in self.config.bridges:
            assert bridge.opening is not None
            place = bridge.opening.place
            if bridge.last("address", "addresses") is None:
                self.problems.append(f"{place}: {bridge.opening.text} has no address")
            if not bridge.all_of("topic"):
                self.problems.append(f"{place}: {bridge.opening.text} has no topic")


def _unknown(keyword: str) -> str:
    sentence = f"Mosquitto has no directive {quoted(keyword)}"
    if "\t" in keyword:
        return f"{sentence}: a space must follow the directive, not a tab"
    near = get_close_matches(keyword, [*KINDS, *OPENING], n=1)
    return f"{sentence}; did you mean {near[0]}?" if near else sentence


def _value_problem(directive: Directive) -> str | None:
    """What is wrong with the value of a known directive."""
    keyword, value = directive.keyword, directive.value
    if keyword == "listener":
        return _listener_problem(value)
    if keyword == "connection":
        return None
    kind = KINDS[keyword]
    found = f"{keyword} is {quoted(value)}, but must be"
    if keyword in CHOICES and value not in CHOICES[keyword]:
        return f"{found} one of {', '.join(CHOICES[keyword])}"
    if keyword == "persistent_client_expiration" and not EXPIRATION.fullmatch(value):
        return f"{found} a number followed by h, d, w, m or y, such as 14d"
    if kind == BOOLEAN and value not in ("true", "false", "1", "0"):
        return f"{found} true or false"
    if isinstance(kind, tuple):
        low, high = kind
        if not INTEGER.fullmatch(value) or not low <= int(value) <= high:
            bounds = f"at least {low}" if high == MOST else f"from {low} to {high}"
            return f"{found} a number, {bounds}"
    return None


def _listener_problem(value: str) -> str | None:
    port, _, address = value.partition(" ")
    if not INTEGER.fullmatch(port) or not 0 <= int(port) <= PORT[1]:
        return f"listener has the port {quoted(port)}, but must have one from 1 to {PORT[1]}"
    if int(port) == 0 and not address.strip():
        return "listener has port 0 without the path of a Unix socket"
    return None
