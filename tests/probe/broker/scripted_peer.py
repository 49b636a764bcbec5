"""A peer that accepts connections as a broker does, and else does what a test says."""

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType

from semel.client.address import Address
from semel.mqtt.codec import read_frame
from semel.probe.broker.trial import Subject

# What the peer sends for a packet; None: it closes the connection.
Script = Callable[["PeerLink", bytes], bytes | None]

CONNACK_311 = bytes.fromhex("20020000")
CONNACK_5 = bytes.fromhex("2003000000")
PINGRESP = bytes.fromhex("d000")


class PeerLink:
    """One connection to the peer. `number` counts them from 1; `version` is that of CONNECT."""

    def __init__(self, peer: "ScriptedPeer", number: int, writer: asyncio.StreamWriter) -> None:
        self.peer = peer
        self.number = number
        self.writer = writer
        self.version = 0


def answer_plainly(link: PeerLink, packet: bytes) -> bytes | None:
    """Accept every CONNECT and answer PINGREQ and SUBSCRIBE; close for a type that is none."""
    packet_type = packet[0] >> 4
    if packet_type == 1:
        link.version = packet[8]
        return CONNACK_5 if link.version == 5 else CONNACK_311
    if packet_type == 8:
        section = b"\0" if link.version == 5 else b""
        body = packet[2:4] + section + b"\0"
        return bytes([0x90, len(body)]) + body
    if packet_type == 12:
        return PINGRESP
    return None if packet_type in (0, 14) else b""


class ScriptedPeer:
    """Listens while it is a context."""

    def __init__(self, script: Script = answer_plainly) -> None:
        self.links: list[PeerLink] = []
        self._script = script
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "ScriptedPeer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        await asyncio.gather(*self._tasks)

    def subject(self, timeout: float = 5.0) -> Subject:
        """The peer as the subject of an examination."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return Subject(Address("mqtt", "127.0.0.1", port), timeout=timeout)

    def stop(self) -> None:
        """Close all connections, and accept no more."""
        assert self._server is not None
        self._server.close()
        for link in self.links:
            link.writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        link = PeerLink(self, len(self.links) + 1, writer)
        self.links.append(link)
        await self._converse(link, reader)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _converse(self, link: PeerLink, reader: asyncio.StreamReader) -> None:
        """Answer packets until either side ends the connection."""
        data = b""
        while more := await self._read(reader):
            data += more
            while data:
                _, _, end, _ = read_frame(data, 0)
                if not end or end > len(data):
                    break
                packet, data = data[:end], data[end:]
                answer = self._script(link, packet)
                if answer is None:
                    return
                link.writer.write(answer)

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """What comes next; nothing if the connection has ended, in whichever way."""
        try:
            return await reader.read(65_536)
        except OSError:
            return b""
