"""The HTTP hook against a real server that may be slow, broken or hostile, and the Python hook."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from semel.broker.access.connect_request import ConnectRequest, request_of
from semel.broker.access.http_hook import DeadlineReader, HookDecision, HookFailed, HttpHook
from semel.broker.access.python_hook import PythonHook
from semel.broker.access.users_settings import UsersSettings
from semel.broker.authority import Denied
from semel.broker.identity import Identity, PeerInfo
from semel.mqtt import MQTT311, Connect
from semel.settings import SettingsError

REQUEST = request_of(
    Connect("c", user_name="ann", password=b"secret", version=MQTT311),
    PeerInfo("192.0.2.7:5000", listener="tls", certificate="press-7"),
)
ALLOWED = b'{"allow": true}'


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


class Service:
    """Accepts connections, and answers each in its own way: raw bytes, so that it can be wrong."""

    def __init__(self, respond: Callable[[socket.socket], None]) -> None:
        self.respond = respond
        self.requests: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.tls: ssl.SSLContext | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while True:
            try:
                connected, _ = self.listener.accept()
            except OSError:
                return
            try:
                with connected:
                    if self.tls is not None:
                        connected = self.tls.wrap_socket(connected, server_side=True)
                    self.requests.append(read_request(connected))
                    self.respond(connected)
                    connected.close()
            except OSError:
                continue


def read_request(connected: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connected.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connected.recv(65_536)
    return head + b"\r\n\r\n" + body


@contextmanager
def serving(respond: Callable[[socket.socket], None] | bytes) -> Iterator[Service]:
    data = respond
    service = Service((lambda peer: peer.sendall(data)) if isinstance(data, bytes) else data)
    service.thread.start()
    try:
        yield service
    finally:
        service.listener.shutdown(socket.SHUT_RDWR)
        service.listener.close()


def hook_of(port: int, *, timeout: float = 30.0) -> HttpHook:
    url = f"http://127.0.0.1:{port}/check?x=1"
    return HttpHook(UsersSettings(http_hook=url, http_hook_timeout=timeout))


def failure(hook: HttpHook) -> str:
    with pytest.raises(HookFailed) as caught:
        hook.decide(REQUEST)
    assert "secret" not in str(caught.value)
    return str(caught.value)


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ALLOWED, HookDecision(is_allowed=True)),
        (b'{"allow": false}', HookDecision(is_allowed=False)),
        (b'{"allow": false, "groups": 7}', HookDecision(is_allowed=False)),
        (
            b'{"allow": true, "groups": ["ops"], "user_name": "bob", "more": 1}',
            HookDecision(is_allowed=True, user_name="bob", groups=("ops",)),
        ),
        (b'{"allow": true, "groups": null, "user_name": null}', HookDecision(is_allowed=True)),
    ],
)
def test_the_service_decides(body: bytes, expected: HookDecision) -> None:
    with serving(answer(body)) as service:
        assert hook_of(service.port).decide(REQUEST) == expected
    (request,) = service.requests
    assert request.startswith(b"POST /check?x=1 HTTP/1.1\r\n")
    assert json.loads(request.partition(b"\r\n\r\n")[2]) == {
        "client_id": "c",
        "user_name": "ann",
        "password": "secret",
        "address": "192.0.2.7",
        "listener": "tls",
        "certificate": "press-7",
        "version": "3.1.1",
    }


@pytest.mark.parametrize(
    ("password", "text", "base64"), [(None, None, None), (b"\xff\x00", None, "/wA=")]
)
def test_a_password_that_is_not_text_is_sent_in_base64(
    password: bytes | None, text: str | None, base64: str | None
) -> None:
    request = request_of(Connect("c", password=password), PeerInfo("192.0.2.7:5000"))
    with serving(answer(ALLOWED)) as service:
        assert hook_of(service.port).decide(request).is_allowed
    sent = json.loads(service.requests[0].partition(b"\r\n\r\n")[2])
    assert (sent["password"], sent.get("password_base64"), sent["version"]) == (text, base64, "5.0")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (answer(ALLOWED, "500 Oops"), "answered with status 500 instead of 200"),
        (answer(ALLOWED, "204 None"), "answered with status 204 instead of 200"),
        (
            answer(ALLOWED, "302 Found", "Location: http://127.0.0.1:1/\r\n"),
            "answered with status 302 instead of 200",
        ),
        (answer(b""), "did not answer with JSON"),
        (answer(b"yes"), "did not answer with JSON"),
        (answer(b"\xff"), "did not answer with JSON"),
        (answer(b"[" * 60_000), "did not answer with JSON"),
        (answer(b"true"), 'must answer with an object that has "allow": true or false'),
        (answer(b"{}"), 'must answer with an object that has "allow": true or false'),
        (answer(b'{"allow": 1}'), 'must answer with an object that has "allow": true or false'),
        (answer(b'{"allow": "true"}'), 'must answer with an object that has "allow"'),
        (answer(b'{"allow": true, "user_name": ""}'), 'with a "user_name" that is not a name'),
        (answer(b'{"allow": true, "user_name": 7}'), 'with a "user_name" that is not a name'),
        (answer(b'{"allow": true, "user_name": "a\\nb"}'), 'with a "user_name" that is not a'),
        (answer(b'{"allow": true, "groups": "ops"}'), "must be a list of at most 256 names"),
        (answer(b'{"allow": true, "groups": [7]}'), 'with a group in "groups" that is not a name'),
        (answer(b'{"allow": true, "groups": ["\\u0000"]}'), 'with a group in "groups" that is'),
        (
            answer(json.dumps({"allow": True, "groups": ["a"] * 257}).encode()),
            "must be a list of at most 256 names",
        ),
        (answer(ALLOWED + b" " * 70_000), "answered with more than 65,536 bytes"),
        (b"", "cannot be asked: "),
        (b"SSH-2.0-OpenSSH_9\r\n", "cannot be asked: SSH-2.0-OpenSSH_9"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000, "cannot be asked: got more than 65536 bytes"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + ALLOWED,
            "cannot be asked: IncompleteRead(15 bytes read, 84 more expected)",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + ALLOWED,
            "cannot be asked: IncompleteRead(",
        ),
    ],
)
def test_anything_else_refuses_the_client(data: bytes, sentence: str) -> None:
    with serving(data) as service:
        assert sentence in failure(hook_of(service.port))


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    def pour(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            peer.sendall(b" " * 65_536)

    with serving(pour) as service:
        assert "answered with more than 65,536 bytes" in failure(hook_of(service.port))


def drip(peer: socket.socket) -> None:
    """Send a byte now and then, so that no single read takes long."""
    for byte in b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000:
        peer.sendall(bytes([byte]))
        time.sleep(0.05)


def wait_forever(peer: socket.socket) -> None:
    while peer.recv(1):
        pass


@pytest.mark.parametrize("respond", [wait_forever, drip])
def test_one_deadline_covers_everything(respond: Callable[[socket.socket], None]) -> None:
    with serving(respond) as service:
        sentence = failure(hook_of(service.port, timeout=0.4))
    assert sentence == "http_hook did not answer within 0.4 s"


def test_nothing_is_read_after_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"late")
        with pytest.raises(TimeoutError):
            DeadlineReader(ours, time.monotonic()).read(4)
        assert DeadlineReader(ours, time.monotonic() + 60).read(4) == b"late"


def test_a_service_that_is_not_there_refuses_the_client() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert failure(hook_of(port)).startswith("http_hook cannot be asked: ")


def test_a_host_with_several_addresses_is_tried_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        wrong = closed.getsockname()
    with serving(answer(ALLOWED)) as service:
        found = [(socket.AF_INET, 1, 6, "", each) for each in (wrong, ("127.0.0.1", service.port))]
        monkeypatch.setattr(socket, "getaddrinfo", resolver(found))
        url = UsersSettings(http_hook="http://auth.example/", http_hook_timeout=30.0)
        assert HttpHook(url).decide(REQUEST).is_allowed
        monkeypatch.setattr(socket, "getaddrinfo", resolver([]))
        assert failure(HttpHook(url)).endswith("its host name has no address")


def resolver(found: Sequence[tuple[object, ...]]) -> Callable[..., object]:
    """getaddrinfo of a machine on which every name has these addresses."""
    return lambda host, port, **hints: found


def test_a_service_that_is_down_is_asked_now_and_then_only() -> None:
    now = [0.0]
    bodies = [b"", b"", b"", b"", ALLOWED, b"", ALLOWED]
    with serving(lambda peer: peer.sendall(answer(bodies.pop(0)))) as service:
        url = f"http://127.0.0.1:{service.port}/"
        settings = UsersSettings(http_hook=url, http_hook_timeout=30.0)
        hook = HttpHook(settings, clock=lambda: now[0])
        for _ in range(3):
            assert failure(hook) == "http_hook did not answer with JSON"
        for _ in range(3):
            assert failure(hook) == "http_hook failed 3 times in a row"
        assert len(service.requests) == 3
        now[0] += 5
        assert failure(hook) == "http_hook did not answer with JSON"
        assert failure(hook) == "http_hook failed 4 times in a row"
        now[0] += 5
        assert hook.decide(REQUEST).is_allowed
        # It works again, and one failure means nothing.
        assert failure(hook) == "http_hook did not answer with JSON"
        assert hook.decide(REQUEST).is_allowed
    assert len(service.requests) == 7


# --- HTTPS ----------------------------------------------------------------------------------------


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hook")])
    address = x509.IPAddress(ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "hook.pem", folder / "hook.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_file, key_file


def test_an_https_service_is_verified(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with serving(answer(ALLOWED)) as service:
        service.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        service.tls.load_cert_chain(certificate, key)
        url = f"https://127.0.0.1:{service.port}"
        trusting = UsersSettings(
            http_hook=url, http_hook_cafile=certificate, http_hook_timeout=30.0
        )
        hook = HttpHook(trusting)
        assert hook.warning is None
        assert hook.decide(REQUEST).is_allowed
        stranger = HttpHook(UsersSettings(http_hook=url, http_hook_timeout=30.0))
        assert "certificate" in failure(stranger).lower()
    assert len(service.requests) == 1
    assert service.requests[0].startswith(b"POST / HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read: No such file or directory"), (b"x", "contains no CA certificate")],
)
def test_ca_certificates_that_cannot_be_used_are_one_sentence(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError) as caught:
        HttpHook(UsersSettings(http_hook="https://a/", http_hook_cafile=path))
    assert str(caught.value) == f"{path}: {problem} ([users] http_hook_cafile)"


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://127.0.0.1/", False),
        ("http://127.1.2.3/", False),
        ("http://localhost/", False),
        ("http://[::1]/", False),
        ("https://auth.example/", False),
        ("http://auth.example/", True),
        ("http://192.0.2.7/", True),
    ],
)
def test_clear_text_to_another_machine_is_warned_of(url: str, warns: bool) -> None:
    warning = HttpHook(UsersSettings(http_hook=url)).warning
    assert (warning is not None) is warns


# --- Python ---------------------------------------------------------------------------------------

MODULE = """
from semel.broker.authority import Denied
from semel.broker.identity import Identity

