"""A server that knows MQTT 3.1.1 only: what stands before a broker and refuses version 5.0."""

import socket
import threading
from contextlib import suppress
from types import TracebackType

# [3.1.1 MQTT-3.1.2-2] unacceptable protocol level
REFUSAL = bytes.fromhex("20020001")
NAME = b"\0\4MQTT"


class OldServer:
    """Passes connections of 3.1.1 on to a broker, and refuses those of 5.0 as 3.1.1 asks for."""

    def __init__(self, port: int) -> None:
        self.broker = port
        # The protocol level of each CONNECT.
        self.levels: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._open: list[socket.socket] = []

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                self._start(self._answer, client)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _answer(self, client: socket.socket) -> None:
        data = b""
        while NAME not in data[:-1]:
            more = client.recv(4096)
            if not more:
                client.close()
                return
            data += more
        level = data[data.index(NAME) + len(NAME)]
        self.levels.append(level)
        if level != 4:
            client.sendall(REFUSAL)
            client.close()
            return
        broker = socket.create_connection(("127.0.0.1", self.broker))
        self._open.append(broker)
        broker.sendall(data)
        self._start(self._pass, broker, client)
        self._pass(client, broker)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> "OldServer":
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10.0)
