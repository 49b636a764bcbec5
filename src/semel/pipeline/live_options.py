"""The options of `format("mqtt")` that are about a live broker, and what they mean together.

Every setting of [ingest] and [store] is an option, written as Spark writes them: `keep_alive` is
`keepAlive`. `topic` is called `topics`, because an option cannot be repeated; `root` and `stream`
are the reader's own. Spark gives all of them as texts, and does not keep small and capital letters
apart in their names; nor do we.

`read_options` checks all values, together, and raises OptionError with all that is wrong, in the
words of the options. It asks nobody: whether the broker is there is seen by the ingest. Names that
are no options do not come here: `source_options` refuses them, because it knows the others, too.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from semel.client.ingest import IngestPlan, make_plan
from semel.client.ingest_settings import IngestSettings
from semel.extras import MissingExtra
from semel.pipeline.errors import OptionError
from semel.settings import SECONDS, SettingsError, settings_of
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
# What the reader says itself: not options of the ingest.
_READERS: Final = (("ingest", "stream"), ("store", "root"))
_RENAMED: Final = {("ingest", "topic"): "topics"}
# How a sentence of `make_plan` begins, if it is not with a flag or the name of a setting.
_BEGINNINGS: Final = (
    ("IngestSettings: [ingest] ", "option "),
    ("say where the broker is", "option url: say where the broker is"),
    ("the broker: ", "option url: "),
    ("say what to take", "option topics: say what to take"),
    ("the root is no folder", "option data is missing: the root is no folder"),
    ("password and password_file say", "options password and passwordFile say"),
    ("durability ", "option durability: "),
    ("keyfile is given without certfile", "option key is given without cert"),
    ("certfile", "option cert"),
    ("keyfile", "option key"),
    ("alpn", "option tlsAlpn"),
)
# The flags that its sentences end with, for who wrote options.
_ENDINGS: Final = (
    (": --topic FILTER, which may be repeated", ", such as plant/#, with commas between filters"),
    (", and so does --share", ", and so does option share"),
    (": say by --data where the store is", ", so say where the store is"),
)


def _in_spark(section: str, key: str) -> str:
    """A setting's name as an option."""
    first, *others = key.split("_")
    return _RENAMED.get((section, key), first + "".join(each.capitalize() for each in others))


def _options() -> dict[str, Setting]:
    found = {LINGER.key: LINGER}
    for section in (IngestSettings, StoreSettings):
        for key, declared in settings_of(section).items():
            if (section.section, key) not in _READERS:
                found[_in_spark(section.section, key)] = declared
    return found


# All options of a live broker, by the names that Spark's users write.
OPTIONS: Final[Mapping[str, Setting]] = _options()
_BY_SMALL_NAME: Final = {name.lower(): name for name in OPTIONS}
_BY_SETTING: Final = {declared.key: name for name, declared in OPTIONS.items()}


@dataclass(frozen=True)
class LiveOptions:
    """What the ingest beside the driver is to do, checked."""

    plan: IngestPlan
    linger: float
    # What tells one ingest from another, without secrets: options that are not as by default.
    identity: Mapping[str, str]

    def unlike(self, identity: Mapping[str, str]) -> list[str]:
        """The options in which another ingest differs from this one."""
        names = {*self.identity, *identity}
        return sorted(each for each in names if self.identity.get(each) != identity.get(each))


def read_options(options: Mapping[str, str], *, root: str, stream: str) -> LiveOptions:
    """What these options, all among OPTIONS, ask for. Raises OptionError with all that is wrong."""
    problems: list[str] = []
    values: dict[str, Value] = {}
    for given, text in options.items():
        name = _BY_SMALL_NAME[given.lower()]
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
        raise OptionError("; ".join(_as_options(each) for each in problem.problems)) from None
    except MissingExtra as problem:
        raise OptionError(str(problem)) from None
    return LiveOptions(plan, linger, _identity(values, plan, root))


def _topics(text: str) -> Value:
    """Topic filters: apart by commas, or a JSON list for those that have a comma or spaces."""
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


def _as_options(problem: str) -> str:
    """A sentence of `make_plan`, which speaks of flags and settings, for who wrote options.

    Only its beginning and its end are changed: what is between may be the user's own.
    """
    for ending, words in _ENDINGS:
        if problem.endswith(ending):
            problem = problem.removesuffix(ending) + words
    for beginning, words in _BEGINNINGS:
        if problem.startswith(beginning):
            return words + problem.removeprefix(beginning)
    word = problem.partition(" ")[0]
    key = word.removeprefix("--").removesuffix(":").replace("-", "_")
    name = "root" if key == "root" else _BY_SETTING.get(key)
    if name is None:
        return problem
    return f"option {name}{':' if word.endswith(':') else ''}{problem.removeprefix(word)}"


def _shown_root(root: str) -> str:
    """A folder by its one path, an address without secrets."""
    if "://" in root and not root.lower().startswith("file:"):
        return without_secrets(root)
    return os.path.realpath(open_root(root).address)


def _identity(values: Mapping[str, Value], plan: IngestPlan, root: str) -> dict[str, str]:
    found = {
        name: written(OPTIONS[name], value)
        for name, value in values.items()
        if not OPTIONS[name].secret and value != OPTIONS[name].default
    }
    # With option data, one store may be given for two of these.
    found["root"], found["stream"] = _shown_root(root), plan.stream.name
    # The address without its password; and filters whatever their order.
    found["url"] = str(plan.address)
    found["topics"] = json.dumps(sorted(each.topic_filter for each in plan.subscriptions))
    return found
