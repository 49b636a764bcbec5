"""`semel ctl`: inspect and manage a running broker through its control socket."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from semel.broker.bans import KINDS
from semel.broker.settings import LOG_LEVELS
from semel.cli.control_client import ControlClient, Values, control_options
from semel.cli.flags import ONE_OBJECT as JSON
from semel.cli.flags import json_option, shared_option
from semel.cli.groups import SuggestingGroup
from semel.cli.numbers import YEAR, Duration, IntegerRange
from semel.cli.safe_text import shown_text
from semel.cli.text_tables import print_table, shown_age, shown_size, shown_time
from semel.counts import count as shown_count

CLEAR_SCREEN: Final = "\x1b[H\x1b[2J"
# How often `drain` checks whether clients are still connected.
DRAIN_POLL_SECONDS: Final = 0.2
# How much longer than the timeout a drain may take until the last client has closed its socket.
DRAIN_GRACE_SECONDS: Final = 10.0
# The column of names, where one thing is shown.
NAME_WIDTH: Final = 28

CLIENT: Final = click.argument("client_id", metavar="ID")
TOPIC: Final = click.option(
    "-t",
    "--topic",
    metavar="FILTER",
    help="Only topics, or filters of subscriptions, that match this filter.",
)
COMMENT: Final = click.option(
    "--comment", metavar="TEXT", help="Why: clients of MQTT 5.0 get it as Reason String."
)
KIND: Final = click.argument("kind", type=click.Choice(KINDS), metavar="client|user|address")
VALUE: Final = click.argument("value", metavar="VALUE")


class ReasonCode(click.ParamType[int]):
    """A reason code of MQTT 5.0, such as 0x98."""

    name = "code"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a code, in hexadecimal with 0x or in decimal."""
        try:
            return int(value, 0)
        except ValueError:
            self.fail(f"{value!r} is not a reason code such as 0x98", param, ctx)


@click.group(name="ctl", cls=SuggestingGroup)
def command() -> None:
    """Inspect and manage a running broker through its control socket.

    The socket is control.sock in the data folder of the broker, or [control] path. Only root and
    the user who runs the broker may use it.
    """


# --- the broker -----------------------------------------------------------------------------------


@command.command(
    short_help="Print how much a broker has and does.",
    examples=(
        "semel ctl status --data /var/lib/semel",
        "semel ctl status --socket s.sock --json",
    ),
)
@control_options
@JSON
def status(broker: ControlClient, is_json: bool) -> None:
    """Print clients, sessions, traffic and settings of the running broker."""
    _, found = broker.call("status")
    if is_json:
        click.echo(json.dumps(found))
        return
    listeners = found.pop("listeners", [])
    for name, value in found.items():
        if name not in ("host", "port"):
            click.echo(f"{name.replace('_', ' '):<20} {_cell(value)}")
    for each in listeners:
        where = each.get("path") or f"{each['host']}:{each['port']}"
        click.echo(f"{'listener':<20} {each['name']}: {each['transport']}, {where}")


@command.command(
    short_help="Reload what the broker can reload.",
    examples=("semel ctl reload --data /var/lib/semel",),
)
@control_options
@JSON
def reload(broker: ControlClient, is_json: bool) -> None:
    """Reload what the broker can reload while it runs, as SIGHUP does."""
    _, found = broker.call("reload")
    if is_json:
        click.echo(json.dumps(found))
        return
    for line in found["reloaded"] or ["nothing to reload"]:
        click.echo(shown_text(line))


@command.command(
    name="log-level",
    short_help="Set the log level.",
    examples=("semel ctl log-level warning --data /var/lib/semel",),
)
@click.argument("level", type=click.Choice(LOG_LEVELS), metavar="LEVEL")
@control_options
@JSON
def log_level(broker: ControlClient, level: str, is_json: bool) -> None:
    """Set the log level of the running broker: info, warning or error. A restart undoes it."""
    _, found = broker.call("log_level", level=level)
    _report(found, f"log level {level}", is_json=is_json)


