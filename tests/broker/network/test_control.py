"""The control socket: who may use it, what it answers, and that no operator disturbs a client."""

import asyncio
import json
import logging
import os
import socket
import stat
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from semel.broker.bans import Ban
from semel.broker.network import control_commands
from semel.broker.network.administration import (
    Administration,
    AdministrationUnusable,
    ReloadFailed,
)
from semel.broker.network.ban_file import BAN_FILE
from semel.broker.network.control import MAXIMUM_OPERATORS, ControlServer, peer_credentials
from semel.broker.network.control_commands import CommandLimits, ControlCommands, Operator
from semel.broker.network.control_protocol import (
    MAXIMUM_REQUEST,
    Arguments,
    BadRequest,
    encode_entries,
    encode_request,
    reachable_path,
)
from semel.broker.network.control_settings import AuditSettings, ControlSettings
from semel.broker.network.server import Server
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT311,
    ConnAck,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
)
from semel.mqtt.message import Message
from tests.broker.controlled import PATIENCE, Controlled, MqttLink, OperatorLink, controlled


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE))


async def nothing() -> list[str]:
    return []


# --- the socket -----------------------------------------------------------------------------------


def test_the_socket_is_private_and_goes_with_the_broker(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            assert stat.S_IMODE(broker.path.stat().st_mode) == 0o600
            _, status = await broker.ask("status")
            assert (status["clients"], status["more"]) == (0, 1)
            assert status["process_id"] == os.getpid()
            assert status["log_level"] in ("info", "warning", "error")
        assert not broker.path.exists()

    run(test())


def test_a_path_that_is_too_long_for_the_system_works(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)

    async def test() -> None:
        async with controlled(folder) as broker:
            assert stat.S_ISSOCK(broker.path.stat().st_mode)
            with reachable_path(broker.path) as path:
                assert len(str(path)) < 50
                async with OperatorLink(path) as link:
                    assert (await link.ask("status"))[1]["clients"] == 0
        assert not broker.path.exists()

    run(test())


async def start(folder: Path, settings: ControlSettings, data: Path | None = None) -> None:
    administration = Administration(settings, AuditSettings(), data)
    server = Server(BrokerSettings(port=0), oversight=administration.oversight)
    await administration.start(server)
    await administration.stop()
    administration.close()


def test_a_socket_that_cannot_be_opened_is_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = tmp_path / "control.sock"
    taken.write_text("a file")
    with pytest.raises(AdministrationUnusable) as caught:
        run(start(tmp_path, ControlSettings(path=taken)))
    assert f"the control socket {taken} cannot be used: there is another file" in str(caught.value)
    with pytest.raises(AdministrationUnusable, match="No such file or directory"):
        run(start(tmp_path, ControlSettings(path=tmp_path / ("n" * 120) / "control.sock")))
    # By default it is only a warning: the broker does not need the socket.
    run(start(tmp_path, ControlSettings(), tmp_path))
    assert "Set [control] path to another one" in caplog.text
    assert taken.read_text() == "a file"


@pytest.mark.parametrize(
    ("settings", "data", "expected"),
    [
        (ControlSettings(), None, None),
        (ControlSettings(), Path("/d"), Path("/d/control.sock")),
        (ControlSettings(path=Path("/p")), None, Path("/p")),
        (ControlSettings(path=Path("/p")), Path("/d"), Path("/p")),
        (ControlSettings(enabled=False, path=Path("/p")), Path("/d"), None),
    ],
)
def test_where_the_socket_is(
    settings: ControlSettings, data: Path | None, expected: Path | None, tmp_path: Path
) -> None:
    assert settings.socket_path(data) == expected
    if expected is None and data is None:
        run(start(tmp_path, settings))


def test_another_user_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        server = Server(BrokerSettings(port=0, sys_interval=0.0))
        commands = ControlCommands(server, reload=nothing, ban_file=None, describe=dict)
        for user_id, is_refused in ((12345, True), (0, False), (os.geteuid(), False)):
            # The descriptor that it is called with stands for the process ID.
            credentials = partial(Operator, user_id)
            served = ControlServer(tmp_path / "s", commands, credentials=credentials)
            await served.start()
            try:
                async with OperatorLink(tmp_path / "s") as link:
                    answer = (await link.ask("status"))[1]
                    assert isinstance(answer, str) is is_refused
                    if is_refused:
                        assert "user ID 12345 may not control this broker" in answer
                        assert await link.line() == {}
            finally:
                await served.stop()

    run(test())


def test_credentials_are_those_of_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        found = peer_credentials(one.fileno())
        assert (found.user_id, found.process_id) == (os.geteuid(), os.getpid())
        assert found.name == f"user ID {os.geteuid()}"
        # It is a copy of the descriptor that was closed.
        one.send(b"x")
        monkeypatch.delattr(socket, "SO_PEERCRED")
        found = peer_credentials(one.fileno())
        assert (found.user_id, found.name) == (None, "an operator")


def test_there_is_a_maximum_of_control_connections(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker, AsyncExitStack() as stack:
            links = [
                await stack.enter_async_context(OperatorLink(broker.path))
                for _ in range(MAXIMUM_OPERATORS)
            ]
            for link in links:
                assert (await link.ask("status"))[1]["clients"] == 0
            assert (await broker.ask("status"))[1] == (
                "8 control connections are open: close one of them"
            )
            links[-1].writer.close()
            while isinstance((await broker.ask("status"))[1], str):
                await asyncio.sleep(0)

    run(test())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"GET / HTTP/1.1\n", "the request is not a line of JSON"),
        (b"[" * 100_000 + b"\n", "the request is not a line of JSON"),
        (b"[]\n", "the request is not a JSON object"),
        (b"{}\n", "the request is of version None of the protocol, but this broker has version 1"),
        (b'{"version": 2, "command": "status"}\n', "use the semel command that belongs to"),
        (b'{"version": 1}\n', "the request has no command"),
        (b'{"version": 1, "command": "status", "arguments": []}\n', "arguments are not an object"),
        (encode_request("status", {"x": 1}), "'x' is not an argument of this command"),
        (encode_request("fly", {}), "this broker does not know the command 'fly'"),
        (encode_request("clients.show", {}), "client is missing"),
        (encode_request("clients.show", {"client": 5}), "client is not a string"),
        (encode_request("top", {"count": "5"}), "count is not a number"),
        (encode_request("top", {"count": True}), "count is not a number"),
        (encode_request("top", {"count": 1001}), "count is 1001, but must be from 0 to 1000"),
        (encode_request("subscriptions.list", {"topic": "a/#/b"}), "is not a topic filter"),
        (encode_request("clients.show", {"client": "nobody"}), "'nobody' is not connected"),
        (encode_request("sessions.show", {"client": "n"}), "there is no session of client 'n'"),
        (encode_request("sessions.delete", {"client": "n"}), "there is no session of client 'n'"),
        (encode_request("retained.delete", {"topic": "t"}), "topic 't' has no retained message"),
        (encode_request("disconnect", {"client": "n"}), "client 'n' is not connected"),
        (
            encode_request("disconnect", {"client": "n", "reason": 4}),
            "0x04 is not a reason code with which a server disconnects",
        ),
        (encode_request("disconnect", {"client": "n", "reason": 0x8A}), "0x8a is not a reason"),
        (encode_request("log_level", {"level": "loud"}), "but must be info, warning, error"),
        (encode_request("bans.add", {"kind": "x", "value": "y"}), "'x' cannot be banned"),
        (encode_request("bans.add", {"kind": "address", "value": "y"}), "neither an IP address"),
        (encode_request("bans.remove", {"kind": "x", "value": "y"}), "'x' cannot be banned"),
        (encode_request("bans.remove", {"kind": "address", "value": "y"}), "neither an IP"),
        (encode_request("bans.remove", {"kind": "user", "value": "y"}), "user 'y' is not banned"),
        (encode_request("drain", {"reference": ""}), "the server reference must have 1 to 65535"),
        (encode_request("drain.cancel", {}), "the broker is not being drained"),
    ],
)
def test_a_bad_request_is_a_sentence_and_the_next_one_is_answered(
    tmp_path: Path, line: bytes, sentence: str
) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker, OperatorLink(broker.path) as link:
            link.send(line)
            assert sentence in (await link.line())["error"]
            assert (await link.ask("status"))[1]["clients"] == 0

    run(test())


