"""The commands of the control socket: what `semel ctl` can ask and order.

Lists are sent in pages. Whatever changes something is logged and written to the audit log with the
user ID of the operator; whatever deletes something is answered after the commit.
"""

import asyncio
import heapq
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from semel import __version__
from semel.broker.bans import KINDS, Ban, BanRefused
from semel.broker.core import Broker
from semel.broker.inspection import (
    broker_values,
    client_details,
    client_values,
    retained_values,
    session_values,
    subscription_values,
    traffic_values,
    violation_values,
)
from semel.broker.network.ban_file import ban_values, write_bans
from semel.broker.network.control_protocol import Arguments, BadRequest
from semel.broker.network.log import level_name
from semel.broker.network.peers import Peers
from semel.broker.settings import LOG_LEVELS
from semel.metrics.families import MetricFamily, family_values
from semel.mqtt.packet_types import DISCONNECT
from semel.mqtt.reasons import (
    ADMINISTRATIVE_ACTION,
    DISCONNECT_ONLY_CLIENT,
    FAILURE,
    REASONS_5,
)
from semel.mqtt.topics import check_topic_filter, topic_matches
from semel.mqtt.violation import Violation
from semel.mqtt.wire import MAXIMUM_TWO_BYTES

LOG: Final = logging.getLogger("semel.broker")

# Rows of `top`.
MAXIMUM_ROWS: Final = 1_000
# How long a commit may take before the operator is told that it is late.
COMMIT_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.01
MAXIMUM_SECONDS: Final = 366 * 86_400.0

Values = dict[str, object]
SendPage = Callable[[list[Values]], Awaitable[None]]
T = TypeVar("T")


@dataclass(frozen=True)
class CommandLimits:
    """The steps in which a command does its work, so that it does not delay the clients."""

    # Entries per page, and connections that are examined, or disconnected, per tick.
    page_entries: int = 100
    examined: int = 500
    # The steps in which clients are disconnected while the broker is drained.
    drain_step_seconds: float = 0.1


LIMITS: Final = CommandLimits()


class ControlledServer(Protocol):
    """The server, as its operators use it."""

    broker: Broker
    peers: Peers
    # Why the store failed; None: it did not.
    failure: str | None

    def now(self) -> float:
        """The time of the clock that all deadlines use."""


class Operator:
    """Who has a control connection; None: not known. Also what `top` has measured for it."""

    def __init__(self, user_id: int | None, process_id: int | None) -> None:
        self.user_id = user_id
        self.process_id = process_id
        self.measured_at = 0.0
        # By number of the connection: messages received and sent, bytes received and sent.
        self.measured: dict[int, tuple[int, int, int, int]] = {}
        self.traffic: Values = {}

    @property
    def name(self) -> str:
        """For the log and for bans."""
        return "an operator" if self.user_id is None else f"user ID {self.user_id}"


