"""Reloads what can change while clients are connected: users, rights, certificates, limits.

    SIGHUP, `semel ctl reload` ─▶ load and check everything ─▶ apply it at once
                                       │ a mistake
                                       ▼
                                  nothing changes, and the log says why

New limits apply to new connections. Settings that take effect at a start only are named in the log
if they have changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from semel.broker.access.configured_authority import ConfiguredAuthority
from semel.broker.access.loading import LoadedAccess
from semel.broker.network.listener_settings import ListenerSettings, limits_of
from semel.broker.network.listeners import Listener
from semel.broker.network.stranger_check import check_listener
from semel.broker.network.transport_layers import LayersUnusable, TransportLayers
from semel.broker.settings import BrokerSettings
from semel.settings import SettingsError

# The keys of a listener that a reload cannot change.
FIXED_KEYS = ("name", "transport", "host", "port", "path", "mode")
# The keys of [broker] that a reload applies: to new connections, and to the log.
APPLIED_KEYS = (
    *("connect_timeout", "packet_timeout", "maximum_packet_size", "before_connect_packet_size"),
    *("receive_maximum", "topic_alias_maximum", "maximum_keep_alive", "log_level"),
    *("topic_levels", "maximum_subscriptions", "maximum_inflight_messages"),
)


@dataclass(frozen=True)
class LoadedSettings:
    """What the files, the environment and the flags say now."""

    broker: BrokerSettings
    listeners: tuple[ListenerSettings, ...]
    access: LoadedAccess


# Raises SettingsError. Called in another thread.
LoadSettings = Callable[[], LoadedSettings]


@dataclass(frozen=True)
class PreparedReload:
    """Everything that a reload will change, loaded and checked."""

    loaded: LoadedSettings
    # By the name of a listener.
    layers: dict[str, TransportLayers]
    # Sentences for the operator: warnings, and changes that need a restart.
    remarks: tuple[str, ...]


def prepare_reload(
    loaded: LoadedSettings,
    broker: BrokerSettings,
    listeners: Sequence[ListenerSettings],
) -> PreparedReload:
    """Check new settings, and read the files that they name. Raises SettingsError.

    `broker` and `listeners` are those that the server has started with.
    """
    problems: list[str] = []
    remarks = [
        *loaded.access.rights_warnings,
        *_restart_remarks(loaded, broker, listeners),
    ]
    started = {each.name: each for each in listeners}
    layers: dict[str, TransportLayers] = {}
    for each in loaded.listeners:
        before = started.get(each.name)
        if before is None or _is_elsewhere(before, each):
            continue
        try:
            check_listener(each, has_users=loaded.access.has_users)
            layers[each.name] = TransportLayers(each)
        except SettingsError as problem:
            problems += problem.problems
        except LayersUnusable as problem:
            problems.append(f"listener {each.name}: {problem}")
    for before in listeners:
        if before.name not in layers and not problems:
            # It stays open as it is: users may have been removed meanwhile.
            check_listener(before, has_users=loaded.access.has_users)
    if problems:
        raise SettingsError(problems)
    return PreparedReload(loaded, layers, tuple(remarks))


def apply_reload(
    prepared: PreparedReload, authority: ConfiguredAuthority, listeners: Sequence[Listener]
) -> None:
    """Apply new settings. This cannot fail."""
    loaded = prepared.loaded
    found = {each.name: each for each in loaded.listeners}
    for listener in listeners:
        layers = prepared.layers.get(listener.name)
        if layers is not None:
            settings = found[listener.name]
            listener.replace(settings, limits_of(settings, loaded.broker), layers)
    access = loaded.access
    authority.replace(access.users, access.rights, anonymous_listeners=access.anonymous_listeners)


def _is_elsewhere(before: ListenerSettings, after: ListenerSettings) -> bool:
    return any(getattr(before, key) != getattr(after, key) for key in FIXED_KEYS)


def _restart_remarks(
    loaded: LoadedSettings, broker: BrokerSettings, listeners: Sequence[ListenerSettings]
) -> list[str]:
    """One sentence for each change that takes effect at the next start."""
    remarks: list[str] = []
    changed = [
        each.name
        for each in fields(BrokerSettings)
        if each.name not in APPLIED_KEYS
        and getattr(broker, each.name) != getattr(loaded.broker, each.name)
    ]
    if changed:
        remarks.append(f"[broker] {', '.join(changed)}: changed, but takes effect at a restart")
    started = {each.name: each for each in listeners}
    for each in loaded.listeners:
        before = started.pop(each.name, None)
        if before is None:
            remarks.append(f"listener {each.name}: new, but opens at a restart")
        elif _is_elsewhere(before, each):
            remarks.append(f"listener {each.name}: its address changes at a restart")
    remarks += [f"listener {name}: removed, but stays open until a restart" for name in started]
    return remarks