def test_a_request_that_is_too_large_ends_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            async with OperatorLink(broker.path) as link:
                link.send(b"x" * (2 * MAXIMUM_REQUEST))
                assert f"exceeds {MAXIMUM_REQUEST} bytes" in (await link.line())["error"]
            async with OperatorLink(broker.path) as link:
                # The longest client identifier, with every character escaped, fits.
                answer = (await link.ask("sessions.show", client="\x01" * 65_535))[1]
                assert "there is no session of client" in answer
            async with OperatorLink(broker.path) as link:
                link.send(b"half a line")
                link.writer.write_eof()
                assert await link.line() == {}

    run(test())


def test_a_command_that_fails_is_logged_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(broker: object, now: float) -> None:
        raise RuntimeError("deliberate")

    async def test() -> None:
        async with controlled(tmp_path) as broker, OperatorLink(broker.path) as link:
            client = await broker.connect("a")
            with monkeypatch.context() as patch:
                patch.setattr(control_commands, "broker_values", fail)
                answer = (await link.ask("status"))[1]
            assert answer == "the command failed: see the log of the broker"
            assert (await link.ask("status"))[1]["clients"] == 1
            client.send(PingReq())
            assert await client.take() == PingResp()

    run(test())
    assert "RuntimeError: deliberate" in caplog.text


