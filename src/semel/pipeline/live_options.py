"""The options of `format("mqtt")` for a live broker.

Every setting of [ingest] and [store] is an option, in Spark's spelling: `keep_alive` is
`keepAlive`. `topic` is called `topics`, because an option cannot be repeated. `root` and `stream`
belong to the reader. Option values are strings, and option names are case-insensitive, as
everywhere in Spark.

`read_options` checks all values and raises one OptionError with every problem. It does not connect:
the ingest finds out whether the broker can be reached. `source_options` refuses unknown names
before they get here.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from semel.client.ingest_plan import IngestPlan, make_plan
from semel.client.ingest_settings import IngestSettings
from semel.extras import MissingExtra
from semel.pipeline.errors import OptionError
from semel.settings import SECONDS, SettingProblem, SettingsError, settings_of
from semel.settings_values import Setting, Value, checked, read_text, unfit, written
from semel.store.roots import open_root, without_secrets
from semel.store.settings import StoreSettings

LINGER: Final = Setting(
    "live",
    "linger",
    float,
    False,
    60.0,
    "How long the ingest stays after the last query that reads from it has ended.",
    minimum=0,
    unit=SECONDS,
)
# Settings that the reader itself provides.
_READER_SETTINGS: Final = (("ingest", "stream"), ("store", "root"))
_RENAMED: Final = {("ingest", "topic"): "topics"}


def _in_spark(section: str, key: str) -> str:
    """The option for a setting."""
    first, *others = key.split("_")
    return _RENAMED.get((section, key), first + "".join(each.capitalize() for each in others))


def _options() -> dict[str, Setting]:
    found = {LINGER.key: LINGER}
    for section in (IngestSettings, StoreSettings):
        for key, declared in settings_of(section).items():
            if (section.section, key) not in _READER_SETTINGS:
                found[_in_spark(section.section, key)] = declared
    return found


# All options for a live broker, by name.
OPTIONS: Final[Mapping[str, Setting]] = _options()
_BY_LOWERCASE: Final = {name.lower(): name for name in OPTIONS}
_BY_SETTING: Final = {declared.key: name for name, declared in OPTIONS.items()}


@dataclass(frozen=True)
class LiveOptions:
    """Checked options for the ingest that runs beside the driver."""

    plan: IngestPlan
    linger: float
    # The options that differ from their defaults, without secrets: they identify an ingest.
    identity: Mapping[str, str]

    def differences(self, identity: Mapping[str, str]) -> list[str]:
        """The options in which another ingest differs from this one."""
        names = {*self.identity, *identity}
        return sorted(each for each in names if self.identity.get(each) != identity.get(each))


def read_options(options: Mapping[str, str], *, root: str, stream: str) -> LiveOptions:
    """Parse options, all of them in OPTIONS. Raises OptionError with every problem."""
    problems: list[str] = []
    values: dict[str, Value] = {}
    for given, text in options.items():
        name = _BY_LOWERCASE[given.lower()]
        declared = OPTIONS[name]
        try:
            values[name] = _topics(text) if name == "topics" else read_text(declared, text)
        except ValueError:
            problems.append(unfit("option", replace(declared, key=name), text))
    if problems:
        raise OptionError("; ".join(problems))
    linger = values.pop(LINGER.key, LINGER.default)
    assert isinstance(linger, float)
    try:
        ingest = _section("ingest", values, stream=stream)
        plan = make_plan(
            IngestSettings(**ingest), StoreSettings(**_section("store", values, root=root))
        )
    except SettingsError as problem:
        raise OptionError("; ".join(_with_option(each) for each in problem.problems)) from None
    except MissingExtra as problem:
        raise OptionError(str(problem)) from None
    return LiveOptions(plan, linger, _identity(values, plan, root))


def _topics(text: str) -> Value:
    """Topic filters, separated by commas, or a JSON list if a filter has commas or spaces."""
    if not text.startswith("["):
        return read_text(OPTIONS["topics"], text)
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(text) from None
    return checked(OPTIONS["topics"], found)


def _section(section: str, values: Mapping[str, Value], **more: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        OPTIONS[name].key: value
        for name, value in values.items()
        if OPTIONS[name].section == section
    }
    return {**found, **more}


def _with_option(problem: str) -> str:
    """A problem of `make_plan` as a sentence that names the option instead of the setting."""
    if not isinstance(problem, SettingProblem):
        return problem
    name = "root" if problem.setting == "root" else _BY_SETTING.get(problem.setting)
    return problem if name is None else f"option {name}{problem.rest}"


def _shown_root(root: str) -> str:
    """The real path of a folder, or an address without secrets."""
    if "://" in root and not root.lower().startswith("file:"):
        return without_secrets(root)
    return os.path.realpath(open_root(root).address)


def _identity(values: Mapping[str, Value], plan: IngestPlan, root: str) -> dict[str, str]:
    found = {
        name: written(OPTIONS[name], value)
        for name, value in values.items()
        if not OPTIONS[name].secret and value != OPTIONS[name].default
    }
    # Two queries may name the same store with option data.
    found["root"], found["stream"] = _shown_root(root), plan.stream.name
    # The address without its password, and the filters in a fixed order.
    found["url"] = str(plan.address)
    found["topics"] = json.dumps(sorted(each.topic_filter for each in plan.subscriptions))
    return found