def check(request):
    return request.user_name == "ann" and request.password == b"secret"

class Checks:
    @staticmethod
    def identify(request):
        return Identity(request.client_id, user_name="bob")

def ban(request):
    return Denied(0x8A)

def forget(request):
    pass

NUMBER = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"hook_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(MODULE, "utf-8")
    (tmp_path / f"{name}_broken.py").write_text("1 / 0\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_python_function_decides(module: str) -> None:
    assert PythonHook(f"{module}:check").decide(REQUEST) is True
    other = ConnectRequest("c", "ann", b"guess", "192.0.2.7", "tls", None, "5.0")
    assert PythonHook(f"{module}:check").decide(other) is False
    identity = PythonHook(f"{module}:Checks.identify").decide(REQUEST)
    assert isinstance(identity, Identity)
    assert identity.user_name == "bob"
    denied = PythonHook(f"{module}:ban").decide(REQUEST)
    assert isinstance(denied, Denied)
    assert denied.reason == 0x8A
    assert "secret" not in repr(REQUEST)


def test_a_result_of_another_type_is_an_error(module: str) -> None:
    with pytest.raises(TypeError, match="python_hook returned NoneType, but must return True"):
        PythonHook(f"{module}:forget").decide(REQUEST)


def test_a_function_that_is_not_there_is_one_sentence(module: str) -> None:
    for name, problem in (
        ("no_such_module_at_all:check", "cannot be imported: ModuleNotFoundError: No module named"),
        (f"{module}_broken:check", "cannot be imported: ZeroDivisionError: division by zero"),
        (f"{module}:missing", f"{module} has no function missing"),
        (f"{module}:Checks.missing", f"{module} has no function Checks.missing"),
        (f"{module}:NUMBER", f"{module} has no function NUMBER"),
    ):
        with pytest.raises(SettingsError) as caught:
            PythonHook(name)
        assert str(caught.value).startswith(f"[users] python_hook is {name}, but ")
        assert problem in str(caught.value)