@command.command(
    short_help="Refuse new clients and disconnect the others.",
    examples=(
        "semel ctl drain --data /var/lib/semel --timeout 1m",
        "semel ctl drain --data /var/lib/semel --server-reference b.example.org",
        "semel ctl drain --data /var/lib/semel --cancel",
    ),
)
@shared_option(
    "--timeout",
    type=Duration(min=0, max=YEAR),
    default="30",
    help="Disconnect the clients evenly within this time.  [default: 30]",
)
@click.option(
    "--server-reference",
    metavar="ADDRESS",
    help="The server that clients of MQTT 5.0 should use instead, sent with code 0x9c.",
)
@click.option("--cancel", is_flag=True, help="Accept clients again.")
@control_options
@JSON
def drain(
    broker: ControlClient,
    timeout: float,
    server_reference: str | None,
    cancel: bool,
    is_json: bool,
) -> None:
    """Refuse new clients and disconnect the others, so that the broker can be stopped.

    New clients are refused with reason code 0x88 (Server unavailable), in MQTT 3.1.1 with return
    code 3; connected ones are disconnected with 0x8b (Server shutting down). The broker goes on
    even if this command is interrupted; --cancel ends that.
    """
    if cancel:
        _, found = broker.call("drain.cancel")
        _report(found, "clients are accepted again", is_json=is_json)
        return
    broker.call("drain", seconds=timeout, reference=server_reference)
    deadline = time.monotonic() + timeout + DRAIN_GRACE_SECONDS
    while (connections := broker.call("status")[1]["connections"]) and time.monotonic() < deadline:
        time.sleep(DRAIN_POLL_SECONDS)
    if connections:
        raise click.ClickException(f"{shown_count(connections, 'connection')} still open")
    _report({"connections": 0}, "drained: the broker can be stopped", is_json=is_json)


# --- clients --------------------------------------------------------------------------------------


@command.group(short_help="List or show connected clients.")
def clients() -> None:
    """List or show connected clients."""


@clients.command(
    name="list",
    short_help="List connected clients.",
    examples=("semel ctl clients list --data /var/lib/semel",),
)
@control_options
@JSON
def list_clients(broker: ControlClient, is_json: bool) -> None:
    """List the clients that are connected."""
    found, _ = broker.call("clients.list")
    columns = (
        _column("client"),
        _column("user"),
        _column("address"),
        _column("listener"),
        _column("version"),
        _column("connected", "connected_seconds", shown_age),
        _column("messages in", "messages_received"),
        _column("messages out", "messages_sent"),
        _column("in", "bytes_received", shown_size),
        _column("out", "bytes_sent", shown_size),
    )
    _print_entries("clients", found, columns, is_json=is_json)


@clients.command(
    name="show",
    short_help="Show a connected client.",
    examples=("semel ctl clients show press-7 --data /var/lib/semel",),
)
@CLIENT
@control_options
@JSON
def show_client(broker: ControlClient, client_id: str, is_json: bool) -> None:
    """Show everything about a client that is connected."""
    _show(broker.call("clients.show", client=client_id)[1], is_json=is_json)


@command.command(
    short_help="Disconnect a client.",
    examples=(
        "semel ctl disconnect press-7 --data /var/lib/semel",
        "semel ctl disconnect press-7 --reason 0x9d --comment 'moved' --data /var/lib/semel",
    ),
)
@CLIENT
@click.option(
    "--reason",
    type=ReasonCode(),
    default="0x98",
    metavar="CODE",
    help="The reason code that a client of MQTT 5.0 gets.  [default: 0x98, Administrative action]",
)
@COMMENT
@control_options
@JSON
def disconnect(
    broker: ControlClient, client_id: str, reason: int, comment: str | None, is_json: bool
) -> None:
    """Disconnect a client. It may connect again, and its session stays."""
    _, found = broker.call("disconnect", client=client_id, reason=reason, why=comment)
    _report(found, f"{shown_text(client_id)} disconnected", is_json=is_json)


@command.command(
    short_help="Show the busiest clients.",
    examples=(
        "semel ctl top --data /var/lib/semel",
        "semel ctl top --data /var/lib/semel --once --json",
    ),
)
@shared_option(
    "--interval",
    type=Duration(min=0.1, max=3600),
    default="2",
    help="Time between two measurements.  [default: 2]",
)
@shared_option("--count", type=IntegerRange(1, 1000), default=20, help="Rows.  [default: 20]")
@click.option("--once", is_flag=True, help="Measure once, over one interval.")
@control_options
@json_option("Print one JSON object per interval.")
def top(broker: ControlClient, interval: float, count: int, once: bool, is_json: bool) -> None:
    """Show the busiest clients by messages and bytes per second, until Ctrl-C."""
    broker.call("top", count=count)
    while True:
        time.sleep(interval)
        _, found = broker.call("top", count=count)
        if is_json:
            click.echo(json.dumps(found))
        else:
            _print_top(found)
        sys.stdout.flush()
        if once:
            return


def _print_top(found: Values) -> None:
    if sys.stdout.isatty():
        click.echo(CLEAR_SCREEN, nl=False)
    click.echo(
        f"{shown_count(found['clients'], 'client')}, "
        f"{found['messages_received_rate']:,.0f} messages/s in, "
        f"{found['messages_sent_rate']:,.0f} out, "
        f"{shown_size(int(found['bytes_received_rate']))}/s in, "
        f"{shown_size(int(found['bytes_sent_rate']))}/s out"
    )
    rows = [
        (
            shown_text(each["client"]),
            each["address"],
            f"{each['messages_received_rate']:.0f}",
            f"{each['messages_sent_rate']:.0f}",
            shown_size(int(each["bytes_received_rate"])),
            shown_size(int(each["bytes_sent_rate"])),
        )
        for each in found["busiest"]
    ]
    titles = ("client", "address", "messages/s in", "messages/s out", "bytes/s in", "bytes/s out")
    print_table(titles, rows)