def test_an_operator_who_does_not_read_is_disconnected(tmp_path: Path) -> None:
    async def test() -> None:
        server = Server(BrokerSettings(port=0, sys_interval=0.0))
        await server.start()
        commands = ControlCommands(server, reload=nothing, ban_file=None, describe=dict)
        served = ControlServer(tmp_path / "s", commands, read_seconds=0.05)
        await served.start()
        try:
            async with OperatorLink(tmp_path / "s") as link:
                link.writer.transport.pause_reading()  # type: ignore[attr-defined]
                for _ in range(20_000):
                    link.send(encode_request("status", {}))
                while served._tasks:
                    await asyncio.sleep(0.01)
            retained = server.broker.router.retained
            for number in range(20_000):
                retained.put(f"t/{number}", Message(f"t/{number}", b"kept"))
            async with OperatorLink(tmp_path / "s") as link:
                # In the middle of a long answer.
                link.writer.transport.pause_reading()  # type: ignore[attr-defined]
                link.send(encode_request("retained.list", {}))
                while not served._tasks:
                    await asyncio.sleep(0.01)
                while served._tasks:
                    await asyncio.sleep(0.01)
        finally:
            await served.stop()
            await server.stop()

    run(test())


def test_an_idle_operator_is_disconnected(tmp_path: Path) -> None:
    async def test() -> None:
        server = Server(BrokerSettings(port=0, sys_interval=0.0))
        commands = ControlCommands(server, reload=nothing, ban_file=None, describe=dict)
        served = ControlServer(tmp_path / "s", commands, idle_seconds=0.05)
        await served.stop()
        served = ControlServer(tmp_path / "s", commands, idle_seconds=0.05)
        await served.start()
        try:
            async with OperatorLink(tmp_path / "s") as link:
                assert await link.line() == {}
        finally:
            await served.stop()

    run(test())


