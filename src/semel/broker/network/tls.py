"""TLS as a layer, with the standard library's `ssl` on memory buffers.

    receive ─▶ ClientHello complete? ─▶ work (another thread): select the context, handshake step
                                            │
    receive(b"") ◀──────────────────────────┘   failed, or established, or more bytes are needed

Each step of a handshake runs in `work`, because a signature takes up to a millisecond. OpenSSL's
objects are made when the ClientHello is complete, so that a connection that sends nothing costs
little. They are used by one thread at a time: by the worker from the moment that `has_work` is
True until `receive(b"")` is called after it, and by the loop otherwise.

OpenSSL's memory buffers never shrink. So both directions go through them in pieces of the size of
a record, and a large message does not leave a large buffer behind.

An end of the stream without close_notify is not an error: MQTT has its own orderly end.
"""

import ssl
from contextlib import suppress
from typing import Final

from semel.broker.network.client_hello import ClientHello, HelloReader
from semel.broker.network.first_bytes import describe_any_bytes
from semel.broker.network.layer import LayerFailed
from semel.broker.network.peer_certificate import PeerCertificate, read_peer_certificate
from semel.broker.network.tls_contexts import TlsContexts
from semel.broker.network.tls_failures import explain_tls_failure

# The most data in a record of TLS.
PIECE_BYTES: Final = 16 * 1024
# The most bytes that a client may need for its part of the handshake, and that are buffered while
# a step of it runs. Two records are enough for a long chain of certificates.
MAXIMUM_HANDSHAKE_BYTES: Final = 2 * PIECE_BYTES

# The beginning of every TLS handshake since 1.0.
_FIRST_BYTES: Final = b"\x16\x03"
# A fatal alert, no_application_protocol (RFC 7301, section 3.2).
_NO_APPLICATION_PROTOCOL: Final = b"\x15\x03\x03\x00\x02\x02\x78"
# What has a form with TLS and one without.
_WITHOUT_TLS: Final = ("an MQTT CONNECT", "an HTTP request")


