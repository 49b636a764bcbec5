"""Transports over TCP and unix sockets, against servers of the test."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel.client.address import BadAddress, parse_address
from semel.client.connector import open_transport
from semel.client.transport import HIGH_WATER, LOW_WATER, CannotConnect, Transport, connect_first
from tests.client.listening import (
    Heard,
    cancel_at_every_turn,
    no_more_than,
    opened,
    reset,
    run,
    serving,
    silent,
    sockets,
)
from tests.client.mosquitto import CONNACK, CONNECT, NEEDS_MOSQUITTO, mosquitto
from tests.kills.brokers import free_port

Run = Callable[[Coroutine[Any, Any, None]], None]
LARGE = bytes(range(256)) * 16 * 1024


@pytest.fixture(params=["asyncio", "uvloop"], name="on_loop")
def a_loop(request: pytest.FixtureRequest) -> Run:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return lambda main: run(main, request.param)


async def refusal(url: str, **more: Any) -> str:
    with pytest.raises(CannotConnect) as caught:
        await open_transport(parse_address(url), Heard(), **more)
    return str(caught.value)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_bytes_go_there_and_back(on_loop: Run) -> None:
    async def main() -> None:
        async with serving(echo) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            assert transport.peer == f"127.0.0.1:{port}"
            transport.write(b"one")
            assert await heard.bytes(3) == b"one"
            transport.write(LARGE)
            assert await heard.bytes(len(LARGE)) == LARGE
            transport.close()
            assert await heard.end() is None

    on_loop(main())


def test_what_comes_is_told_as_soon_as_it_comes(on_loop: Run) -> None:
    async def one_by_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in b"abc":
            writer.write(bytes([byte]))
            assert await reader.readexactly(1) == bytes([byte])

    async def main() -> None:
        async with serving(one_by_one) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            for byte in b"abc":
                assert await heard.bytes(1) == bytes([byte])
                transport.write(bytes([byte]))
            assert await heard.end() is None

    on_loop(main())


def test_small_writes_do_not_wait_for_each_other(on_loop: Run) -> None:
    async def main() -> None:
        async with serving(echo) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            ours = []
            for entry in os.listdir("/proc/self/fd"):
                with suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as each:
                    if each.getpeername()[1:2] == (port,):
                        ours.append(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            assert len(ours) == 1
            assert ours[0]
            transport.close()
            assert await heard.end() is None

    on_loop(main())


def test_what_a_server_says_at_once_is_neither_lost_nor_told_too_early(on_loop: Run) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        await reader.read()

    async def main() -> None:
        async with serving(greet) as port:
            for _ in range(20):
                heard = Heard()
                transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
                assert await heard.bytes(5) == b"hello"
                transport.close()
                assert await heard.end() is None

    on_loop(main())


def test_a_server_that_speaks_and_closes_at_once_is_heard_and_then_lost(on_loop: Run) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")

    async def main() -> None:
        async with serving(greet) as port:
            for _ in range(20):
                heard = Heard()
                await opened(f"mqtt://127.0.0.1:{port}", heard)
                assert await heard.end() is None
                assert heard.data == b"hello"

    on_loop(main())


def test_a_reset_is_told_apart_from_a_close(on_loop: Run) -> None:
    async def main() -> None:
        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            reset(writer)
            writer.transport.abort()

        async with serving(cut) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            transport.write(b"x")
            assert await heard.end() == "connection reset by peer"

        async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)

        async with serving(close) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            transport.write(b"x")
            assert await heard.end() is None

    on_loop(main())


@pytest.mark.parametrize("paused", [False, True])
def test_the_last_words_before_a_reset_are_heard_unless_nobody_reads(paused: bool) -> None:
    # On asyncio's own loop: uvloop, when a write fails, has nothing left to read from.
    async def main() -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{listening.getsockname()[1]}", heard)
            # The time of its first turns, in which it begins to read.
            for _ in range(3):
                await asyncio.sleep(0)
            if paused:
                transport.pause_reading()
            # All in one turn of the loop, so that nothing is read before the write that fails.
            server, _ = listening.accept()
            transport.write(b"too much")
            server.sendall(b"because")
            # With bytes unread this is a reset.
            server.close()
            transport.write(b"more")
            assert await heard.end() == "connection reset by peer"
            assert heard.data == (b"" if paused else b"because")

    run(main())


def test_a_transport_may_be_closed_by_the_last_words() -> None:
    async def main() -> None:
        class Closing(Heard):
            transport: Transport

            def received(self, data: bytes) -> None:
                super().received(data)
                self.transport.write(b"answer")
                self.transport.close()

        with socket.create_server(("127.0.0.1", 0)) as listening:
            heard = Closing()
            heard.transport = await opened(f"mqtt://127.0.0.1:{listening.getsockname()[1]}", heard)
            server, _ = listening.accept()
            heard.transport.write(b"too much")
            # More than is read at a time.
            server.sendall(bytes(100_000))
            server.close()
            heard.transport.write(b"more")
            assert await heard.end() == "connection reset by peer"
            assert 0 < len(heard.data) < 100_000

    run(main())


def test_close_sends_what_was_written(on_loop: Run) -> None:
    async def main() -> None:
        got = []

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.append(await reader.read())

        async with serving(keep) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            transport.write(LARGE)
            transport.write(b"end")
            transport.close()
            transport.write(b"too late")
            assert await heard.end() is None
        assert got == [LARGE + b"end"]

    on_loop(main())


def test_close_resets_nobody_whose_bytes_were_not_read(on_loop: Run) -> None:
    async def main() -> None:
        got = []

        async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(LARGE)
            assert await reader.readexactly(4) == b"done"
            got.append(await reader.read())
            await writer.drain()

        async with serving(flood) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            transport.pause_reading()
            transport.write(b"done")
            transport.close()
            assert await heard.end() is None
            # What comes after our close is of no use to anybody.
            assert len(heard.data) < len(LARGE)
        assert got == [b""]

    on_loop(main())


def test_abort_drops_what_is_not_sent(on_loop: Run) -> None:
    async def main() -> None:
        let_go = asyncio.Event()
        got = []

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await let_go.wait()
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            with suppress(ConnectionError):
                got.append(await reader.read())

        async with serving(late) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            for _ in range(16):
                transport.write(LARGE)
            transport.abort()
            transport.write(b"too late")
            assert await heard.end() is None
            let_go.set()
        assert sum(map(len, got)) < 16 * len(LARGE)

    on_loop(main())


def test_after_the_end_nothing_does_anything(on_loop: Run) -> None:
    async def main() -> None:
        async with serving(echo) as port:
            for first in ("close", "abort"):
                heard = Heard()
                transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
                getattr(transport, first)()
                for _ in range(2):
                    transport.pause_reading()
                    transport.write(b"x")
                    transport.close()
                    transport.resume_reading()
                    assert await heard.end() is None
                    transport.abort()
                await asyncio.sleep(0)
                assert heard.losses == [None]
                assert heard.data == b""

    on_loop(main())


def test_a_transport_may_be_closed_by_what_it_tells(on_loop: Run) -> None:
    async def main() -> None:
        class Closing(Heard):
            transport: Transport

            def received(self, data: bytes) -> None:
                super().received(data)
                self.transport.write(b"bye")
                self.transport.close()

        got = []

        async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"one")
            got.append(await reader.readexactly(3))
            writer.write(b"two")
            got.append(await reader.read())

        async with serving(twice) as port:
            heard = Closing()
            heard.transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            assert await heard.end() is None
            assert heard.data == b"one"
        assert got == [b"bye", b""]

    on_loop(main())


def test_who_writes_too_much_is_told_to_wait_and_to_go_on(on_loop: Run) -> None:
    async def main() -> None:
        let_go = asyncio.Event()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await let_go.wait()
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            await reader.read()

        assert LOW_WATER < HIGH_WATER
        async with serving(late) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            transport.write(b"little")
            await asyncio.sleep(0)
            assert heard.states == []
            written = 0
            while not heard.states:
                transport.write(LARGE[:HIGH_WATER])
                written += HIGH_WATER
                # The system's own buffers take some, but not as much.
                assert written < 256 * HIGH_WATER
                await asyncio.sleep(0)
            assert written > HIGH_WATER
            assert heard.states == [False]
            let_go.set()
            await heard.until(lambda: len(heard.states) > 1)
            assert heard.states == [False, True]
            transport.close()
            assert await heard.end() is None

    on_loop(main())


def test_who_does_not_read_is_told_nothing_until_it_does(on_loop: Run) -> None:
    async def main() -> None:
        async with serving(echo) as port:
            heard = Heard()
            transport = await opened(f"mqtt://127.0.0.1:{port}", heard)
            transport.write(b"loud")
            assert await heard.bytes(4) == b"loud"
            transport.pause_reading()
            transport.pause_reading()
            transport.write(b"soft")
            # The time in which a second connection goes there and back.
            other = Heard()
            second = await opened(f"mqtt://127.0.0.1:{port}", other)
            second.write(b"here")
            assert await other.bytes(4) == b"here"
            assert heard.data == b""
            transport.resume_reading()
            transport.resume_reading()
            assert await heard.bytes(4) == b"soft"
            transport.close()
            second.abort()
            assert await heard.end() is None
            assert await other.end() is None

    on_loop(main())


def test_a_peer_on_ipv6_is_shown_in_brackets(on_loop: Run) -> None:
    async def main() -> None:
        async with serving(echo, host="::1") as port:
            heard = Heard()
            transport = await opened(f"mqtt://[::1]:{port}", heard)
            assert transport.peer == f"[::1]:{port}"
            transport.close()
            assert await heard.end() is None

    try:
        with socket.socket(socket.AF_INET6) as trial:
            trial.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    on_loop(main())


def test_a_name_is_looked_up(on_loop: Run) -> None:
    async def main() -> None:
        async with serving(echo) as port:
            heard = Heard()
            transport = await opened(f"mqtt://localhost:{port}", heard)
            assert transport.peer == f"127.0.0.1:{port}"
            transport.close()
            assert await heard.end() is None

    on_loop(main())


def test_why_there_is_no_connection_is_one_sentence(on_loop: Run, tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        where = f"mqtt://127.0.0.1:{port}"
        assert await refusal(where) == f"cannot connect to {where}: connection refused"
        # With the user, without the password.
        told = await refusal(f"mqtt://ann:hunter2@localhost:{port}")
        assert told == f"cannot connect to mqtt://ann@localhost:{port}: connection refused"
        told = await refusal("mqtt://nobody.invalid")
        begin = "cannot connect to mqtt://nobody.invalid:1883: "
        assert told.startswith(
            (begin + "host not found", begin + "the host name cannot be resolved")
        )
        missing = tmp_path / "missing"
        told = await refusal(f"unix:{missing}")
        assert told == f"cannot connect to unix:{missing}: no such file or directory"
        plain = tmp_path / "plain"
        plain.write_bytes(b"")
        told = await refusal(f"unix:{plain}")
        assert told == f"cannot connect to unix:{plain}: connection refused"
        left = tmp_path / "left"
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(str(left))
        told = await refusal(f"unix:{left}")
        assert told == f"cannot connect to unix:{left}: connection refused"
        long = "x" * 200
        told = await refusal(f"unix:{long}")
        assert told == f"cannot connect to unix:{long}: AF_UNIX path too long"

    on_loop(main())


def test_a_server_that_never_answers_ends_with_the_time_out(on_loop: Run) -> None:
    async def main() -> None:
        with silent() as port:
            where = f"mqtt://127.0.0.1:{port}"
            told = await refusal(where, timeout=0.2)
            assert told == f"cannot connect to {where}: no answer within 0.2 s"

    on_loop(main())


def test_a_context_for_tls_is_refused_where_there_is_no_tls(on_loop: Run) -> None:
    async def main() -> None:
        context = ssl.create_default_context()
        for url in ("mqtt://h", "ws://h", "unix:x"):
            address = parse_address(url)
            with pytest.raises(BadAddress) as caught:
                await open_transport(address, Heard(), tls=context)
            assert str(caught.value) == (
                f"a TLS context is given, but {address.scheme} has no TLS: use mqtts or wss"
            )

    on_loop(main())


def test_a_unix_socket_carries_bytes_like_any_other(on_loop: Run, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "broker"
        async with serving(echo, path=path):
            heard = Heard()
            transport = await opened(f"unix:{path}", heard)
            assert transport.peer == f"unix:{path}"
            transport.write(LARGE)
            assert await heard.bytes(len(LARGE)) == LARGE
            transport.close()
            assert await heard.end() is None

    on_loop(main())


@NEEDS_MOSQUITTO
def test_mosquitto_answers_on_tcp_and_on_a_unix_socket(on_loop: Run, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "broker"
        with mosquitto(tmp_path, [f"unix {path}"], []) as (_, port):
            for url in (f"unix:{path}", f"mqtt://localhost:{port}", f"tcp://127.0.0.1:{port}"):
                heard = Heard()
                transport = await opened(url, heard)
                transport.write(CONNECT)
                assert await heard.bytes(len(CONNACK)) == CONNACK
                transport.close()
                assert await heard.end() is None

    on_loop(main())


def test_the_first_address_that_answers_is_taken(on_loop: Run) -> None:
    async def main() -> None:
        async with serving(read_all) as port:
            live = (socket.AF_INET, ("127.0.0.1", port))
            dead = (socket.AF_INET, ("127.0.0.1", free_port()))
            with silent() as quiet:
                mute = (socket.AF_INET, ("127.0.0.1", quiet))
                for tried in (
                    [live],
                    [live, live],
                    [live, mute],
                    [dead, live],
                    [mute, live],
                    [dead, mute, dead, live, mute, dead],
                ):
                    before = sockets()
                    connected = await connect_first(tried)
                    assert connected.getpeername() == ("127.0.0.1", port)
                    connected.close()
                    await no_more_than(before)
                with pytest.raises(ConnectionRefusedError):
                    await connect_first([dead, dead])
                # A family that nothing leads to is not the reason, unless there is no other.
                absent = (12345, ("127.0.0.1", port))
                with pytest.raises(ConnectionRefusedError):
                    await connect_first([absent, dead, absent])
                with pytest.raises(OSError, match="Address family not supported"):
                    await connect_first([absent, absent])

    on_loop(main())


@pytest.mark.parametrize("case", ["one address", "a name", "two addresses", "unix"])
def test_cancelling_at_any_point_leaves_nothing_open(
    on_loop: Run, case: str, tmp_path: Path
) -> None:
    async def main() -> None:
        path = tmp_path / "broker" if case == "unix" else None
        async with serving(read_all, path=path) as port:
            if case == "two addresses":
                live = (socket.AF_INET, ("127.0.0.1", port))
                for connected in await cancel_at_every_turn(lambda: connect_first([live, live])):
                    connected.close()
                return
            where = {"one address": "127.0.0.1", "a name": "localhost"}.get(case)
            url = f"mqtt://{where}:{port}" if where else f"unix:{path}"
            for transport in await cancel_at_every_turn(lambda: opened(url, Heard())):
                transport.abort()

    on_loop(main())
