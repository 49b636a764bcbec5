"""The flags of a command that has settings: --config, and one per setting except secrets."""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Final, TypeVar

import click

from semel.cli.flags import CONFIG, METAVARS, SHORT_FLAGS
from semel.cli.option_groups import (
    CONNECTION,
    LIMITS,
    LOGGING,
    SESSION,
    STORAGE,
    TLS,
    grouped_option,
)
from semel.settings import Section, identifying_key, settings_by_section
from semel.settings_values import SECONDS, Setting, hint

R = TypeVar("R")

LANDING: Final = "Landing"
MAINTENANCE: Final = "Maintenance"
METRICS: Final = "Metrics"

# The heading of a section's flags, if HEADINGS has no other for a key.
DEFAULT_HEADINGS: Final[Mapping[str, str]] = {
    "broker": LIMITS,
    "store": STORAGE,
    "ingest": CONNECTION,
    "land": LANDING,
    "bridges": METRICS,
}
HEADINGS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "broker": {
        CONNECTION: (
            *("host", "port", "anonymous"),
            *("connect_timeout", "packet_timeout", "maximum_keep_alive"),
        ),
        SESSION: (
            *("maximum_session_expiry", "receive_maximum", "inflight_window"),
            *("topic_alias_maximum", "client_topic_aliases", "response_topic_prefix"),
            "overlapping",
        ),
        LOGGING: (
            *("log_level", "log_format", "connection_messages", "log_lines_per_minute"),
            "sys_interval",
        ),
        METRICS: ("metrics_host", "metrics_port"),
    },
    "ingest": {
        SESSION: ("topic", "qos", "share", "client_id", "session_expiry"),
        TLS: (
            *("cafile", "capath", "cert", "key", "tls_version", "ciphers", "tls_alpn"),
            "insecure",
        ),
        STORAGE: ("stream", "retain_for", "retain_bytes"),
    },
    "store": {
        LIMITS: ("maximum_unsealed_rows", "maximum_unsealed_bytes", "maximum_unwritten_bytes"),
    },
    "land": {
        STORAGE: ("root", "stream", "lake", "table", "landing", "checkpoint"),
        MAINTENANCE: (
            *("maintenance", "target_file_size", "small_files", "cluster_by", "retention"),
            *("file_retention", "log_entries"),
        ),
        METRICS: ("metrics_host", "metrics_port"),
    },
}
# Metavars of flags that are settings only.
SETTING_METAVARS: Final[Mapping[str, str]] = {
    "--checkpoint": "ADDRESS",
    "--cluster-by": "COLUMN",
    "--master": "URL",
    "--metrics-host": "HOST",
    "--metrics-port": "PORT",
    "--response-topic-prefix": "TOPIC",
    "--share": "NAME",
    "--stream": "NAME",
    "--topic": "FILTER",
}


def options(*sections: type[Section]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a click command --config and a flag for each setting of these sections except secrets.

    A repeated section has no flags. Raises TypeError if two flags have the same name.
    The command is called with `config: Path | None` and `flags`, which contains only the flags on
    the command line. Both are arguments of `load`, which validates them.
    """
    single = [section for section in sections if identifying_key(section) is None]
    by_section = settings_by_section(single)
    declared = [each for keys in by_section.values() for each in keys.values()]
    with_flag = [each for each in declared if not each.secret]
    names = ["--config", "--help", *(name for each in with_flag for name in each.flags)]
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"two flags are named {name}")

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def with_flags(**parameters: object) -> R:
            source = click.get_current_context().get_parameter_source
            flags: dict[str, dict[str, object]] = {section.section: {} for section in single}
            for each in with_flag:
                value = parameters.pop(each.variable)
                if source(each.variable) is click.core.ParameterSource.COMMANDLINE:
                    # `--topic=` is the only way to write an empty list with a repeatable flag.
                    flags[each.section][each.key] = () if value == ("",) else value
            return command(flags=flags, **parameters)

        wrapped: Callable[..., R] = with_flags
        for each in reversed(with_flag):
            wrapped = _option(each)(wrapped)
        configured: Callable[..., R] = CONFIG(wrapped)
        return configured

    return decorate


def heading_of(declared: Setting) -> str:
    """The heading under which `--help` lists the flag of a setting."""
    for heading, keys in HEADINGS.get(declared.section, {}).items():
        if declared.key in keys:
            return heading
    return DEFAULT_HEADINGS.get(declared.section, declared.section.capitalize())


def _option(declared: Setting) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """The click option of one setting. It validates nothing: `load` does, for all sources."""
    short = SHORT_FLAGS.get(declared.flags[0])
    option: Callable[[Callable[..., R]], Callable[..., R]] = grouped_option(
        *([] if short is None else [short]),
        "/".join(declared.flags),
        declared.variable,
        section=heading_of(declared),
        type=bool if declared.kind is bool else str,
        default=None,
        multiple=declared.kind is tuple,
        metavar=_metavar(declared),
        help=f"{declared.help}  [{hint(declared)}]",
    )
    return option


def _metavar(declared: Setting) -> str | None:
    flag = declared.flags[0]
    if declared.kind is bool:
        return None
    if flag in METAVARS:
        return METAVARS[flag]
    if flag in SETTING_METAVARS:
        return SETTING_METAVARS[flag]
    if declared.unit is not None:
        return "DURATION" if declared.unit == SECONDS else "SIZE"
    if declared.choices:
        return "|".join(declared.choices)
    return {int: "N", float: "NUMBER", Path: "PATH"}.get(declared.kind, "TEXT")
