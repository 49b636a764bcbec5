"""The parts of `semel up`: the commands that it runs, and the events that they report.

    broker    `semel broker --json`, which records the stream; it runs its own sealer
    landing   `semel land --json`, which lands the record in the lake
    page      `semel web --json`, which serves the page

All read the same file and environment as `semel up` itself. Values that `semel up` has from its
flags or its own defaults are passed on as flags; addresses, which may contain secrets, as
environment variables, which other users cannot see.

A part reports events as JSON objects on standard output, one per line:

    {"event": "ready", …}       it is in service; the broker adds `listeners`
    {"event": "log", "level": "warning", "text": …}
    {"event": "failed", "problem": …}
    {"event": "batch", …}       and other events of a landing, docs/data/landing.md

Everything else that a part or its child processes write, such as the traceback of a crash, is a log
line of unknown level.

To add a part, write a function that returns it, and add it to `parts`.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from semel.broker.settings import LOG_LEVELS
from semel.store.sealing import environment_for_python
from semel.up.plan import UpPlan
from semel.up.supervisor import LOGGED, PROBLEM, PROGRESS, READY, STDOUT, LineEvent, Part

BROKER: Final = "broker"
LANDING: Final = "landing"
PAGE: Final = "page"
# The level of a log line that reports no problem.
INFO: Final = LOG_LEVELS[0]

# The broker stores what it has received and stops its sealer. A landing lands what is sealed, and
# may still have to start Spark for that.
BROKER_STOP_SECONDS: Final = 60.0
LANDING_STOP_SECONDS: Final = 90.0
PAGE_STOP_SECONDS: Final = 10.0

_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")
# The prefix of the line on standard error with which a command of semel reports why it exits. If it
# fails before it can report events, for instance because of a setting, this is the only report.
_ERROR: Final = "Error: "


def parts(plan: UpPlan, environ: Mapping[str, str]) -> list[Part]:
    """All parts, in the order in which they start and stop."""
    found = [broker_part(plan, environ)]
    if plan.serves_page:
        # Before the landing, so that it can be opened while Spark starts.
        found.append(page_part(plan, environ))
    if plan.lands:
        found.append(landing_part(plan, environ))
    return found


def broker_part(plan: UpPlan, environ: Mapping[str, str]) -> Part:
    """The part that runs the broker. It is required: without it nothing is recorded or landed."""
    command = [*_semel(plan, "broker"), "--json", "--data", str(plan.data)]
    if not plan.has_listeners:
        command += ["--host", plan.host, "--port", str(plan.port)]
        if plan.anonymous is not None:
            command.append("--anonymous" if plan.anonymous else "--no-anonymous")
    for stream in plan.streams:
        command += ["--stream", stream]
    environment = _environment(environ)
    # The event "ready" is logged at this level, so the broker must log it even if we hide it.
    environment["SEMEL_BROKER_LOG_LEVEL"] = INFO
    environment["SEMEL_BROKER_CONNECTION_MESSAGES"] = str(plan.connection_messages).lower()
    if plan.root is not None:
        environment["SEMEL_STORE_ROOT"] = plan.root
    return Part(
        BROKER,
        tuple(command),
        parse_line,
        environment=environment,
        is_required=True,
        stop_seconds=BROKER_STOP_SECONDS,
    )


def landing_part(plan: UpPlan, environ: Mapping[str, str]) -> Part:
    """The part that runs the landing, and with it Spark."""
    command = [*_semel(plan, "land"), "--json"]
    environment = _environment(environ)
    environment["SEMEL_LAND_ROOT"] = plan.record
    environment["SEMEL_LAND_LAKE"] = plan.lake
    if plan.checkpoint is not None:
        environment["SEMEL_LAND_CHECKPOINT"] = str(plan.checkpoint)
    if plan.landing is not None:
        environment["SEMEL_LAND_LANDING"] = str(plan.landing)
    if plan.interval is not None:
        environment["SEMEL_LAND_INTERVAL"] = plan.interval
    if not plan.maintenance:
        environment["SEMEL_LAND_MAINTENANCE"] = "false"
    return Part(
        LANDING,
        tuple(command),
        parse_landing_line,
        environment=environment,
        stop_seconds=LANDING_STOP_SECONDS,
    )


def page_part(plan: UpPlan, environ: Mapping[str, str]) -> Part:
    """The part that serves the page."""
    command = [*_semel(plan, "web"), "--json", "--data", str(plan.data)]
    if plan.web_port is not None:
        command += ["--port", plan.web_port]
    environment = _environment(environ)
    environment["SEMEL_LAND_ROOT"] = plan.record
    environment["SEMEL_LAND_LAKE"] = plan.lake
    return Part(
        PAGE,
        tuple(command),
        parse_line,
        environment=environment,
        stop_seconds=PAGE_STOP_SECONDS,
    )


def _semel(plan: UpPlan, name: str) -> list[str]:
    """The command line of a subcommand of this semel.

    With -P, Python ignores a folder named semel in the working directory.
    """
    command = [sys.executable, "-P", "-m", "semel", name]
    return command if plan.config is None else [*command, "--config", str(plan.config)]


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    # The supervisor decodes their output as UTF-8, whatever encoding the terminal has.
    own = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    return {**environment_for_python(environ), **own}


# --- events ---------------------------------------------------------------------------------------


def parse_line(source: int, line: str) -> LineEvent:
    """The event that a line of a part reports, or the line as a line of its log."""
    event = _parse_event(line) if source == STDOUT else None
    if event is None:
        return _parse_log_line(line)
    name = event.pop("event")
    event.pop("at", None)
    if name == "ready":
        event.pop("level", None)
        return LineEvent(READY, str(event.pop("text", "ready")), event)
    if name == "log":
        return LineEvent(LOGGED, str(event.pop("text", "")), event)
    if name == "maintenance":
        return LineEvent(LOGGED, str(event.pop("text", "")), {**event, "level": INFO})
    if name == "failed":
        return LineEvent(PROBLEM, str(event.get("problem") or "it reports no reason"))
    return LineEvent(PROGRESS, str(name), event)


def parse_landing_line(source: int, line: str) -> LineEvent:
    """Like `parse_line`, for a landing: its event "ready" has no text, so one is added."""
    event = parse_line(source, line)
    return replace(event, text="ready: landing messages") if event.kind == READY else event


def _parse_event(line: str) -> dict[str, object] | None:
    """The object of a line; None if it is not an event."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _parse_log_line(line: str) -> LineEvent:
    text = _TIMESTAMP.sub("", line, count=1)
    if text.startswith(_ERROR):
        return LineEvent(PROBLEM, text.removeprefix(_ERROR))
    return LineEvent(LOGGED, text)
