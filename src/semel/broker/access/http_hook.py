"""Asks an HTTP service whether a client may connect.

    POST /mqtt HTTP/1.1                         {"client_id": "press-7", "user_name": "ann", …}
    HTTP/1.1 200 OK                             {"allow": true, "groups": ["ops"]}

Anything but such an answer refuses the client: no answer in time, another status, a redirect (which
would take the password elsewhere), an answer that is too long or not the JSON that is expected. One
deadline covers connection, request and answer, but not the resolution of the host name.

It runs in the worker threads that check passwords, too. So that a service that is down does not
keep them busy, it is asked only now and then after some failures in a row.
"""

import http.client
import io
import json
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from semel.broker.access.connect_request import ConnectRequest
from semel.broker.access.names import MAXIMUM_GROUPS, name_problem
from semel.broker.access.users_settings import UsersSettings
from semel.settings import SettingsError

MAXIMUM_ANSWER_BYTES: Final = 64 * 1024
# After this many failures in a row, one client in each interval is used to try again.
FAILURES_IN_A_ROW: Final = 3
RETRY_SECONDS: Final = 5.0


class HookFailed(Exception):
    """Why the hook did not decide, in one sentence."""


@dataclass(frozen=True)
class HookDecision:
    """What a hook decided."""

    is_allowed: bool
    # None: that of the request.
    user_name: str | None = None
    groups: tuple[str, ...] = ()


class DeadlineReader(io.RawIOBase):
    """Reads a socket, until a deadline for everything together."""

    def __init__(self, connected: socket.socket, deadline: float) -> None:
        super().__init__()
        self._socket: Final = connected
        self._deadline: Final = deadline

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Wait for bytes, at most until the deadline. Raises TimeoutError."""
        self._socket.settimeout(_left(self._deadline))
        return self._socket.recv_into(buffer)


class _ReadableSocket:
    """What HTTPResponse needs of a socket."""

    def __init__(self, reader: DeadlineReader) -> None:
        self._reader: Final = reader

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class HttpHook:
    """Sends each request over a connection of its own."""

    def __init__(
        self, settings: UsersSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises SettingsError if the CA certificates cannot be used."""
        assert settings.http_hook is not None
        url = urlsplit(settings.http_hook)
        assert url.hostname is not None, "the settings are checked"
        self._host: Final = url.hostname
        default_port = http.client.HTTPS_PORT if url.scheme == "https" else http.client.HTTP_PORT
        self._port: Final = url.port or default_port
        self._target: Final = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._timeout: Final = settings.http_hook_timeout
        self._tls: Final = _tls_context(settings) if url.scheme == "https" else None
        self._clock: Final = clock
        # Guards the two below: threads share the hook.
        self._lock: Final = threading.Lock()
        self._failures = 0
        self._retry_at = 0.0
        self.warning: Final = None if self._tls else _clear_text_warning(url.hostname)

    def decide(self, request: ConnectRequest) -> HookDecision:
        """The decision of the service. Raises HookFailed."""
        with self._lock:
            if self._failures >= FAILURES_IN_A_ROW:
                if self._clock() < self._retry_at:
                    raise HookFailed(f"http_hook failed {self._failures} times in a row")
                self._retry_at = self._clock() + RETRY_SECONDS
        try:
            decision = self._ask(request)
        except HookFailed:
            with self._lock:
                self._failures += 1
                self._retry_at = self._clock() + RETRY_SECONDS
            raise
        with self._lock:
            self._failures = 0
        return decision

    def _ask(self, request: ConnectRequest) -> HookDecision:
        deadline = time.monotonic() + self._timeout
        try:
            status, body = self._exchange(_encode_request(request), deadline)
        except TimeoutError:
            raise HookFailed(f"http_hook did not answer within {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException) as problem:
            words = " ".join(str(problem).split()) or type(problem).__name__
            raise HookFailed(f"http_hook cannot be asked: {words[:200]}") from None
        if status != http.HTTPStatus.OK:
            raise HookFailed(f"http_hook answered with status {status} instead of 200")
        if len(body) > MAXIMUM_ANSWER_BYTES:
            raise HookFailed(f"http_hook answered with more than {MAXIMUM_ANSWER_BYTES:,} bytes")
        return _parse_answer(body)

    def _exchange(self, body: bytes, deadline: float) -> tuple[int, bytes]:
        """The status and the body of the answer, of which at most one byte is too many."""
        # Not urllib: it follows redirects, uses proxies and has a timeout for each read only.
        kind = http.client.HTTPConnection if self._tls is None else http.client.HTTPSConnection
        connection = kind(self._host, self._port)
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "semel",
            "Connection": "close",
        }
        try:
            connection.sock = self._open_socket(deadline)
            connection.request("POST", self._target, body=body, headers=headers)
            reader = DeadlineReader(connection.sock, deadline)
            response = http.client.HTTPResponse(
                _ReadableSocket(reader),  # type: ignore[arg-type]
                method="POST",
            )
            with closing(response):
                response.begin()
                answer = response.read(MAXIMUM_ANSWER_BYTES + 1)
                if response.length and len(answer) <= MAXIMUM_ANSWER_BYTES:
                    raise http.client.IncompleteRead(answer, response.length)
                return response.status, answer
        finally:
            connection.close()

    def _open_socket(self, deadline: float) -> socket.socket:
        """A connection to the first address of the service that accepts one."""
        problem: OSError = OSError("its host name has no address")
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, where in found:
            # Not create_connection: its timeout is one for each address of the name.
            connected = socket.socket(family, kind, protocol)
            try:
                connected.settimeout(_left(deadline))
                connected.connect(where)
                connected.settimeout(_left(deadline))
            except OSError as failure:
                connected.close()
                problem = failure
                continue
            if self._tls is None:
                return connected
            # Closes the socket if the handshake fails.
            return self._tls.wrap_socket(connected, server_hostname=self._host)
        raise problem


