"""MQTT inside WebSocket after its handshake: frames of every kind, and every kind of end."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from semel.client.transport import HIGH_WATER, Transport
from semel.client.websocket import MAXIMUM_MESSAGE
from tests.client.listening import Heard, opened, reset, run, serving
from tests.client.websocket_server import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    Sent,
    answer_close,
    close_frame,
    frame,
    read_frame,
    read_request,
    response,
    shake_hands,
)

Run = Callable[[Coroutine[Any, Any, None]], None]
LARGE = bytes(range(256)) * 4 * 1024
NORMAL = (1000).to_bytes(2, "big")


@pytest.fixture(params=["asyncio", "uvloop"], name="on_loop")
def a_loop(request: pytest.FixtureRequest) -> Run:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return lambda main: run(main, request.param)


async def heard_from(*frames: bytes, at_once: bool = False) -> tuple[bytes, str | None, list[Sent]]:
    """What a listener hears of a server that sends these, why it ends, and what the client says.

    The server waits for a word of the client, and closes when the client has; `at_once` says it
    all in the same breath as its answer to the handshake.
    """
    said: list[Sent] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        if at_once:
            writer.write(b"".join([response(request), *frames]))
        else:
            writer.write(response(request))
            assert await read_frame(reader) == (BINARY, b"go", True)
            writer.write(b"".join(frames))
        with suppress(asyncio.IncompleteReadError):
            while True:
                said.append(await read_frame(reader))

    async with serving(say) as port:
        heard = Heard()
        transport = await opened(f"ws://127.0.0.1:{port}", heard)
        if not at_once:
            transport.write(b"go")
        why = await heard.end()
        transport.write(b"too late")
        transport.close()
    return heard.data, why, said


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 1_000_000])
def test_what_is_written_is_in_binary_frames(on_loop: Run, size: int) -> None:
    """[MQTT-6.0.0-1]"""

    async def main() -> None:
        sent: list[Sent] = []

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer)
            for _ in range(3):
                sent.append(await read_frame(reader))
            writer.write(frame(CLOSE, sent[-1].data))

        data = (LARGE * 4)[:size]
        async with serving(keep) as port:
            heard = Heard()
            transport = await opened(f"ws://127.0.0.1:{port}", heard)
            transport.write(data)
            transport.write(b"end")
            transport.close()
            transport.write(b"too late")
            assert await heard.end() is None
        assert sent == [(BINARY, data, True), (BINARY, b"end", True), (CLOSE, NORMAL, True)]

    on_loop(main())


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([frame(BINARY, b"one")], b"one"),
        ([frame(BINARY, b"o"), frame(BINARY, b"ne")], b"one"),
        ([frame(BINARY), frame(BINARY, b"one")], b"one"),
        ([frame(BINARY, LARGE), frame(BINARY, LARGE)], LARGE + LARGE),
        (
            [
                frame(BINARY, b"a", last=False),
                frame(CONTINUATION, b"b", last=False),
                frame(PING, b"x"),
                frame(CONTINUATION, b"c"),
                frame(BINARY, b"d"),
            ],
            b"abcd",
        ),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_packets_need_not_begin_or_end_with_frames(
    on_loop: Run, frames: list[bytes], expected: bytes, at_once: bool
) -> None:
    """[MQTT-6.0.0-2]"""

    async def main() -> None:
        data, why, _ = await heard_from(*frames, close_frame(1000), at_once=at_once)
        assert (data, why) == (expected, None)

    on_loop(main())


def test_a_fragment_is_told_before_its_message_is_complete(on_loop: Run) -> None:
    async def main() -> None:
        async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer)
            for opcode, byte in ((BINARY, b"a"), (CONTINUATION, b"b"), (CONTINUATION, b"c")):
                writer.write(frame(opcode, byte, last=byte == b"c"))
                assert await read_frame(reader) == (BINARY, byte, True)
            await answer_close(reader, writer)

        async with serving(slowly) as port:
            heard = Heard()
            transport = await opened(f"ws://127.0.0.1:{port}", heard)
            for byte in (b"a", b"b", b"c"):
                assert await heard.bytes(1) == byte
                transport.write(byte)
            transport.close()
            assert await heard.end() is None

    on_loop(main())


TEXT_FRAME = "WebSocket: the server sent a text frame; MQTT is in binary frames only [MQTT-6.0.0-1]"


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_text_frame_ends_the_connection(on_loop: Run, last: bool, at_once: bool) -> None:
    """[MQTT-6.0.0-1]"""

    async def main() -> None:
        data, why, said = await heard_from(
            frame(BINARY, b"before"),
            frame(TEXT, b"words", last=last),
            frame(CONTINUATION if not last else BINARY, b"after"),
            at_once=at_once,
        )
        assert data == b"before"
        assert why == TEXT_FRAME
        (told,) = said
        assert told.opcode == CLOSE
        assert told.data == (1003).to_bytes(2, "big") + TEXT_FRAME.partition("; ")[2].encode()

    on_loop(main())


@pytest.mark.parametrize(
    ("bad", "why", "code"),
    [
        (frame(BINARY, b"x", mask=bytes(4)), "incorrect masking", 1002),
        (frame(3), "invalid opcode", 1002),
        (frame(0x20 | BINARY), "reserved bits must be 0", 1002),
        # Compressed, which nobody has asked for.
        (frame(0x40 | BINARY), "reserved bits must be 0", 1002),
        (frame(CONTINUATION, b"x"), "unexpected continuation frame", 1002),
        (frame(BINARY, b"x", last=False) + frame(BINARY), "expected a continuation frame", 1002),
        (frame(PING, bytes(126)), "control frame too long", 1002),
        (frame(PING, last=False), "fragmented control frame", 1002),
        (
            bytes([0x82, 127]) + (MAXIMUM_MESSAGE + 1).to_bytes(8, "big"),
            "frame with 268435461 bytes exceeds limit of 268435460 bytes",
            1009,
        ),
        (frame(CLOSE, b"x"), "close frame too short", 1002),
    ],
)
def test_what_is_no_websocket_ends_the_connection(
    on_loop: Run, bad: bytes, why: str, code: int
) -> None:
    async def main() -> None:
        data, told, said = await heard_from(frame(BINARY, b"before"), bad, frame(BINARY, b"after"))
        assert data.startswith(b"before")
        assert b"after" not in data
        assert told == f"WebSocket: {why}"
        assert said[0].opcode == CLOSE
        assert said[0].data[:2] == code.to_bytes(2, "big")
        assert len(said) == 1

    on_loop(main())


def test_a_ping_is_answered_and_of_many_the_last(on_loop: Run) -> None:
    async def main() -> None:
        _, why, said = await heard_from(frame(PING, b"one"), close_frame(1000))
        # A close frame needs no pong before it.
        assert why is None
        assert said == [(CLOSE, NORMAL, True)]

        answers: list[Sent] = []

        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer)
            for payload in (b"one", b"", bytes(125)):
                writer.write(frame(PING, payload))
                answers.append(await read_frame(reader))
            writer.write(frame(PONG, b"unasked"))
            writer.write(b"".join(frame(PING, bytes([number])) for number in range(100)))
            answers.append(await read_frame(reader))
            writer.write(frame(BINARY, b"end"))
            await answer_close(reader, writer)

        async with serving(ask) as port:
            heard = Heard()
            transport = await opened(f"ws://127.0.0.1:{port}", heard)
            assert await heard.bytes(3) == b"end"
            transport.close()
            assert await heard.end() is None
        assert answers == [
            (PONG, b"one", True),
            (PONG, b"", True),
            (PONG, bytes(125), True),
            (PONG, bytes([99]), True),
        ]

    on_loop(main())


def test_answers_to_pings_do_not_pile_up_while_the_server_does_not_read(on_loop: Run) -> None:
    async def main() -> None:
        pongs: list[bytes] = []
        asked = asyncio.Event()
        full = asyncio.Event()

        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await full.wait()
            for number in range(100):
                writer.write(frame(PING, bytes([number])))
                await writer.drain()
                # One at a time, so that no two of them come together.
                await asyncio.sleep(0)
            writer.write(frame(BINARY, b"end"))
            await asked.wait()
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            while (sent := await read_frame(reader)).opcode != CLOSE:
                if sent.opcode == PONG:
                    pongs.append(sent.data)
            writer.write(frame(CLOSE, sent.data))

        async with serving(ask) as port:
            heard = Heard()
            transport = await opened(f"ws://127.0.0.1:{port}", heard)
            while not heard.states:
                transport.write(bytes(HIGH_WATER))
                await asyncio.sleep(0)
            assert heard.states == [False]
            full.set()
            assert await heard.bytes(3) == b"end"
            asked.set()
            await heard.until(lambda: len(heard.states) > 1)
            assert heard.states == [False, True]
            transport.close()
            assert await heard.end() is None
        assert pongs == [bytes([99])]

    on_loop(main())


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (close_frame(1000), None),
        (close_frame(1001, "going home"), None),
        (frame(CLOSE), None),
        (close_frame(1008), "WebSocket: the server closed: 1008 (policy violation)"),
        (
            close_frame(1008, "no entry"),
            "WebSocket: the server closed: 1008 (policy violation) no entry",
        ),
        (
            close_frame(4000, "a\x1b[31m\nb"),
            "WebSocket: the server closed: 4000 (private use) a\ufffd[31m\ufffdb",
        ),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_server_closes_with_a_code(
    on_loop: Run, last: bytes, why: str | None, at_once: bool
) -> None:
    async def main() -> None:
        data, told, said = await heard_from(
            frame(BINARY, b"before"), last, frame(BINARY, b"after"), at_once=at_once
        )
        assert (data, told) == (b"before", why)
        # It hears its own code.
        assert said == [(CLOSE, last[2:4] + said[0].data[2:], True)]

    on_loop(main())


def test_an_end_without_a_close_frame_is_told_like_that_of_any_connection(on_loop: Run) -> None:
    async def main() -> None:
        for cut in (False, True):

            async def end(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: bool = cut
            ) -> None:
                await shake_hands(reader, writer)
                await read_frame(reader)
                if cut:
                    reset(writer)
                    writer.transport.abort()
                else:
                    # In the middle of a frame.
                    writer.write(frame(BINARY, b"data")[:-1])

            async with serving(end) as port:
                heard = Heard()
                transport = await opened(f"ws://127.0.0.1:{port}", heard)
                transport.write(b"x")
                assert await heard.end() == ("connection reset by peer" if cut else None)
                assert heard.data == b""

    on_loop(main())


def test_what_comes_after_our_close_is_not_told(on_loop: Run) -> None:
    async def main() -> None:
        async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer)
            assert (await read_frame(reader)).opcode == CLOSE
            writer.write(frame(BINARY, b"more") + frame(PING) + frame(TEXT, b"even this"))
            assert (await read_frame(reader)).opcode == PONG
            writer.write(close_frame(1000))
            assert await reader.read() == b""

        async with serving(go_on) as port:
            heard = Heard()
            transport = await opened(f"ws://127.0.0.1:{port}", heard)
            transport.close()
            transport.close()
            transport.pause_reading()
            assert await heard.end() is None
            assert heard.data == b""
            transport.resume_reading()
            transport.abort()

    on_loop(main())


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_a_transport_may_be_closed_by_what_it_tells(on_loop: Run, ending: str) -> None:
    async def main() -> None:
        class Closing(Heard):
            transport: Transport

            def received(self, data: bytes) -> None:
                super().received(data)
                self.transport.write(b"answer")
                getattr(self.transport, ending)()

        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer)
            assert await read_frame(reader) == (BINARY, b"go", True)
            # One piece: the client is told of the first frame when all have been read.
            writer.write(frame(BINARY, b"one") + frame(BINARY, b"two") + close_frame(1000))
            with suppress(ConnectionError):
                await reader.read()

        async with serving(say) as port:
            heard = Closing()
            heard.transport = await opened(f"ws://127.0.0.1:{port}", heard)
            heard.transport.write(b"go")
            assert await heard.end() is None
            assert heard.data == b"one"

    on_loop(main())


def test_abort_ends_it_at_once(on_loop: Run) -> None:
    async def main() -> None:
        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer)
            with suppress(ConnectionError):
                await reader.read()

        async with serving(wait) as port:
            heard = Heard()
            transport = await opened(f"ws://127.0.0.1:{port}", heard)
            transport.abort()
            transport.abort()
            transport.close()
            transport.write(b"x")
            assert await heard.end() is None

    on_loop(main())


def test_who_does_not_read_is_told_nothing_until_it_does(on_loop: Run) -> None:
    async def main() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await shake_hands(reader, writer)
            while (sent := await read_frame(reader)).opcode == BINARY:
                writer.write(frame(BINARY, sent.data))
            writer.write(frame(CLOSE, sent.data))
            # The client has read this, or it would end with a reset.
            assert await reader.read() == b""

        async with serving(echo) as port:
            heard, other = Heard(), Heard()
            transport = await opened(f"ws://127.0.0.1:{port}", heard)
            transport.pause_reading()
            transport.write(b"soft")
            # The time in which a second connection goes there and back.
            second = await opened(f"ws://127.0.0.1:{port}", other)
            second.write(b"loud")
            assert await other.bytes(4) == b"loud"
            assert heard.data == b""
            transport.resume_reading()
            assert await heard.bytes(4) == b"soft"
            # Who closes does not have to read first.
            transport.pause_reading()
            transport.close()
            second.close()
            assert await heard.end() is None
            assert await other.end() is None

    on_loop(main())
