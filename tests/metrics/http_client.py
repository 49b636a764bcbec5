"""One HTTP request over a socket, and its response in parts."""

import socket
from dataclasses import dataclass

PATIENCE = 60.0


@dataclass(frozen=True)
class Response:
    """A response that ended with the end of the connection."""

    status: int
    headers: dict[str, str]
    body: str


def read_response(made: socket.socket) -> Response:
    """Read until the peer closes. Checks that the length is right."""
    data = b""
    while piece := made.recv(65_536):
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
    assert headers["content-length"] == str(len(body)) or not body
    return Response(int(first.split()[1]), headers, body.decode())


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, PATIENCE)


def ask(
    address: tuple[str, int], path: str = "/metrics", *, method: str = "GET", accept: str = ""
) -> Response:
    """The response to one request."""
    with connect(address) as made:
        made.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode())
        return read_response(made)