# --- sessions -------------------------------------------------------------------------------------


@command.group(short_help="List, show or delete sessions.")
def sessions() -> None:
    """List, show or delete sessions, of clients that are connected or not."""


@sessions.command(
    name="list",
    short_help="List sessions.",
    examples=("semel ctl sessions list --data /var/lib/semel --json",),
)
@control_options
@JSON
def list_sessions(broker: ControlClient, is_json: bool) -> None:
    """List all sessions."""
    found, _ = broker.call("sessions.list")
    columns = (
        _column("client"),
        _column("user"),
        _column("connected"),
        _column("durable"),
        _column("subscriptions"),
        _column("queued", "queued_messages"),
        _column("in flight", "inflight_messages"),
        _column("expires in", "expires_seconds", shown_age),
    )
    _print_entries("sessions", found, columns, is_json=is_json)


@sessions.command(
    name="show",
    short_help="Show a session.",
    examples=("semel ctl sessions show press-7 --data /var/lib/semel",),
)
@CLIENT
@control_options
@JSON
def show_session(broker: ControlClient, client_id: str, is_json: bool) -> None:
    """Show everything about a session, with the filters of its subscriptions."""
    _show(broker.call("sessions.show", client=client_id)[1], is_json=is_json)


@sessions.command(
    name="delete",
    short_help="Delete a session.",
    examples=("semel ctl sessions delete press-7 --data /var/lib/semel",),
)
@CLIENT
@control_options
@JSON
def delete_session(broker: ControlClient, client_id: str, is_json: bool) -> None:
    """Delete a session with its subscriptions and queued messages, as a clean start does.

    Its client is disconnected, and its will is published. The command ends when the deletion is on
    disk.
    """
    _, found = broker.call("sessions.delete", client=client_id)
    _report(found, f"session of {shown_text(client_id)} deleted", is_json=is_json)


@command.group(short_help="List subscriptions.")
def subscriptions() -> None:
    """List subscriptions."""


@subscriptions.command(
    name="list",
    short_help="List subscriptions.",
    examples=(
        "semel ctl subscriptions list --data /var/lib/semel --client-id press-7",
        "semel ctl subscriptions list --data /var/lib/semel -t 'plant/#'",
    ),
)
@shared_option("--client-id", "client_id", help="Only subscriptions of this client.")
@TOPIC
@control_options
@JSON
def list_subscriptions(
    broker: ControlClient, client_id: str | None, topic: str | None, is_json: bool
) -> None:
    """List subscriptions, of clients that are connected or not."""
    found, _ = broker.call("subscriptions.list", client=client_id, topic=topic)
    columns = (_column("client"), _column("filter"), _column("qos"), _column("identifier"))
    _print_entries("subscriptions", found, columns, is_json=is_json)


@command.group(short_help="List or delete retained messages.")
def retained() -> None:
    """List or delete retained messages."""


@retained.command(
    name="list",
    short_help="List retained messages.",
    examples=(
        "semel ctl retained list --data /var/lib/semel -t 'plant/#'",
        "semel ctl retained list --data /var/lib/semel -t '$SYS/#'",
    ),
)
@TOPIC
@control_options
@JSON
def list_retained(broker: ControlClient, topic: str | None, is_json: bool) -> None:
    """List retained messages, without their payloads.

    Topics that begin with $, such as those under $SYS, are listed only if FILTER begins with $.
    """
    found, _ = broker.call("retained.list", topic=topic)
    columns = (
        _column("topic"),
        _column("qos"),
        _column("bytes"),
        _column("expires in", "expires_seconds", shown_age),
    )
    _print_entries("retained", found, columns, is_json=is_json)


@retained.command(
    name="delete",
    short_help="Delete a retained message.",
    examples=("semel ctl retained delete plant/7/state --data /var/lib/semel",),
)
@click.argument("topic", metavar="TOPIC")
@control_options
@JSON
def delete_retained(broker: ControlClient, topic: str, is_json: bool) -> None:
    """Delete a retained message, as a client does with an empty one, which subscribers receive.

    The command ends when the deletion is on disk.
    """
    _, found = broker.call("retained.delete", topic=topic)
    _report(found, f"retained message of {shown_text(topic)} deleted", is_json=is_json)


# --- violations -----------------------------------------------------------------------------------


@command.group(short_help="List the rules that clients broke.")
def violations() -> None:
    """List the rules of MQTT that clients broke."""


