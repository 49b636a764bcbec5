"""Converts the bridges of Mosquitto into [[bridge]] tables.

A bridge of Mosquitto is a part of the broker. One of semel is a client of both brokers, which
`semel bridge` runs, so it needs an address of the local broker, and a user if the broker has users.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from semel.broker.network.listener_settings import ENCRYPTED, TCP, UNIX
from semel.cli.conversion import (
    CHANGED,
    CONVERTED,
    NO_EQUIVALENT,
    NOT_NEEDED,
    Conversion,
    TableDraft,
)
from semel.cli.mosquitto_config import (
    BRIDGE,
    SCOPES,
    Block,
    Directive,
    MosquittoConfig,
    MosquittoConfigError,
)
from semel.cli.mosquitto_listeners import OVERRIDDEN, STANDARD_PORT
from semel.client.bridge_rules import BadRule, parse_rule
from semel.client.bridge_settings import BRIDGE_NAME, BridgeSettings
from semel.mqtt.topics import quoted
from semel.settings import settings_of

# Keys that have the same value in Mosquitto and here.
TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "local_client_id": ("local_clientid",),
    "local_password": ("local_password",),
    "local_username": ("local_username",),
    "remote_ciphers": ("bridge_ciphers",),
    "remote_client_id": ("remote_clientid", "clientid"),
    "remote_password": ("remote_password", "password"),
    "remote_tls_alpn": ("bridge_alpn",),
    "remote_username": ("remote_username", "username"),
}
PATHS: Final[Mapping[str, str]] = {
    "remote_cafile": "bridge_cafile",
    "remote_capath": "bridge_capath",
    "remote_cert": "bridge_certfile",
    "remote_key": "bridge_keyfile",
}
NUMBERS: Final[Mapping[str, str]] = {
    "keep_alive": "keepalive_interval",
    "maximum_packet_size": "bridge_max_packet_size",
    "receive_maximum": "bridge_receive_maximum",
}
VERSIONS: Final[Mapping[str, str]] = {"mqttv31": "3.1.1", "mqttv311": "3.1.1", "mqttv50": "5"}
# Directives by which Mosquitto uses TLS.
TLS_DIRECTIVES: Final = (
    *("bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_tls_use_os_certs"),
    "bridge_alpn",
)
# By the address of all interfaces: one that a program on this machine connects to.
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # nosec B104 # compared, not bound
DIRECTIONS: Final = ("out", "in", "both")
RENAMING: Final = (
    "a bridge of semel replaces prefixes and keeps the last level of a topic: choose topics with "
    "the same last level"
)
NEVER_NEEDED: Final = {
    "bridge_attempt_unsubscribe": "a changed list of topics is applied to the session",
    "bridge_max_topic_alias": "the client of the bridge chooses its own aliases",
    "bridge_reload_type": "`semel bridge` is started again after a change",
    "bridge_tcp_keepalive": "keep_alive detects a broken connection",
    "bridge_tcp_user_timeout": "keep_alive detects a broken connection",
    "try_private": "the path of a message stops loops",
}
WITHOUT_EQUIVALENT: Final = {
    "bridge_bind_address": "the system chooses the address by the route to the remote broker",
    "bridge_ciphers_tls1.3": "the ciphers of TLS 1.3 are those of OpenSSL",
    "bridge_identity": "use client certificates instead of pre-shared keys",
    "bridge_outgoing_retain": "retained messages stay retained",
    "bridge_psk": "use client certificates instead of pre-shared keys",
    "bridge_require_ocsp": "semel does not check OCSP",
    "bridge_tls_engine": "the key must be in a file: set remote_key",
    "idle_timeout": "a bridge is always connected",
    "notification_topic": "the state of a bridge is in status.json in its data folder",
    "notifications": "the state of a bridge is in status.json in its data folder",
    "notifications_local_only": "the state of a bridge is in status.json in its data folder",
    "round_robin": "a bridge has one remote address",
    "start_type": "a bridge is always connected",
    "threshold": "a bridge is always connected",
}
# Values that describe what semel does, where it is not false.
AS_HERE: Final = {"bridge_outgoing_retain": "true", "start_type": "automatic"}


def convert_bridges(
    config: MosquittoConfig,
    conversion: Conversion,
    *,
    listeners: Sequence[TableDraft],
    data: Path | None,
) -> None:
    """Add a table for each bridge. Raises MosquittoConfigError for topics that are not valid."""
    problems: list[str] = []
    names: set[str] = set()
    for block in config.bridges:
        bridge = _Bridge(block, conversion, problems)
        bridge.set_names(names, data=data)
        bridge.set_local(listeners)
        bridge.set_remote()
        bridge.set_topics()
        bridge.set_rest()
        conversion.tables.append(bridge.table)
    for directive in config.directives:
        if SCOPES.get(directive.keyword) == BRIDGE and directive not in conversion.outcomes:
            verdict, sentence = _outcome_of_rest(directive)
            conversion.note(directive, verdict, sentence)
    if problems:
        raise MosquittoConfigError(problems)


def _outcome_of_rest(directive: Directive) -> tuple[str, str]:
    keyword = directive.keyword
    if keyword in NEVER_NEEDED:
        return NOT_NEEDED, NEVER_NEEDED[keyword]
    if directive.value == AS_HERE.get(keyword, "false"):
        return NOT_NEEDED, "semel does it this way"
    if keyword in WITHOUT_EQUIVALENT:
        return NO_EQUIVALENT, WITHOUT_EQUIVALENT[keyword]
    return NOT_NEEDED, OVERRIDDEN


class _Bridge:
    """One bridge."""

    def __init__(self, block: Block, conversion: Conversion, problems: list[str]) -> None:
        assert block.opening is not None
        self.table = TableDraft(BridgeSettings)
        self._block = block
        self._opening = block.opening
        self._conversion = conversion
        self._problems = problems

    def set_names(self, names: set[str], *, data: Path | None) -> None:
        """Set the name and the data folder."""
        name = self._opening.value
        if not BRIDGE_NAME.fullmatch(name):
            name = "".join(
                each if each.isascii() and (each.isalnum() or each in "-_.") else "-"
                for each in name
            ).lstrip("-_.")
            name = name or "bridge"
            self._conversion.note(self._opening, CHANGED, f"its name is {name}")
        base, number = name, 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.add(name)
        self.table.notes.append("`semel bridge` runs it, as a process beside the broker.")
        self.table.set("name", name, self._opening.place)
        folder = Path(f"bridge-{name}") if data is None else data.with_name(f"bridge-{name}")
        self.table.set("data", folder, "sessions, and messages on their way")
        self._conversion.note(
            self._opening, CHANGED, "a bridge is a process of its own: start `semel bridge`"
        )

    def set_local(self, listeners: Sequence[TableDraft]) -> None:
        """Set the address of the local broker: that of the first listener that is not disabled."""
        enabled = [each for each in listeners if each.disabled_because is None]
        plain = [each for each in enabled if each.values.get("transport", TCP) in (TCP, UNIX)]
        if not enabled:
            self.table.disabled_because = "no listener is enabled: set local to its address"
            return
        values = (plain or enabled)[0].values
        transport = values.get("transport", TCP)
        remark = f"listener {values['name']}"
        if transport == UNIX:
            self.table.set("local", f"unix:{values['path']}", remark)
            return
        host = str(values["host"])
        host = LOOPBACK.get(host, host)
        scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(str(transport), str(transport))
        place = f"[{host}]" if ":" in host else host
        path = "/mqtt" if transport in ("ws", "wss") else ""
        self.table.set("local", f"{scheme}://{place}:{values['port']}{path}", remark)
        if transport in ENCRYPTED:
            self.table.notes.append(
                "The local broker has TLS only: set local to a name of its certificate, and "
                "local_cafile, or add a listener for this machine."
            )
        if values.get("anonymous") is False and self._block.last("local_username") is None:
            self.table.notes.append(
                "The local broker admits no anonymous clients: add a user for the bridge, and set "
                "local_username and local_password_file."
            )

    def set_remote(self) -> None:
        """Set the address of the remote broker."""
        directive = self._block.last("address", "addresses")
        assert directive is not None
        first, *others = directive.value.split()
        host, colon, port = first.rpartition(":")
        if not colon:
            host, port = first, str(STANDARD_PORT)
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536 or not host:
            self._problems.append(
                f"{directive.place}: {directive.keyword} has {quoted(first)}, but must have "
                "HOST or HOST:PORT"
            )
            return
        scheme = "mqtts" if any(map(self._block.last, TLS_DIRECTIVES)) else "mqtt"
        place = f"[{host.strip('[]')}]" if ":" in host else host
        self.table.set("remote", f"{scheme}://{place}:{int(port)}", directive.place)
        self._conversion.note(directive, CONVERTED)
        if others:
            sentence = f"a bridge has one remote address, here {first}"
            self._conversion.note(directive, CHANGED, sentence)

    def set_topics(self) -> None:
        """Set the topics of both directions."""
        found: dict[str, list[str]] = {"to_remote": [], "to_local": []}
        remarks: dict[str, str] = {}
        for directive in self._block.all_of("topic"):
            try:
                direction, rule = _convert_topic(directive)
                if rule is not None:
                    parse_rule(rule)
            except BadRule as problem:
                self._problems.append(f"{directive.place}: {problem}")
                continue
            if rule is None:
                self._conversion.note(directive, NO_EQUIVALENT, RENAMING)
                continue
            for key, meant in (("to_remote", "out"), ("to_local", "in")):
                if direction in (meant, "both"):
                    found[key].append(rule)
                    remarks.setdefault(key, directive.place)
            self._conversion.note(directive, CONVERTED)
        for key, rules in found.items():
            if rules:
                self.table.set(key, tuple(rules), remarks[key])

    def set_rest(self) -> None:
        """Set everything else."""
        block, conversion, table = self._block, self._conversion, self.table
        for key, keywords in TEXTS.items():
            directive = block.last(*keywords)
            if directive is not None:
                table.set(key, directive.value, directive.place)
                conversion.note(directive, CONVERTED)
        for key, keyword in PATHS.items():
            directive = block.last(keyword)
            if directive is not None:
                table.set(key, Path(directive.value), directive.place)
                conversion.note(directive, CONVERTED)
        for key, keyword in NUMBERS.items():
            directive = block.last(keyword)
            if directive is not None and (directive.number > 0 or key == "keep_alive"):
                conversion.number(table, key, directive, directive.number)
            elif directive is not None:
                conversion.note(directive, CHANGED, f"semel always has a limit: {key}")
        if block.is_on("bridge_tls_use_os_certs"):
            directive = block.last("bridge_tls_use_os_certs")
            assert directive is not None
            conversion.note(directive, NOT_NEEDED, "without remote_cafile it is the default")
        insecure = block.last("bridge_insecure")
        if insecure is not None and insecure.is_true:
            table.set("remote_insecure", True, insecure.place)
            conversion.note(insecure, CONVERTED)
        self._set_versions()
        self._set_waiting()
        for keyword in ("cleansession", "local_cleansession", "bridge_clean_start"):
            directive = block.last(keyword)
            if directive is not None and directive.is_true:
                sentence = "both sessions of a bridge are kept, so that no message is lost"
                conversion.note(directive, NO_EQUIVALENT, sentence)
            elif directive is not None:
                conversion.note(directive, NOT_NEEDED, "both sessions of a bridge are kept")

    def _set_versions(self) -> None:
        version = self._block.last("bridge_protocol_version")
        if version is not None:
            self.table.set("remote_mqtt_version", VERSIONS[version.value], version.place)
            self._conversion.note(version, CONVERTED)
            if version.value == "mqttv31":
                self._conversion.note(version, CHANGED, "semel speaks MQTT 3.1.1")
        tls = self._block.last("bridge_tls_version")
        if tls is None:
            return
        choices = settings_of(BridgeSettings)["remote_tls_version"].choices
        if tls.value in choices:
            self.table.set("remote_tls_version", tls.value, tls.place)
            self._conversion.note(tls, CONVERTED)
        else:
            self._conversion.note(tls, CHANGED, f"the lowest version is {choices[0]}")

    def _set_waiting(self) -> None:
        """restart_timeout: a constant, or the shortest and the longest wait."""
        directive = self._block.last("restart_timeout")
        if directive is None:
            return
        words = directive.value.split()
        if not 1 <= len(words) <= 2 or not all(word.isascii() and word.isdigit() for word in words):
            self._problems.append(
                f"{directive.place}: restart_timeout is {quoted(directive.value)}, but must be "
                "one or two numbers of seconds"
            )
            return
        self._conversion.number(self.table, "longest_wait", directive, max(1, int(words[-1][:9])))
        self._conversion.note(directive, CHANGED, "the first wait is half a second, and doubles")


def _convert_topic(directive: Directive) -> tuple[str, str | None]:
    """Direction and rule of a topic line; no rule if there is no equivalent. Raises BadRule.

    topic PATTERN [out|in|both [QOS [LOCAL-PREFIX [REMOTE-PREFIX]]]]; "" is an empty word.
    """
    words = [word for word in directive.value.split(" ") if word]
    pattern, *rest = ["" if word == '""' else word for word in words]
    direction = rest[0] if rest else "out"
    qos = rest[1] if len(rest) > 1 else "0"
    local = rest[2] if len(rest) > 2 else ""
    remote = rest[3] if len(rest) > 3 else ""
    if direction not in DIRECTIONS:
        raise BadRule(f"topic has the direction {quoted(direction)}, but must have out, in or both")
    if qos not in ("0", "1", "2"):
        raise BadRule(f"topic has the QoS {quoted(qos)}, but must have 0, 1 or 2")
    if len(rest) > 4:
        raise BadRule("topic has more words than PATTERN, direction, QoS and two prefixes")
    if not pattern:
        if not local or not remote:
            raise BadRule('the topic "" needs a local and a remote prefix')
        pattern = _shared_level(local, remote)
        if not pattern:
            return direction, None
        local, remote = local.removesuffix(pattern), remote.removesuffix(pattern)
    rule = [shlex.quote(pattern)]
    if local:
        rule += ["local", shlex.quote(local)]
    if remote:
        rule += ["remote", shlex.quote(remote)]
    return direction, " ".join([*rule, "qos", qos])


def _shared_level(local: str, remote: str) -> str:
    """The last level of both topics, or "" if it differs: rules of semel replace what is before."""
    level = local.rpartition("/")[2]
    return level if level == remote.rpartition("/")[2] else ""
