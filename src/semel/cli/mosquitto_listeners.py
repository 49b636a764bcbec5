"""Converts the listeners of Mosquitto, and who may connect to them.

semel has one [users] and one [rights] for all listeners. A listener that would admit more clients
here than in Mosquitto, or to more topics, is written as a comment, with the reason.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from semel.broker.access.rights_settings import RightsSettings
from semel.broker.access.users_settings import COMMON_NAME, UsersSettings
from semel.broker.network.listener_settings import (
    ENCRYPTED,
    REQUIRED,
    TCP,
    TLS,
    UNIX,
    WEBSOCKET,
    WS,
    WSS,
    ListenerSettings,
)
from semel.cli.conversion import (
    CHANGED,
    CONVERTED,
    NO_EQUIVALENT,
    NOT_NEEDED,
    Conversion,
    TableDraft,
)
from semel.cli.mosquitto_config import (
    ACCESS,
    LISTENER,
    PLUGIN_OPTIONS,
    REPEATABLE,
    SCOPES,
    Block,
    Directive,
    MosquittoConfig,
)

# Mosquitto's port if none is given.
STANDARD_PORT: Final = 1883
EVERYWHERE: Final = {"ipv4": "0.0.0.0", "ipv6": "::"}  # nosec B104 # as in Mosquitto
BOTH_FAMILIES: Final = (
    "Mosquitto listens by IPv4 and IPv6; these are two listeners of semel, which count connections "
    "separately; remove the second one if the machine has no IPv6"
)
OVERRIDDEN: Final = "a later line overrides it"
DEFAULT_REMARK: Final = "Mosquitto's default"
PLUGINS: Final = ("auth_plugin", "global_plugin", "plugin", "plugin_load", "plugin_use")

# Directives that are not converted, and what to do instead.
WITHOUT_EQUIVALENT: Final = {
    "accept_protocol_versions": "semel accepts MQTT 3.1.1 and 5.0 on every listener",
    "auto_id_prefix": "semel generates its own client identifiers",
    "ciphers_tls1.3": "the ciphers of TLS 1.3 are those of OpenSSL",
    "disable_client_cert_date_checks": "semel always refuses expired certificates",
    "http_dir": "serve files by a web server",
    "listener_auto_id_prefix": "semel generates its own client identifiers",
    "psk_file": "use client certificates instead of pre-shared keys",
    "tls_engine": "the key must be in a file: set keyfile",
    "tls_engine_kpass_sha1": "the key must be in a file: set keyfile",
    "use_username_as_clientid": "[users] bind_client_ids protects the sessions of a user instead",
}
NEVER_NEEDED: Final = {
    "auth_plugin_deny_special_chars": "no character in a name widens a rule of semel",
    "dhparamfile": "the ciphers of semel use elliptic curves",
}
# Why a listener with this directive is disabled.
DISABLING: Final = {
    "bind_interface": "semel listens on addresses: set host to the address of the interface",
    "clientid_prefixes": "semel does not restrict client identifiers: use users and rights",
    "mount_point": "its clients would see the topics of all other clients: semel has no mount "
    "points, so use rules with %u or %c in a rights file",
    "psk_hint": "it uses pre-shared keys: use client certificates",
    "use_subject_as_username": "semel takes the user name from the Common Name only: set "
    '[users] certificate_users = "common_name" if that fits',
}


@dataclass(frozen=True)
class Access:
    """Who may connect to one listener of Mosquitto, and what clients may do."""

    password_file: Directive | None
    acl_file: Directive | None
    allow_anonymous: Directive | None
    has_plugin: bool
    # Whether Mosquitto only listens on loopback addresses, because there is no listener.
    is_local: bool

    @property
    def is_anonymous(self) -> bool:
        """Whether clients without a user name are admitted."""
        if self.allow_anonymous is not None:
            return self.allow_anonymous.is_true and not self.has_plugin
        return self.is_local and not self.has_plugin


def convert_listeners(
    config: MosquittoConfig, conversion: Conversion, *, broker: TableDraft
) -> list[TableDraft]:
    """Add the tables of listeners, users and rights. Returns those of the listeners.

    If all of them are disabled, the listener that [broker] would make admits nobody either.
    """
    tables = _Listeners(config, conversion).convert()
    if all(each.disabled_because is not None for each in tables):
        broker.set("anonymous", False, "all listeners are disabled")
    return tables


def read_access(config: MosquittoConfig, block: Block, *, is_local: bool) -> Access:
    """The directives about access that hold for a listener."""
    access = config.access_of(block)
    return Access(
        access.last("password_file"),
        access.last("acl_file"),
        block.last("listener_allow_anonymous") or access.last("allow_anonymous"),
        any(access.last(each) is not None for each in PLUGINS),
        is_local,
    )


class _Listeners:
    """All listeners of one configuration."""

    def __init__(self, config: MosquittoConfig, conversion: Conversion) -> None:
        self._config = config
        self._conversion = conversion
        self._blocks = config.all_listeners()
        is_local = not self._blocks
        blocks = self._blocks or [config.default_listener]
        self._access = [read_access(config, block, is_local=is_local) for block in blocks]
        self._names: set[str] = set()
        # The files that become those of semel: the first ones.
        self._password_file = _first(each.password_file for each in self._access)
        self._acl_file = _first(each.acl_file for each in self._access)
        self._identity = _first(
            block.last("use_identity_as_username")
            for block in self._blocks
            if block.is_on("use_identity_as_username")
        )

    def convert(self) -> list[TableDraft]:
        tables: list[TableDraft] = []
        if not self._blocks:
            tables.append(self._local_table())
        for block, access in zip(self._blocks, self._access, strict=False):
            tables += self._tables(block, access)
        self._conversion.tables += tables
        self._add_users()
        self._add_rights()
        self._note_rest()
        return tables

    # --- one listener -----------------------------------------------------------------------------

    def _local_table(self) -> TableDraft:
        """What Mosquitto opens without any listener."""
        table = TableDraft(ListenerSettings)
        remark = "Mosquitto without a listener is for this machine only"
        table.set("name", self._name("local"), remark)
        table.set("host", "localhost", remark)
        table.set("port", STANDARD_PORT, DEFAULT_REMARK)
        access = self._access[0]
        self._set_anonymous(table, access)
        for directive in (access.password_file, access.acl_file):
            if directive is not None:
                self._conversion.note(directive, CONVERTED)
        return table

    def _tables(self, block: Block, access: Access) -> list[TableDraft]:
        """The tables of one listener: two if it listens by IPv4 and IPv6."""
        conversion = self._conversion
        protocol = block.last("protocol")
        if protocol is not None and protocol.value not in ("mqtt", "websockets"):
            sentence = f"semel has no listener for {protocol.value}, so it is left out"
            for directive in _directives_of(block):
                conversion.note(directive, NO_EQUIVALENT, sentence)
            return []
        table = TableDraft(ListenerSettings)
        hosts = self._set_address(table, block)
        self._set_transport(table, block)
        self._set_anonymous(table, access)
        if table.values["transport"] in ENCRYPTED:
            self._set_tls(table, block)
        self._set_limits(table, block)
        self._disable(table, block, access)
        if self._acl_file is not None and access.acl_file is None:
            table.notes.append(
                "In Mosquitto, clients of this listener may do everything. Here the rules of "
                f"{self._acl_file.value} hold for them, too."
            )
        base = f"{table.values['transport']}"
        if table.values["transport"] == UNIX:
            return [self._named(table, base)]
        base = f"{base}-{table.values['port']}"
        if len(hosts) > 1:
            opened_by = block.opening or block.last("port")
            if opened_by is None:
                table.notes.append(f"By default, {BOTH_FAMILIES}.")
            else:
                conversion.note(opened_by, CHANGED, BOTH_FAMILIES)
        remark = table.remarks["port"]
        copies = []
        for family, host in hosts:
            copy = replace(
                table,
                values=dict(table.values),
                remarks=dict(table.remarks),
                notes=list(table.notes),
            )
            copy.set("host", host, remark)
            suffix = "-ipv6" if len(hosts) > 1 and family == "ipv6" else ""
            copies.append(self._named(copy, base + suffix))
        return copies

    def _named(self, table: TableDraft, base: str) -> TableDraft:
        """The table with a name as its first key."""
        name = self._name(base)
        table.values = {"name": name, **table.values}
        table.remarks["name"] = "in the log and in metrics"
        return table

    def _name(self, base: str) -> str:
        name, number = base, 2
        while name in self._names:
            name, number = f"{base}-{number}", number + 1
        self._names.add(name)
        return name

    def _set_address(self, table: TableDraft, block: Block) -> list[tuple[str, str]]:
        """Set transport and port or path. Returns the hosts to listen on, with their family."""
        opening = block.opening
        table.set("transport", TCP, "")
        if opening is None:
            port, bind_address = block.last("port"), block.last("bind_address")
            number = STANDARD_PORT if port is None else port.number
            address = "" if bind_address is None else bind_address.value
            place = DEFAULT_REMARK if port is None else port.place
            for directive in (*block.all_of("port"), *block.all_of("bind_address")):
                self._conversion.note(directive, CONVERTED)
        else:
            text, _, rest = opening.value.partition(" ")
            number, address, place = int(text), rest.partition(" #")[0].strip(), opening.place
            self._conversion.note(opening, CONVERTED)
        if number == 0:
            assert opening is not None
            table.set("transport", UNIX, place)
            table.set("path", Path(address), place)
            self._conversion.note(
                opening,
                CHANGED,
                "only programs of the same user may connect: set mode to admit others",
            )
            return []
        table.set("host", "", place)
        table.set("port", number, place)
        domain = block.last("socket_domain")
        if domain is not None:
            self._conversion.note(domain, CONVERTED)
        if address:
            return [("", address)]
        if domain is not None:
            return [(domain.value, EVERYWHERE[domain.value])]
        return list(EVERYWHERE.items())

    def _set_transport(self, table: TableDraft, block: Block) -> None:
        conversion = self._conversion
        protocol, certfile = block.last("protocol"), block.last("certfile")
        is_websocket = protocol is not None and protocol.value == "websockets"
        remark = table.remarks.get("path") or table.remarks["port"]
        if protocol is not None:
            conversion.note(protocol, CONVERTED)
        if table.values["transport"] == UNIX:
            if is_websocket:
                table.disabled_because = "semel has no WebSocket over a Unix socket"
            return
        if certfile is not None:
            table.set("transport", WSS if is_websocket else TLS, certfile.place)
        elif is_websocket:
            table.set("transport", WS, remark)
        else:
            table.set("transport", TCP, remark)
        if is_websocket and protocol is not None:
            path = table.setting("ws_path").default
            conversion.note(
                protocol,
                CHANGED,
                f"Mosquitto answers on every path, semel on {path} only: set ws_path if clients "
                "use another one",
            )

    def _set_anonymous(self, table: TableDraft, access: Access) -> None:
        """Say whether clients without a user name may connect, also where it is a default."""
        directive = access.allow_anonymous
        remark = DEFAULT_REMARK if directive is None else directive.place
        table.set("anonymous", access.is_anonymous, remark)
        if directive is None:
            return
        if directive.is_true and access.has_plugin:
            self._conversion.note(
                directive,
                CHANGED,
                "in Mosquitto a plugin decides, so semel admits none",
            )
        else:
            self._conversion.note(directive, CONVERTED)

    def _set_tls(self, table: TableDraft, block: Block) -> None:
        conversion = self._conversion
        keys = ["certfile", "keyfile", "ciphers"]
        if block.is_on("require_certificate"):
            keys += ["cafile", "capath", "crlfile"]
        for key in keys:
            directive = block.last(key)
            if directive is not None:
                is_text = key == "ciphers"
                value = directive.value if is_text else Path(directive.value)
                table.set(key, value, directive.place)
                conversion.note(directive, CONVERTED)
        certfile = block.last("certfile")
        if block.last("keyfile") is None and certfile is not None:
            conversion.note(
                certfile,
                CHANGED,
                "without a keyfile Mosquitto does not encrypt; semel reads the key from certfile",
            )
        require = block.last("require_certificate")
        if require is not None and require.is_true:
            table.set("client_certificate", REQUIRED, require.place)
            conversion.note(require, CONVERTED)
        version = block.last("tls_version")
        if version is not None:
            number = version.value.removeprefix("tlsv")
            if number in table.setting("tls_version").choices:
                table.set("tls_version", number, version.place)
                conversion.note(version, CONVERTED)
            else:
                lowest = table.setting("tls_version").default
                conversion.note(version, CHANGED, f"the lowest version of semel is TLS {lowest}")

    def _set_limits(self, table: TableDraft, block: Block) -> None:
        conversion = self._conversion
        connections = block.last("max_connections")
        if connections is not None and connections.number > 0:
            conversion.number(table, "maximum_connections", connections, connections.number)
        elif connections is not None:
            conversion.note(
                connections, CHANGED, "[broker] maximum_connections limits all listeners together"
            )
        aliases = block.last("max_topic_alias")
        if aliases is not None:
            conversion.number(table, "topic_alias_maximum", aliases, aliases.number)
        proxy = block.last("enable_proxy_protocol")
        if proxy is not None and proxy.number > 0:
            table.set("proxy_protocol", True, proxy.place)
            conversion.note(proxy, CONVERTED)
        if table.values["transport"] not in WEBSOCKET:
            return
        header = block.last("websockets_headers_size")
        if header is not None:
            conversion.number(table, "maximum_header_bytes", header, header.number)
        origins = block.all_of("websockets_origin")
        if origins:
            table.set("origins", tuple(each.value for each in origins), origins[0].place)
        for each in origins:
            conversion.note(each, CONVERTED)

    # --- what must not be widened -----------------------------------------------------------------

    def _disable(self, table: TableDraft, block: Block, access: Access) -> None:
        """Disable the table if semel would admit more clients, or to more topics."""
        reasons = [] if table.disabled_because is None else [table.disabled_because]
        for keyword, reason in DISABLING.items():
            directive = block.last(keyword) or self._config.general.last(keyword)
            if directive is not None and directive.value not in ("false", "0"):
                reasons.append(reason)
                self._conversion.note(
                    directive, NO_EQUIVALENT, f"the listener is disabled: {reason}"
                )
        reasons += self._access_differences(block, access)
        if reasons:
            table.disabled_because = reasons[0]

    def _access_differences(self, block: Block, access: Access) -> list[str]:
        conversion = self._conversion
        reasons = []
        password_file, acl_file = access.password_file, access.acl_file
        for directive in (password_file, acl_file):
            if directive is not None:
                conversion.note(directive, CONVERTED)
        takes_identity = block.is_on("use_identity_as_username")
        requires_certificate = block.is_on("require_certificate")
        if _differ(password_file, self._password_file):
            assert password_file is not None
            reason = "semel has one password_file for all listeners: join the files"
            conversion.note(password_file, NO_EQUIVALENT, f"the listener is disabled: {reason}")
            reasons.append(reason)
        if _differ(acl_file, self._acl_file):
            assert acl_file is not None
            reason = "semel has one file of rights for all listeners: join the files"
            conversion.note(acl_file, NO_EQUIVALENT, f"the listener is disabled: {reason}")
            reasons.append(reason)
        admits_users = password_file is not None or takes_identity or access.has_plugin
        if self._password_file is not None and not admits_users and not access.is_anonymous:
            reasons.append(
                "Mosquitto admits nobody here (it has no password_file and no allow_anonymous), "
                "and semel would admit all users"
            )
        identity = block.last("use_identity_as_username")
        if identity is not None and takes_identity and not requires_certificate:
            reason = "use_identity_as_username admits nobody without require_certificate true"
            conversion.note(identity, NO_EQUIVALENT, f"the listener is disabled: {reason}")
            reasons.append(reason)
        if self._identity is not None and requires_certificate and not takes_identity:
            reasons.append(
                "it requires a certificate and a password, but a certificate is enough in semel "
                "if another listener has use_identity_as_username"
            )
        return reasons

    # --- users and rights -------------------------------------------------------------------------

    def _add_users(self) -> None:
        table = TableDraft(UsersSettings)
        if self._password_file is not None:
            table.set("password_file", Path(self._password_file.value), self._password_file.place)
        if self._identity is not None:
            table.set("certificate_users", COMMON_NAME, self._identity.place)
        for block in self._blocks:
            identity = block.last("use_identity_as_username")
            if identity is not None and identity not in self._conversion.outcomes:
                verdict = CONVERTED if identity.is_true else NOT_NEEDED
                sentence = "" if identity.is_true else "this is the default"
                self._conversion.note(identity, verdict, sentence)
        if table.values:
            self._conversion.tables.append(table)

    def _add_rights(self) -> None:
        if self._acl_file is None:
            return
        table = TableDraft(RightsSettings)
        table.set("mosquitto_acl_file", Path(self._acl_file.value), self._acl_file.place)
        self._conversion.tables.append(table)

    def _note_rest(self) -> None:
        """Note what became of the other directives about listeners and access."""
        config = self._config
        overridden = {
            each
            for block in (config.general, config.default_listener, *config.listeners)
            for keyword, directives in block.directives.items()
            if keyword not in REPEATABLE
            for each in directives[:-1]
        }
        for directive in config.directives:
            keyword = directive.keyword
            is_option = keyword.startswith(PLUGIN_OPTIONS)
            if directive in self._conversion.outcomes:
                continue
            if directive in overridden:
                self._conversion.note(directive, NOT_NEEDED, OVERRIDDEN)
                continue
            if not is_option and SCOPES.get(keyword) not in (LISTENER, ACCESS):
                continue
            verdict, sentence = self._outcome_of_rest(directive, is_plugin_option=is_option)
            self._conversion.note(directive, verdict, sentence)

    def _outcome_of_rest(self, directive: Directive, *, is_plugin_option: bool) -> tuple[str, str]:
        keyword = directive.keyword
        if keyword in PLUGINS or is_plugin_option:
            return NO_EQUIVALENT, "use http_hook or python_hook of [users], or a password_file"
        if keyword in WITHOUT_EQUIVALENT and directive.value not in ("false", "0"):
            return NO_EQUIVALENT, WITHOUT_EQUIVALENT[keyword]
        if keyword in NEVER_NEEDED:
            return NOT_NEEDED, NEVER_NEEDED[keyword]
        if keyword == "max_qos" and directive.number < 2:
            return NO_EQUIVALENT, "limit the QoS by rules in a rights file"
        if keyword == "max_topic_alias_broker":
            return NO_EQUIVALENT, "client_topic_aliases of [broker] is for all listeners"
        if keyword == "allow_zero_length_clientid" and not directive.is_true:
            return NO_EQUIVALENT, "semel generates an identifier for a client that has none"
        if keyword in ("cafile", "capath", "crlfile"):
            return (
                NOT_NEEDED,
                "it is for client certificates, which require_certificate does not ask for; if the "
                "chain of the server's certificate is in it, append the chain to certfile",
            )
        if keyword in ("allow_anonymous", "password_file", "acl_file"):
            return NOT_NEEDED, "it belongs to the default listener, which does not exist"
        return NOT_NEEDED, "it has no effect here, in Mosquitto either"


def _first(found: Iterable[Directive | None]) -> Directive | None:
    """The first directive among some that may be missing."""
    return next((each for each in found if each is not None), None)


def _differ(own: Directive | None, shared: Directive | None) -> bool:
    """Whether a listener has another file than the one that is used."""
    return own is not None and shared is not None and own.value != shared.value


def _directives_of(block: Block) -> list[Directive]:
    found = [each for directives in block.directives.values() for each in directives]
    return found if block.opening is None else [block.opening, *found]