def test_lines_stay_short_although_names_are_long() -> None:
    entries = [{"client": "x" * 30_000} for _ in range(10)]
    lines = list(encode_entries(entries))
    assert max(map(len, lines)) < 100_000
    assert [each for line in lines for each in json.loads(line)["entries"]] == entries
    assert list(encode_entries([])) == []
    full = [{"client": "x" * 70_000}]
    assert [json.loads(line)["entries"] for line in encode_entries(full)] == [full]


def test_arguments_have_types_and_bounds() -> None:
    arguments = Arguments({"a": "x", "n": 5, "f": 0.5})
    arguments.only("a", "n", "f")
    assert (arguments.text("a"), arguments.optional_text("b")) == ("x", None)
    assert arguments.number("n", 1, most=5) == 5
    assert arguments.number("m", 1, most=5) == 1
    with pytest.raises(BadRequest, match="n is 5, but must be from 0 to 4"):
        arguments.number("n", 1, most=4)


# --- what there is --------------------------------------------------------------------------------


async def subscribed(broker: Controlled, client_id: str, *filters: str) -> MqttLink:
    client = await broker.connect(client_id, properties=Properties(session_expiry_interval=60))
    client.send(Subscribe(1, [Subscription(each, 1) for each in filters]))
    await client.take()
    return client


def test_clients_sessions_and_subscriptions_are_listed_and_shown(tmp_path: Path) -> None:
    limits = CommandLimits(page_entries=2, examined=3)

    async def test() -> None:
        async with controlled(tmp_path, limits=limits) as broker:
            links = [await subscribed(broker, f"c{n}", f"t/{n}", "all/#") for n in range(5)]
            silent = await broker.link().open()
            links[4].writer.close()
            while broker.broker.router.sessions["c4"].connection:
                await asyncio.sleep(0)
            clients, _ = await broker.ask("clients.list")
            assert [each["client"] for each in clients] == ["c0", "c1", "c2", "c3"]
            sessions, _ = await broker.ask("sessions.list")
            assert [each["connected"] for each in sessions] == [True] * 4 + [False]
            subscriptions, _ = await broker.ask("subscriptions.list")
            assert len(subscriptions) == 10
            subscriptions, _ = await broker.ask("subscriptions.list", topic="t/#")
            assert [each["filter"] for each in subscriptions] == [f"t/{n}" for n in range(5)]
            subscriptions, _ = await broker.ask("subscriptions.list", client="c3")
            assert [each["filter"] for each in subscriptions] == ["t/3", "all/#"]
            assert (await broker.ask("subscriptions.list", client="none"))[0] == []
            _, shown = await broker.ask("clients.show", client="c0")
            assert shown["session"]["subscriptions"] == 2
            _, shown = await broker.ask("sessions.show", client="c4")
            assert (shown["connected"], shown["filters"]) == (False, ["t/4", "all/#"])
            assert "not connected" in (await broker.ask("clients.show", client="c4"))[1]
            silent.writer.close()

    run(test())


def test_retained_messages_are_listed_by_filter_and_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path, limits=CommandLimits(examined=2)) as broker:
            client = await broker.connect("a")
            for topic_name in ("a/1", "a/2", "b/1"):
                client.send(Publish(topic_name, b"kept", qos=1, packet_id=1, retain=True))
                assert isinstance(await client.take(), PubAck)
            found, _ = await broker.ask("retained.list")
            assert [each["topic"] for each in found] == ["a/1", "a/2", "b/1"]
            found, _ = await broker.ask("retained.list", topic="+/1")
            assert [each["topic"] for each in found] == ["a/1", "b/1"]
            assert (await broker.ask("retained.delete", topic="a/1"))[1] == {"deleted": "a/1"}
            found, _ = await broker.ask("retained.list", topic="a/#")
            assert [each["topic"] for each in found] == ["a/2"]

    run(test())