class ControlCommands:
    """Runs the commands of all operators."""

    def __init__(
        self,
        server: ControlledServer,
        *,
        reload: Callable[[], Awaitable[list[str]]],
        ban_file: Path | None,
        describe: Callable[[], Values],
        families: Callable[[], list[MetricFamily]] = list,
        commit_seconds: float = COMMIT_SECONDS,
        limits: CommandLimits = LIMITS,
    ) -> None:
        """`reload` returns what it has done; without `ban_file` bans end with the process;
        `describe` returns more values for `status`, and `families` the metrics."""
        self._server = server
        self._broker = server.broker
        self._actions = server.broker.actions
        self._reload = reload
        self._ban_file = ban_file
        self._describe = describe
        self._families = families
        self._commit_seconds = commit_seconds
        self._limits = limits
        self._started_at = server.now()
        self._saving = asyncio.Lock()
        self._drain_task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """End what runs in the background."""
        if self._drain_task is not None:
            self._drain_task.cancel()
            await asyncio.gather(self._drain_task, return_exceptions=True)

    async def run(
        self, command: str, arguments: Arguments, operator: Operator, send_page: SendPage
    ) -> Values:
        """Run a command, and send its entries. Returns the result. Raises BadRequest."""
        if command == "status":
            arguments.only()
            return self._status()
        if command == "clients.list":
            arguments.only()
            return await self._list_clients(send_page)
        if command == "clients.show":
            arguments.only("client")
            return self._show_client(arguments.text("client"))
        if command == "sessions.list":
            arguments.only()
            return await self._list_sessions(send_page)
        if command == "sessions.show":
            arguments.only("client")
            return self._show_session(arguments.text("client"))
        if command == "subscriptions.list":
            arguments.only("client", "topic")
            client, topic = arguments.optional_text("client"), _filter(arguments)
            return await self._list_subscriptions(client, topic, send_page)
        if command == "retained.list":
            arguments.only("topic")
            return await self._list_retained(_filter(arguments), send_page)
        if command == "bans.list":
            arguments.only()
            return await self._list_bans(send_page)
        if command == "violations.list":
            arguments.only()
            return await self._list_violations(send_page)
        if command == "metrics":
            arguments.only()
            return {each.name: family_values(each) for each in self._families()}
        if command == "top":
            arguments.only("count")
            rows = int(arguments.number("count", 20, most=MAXIMUM_ROWS))
            return await self._top(rows, operator)
        return await self._change(command, arguments, operator)

    async def _change(self, command: str, arguments: Arguments, operator: Operator) -> Values:
        if command == "sessions.delete":
            arguments.only("client")
            return await self._delete_session(arguments.text("client"), operator)
        if command == "retained.delete":
            arguments.only("topic")
            return await self._delete_retained(arguments.text("topic"), operator)
        if command == "disconnect":
            arguments.only("client", "reason", "why", "by")
            return self._disconnect(arguments, operator)
        if command == "bans.add":
            arguments.only("kind", "value", "reason", "seconds")
            return await self._add_ban(arguments, operator)
        if command == "bans.remove":
            arguments.only("kind", "value")
            kind, value = arguments.text("kind"), arguments.text("value")
            return await self._remove_ban(kind, value, operator)
        if command == "drain":
            arguments.only("seconds", "reference")
            return self._drain(arguments, operator)
        if command == "drain.cancel":
            arguments.only()
            return self._cancel_drain(operator)
        if command == "reload":
            arguments.only()
            self._record(operator, "reloaded", "reload requested")
            return {"reloaded": await self._reload()}
        if command == "log_level":
            arguments.only("level")
            return self._set_log_level(arguments.text("level"), operator)
        raise BadRequest(
            f"this broker does not know the command {command!a}: use the semel command that "
            "belongs to the broker"
        )

    # --- what there is ----------------------------------------------------------------------------

    def _status(self) -> Values:
        return {
            "version": __version__,
            "process_id": os.getpid(),
            "uptime_seconds": round(self._server.now() - self._started_at, 1),
            "log_level": level_name(logging.getLogger().level),
            **broker_values(self._broker, self._server.now()),
            **self._describe(),
        }

    async def _list_clients(self, send_page: SendPage) -> Values:
        for numbers in _pages(list(self._broker.connections), self._limits.page_entries):
            now = self._server.now()
            entries = []
            for number in numbers:
                connection = self._broker.connections.get(number)
                if connection is not None and connection.state is not None:
                    entries.append(client_values(connection, connection.state, now))
            await send_page(entries)
        return {}

    def _show_client(self, client_id: str) -> Values:
        connection = self._actions.connection_of(client_id)
        if connection is None or connection.state is None:
            raise BadRequest(f"client {client_id!a} is not connected")
        return client_details(connection, connection.state, self._server.now())

    async def _list_sessions(self, send_page: SendPage) -> Values:
        for client_ids in _pages(list(self._broker.router.sessions), self._limits.page_entries):
            now = self._server.now()
            entries = []
            for client_id in client_ids:
                state = self._broker.router.sessions.get(client_id)
                if state is not None:
                    entries.append(session_values(state, now))
            await send_page(entries)
        return {}

    def _show_session(self, client_id: str) -> Values:
        state = self._broker.router.sessions.get(client_id)
        if state is None:
            raise BadRequest(f"there is no session of client {client_id!a}")
        entries = self._broker.router.subscriptions.of(client_id)
        return {
            **session_values(state, self._server.now()),
            "filters": [entry.topic_filter for entry in entries],
        }

    async def _list_subscriptions(
        self, client_id: str | None, topic: str | None, send_page: SendPage
    ) -> Values:
        """Subscriptions, of one client or of all; `topic`: those whose filter it matches."""
        router = self._broker.router
        client_ids = list(router.sessions) if client_id is None else [client_id]
        examined = 0
        entries: list[Values] = []
        for each in client_ids:
            # In pages, because one client may have very many, too.
            for found in _pages(router.subscriptions.of(each), self._limits.examined):
                examined += 1 + len(found)
                entries += [
                    subscription_values(entry)
                    for entry in found
                    if topic is None or topic_matches(topic, entry.topic_filter)
                ]
                if examined >= self._limits.examined:
                    await self._send_pages(entries, send_page)
                    examined, entries = 0, []
        await self._send_pages(entries, send_page)
        return {}

    async def _list_retained(self, topic: str | None, send_page: SendPage) -> Values:
        # As in a subscription, a wildcard matches no topic that begins with $, such as $SYS.
        topic_filter = "#" if topic is None else topic
        retained = self._broker.router.retained
        for names in _pages(retained.topic_names(), self._limits.examined):
            now = self._server.now()
            entries = []
            for name in names:
                message = retained.get(name)
                if message is not None and topic_matches(topic_filter, name):
                    entries.append(retained_values(message, now))
            await self._send_pages(entries, send_page)
        return {}

    async def _send_pages(self, entries: list[Values], send_page: SendPage) -> None:
        """Send entries, and let the broker do a tick, even if there are none."""
        await asyncio.sleep(0)
        for page in _pages(entries, self._limits.page_entries):
            await send_page(page)

    async def _list_violations(self, send_page: SendPage) -> Values:
        for found in _pages(
            self._broker.oversight.violations.newest_first(), self._limits.page_entries
        ):
            now = self._server.now()
            await send_page([violation_values(each, now) for each in found])
        return {}

    async def _top(self, rows: int, operator: Operator) -> Values:
        """The busiest clients since the last request of this operator.

        The first request has their averages since they connected.
        """
        now = self._server.now()
        seconds = now - operator.measured_at
        before, operator.measured = operator.measured, {}
        clients = 0
        # Messages per second, bytes per second, number, and the four rates.
        busiest: list[tuple[float, float, int, list[float]]] = []
        for numbers in _pages(list(self._broker.connections), self._limits.examined):
            for number in numbers:
                connection = self._broker.connections.get(number)
                if connection is None or connection.state is None:
                    continue
                counts = (
                    connection.messages_received,
                    connection.state.messages_sent,
                    connection.bytes_received,
                    connection.bytes_sent,
                )
                old = before.get(number, (0, 0, 0, 0))
                operator.measured[number] = counts
                age = max(POLL_SECONDS, min(seconds, now - connection.opened_at))
                rates = [(new - last) / age for new, last in zip(counts, old, strict=True)]
                clients += 1
                busiest.append((rates[0] + rates[1], rates[2] + rates[3], number, rates))
            # In each page, because sorting all clients at once would take too long.
            busiest = heapq.nlargest(rows, busiest)
            await asyncio.sleep(0)
        traffic = traffic_values(self._broker)
        interval = max(POLL_SECONDS, min(seconds, now - self._started_at))
        rates_of_all = {
            f"{name}_rate": round(_change_of(operator.traffic, traffic, name) / interval, 1)
            for name in traffic
        }
        operator.traffic, operator.measured_at = traffic, now
        return {
            "seconds": round(interval, 1),
            "clients": clients,
            **rates_of_all,
            "busiest": [
                values
                for _, _, number, rates in busiest
                if (values := self._rate_values(number, rates)) is not None
            ],
        }

    def _rate_values(self, number: int, rates: list[float]) -> Values | None:
        """A row of `top`; None if the client has left meanwhile."""
        connection = self._broker.connections.get(number)
        if connection is None or connection.state is None:
            return None
        return {
            "client": connection.state.client_id,
            "address": connection.peer,
            "messages_received_rate": round(rates[0], 1),
            "messages_sent_rate": round(rates[1], 1),
            "bytes_received_rate": round(rates[2], 1),
            "bytes_sent_rate": round(rates[3], 1),
        }

    # --- what changes something -------------------------------------------------------------------

    def _disconnect(self, arguments: Arguments, operator: Operator) -> Values:
        client_id, why = arguments.text("client"), arguments.optional_text("why")
        reason = int(arguments.number("reason", ADMINISTRATIVE_ACTION, most=255))
        if reason < FAILURE or reason not in REASONS_5[DISCONNECT] - DISCONNECT_ONLY_CLIENT:
            raise BadRequest(f"0x{reason:02x} is not a reason code with which a server disconnects")
        if not self._actions.disconnect(client_id, reason, self._server.now(), why):
            raise BadRequest(f"client {client_id!a} is not connected")
        self._server.peers.tick()
        label = f"client {client_id!a} disconnected with 0x{reason:02x}"
        # The user of the page, which acts for many.
        by = arguments.optional_text("by")
        values = {} if by is None else {"by": by}
        self._record(operator, "client_disconnected", label, client=client_id, **values)
        return {"disconnected": client_id}

    async def _delete_session(self, client_id: str, operator: Operator) -> Values:
        if not self._actions.delete_session(client_id, self._server.now()):
            raise BadRequest(f"there is no session of client {client_id!a}")
        label = f"session of client {client_id!a} deleted"
        self._record(operator, "session_deleted", label, client=client_id)
        await self._commit()
        return {"deleted": client_id}

    async def _delete_retained(self, topic_name: str, operator: Operator) -> Values:
        if not self._actions.delete_retained(topic_name, self._server.now()):
            raise BadRequest(
                f"topic {topic_name!a} has no retained message, or belongs to the broker"
            )
        label = f"retained message of {topic_name!a} deleted"
        self._record(operator, "retained_deleted", label, topic=topic_name)
        await self._commit()
        return {"deleted": topic_name}

    async def _commit(self) -> None:
        """End the tick, and wait until its changes are on disk. Raises BadRequest."""
        self._server.peers.tick()
        number = self._actions.last_uncommitted()
        deadline = self._server.now() + self._commit_seconds
        while not self._actions.is_committed(number):
            if self._server.failure is not None or self._server.now() >= deadline:
                why = self._server.failure or "the store is behind, or its disk is full"
                raise BadRequest(f"deleted, but not on disk yet: {why}")
            await asyncio.sleep(POLL_SECONDS)

    def _set_log_level(self, level: str, operator: Operator) -> Values:
        if level not in LOG_LEVELS:
            raise BadRequest(f"the log level is {level!a}, but must be {', '.join(LOG_LEVELS)}")
        self._record(operator, "log_level_changed", f"log level {level}", level=level)
        logging.getLogger().setLevel(level.upper())
        return {"log_level": level}

    # --- bans -------------------------------------------------------------------------------------

    async def _list_bans(self, send_page: SendPage) -> Values:
        found = self._broker.oversight.bans.all(self._server.now())
        for bans in _pages(found, self._limits.page_entries):
            await send_page([ban_values(ban) for ban in bans])
        return {}

    async def _add_ban(self, arguments: Arguments, operator: Operator) -> Values:
        now = self._server.now()
        # 0: the ban does not expire.
        seconds = arguments.number("seconds", 0, most=MAXIMUM_SECONDS)
        try:
            ban = Ban(
                arguments.text("kind"),
                arguments.text("value"),
                reason=arguments.optional_text("reason") or "",
                created_at=round(now, 3),
                created_by=operator.name,
                expires_at=round(now + seconds, 3) if seconds else None,
            )
            self._broker.oversight.bans.add(ban, now)
        except BanRefused as problem:
            raise BadRequest(str(problem)) from None
        label = f"{ban.kind} {ban.value!a} banned"
        self._record(operator, "banned", label, **ban_values(ban))
        closed = 0
        for numbers in _pages(list(self._broker.connections), self._limits.examined):
            closed += self._actions.enforce_bans(numbers, self._server.now())
            self._server.peers.tick()
            await asyncio.sleep(0)
        is_stored = await self._save_bans("the ban is in force until the broker ends")
        return {"banned": ban_values(ban), "disconnected": closed, "stored": is_stored}

    async def _remove_ban(self, kind: str, value: str, operator: Operator) -> Values:
        if kind not in KINDS:
            raise BadRequest(f"{kind!a} cannot be banned")
        try:
            was_banned = self._broker.oversight.bans.remove(kind, value)
        except BanRefused as problem:
            raise BadRequest(str(problem)) from None
        if not was_banned:
            raise BadRequest(f"{kind} {value!a} is not banned")
        label = f"ban of {kind} {value!a} removed"
        self._record(operator, "ban_removed", label, kind=kind, value=value)
        is_stored = await self._save_bans("the ban is removed until the broker ends")
        return {"removed": value, "stored": is_stored}

    async def _save_bans(self, meanwhile: str) -> bool:
        """Store the bans. Returns whether there is a file for them. Raises BadRequest."""
        if self._ban_file is None:
            return False
        # One at a time, in the order of the changes.
        async with self._saving:
            bans = self._broker.oversight.bans.all(self._server.now())
            try:
                await asyncio.to_thread(write_bans, self._ban_file, bans)
            except OSError as problem:
                raise BadRequest(
                    f"{meanwhile}, but {self._ban_file} cannot be written: {problem.strerror}"
                ) from None
        return True

    # --- draining ---------------------------------------------------------------------------------

    def _drain(self, arguments: Arguments, operator: Operator) -> Values:
        seconds = arguments.number("seconds", 30, most=MAXIMUM_SECONDS)
        reference = arguments.optional_text("reference")
        if reference is not None and not 0 < len(reference.encode()) <= MAXIMUM_TWO_BYTES:
            raise BadRequest(f"the server reference must have 1 to {MAXIMUM_TWO_BYTES} bytes")
        if self._drain_task is not None:
            self._drain_task.cancel()
        self._broker.oversight.draining.start(reference)
        self._record(operator, "drain_started", f"draining within {seconds:g} s")
        self._drain_task = asyncio.create_task(self._disconnect_all(seconds))
        return {"draining": True, "connections": len(self._broker.connections)}

    def _cancel_drain(self, operator: Operator) -> Values:
        if not self._broker.oversight.draining.is_active:
            raise BadRequest("the broker is not being drained")
        assert self._drain_task is not None
        self._drain_task.cancel()
        self._broker.oversight.draining.cancel()
        self._record(operator, "drain_canceled", "draining canceled: clients are accepted again")
        return {"draining": False}

    async def _disconnect_all(self, seconds: float) -> None:
        """Disconnect all clients, evenly over this time."""
        steps = max(1, math.ceil(seconds / self._limits.drain_step_seconds))
        while steps:
            count = math.ceil(len(self._broker.connections) / steps)
            while count > 0:
                self._actions.drain(min(count, self._limits.examined), self._server.now())
                self._server.peers.tick()
                count -= self._limits.examined
                await asyncio.sleep(0)
            steps -= 1
            await asyncio.sleep(self._limits.drain_step_seconds)
        LOG.info("drained: no client is connected, and the broker can be stopped")

    def _record(self, operator: Operator, event: str, label: str, **values: object) -> None:
        """Log what an operator did, and write it to the audit log."""
        LOG.info("%s by %s", label, operator.name)
        write = self._broker.oversight.audit.write
        if write is not None:
            who = {"by_user_id": operator.user_id, "by_process_id": operator.process_id}
            write({"event": event, **values, **who})


def _filter(arguments: Arguments) -> str | None:
    """The argument `topic`, a topic filter, or None. Raises BadRequest."""
    topic = arguments.optional_text("topic")
    if topic is not None:
        try:
            check_topic_filter(topic, None)
        except Violation as violation:
            sentence = violation.rule.sentence.removesuffix(".")
            raise BadRequest(f"topic {topic!a} is not a topic filter: {sentence}") from None
    return topic


def _pages(entries: list[T], size: int) -> Iterator[list[T]]:
    """The entries in pages; without any, one empty page."""
    for start in range(0, max(1, len(entries)), size):
        yield entries[start : start + size]


def _change_of(before: Values, after: Values, name: str) -> int:
    new, old = after[name], before.get(name, 0)
    assert isinstance(new, int)
    assert isinstance(old, int)
    return new - old