def _tls_context(settings: UsersSettings) -> ssl.SSLContext:
    cafile = settings.http_hook_cafile
    try:
        return ssl.create_default_context(cafile=None if cafile is None else str(cafile))
    except OSError as problem:  # ssl.SSLError is one
        words = "contains no CA certificate" if isinstance(problem, ssl.SSLError) else None
        words = words or f"cannot be read: {problem.strerror}"
        raise SettingsError([f"{cafile}: {words} ([users] http_hook_cafile)"]) from None


def _clear_text_warning(host: str) -> str | None:
    if host == "localhost" or host == "::1" or host.startswith("127."):
        return None
    return "[users] http_hook sends passwords to another machine without encryption: use https"


def _encode_request(request: ConnectRequest) -> bytes:
    content: dict[str, object] = {
        "client_id": request.client_id,
        "user_name": request.user_name,
        "password": None,  # nosec B105 # a key of JSON
        "address": request.address,
        "listener": request.listener,
        "certificate": request.certificate,
        "version": request.version,
    }
    if request.password is not None:
        try:
            content["password"] = request.password.decode()
        except UnicodeDecodeError:
            # As in exports of the store: bytes that are not text have a key of their own.
            content["password_base64"] = b64encode(request.password).decode()
    return json.dumps(content).encode()


def _parse_answer(body: bytes) -> HookDecision:
    """The decision in an answer. Raises HookFailed."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise HookFailed("http_hook did not answer with JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("allow"), bool):
        raise HookFailed('http_hook must answer with an object that has "allow": true or false')
    if not content["allow"]:
        return HookDecision(is_allowed=False)
    user_name = content.get("user_name")
    if user_name is not None and (not isinstance(user_name, str) or name_problem(user_name)):
        raise HookFailed('http_hook answered with a "user_name" that is not a name')
    groups = content.get("groups")
    groups = [] if groups is None else groups
    if not isinstance(groups, list) or len(groups) > MAXIMUM_GROUPS:
        raise HookFailed(f'"groups" of http_hook must be a list of at most {MAXIMUM_GROUPS} names')
    for group in groups:
        if not isinstance(group, str) or name_problem(group):
            raise HookFailed('http_hook answered with a group in "groups" that is not a name')
    return HookDecision(is_allowed=True, user_name=user_name, groups=tuple(groups))