def test_topics_of_the_broker_are_listed_only_by_a_filter_that_names_them(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            for name in ("$SYS/broker/uptime", "$other", "plant/7"):
                broker.broker.router.retained.put(name, Message(name, b"kept"))
            for arguments, expected in (
                ({}, ["plant/7"]),
                ({"topic": "#"}, ["plant/7"]),
                ({"topic": "+/#"}, ["plant/7"]),
                ({"topic": "$SYS/#"}, ["$SYS/broker/uptime"]),
                ({"topic": "$other"}, ["$other"]),
            ):
                found, _ = await broker.ask("retained.list", **arguments)
                assert [each["topic"] for each in found] == expected

    run(test())


@pytest.mark.parametrize("command", ["subscriptions.list", "retained.list", "clients.list"])
def test_a_search_that_finds_nothing_lets_the_broker_work(tmp_path: Path, command: str) -> None:
    limits = CommandLimits(page_entries=1, examined=1)

    async def test() -> None:
        ticks = 0

        async def count_ticks() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async with controlled(tmp_path, limits=limits) as broker:
            for number in range(50):
                name = f"t/{number}"
                broker.broker.router.retained.put(name, Message(name, b"kept"))
            for _ in range(50):
                # A client that has not sent its CONNECT is not listed.
                await broker.link().open()
            links = [await broker.connect(f"c{number}") for number in range(50)]
            if command == "clients.list":
                for link in links:
                    link.send(Disconnect())
                    await link.until_closed()
            arguments = {} if command == "clients.list" else {"topic": "none"}
            counting = asyncio.create_task(count_ticks())
            try:
                async with OperatorLink(broker.path) as operator:
                    await operator.ask("reload")
                    before = ticks
                    assert (await operator.ask(command, **arguments))[0] == []
                    assert ticks - before >= 50
            finally:
                counting.cancel()

    run(test())


async def most_per_step(work: Coroutine[Any, Any, Any], count: Callable[[], int]) -> int:
    """Run a command step by step: the most that was counted between two ticks."""
    most, last = 0, count()
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        most, last = max(most, count() - last), count()
    await task
    return most


def count_call(calls: list[None], real: Callable[..., Any], *given: Any) -> Any:
    calls.append(None)
    return real(*given)


def test_no_step_of_a_command_grows_with_the_number_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = CommandLimits(page_entries=3, examined=5)

    async def test() -> None:
        async with controlled(tmp_path) as broker:
            names = [f"t/{number}" for number in range(20)]
            for number in range(20):
                client = await broker.connect(f"c{number}")
                client.send(Subscribe(1, [Subscription(each, 0) for each in names]))
                await client.take()
                broker.broker.oversight.bans.add(Ban("user", f"u{number}"), 0.0)
            calls: list[None] = []
            for name in ("client_values", "session_values", "subscription_values", "ban_values"):
                real = getattr(control_commands, name)
                counted = partial(count_call, calls, real)
                monkeypatch.setattr(control_commands, name, counted)

            async def send(entries: list[dict[str, object]]) -> None:
                await asyncio.sleep(0)

            commands = ControlCommands(
                broker.server, reload=nothing, ban_file=None, describe=dict, limits=limits
            )
            for command, arguments, total in (
                ("clients.list", {}, 20),
                ("sessions.list", {}, 20),
                ("subscriptions.list", {}, 400),
                ("subscriptions.list", {"client": "c7"}, 20),
                ("bans.list", {}, 20),
            ):
                calls.clear()
                work = commands.run(command, Arguments(arguments), Operator(0, 0), send)
                assert 0 < await most_per_step(work, calls.__len__) <= 10
                assert len(calls) == total
            gone = await most_per_step(
                commands._disconnect_all(0.0), lambda: -len(broker.server.peers.by_number)
            )
            assert 0 < gone <= 5

    run(test())


class Fleeting(dict[int, Any]):
    """Connections or sessions that end between two pages."""

    def get(self, key: Any, default: Any = None) -> Any:
        return default


def test_what_ends_between_two_pages_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            await broker.connect("a")

            async def send(entries: list[dict[str, object]]) -> None:
                found.extend(entries)

            found: list[dict[str, object]] = []
            commands = ControlCommands(broker.server, reload=nothing, ban_file=None, describe=dict)
            core = broker.broker

            class Ended:
                """A broker whose clients have all left since they were listed."""

                connections = Fleeting(core.connections)
                router = type("Routing", (), {"sessions": Fleeting({1: None})})

            commands._broker = Ended  # type: ignore[assignment]
            # Compiled, it takes a real broker only.
            monkeypatch.setattr(control_commands, "traffic_values", lambda broker: {"x": 1})
            for command in ("clients.list", "sessions.list", "top"):
                await commands.run(command, Arguments({}), Operator(0, 0), send)
            assert found == []

    run(test())


def test_top_has_the_busiest_clients_since_the_last_request(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker, OperatorLink(broker.path) as link:
            busy, idle = await broker.connect("busy"), await broker.connect("idle")
            silent = await broker.link().open()
            for _ in range(20):
                busy.send(Publish("t", b"x" * 50))
            busy.send(PingReq())
            await busy.take()
            _, found = await link.ask("top", count=1)
            assert found["clients"] == 2
            (first,) = found["busiest"]
            assert first["client"] == "busy"
            assert first["messages_received_rate"] > 0
            assert found["messages_received_rate"] > 0
            idle.send(Publish("t", b"x"))
            idle.send(PingReq())
            await idle.take()
            _, found = await link.ask("top")
            assert [each["client"] for each in found["busiest"]] == ["idle", "busy"]
            assert found["busiest"][1]["messages_received_rate"] == 0
            silent.writer.close()

    run(test())


def test_top_leaves_out_a_client_that_leaves_while_it_is_measured(tmp_path: Path) -> None:
    async def send(entries: list[dict[str, object]]) -> None:
        raise AssertionError("top has no pages")

    async def test() -> None:
        async with controlled(tmp_path) as broker:
            for name in ("a", "b", "c"):
                await broker.connect(name)
            commands = ControlCommands(
                broker.server,
                reload=nothing,
                ban_file=None,
                describe=dict,
                limits=CommandLimits(examined=1),
            )
            work = asyncio.ensure_future(commands.run("top", Arguments({}), Operator(0, 0), send))
            # After the first client.
            await asyncio.sleep(0)
            core = broker.broker
            core._connections.drop(core.actions.connection_of("a"), broker.server.now())
            found: dict[str, Any] = await work
            assert [each["client"] for each in found["busiest"]] == ["c", "b"]
            assert found["clients"] == 3

    run(test())


def test_top_has_the_messages_that_are_sent_to_a_client(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker, OperatorLink(broker.path) as link:
            reader = await subscribed(broker, "reader", "t")
            writer = await broker.connect("writer")
            await link.ask("top")
            for number in range(1, 6):
                writer.send(Publish("t", b"x", qos=1, packet_id=number))
                await writer.take()
                assert isinstance(await reader.take(), Publish)
            _, found = await link.ask("top")
            rates = {each["client"]: each for each in found["busiest"]}
            assert rates["reader"]["messages_sent_rate"] > 0
            assert rates["reader"]["messages_received_rate"] == 0
            assert rates["writer"]["messages_sent_rate"] == 0
            assert rates["writer"]["messages_received_rate"] > 0

    run(test())


# --- what changes something -----------------------------------------------------------------------


def test_a_client_is_disconnected_with_a_reason(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            client = await broker.connect("a")
            assert (await broker.ask("disconnect", client="a", reason=0x9D, why="moved"))[1] == {
                "disconnected": "a"
            }
            (packet,) = await client.until_closed()
            assert packet == Disconnect(0x9D, properties=Properties(reason_string="moved"))
            client = await broker.connect("a", MQTT311)
            await broker.ask("disconnect", client="a")
            assert await client.until_closed() == []

    run(test())


def test_a_deleted_session_does_not_come_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            client = await subscribed(broker, "a", "t")
            assert (await broker.ask("sessions.delete", client="a"))[1] == {"deleted": "a"}
            (packet,) = await client.until_closed()
            assert isinstance(packet, Disconnect)
            connack = await broker.link().connect("a", clean_start=False)
            assert isinstance(connack, ConnAck)
            assert not connack.session_present

    run(test())


def test_a_deletion_is_reported_when_it_is_on_disk_or_not_at_all(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            client = await broker.connect("a")
            client.send(Publish("t", b"kept", qos=1, packet_id=1, retain=True))
            await client.take()
            core = broker.broker
            numbers = [0, 5]
            actions = core.actions

            class Late:
                """Actions whose commit is written later."""

                delete_retained = actions.delete_retained
                delete_session = actions.delete_session

                def last_uncommitted(self) -> int:
                    return 5

                def is_committed(self, number: int) -> bool:
                    numbers[0] += 1
                    return number <= numbers[0]

            def commands(commit_seconds: float) -> ControlCommands:
                made = ControlCommands(
                    broker.server,
                    reload=nothing,
                    ban_file=None,
                    describe=dict,
                    commit_seconds=commit_seconds,
                )
                made._actions = Late()  # type: ignore[assignment]
                return made

            async def send(entries: list[dict[str, object]]) -> None:
                raise AssertionError

            operator = Operator(0, 0)
            retained = Arguments({"topic": "t"})
            done = await commands(PATIENCE).run("retained.delete", retained, operator, send)
            assert (done, numbers[0]) == ({"deleted": "t"}, 5)
            numbers[0] = -1_000_000
            hasty = commands(0.05)
            with pytest.raises(BadRequest, match="not on disk yet: the store is behind"):
                await hasty.run("sessions.delete", Arguments({"client": "a"}), operator, send)
            await broker.connect("b")
            broker.server.failure = "no such disk"
            with pytest.raises(BadRequest, match="not on disk yet: no such disk"):
                await hasty.run("sessions.delete", Arguments({"client": "b"}), operator, send)
            broker.server.failure = None

    run(test())


def test_the_log_level_changes_at_run_time(tmp_path: Path) -> None:
    before = logging.getLogger().level

    async def test() -> None:
        async with controlled(tmp_path) as broker:
            for level in ("error", "warning", "info"):
                assert (await broker.ask("log_level", level=level))[1] == {"log_level": level}
                assert (await broker.ask("status"))[1]["log_level"] == level

    try:
        run(test())
    finally:
        logging.getLogger().setLevel(before)


def test_a_reload_reports_what_it_has_done(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path) as broker:
            assert (await broker.ask("reload"))[1] == {"reloaded": []}

            async def reload() -> list[str]:
                return ["users reloaded"]

            async def fail() -> list[str]:
                raise ReloadFailed("nothing has changed: a mistake")

            broker.administration.reload_settings = reload
            assert (await broker.ask("reload"))[1] == {"reloaded": ["users reloaded"]}
            broker.administration.reload_settings = fail
            assert (await broker.ask("reload"))[1] == "nothing has changed: a mistake"
        audit = tmp_path / "audit.jsonl"
        async with controlled(tmp_path, audit=audit) as broker:
            audit.rename(tmp_path / "audit.1")
            assert (await broker.ask("reload"))[1] == {
                "reloaded": [f"audit log {audit} opened again"]
            }
            audit.unlink()
            audit.mkdir()
            (line,) = (await broker.ask("reload"))[1]["reloaded"]
            assert line.endswith("the old file stays open")

    run(test())


def test_a_drain_refuses_and_disconnects_and_can_be_canceled(tmp_path: Path) -> None:
    limits = CommandLimits(drain_step_seconds=0.01)

    async def test() -> None:
        async with controlled(tmp_path, limits=limits) as broker:
            clients = [await broker.connect(f"c{n}") for n in range(4)]
            await broker.ask("drain", seconds=600)
            connack = await broker.link().connect("new")
            assert isinstance(connack, ConnAck)
            assert connack.reason == 0x88
            # The second one replaces the first.
            assert (await broker.ask("drain", seconds=0.05, reference="b"))[1]["draining"]
            reasons = []
            for client in clients:
                (packet,) = await client.until_closed()
                assert isinstance(packet, Disconnect)
                reasons.append(packet.reason)
            assert reasons[-1] == 0x9C
            while (await broker.ask("status"))[1]["connections"]:
                await asyncio.sleep(0.01)
            task = broker.administration._control._commands._drain_task  # type: ignore[union-attr]
            assert task is not None
            await task
            assert (await broker.ask("drain.cancel"))[1] == {"draining": False}
            await broker.connect("new")

    run(test())


def test_a_ban_disconnects_refuses_and_survives_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path, data=tmp_path) as broker:
            client = await broker.connect("bad")
            _, done = await broker.ask("bans.add", kind="client", value="bad", seconds=600)
            assert (done["disconnected"], done["stored"]) == (1, True)
            (packet,) = await client.until_closed()
            assert isinstance(packet, Disconnect)
            assert packet.reason == 0x98
            await broker.ask("bans.add", kind="address", value="10.9.0.0/16", reason="flood")
        file = tmp_path / "bans.jsonl"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        async with controlled(tmp_path, data=tmp_path) as broker:
            connack = await broker.link().connect("bad")
            assert isinstance(connack, ConnAck)
            assert connack.reason == 0x8A
            bans, _ = await broker.ask("bans.list")
            assert [each["value"] for each in bans] == ["bad", "10.9.0.0/16"]
            assert bans[0]["created_by"] == f"user ID {os.geteuid()}"
            _, done = await broker.ask("bans.remove", kind="client", value="bad")
            assert done == {"removed": "bad", "stored": True}
            await broker.connect("bad")
        async with controlled(tmp_path) as broker:
            _, done = await broker.ask("bans.add", kind="client", value="bad")
            assert done["stored"] is False

    run(test())


def test_a_banned_address_is_closed_before_it_sends_anything(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def test() -> None:
        async with controlled(tmp_path, audit=audit) as broker:
            await broker.ask("bans.add", kind="address", value="127.0.0.0/8", reason="no")
            client = await broker.link().open()
            with suppress(ConnectionResetError):
                assert await client.until_closed() == []
            await broker.ask("bans.remove", kind="address", value="127.0.0.0/8")
            await broker.connect("a")

    run(test())
    refused = [json.loads(line) for line in audit.read_text().splitlines() if "refused" in line]
    assert [(each["address"].partition(":")[0], each["detail"]) for each in refused] == [
        ("127.0.0.1", "this address is banned: no")
    ]


def test_a_ban_that_cannot_be_stored_is_in_force_and_reported(tmp_path: Path) -> None:
    async def test() -> None:
        async with controlled(tmp_path, data=tmp_path) as broker:
            (tmp_path / BAN_FILE).mkdir()
            answer = (await broker.ask("bans.add", kind="client", value="bad"))[1]
            assert "the ban is in force until the broker ends, but" in answer
            assert "cannot be written: Is a directory" in answer
            connack = await broker.link().connect("bad")
            assert isinstance(connack, ConnAck)
            assert connack.reason == 0x8A

    run(test())


def test_the_audit_log_names_the_operator(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def test() -> None:
        async with controlled(tmp_path, audit=audit) as broker:
            await subscribed(broker, "a", "t")
            await broker.ask("sessions.delete", client="a")

    run(test())
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [each["event"] for each in events] == ["connected", "disconnected", "session_deleted"]
    assert events[1]["detail"] == "0x98, the operator has deleted the session"
    assert (events[2]["client"], events[2]["by_user_id"]) == ("a", os.geteuid())
