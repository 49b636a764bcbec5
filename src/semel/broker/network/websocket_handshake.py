"""The HTTP request that opens a WebSocket, and the answer to it, with the package `websockets`.

What is refused gets an HTTP status and a short text, so that a person with a browser or `curl`
sees what is wrong:

    400  the request is malformed, or does not offer the subprotocol "mqtt" [MQTT-6.0.0-3]
    403  the origin is not in the allow-list
    404  another path
    405  another method than GET
    426  a plain GET without Upgrade, such as that of a health check
    431  a head that is too long
"""

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from websockets.exceptions import InvalidOrigin, InvalidUpgrade
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from semel.client.websocket import printable

SUBPROTOCOL: Final = Subprotocol("mqtt")
DEFAULT_PATH: Final = "/mqtt"
DEFAULT_MAXIMUM_HEAD: Final = 8 * 1024

# The end of the head of a request.
HEAD_END: Final = b"\r\n\r\n"
# The library reports each connection as INFO; the broker has its own line for that.
LIBRARY_LOG: Final = logging.getLogger("semel.broker.websockets")
LIBRARY_LOG.setLevel(logging.WARNING)

# How much of a client's text a sentence quotes.
_QUOTED_CHARACTERS: Final = 100


@dataclass(frozen=True, kw_only=True)
class WebSocketRules:
    """What a listener requires of its WebSocket clients.

    `origins` is the allow-list for browsers, which state the origin of their page
    (https://app.example); empty: every origin is accepted. A request without Origin is always
    accepted, because every browser sends one. `maximum_frame` bounds the payload of a frame.
    """

    maximum_frame: int
    path: str = DEFAULT_PATH
    origins: tuple[str, ...] = ()
    maximum_head: int = DEFAULT_MAXIMUM_HEAD


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that opens no WebSocket: the answer, and one sentence for the log."""

    response: bytes
    sentence: str


class WebSocketHandshake:
    """Answers one request."""

    def __init__(self, rules: WebSocketRules) -> None:
        self._rules = rules
        origins = [Origin(origin) for origin in rules.origins]
        self._protocol = ServerProtocol(
            origins=[None, *origins] if origins else None,
            # [MQTT-6.0.0-4]. Without extensions there is no compression.
            subprotocols=[SUBPROTOCOL],
            logger=LIBRARY_LOG,
        )

    def answer(self, head: bytes) -> bytes | RefusedRequest:
        """The response to a complete head, which ends with an empty line."""
        method = head.partition(b" ")[0]
        if method != b"GET":
            return self._refuse_method(head, method)
        if not head.isascii():
            # The library would log a traceback for some of them.
            return self._refuse(
                HTTPStatus.BAD_REQUEST, "the HTTP request has bytes that are not ASCII"
            )
        self._protocol.receive_data(head)
        request = next(
            (event for event in self._protocol.events_received() if isinstance(event, Request)),
            None,
        )
        if request is None:
            problem = self._protocol.handshake_exc
            assert problem is not None
            why = _quote(str(problem.__cause__))
            if isinstance(problem.__cause__, EOFError):
                # The library takes such a line for the end of the connection.
                why = "a line does not end with CR and LF"
            return self._refuse(HTTPStatus.BAD_REQUEST, f"the HTTP request is malformed: {why}")
        path = request.path.partition("?")[0]
        if path != self._rules.path and (path != "/" or "Upgrade" in request.headers):
            return self._refuse(
                HTTPStatus.NOT_FOUND,
                f"the path is {_quote(path)!r}; MQTT is at {self._rules.path!r}",
            )
        response = self._protocol.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return self._refuse_websocket(request)
        self._protocol.send_response(response)
        return b"".join(self._protocol.data_to_send())

    def refuse_length(self) -> RefusedRequest:
        """The answer to a head that is too long."""
        return self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the head of the HTTP request is longer than {self._rules.maximum_head} bytes",
        )

    def _refuse_method(self, head: bytes, method: bytes) -> RefusedRequest:
        if not (method.isalpha() and method.isupper() and b" HTTP/1." in head):
            return self._refuse(HTTPStatus.BAD_REQUEST, "this port expects an HTTP request")
        name = _quote(method.decode("ascii"))
        return self._refuse(
            HTTPStatus.METHOD_NOT_ALLOWED,
            f"the method of the HTTP request is {name}; a WebSocket begins with GET",
            "Allow: GET\r\n",
        )

    def _refuse_websocket(self, request: Request) -> RefusedRequest:
        """Why the library refused a request for the right path."""
        problem = self._protocol.handshake_exc
        if isinstance(problem, InvalidUpgrade):
            return self._refuse(
                HTTPStatus.UPGRADE_REQUIRED,
                "this is MQTT over WebSocket, and the request does not ask for a WebSocket",
                "Upgrade: websocket\r\n",
            )
        if isinstance(problem, InvalidOrigin):
            origin = _quote(str(problem.value))
            return self._refuse(HTTPStatus.FORBIDDEN, f"the origin {origin!r} is not allowed")
        offered = request.headers.get_all("Sec-WebSocket-Protocol")
        names = [name.strip() for value in offered for name in value.split(",")]
        if SUBPROTOCOL not in names:
            found = _quote(", ".join(offered)) or "none"
            return self._refuse(
                HTTPStatus.BAD_REQUEST,
                'the client does not offer the subprotocol "mqtt" [MQTT-6.0.0-3]; '
                f"it offers {found}",
            )
        return self._refuse(
            HTTPStatus.BAD_REQUEST,
            f"the WebSocket handshake is malformed: {_quote(str(problem))}",
        )

    def _refuse(self, status: HTTPStatus, why: str, header: str = "") -> RefusedRequest:
        body = f"{why}\n".encode()
        response = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "Connection: close\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Content-Type: text/plain; charset=utf-8\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            f"{header}\r\n"
        )
        return RefusedRequest(response.encode("ascii") + body, f"HTTP {status.value}: {why}")


def _quote(text: str) -> str:
    """Text from a client, for one line of a log."""
    return printable(text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}…")
