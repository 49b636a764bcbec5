"""HTTP/1 requests and responses, as far as an endpoint for metrics needs them. No I/O.

Only the request line and two headers matter. A request has no body: bytes after its head are
ignored, and every response closes the connection.
"""

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

# A request head may have this many bytes. Prometheus sends about 300.
MAXIMUM_HEAD: Final = 8 * 1024

PLAIN_TEXT: Final = "text/plain; charset=utf-8"

_END: Final = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/([0-9])\.([0-9])")
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")
_METHODS: Final = ("GET", "HEAD")


@dataclass(frozen=True)
class HttpRequest:
    """A valid GET or HEAD request."""

    is_head: bool
    # Without the query.
    path: str
    accept: str


@dataclass(frozen=True)
class HttpProblem:
    """Why a request gets no answer but this status."""

    status: HTTPStatus
    reason: str
    allow: bool = False


def parse_request(data: bytes) -> HttpRequest | HttpProblem | None:
    """The request in the received bytes; None: more bytes are needed."""
    end = _END.search(data, 0, MAXIMUM_HEAD)
    if end is None:
        if len(data) >= MAXIMUM_HEAD:
            return HttpProblem(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the head of the request has more than {MAXIMUM_HEAD} bytes",
            )
        return None
    # Every byte is a character, so that decoding cannot fail.
    lines = re.split(r"\r?\n", data[: end.start()].decode("latin-1"))
    line = _REQUEST_LINE.fullmatch(lines[0])
    if line is None:
        return HttpProblem(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1 request")
    method, target, major, _ = line.groups()
    if major != "1":
        return HttpProblem(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "use HTTP/1.1")
    accept: list[str] = []
    for text in lines[1:]:
        header = _HEADER.fullmatch(text)
        if header is None:
            return HttpProblem(HTTPStatus.BAD_REQUEST, "a line of the head is not a header")
        if header[1].lower() == "accept":
            accept.append(header[2])
    if method not in _METHODS:
        return HttpProblem(
            HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed", allow=True
        )
    return HttpRequest(method == "HEAD", target.partition("?")[0], ", ".join(accept))


def make_response(
    status: HTTPStatus,
    body: bytes,
    *,
    content_type: str = PLAIN_TEXT,
    is_head: bool = False,
    allow: bool = False,
) -> bytes:
    """A complete response; without the body if the request was HEAD."""
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if allow:
        head.append(f"Allow: {', '.join(_METHODS)}")
    return "\r\n".join((*head, "", "")).encode() + (b"" if is_head else body)
