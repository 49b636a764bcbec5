"""A server with a control socket in this process, and an operator who uses it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from semel.broker.authority import Authority
from semel.broker.network.administration import Administration
from semel.broker.network.control_commands import LIMITS, CommandLimits
from semel.broker.network.control_protocol import encode_request
from semel.broker.network.control_settings import AuditSettings, ControlSettings
from semel.broker.network.server import Server, server_metrics
from semel.broker.settings import BrokerSettings
from semel.mqtt import Connect, Decoder, Packet, Violation, encode
from semel.store.store import Store

# Generous: it only ends what would hang.
PATIENCE = 60.0


class OperatorLink:
    """A control connection."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def __aenter__(self) -> "OperatorLink":
        self.reader, self.writer = await asyncio.open_unix_connection(
            str(self.path), limit=16 * 1024 * 1024
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.transport.abort()
        await asyncio.sleep(0)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> dict[str, Any]:
        """The next line; {} if the broker has closed the connection."""
        line = await asyncio.wait_for(self.reader.readline(), PATIENCE)
        found: dict[str, Any] = json.loads(line) if line else {}
        return found

    async def ask(self, command: str, **arguments: object) -> tuple[list[Any], Any]:
        """Entries and result; an error is the result, as a string."""
        self.send(encode_request(command, arguments))
        entries: list[Any] = []
        while "entries" in (answer := await self.line()):
            entries += answer["entries"]
        return entries, answer["done"] if "done" in answer else answer["error"]


class MqttLink:
    """A client of the broker on the same loop."""

    def __init__(self, address: tuple[str, int], version: int = 5) -> None:
        self.address = address
        self.version = version
        self.decoder = Decoder(version)
        self.packets: list[Packet] = []

    async def open(self) -> "MqttLink":
        self.reader, self.writer = await asyncio.open_connection(*self.address)
        return self

    async def connect(self, client_id: str, **others: Any) -> Packet:
        await self.open()
        self.send(Connect(client_id, version=self.version, **others))
        return await self.take()

    def send(self, packet: Packet) -> None:
        self.writer.write(encode(packet, self.version))

    async def take(self) -> Packet:
        """The next packet."""
        while not self.packets:
            data = await asyncio.wait_for(self.reader.read(65_536), PATIENCE)
            assert data, "closed"
            for item in self.decoder.receive(data):
                assert not isinstance(item, Violation)
                self.packets.append(item)
        return self.packets.pop(0)

    async def until_closed(self) -> list[Packet]:
        """Everything until the broker closes the connection."""
        while data := await asyncio.wait_for(self.reader.read(65_536), PATIENCE):
            for item in self.decoder.receive(data):
                assert not isinstance(item, Violation)
                self.packets.append(item)
        return self.packets


class Controlled:
    """A broker with a control socket."""

    def __init__(self, server: Server, administration: Administration, path: Path) -> None:
        self.server = server
        self.administration = administration
        self.path = path
        self.address = ("", 0)
        self.links: list[MqttLink] = []

    def link(self, version: int = 5) -> MqttLink:
        """A client that is closed in the end."""
        self.links.append(MqttLink(self.address, version))
        return self.links[-1]

    @property
    def broker(self) -> Any:
        return self.server.broker

    async def ask(self, command: str, **arguments: object) -> tuple[list[Any], Any]:
        """One request on a connection of its own."""
        async with OperatorLink(self.path) as link:
            return await link.ask(command, **arguments)

    async def connect(self, client_id: str, version: int = 5, **others: Any) -> MqttLink:
        made = self.link(version)
        await made.connect(client_id, **others)
        return made


@asynccontextmanager
async def controlled(
    folder: Path,
    *,
    audit: Path | None = None,
    authority: Authority | None = None,
    store: Store | None = None,
    data: Path | None = None,
    limits: CommandLimits = LIMITS,
) -> AsyncIterator[Controlled]:
    """A broker whose control socket is in this folder; `data` also gets the file of bans."""
    path = folder / "control.sock"
    administration = Administration(
        ControlSettings(path=path), AuditSettings(file=audit), data, limits=limits
    )
    settings = BrokerSettings(port=0, sys_interval=0.0)
    server = Server(settings, authority, store, oversight=administration.oversight)
    made = Controlled(server, administration, path)
    made.address = await server.start()
    try:
        await administration.start(server, lambda: {"more": 1}, server_metrics(server).families)
        yield made
    finally:
        for link in made.links:
            link.writer.transport.abort()
        await administration.stop()
        await server.stop()
        administration.close()