class TlsLayer:
    """The server's side of a TLS connection. A `Layer`."""

    def __init__(self, contexts: TlsContexts) -> None:
        self.is_established = False
        self.is_closed = False
        self.has_work = False
        self._contexts = contexts
        # Until the ClientHello is complete.
        self._reader: HelloReader | None = HelloReader()
        self._hello = ClientHello()
        # None until the first step of the handshake.
        self._tls: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # How many bytes the handshake has used so far.
        self._handshake_bytes = 0
        # What arrived while a step runs.
        self._waiting = b""
        # Whether OpenSSL's objects belong to the worker, and whether it has done its step.
        self._is_working = False
        self._step_is_done = False
        # The outcome of a step.
        self._handshake_is_complete = False
        # Not an exception: its traceback would refer to this object.
        self._failure: str | None = None
        self._certificate: PeerCertificate | None = None
        self._alert = b""
        self._is_closing = False

    def receive(self, data: bytes) -> bytes:
        """As in Layer: decrypted bytes."""
        if self._is_closing or self.is_closed:
            return b""
        if self.is_established:
            return self._decrypt(data)
        if self._is_working:
            if data or not self._step_is_done:
                self._wait(data)
                return b""
            self._is_working = False
            if self._failure is not None:
                raise LayerFailed(self._failure)
            data, self._waiting = self._waiting, b""
            if self._handshake_is_complete:
                self.is_established = True
                return self._decrypt(data)
        if data:
            self._continue_handshake(data)
        return b""

    def send(self, data: bytes) -> bytes:
        """As in Layer: records."""
        tls = self._tls
        if self._is_closing or tls is None or not data:
            return b""
        if len(data) <= PIECE_BYTES:
            tls.write(data)
            return self._outgoing.read()
        view = memoryview(data)
        records = []
        start = 0
        while start < len(data):
            start += tls.write(view[start : start + PIECE_BYTES])
            records.append(self._outgoing.read())
        return b"".join(records)

    def take_output(self) -> bytes:
        """As in Layer: parts of the handshake, alerts, and answers to a change of keys."""
        if self._is_working:
            return b""
        if self._alert:
            alert, self._alert = self._alert, b""
            return alert
        return self._outgoing.read() if self._outgoing.pending else b""

    def work(self) -> None:
        """As in Layer: one step of the handshake."""
        self.has_work = False
        try:
            if self._tls is None:
                context = self._contexts.select(self._hello.server_name)
                self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            self._tls.do_handshake()
            self._certificate = self._read_certificate(self._tls)
            self._handshake_is_complete = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as problem:
            self._failure = explain_tls_failure(problem)
        except LayerFailed as failure:
            self._failure = str(failure)
        finally:
            self._step_is_done = True

    def close(self, *, is_shutdown: bool = False) -> bytes:
        """As in Layer: close_notify, if the handshake is complete."""
        if self._is_closing:
            return b""
        self._is_closing = True
        self._waiting = b""
        if self._tls is None or not self.is_established:
            return b""
        # If the client has not sent its close_notify, this raises: ours is in the buffer.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return self._outgoing.read()

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """The names of the verified client certificate; None: the client gave none."""
        return self._certificate

    @property
    def server_name(self) -> str | None:
        """The host name that the client asked for."""
        return self._hello.server_name

    @property
    def version(self) -> str | None:
        """The version of TLS, such as "TLSv1.3"; None before the handshake is complete."""
        return self._tls.version() if self._tls is not None and self.is_established else None

    @property
    def cipher(self) -> str | None:
        """The name of the cipher; None before the handshake is complete."""
        found = self._tls.cipher() if self._tls is not None and self.is_established else None
        return None if found is None else found[0]

    def _wait(self, data: bytes) -> None:
        """Buffer bytes until the step of the handshake is done."""
        self._waiting += data
        if len(self._waiting) > MAXIMUM_HANDSHAKE_BYTES:
            raise LayerFailed(
                f"the client sent more than {MAXIMUM_HANDSHAKE_BYTES} bytes "
                "without waiting for the TLS handshake"
            )

    def _continue_handshake(self, data: bytes) -> None:
        """Prepare the next step of the handshake, if there are enough bytes for it."""
        room = MAXIMUM_HANDSHAKE_BYTES - self._handshake_bytes
        # If this completes the handshake, the rest is data, whatever its length.
        piece, rest = data[:room], data[room:]
        self._handshake_bytes += len(piece)
        if self._reader is not None:
            if not self._read_hello(self._reader, piece):
                if rest:
                    self._refuse_length()
                return
        elif not piece:
            self._refuse_length()
        else:
            self._incoming.write(piece)
        self._waiting = rest
        self._step_is_done = False
        self._is_working = True
        self.has_work = True

    def _refuse_length(self) -> None:
        raise LayerFailed(
            f"the client sent {MAXIMUM_HANDSHAKE_BYTES} bytes without completing the TLS handshake"
        )

    def _read_hello(self, reader: HelloReader, data: bytes) -> bool:
        """Read the ClientHello. Returns whether it is complete."""
        hello = reader.feed(data)
        start = bytes(reader.data[:PIECE_BYTES])
        if not start.startswith(_FIRST_BYTES[: len(start)]):
            what = describe_any_bytes(start)
            without = " without TLS" if what in _WITHOUT_TLS else ""
            raise LayerFailed(f"this port expects TLS; the client sent {what}{without}")
        if hello is None:
            return False
        self._hello = hello
        self._reader = None
        accepted = self._contexts.protocols
        if hello.protocols is not None and accepted and accepted.isdisjoint(hello.protocols):
            # Python's ssl would go on. RFC 7301 demands an end, so that nobody can make a client
            # of another protocol, such as a browser, talk to a broker.
            self._alert = _NO_APPLICATION_PROTOCOL
            raise LayerFailed(
                f"the client offers the protocols {_list(hello.protocols)} by ALPN; "
                f"this port accepts {_list(sorted(accepted))}"
            )
        self._incoming.write(reader.data)
        return True

    def _decrypt(self, data: bytes) -> bytes:
        tls, incoming = self._tls, self._incoming
        assert tls is not None
        pieces: list[bytes] = []
        start = 0
        while True:
            incoming.write(data if len(data) <= PIECE_BYTES else data[start : start + PIECE_BYTES])
            start += PIECE_BYTES
            # OpenSSL takes what it needs for one record, and keeps no complete one.
            while incoming.pending:
                try:
                    piece = tls.read(PIECE_BYTES)
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLError as problem:
                    raise LayerFailed(explain_tls_failure(problem), b"".join(pieces)) from None
                if not piece:
                    # close_notify
                    self.is_closed = True
                    return b"".join(pieces)
                pieces.append(piece)
            if start >= len(data):
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_certificate(self, tls: ssl.SSLObject) -> PeerCertificate | None:
        """Raises LayerFailed."""
        try:
            decoded = tls.getpeercert()
        except ValueError:
            # A name in an encoding that is not what it claims to be.
            raise LayerFailed("the client certificate has a name that is not valid text") from None
        return read_peer_certificate(dict(decoded)) if decoded else None


def _list(protocols: "tuple[bytes, ...] | list[bytes]") -> str:
    """The first few names, for one line of a log."""
    names = ", ".join(repr(name.decode("ascii", "replace")) for name in protocols[:5])
    return names if len(protocols) <= 5 else f"{names} and {len(protocols) - 5} more"