@violations.command(
    name="list",
    short_help="List the rules that clients broke, the newest first.",
    examples=("semel ctl violations list --data /var/lib/semel",),
)
@control_options
@JSON
def list_violations(broker: ControlClient, is_json: bool) -> None:
    """List the rules that clients broke since the start of the broker, the newest first.

    Violations of one user or address are counted together; client, packet and bytes are those of
    the last one. `semel decode` explains the bytes, and `semel rules` the rule.
    """
    found, _ = broker.call("violations.list")
    columns = (
        _column("ago", "seconds_ago", shown_age),
        _column("count"),
        _column("client"),
        _column("address"),
        _column("packet"),
        _column("rule"),
        _column("seen"),
        _column("bytes"),
    )
    _print_entries("violations", found, columns, is_json=is_json)


# --- bans -----------------------------------------------------------------------------------------


@command.group(short_help="List, add or remove bans.")
def bans() -> None:
    """List, add or remove bans of clients, users, addresses and networks.

    A banned client is refused with reason code 0x8a (Banned), in MQTT 3.1.1 with return code 5. If
    the broker has a data folder, bans survive its restart.
    """


@bans.command(
    name="list",
    short_help="List bans.",
    examples=("semel ctl bans list --data /var/lib/semel",),
)
@control_options
@JSON
def list_bans(broker: ControlClient, is_json: bool) -> None:
    """List the bans that have not expired."""
    found, _ = broker.call("bans.list")
    columns = (
        _column("kind"),
        _column("value"),
        _column("expires", "expires_at", _shown_moment),
        _column("by", "created_by"),
        _column("reason"),
    )
    _print_entries("bans", found, columns, is_json=is_json)


@bans.command(
    name="add",
    short_help="Ban a client, a user, an address or a network.",
    examples=(
        "semel ctl bans add client press-7 --data /var/lib/semel",
        "semel ctl bans add address 10.1.0.0/16 --duration 1d --comment flood --data /srv/semel",
    ),
)
@KIND
@VALUE
@shared_option(
    "--duration",
    type=Duration(min=0, max=YEAR, min_open=True),
    help="How long the ban lasts. By default it does not expire.",
)
@COMMENT
@control_options
@JSON
def add_ban(
    broker: ControlClient,
    kind: str,
    value: str,
    duration: float | None,
    comment: str | None,
    is_json: bool,
) -> None:
    """Ban a client identifier, a user name, an IP address or a network in CIDR notation.

    Clients that are connected are disconnected.
    """
    _, found = broker.call("bans.add", kind=kind, value=value, seconds=duration, reason=comment)
    closed = shown_count(found["disconnected"], "connection")
    until = "" if found["stored"] else ", until the broker ends: it has no data folder"
    sentence = f"{kind} {shown_text(found['banned']['value'])} banned, {closed} closed{until}"
    _report(found, sentence, is_json=is_json)


@bans.command(
    name="remove",
    short_help="Remove a ban.",
    examples=("semel ctl bans remove client press-7 --data /var/lib/semel",),
)
@KIND
@VALUE
@control_options
@JSON
def remove_ban(broker: ControlClient, kind: str, value: str, is_json: bool) -> None:
    """Remove a ban."""
    _, found = broker.call("bans.remove", kind=kind, value=value)
    _report(found, f"{kind} {shown_text(value)} is no longer banned", is_json=is_json)


# --- output ---------------------------------------------------------------------------------------

Column = tuple[str, str, Callable[[Any], str]]


def _column(title: str, key: str = "", shown: Callable[[Any], str] | None = None) -> Column:
    return title, key or title, _cell if shown is None else shown


def _print_entries(
    name: str, entries: list[Values], columns: Sequence[Column], *, is_json: bool
) -> None:
    if is_json:
        click.echo(json.dumps({name: entries}))
        return
    rows = [
        ["" if each[key] is None else shown(each[key]) for _, key, shown in columns]
        for each in entries
    ]
    print_table([title for title, _, _ in columns], rows)


def _show(values: Values, *, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(values))
        return
    for name, value in values.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            for key, part in value.items():
                # What the outer values do not have already.
                if key not in values:
                    click.echo(
                        f"{label} {key.replace('_', ' '):<{NAME_WIDTH - len(label) - 1}} "
                        f"{_cell(part)}"
                    )
        else:
            click.echo(f"{label:<{NAME_WIDTH}} {_cell(value)}")


def _report(found: Values, sentence: str, *, is_json: bool) -> None:
    click.echo(json.dumps(found) if is_json else sentence)


def _cell(value: object) -> str:
    """A value of the broker, safe for a terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return shown_text(str(value))


def _shown_moment(seconds: float) -> str:
    return shown_time(int(seconds * 1_000_000), "seconds")
