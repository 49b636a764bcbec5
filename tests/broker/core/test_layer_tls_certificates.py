"""The certificates of a listener and of its clients, and how a handshake fails."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from semel.broker.network.client_hello import ClientHello, parse_client_hello
from semel.broker.network.layer import LayerFailed
from semel.broker.network.peer_certificate import PeerCertificate, read_peer_certificate
from semel.broker.network.tls import TlsLayer
from semel.broker.network.tls_contexts import ListenerTls, TlsContexts
from semel.broker.network.tls_failures import explain_tls_failure
from semel.client.tls import TlsError
from tests.broker.layer_driver import Driven
from tests.broker.tls_ends import (
    BOTH_VERSIONS,
    TLS_1_2,
    TLS_1_3,
    Client,
    client_context,
    connected,
    exchange,
)
from tests.broker.tls_files import SERVER_AUTH, TlsFiles, common_name


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def plain(files: TlsFiles) -> TlsContexts:
    """A listener that wants no certificates of its clients."""
    return TlsContexts(files.options())


# --- certificates of clients ----------------------------------------------------------------------

REFUSED = "the client certificate is refused: "


@BOTH_VERSIONS
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("client", None),
        ("revoked", None),
        ("expired", REFUSED + "it has expired"),
        ("early", REFUSED + "it is not valid yet"),
        ("stranger", REFUSED + "it was signed by a CA that is not trusted"),
        ("for-servers", REFUSED + "it is not meant for clients"),
        (None, "the client gave no certificate, but this listener requires one"),
    ],
)
def test_a_required_certificate_is_checked(
    files: TlsFiles, version: ssl.TLSVersion, name: str | None, why: str | None
) -> None:
    contexts = TlsContexts(files.demanding())
    client, layer, server = connected(contexts, client_context(files, name, version=version))
    assert server.failure == why
    if why is None:
        assert layer.peer_certificate == PeerCertificate(name, f"CN={name}", ())
        return
    assert layer.peer_certificate is None
    # The client hears of it by an alert, also in TLS 1.3, where it has finished already.
    assert client.failure is not None
    assert "ALERT" in client.failure.reason


@pytest.mark.parametrize(
    ("name", "why"),
    [("client", None), (None, None), ("stranger", REFUSED + "it was signed by a CA that is not")],
)
def test_an_optional_certificate_is_checked_if_there_is_one(
    files: TlsFiles, name: str | None, why: str | None
) -> None:
    contexts = TlsContexts(files.demanding("optional"))
    _, layer, server = connected(contexts, client_context(files, name))
    if why is None:
        assert server.failure is None
        found = layer.peer_certificate
        assert (None if found is None else found.common_name) == name
    else:
        assert server.failure is not None
        assert server.failure.startswith(why)


def test_a_certificate_that_nobody_asked_for_identifies_nobody(
    files: TlsFiles, plain: TlsContexts
) -> None:
    _, layer, server = connected(plain, client_context(files, "client"))
    assert server.failure is None
    assert layer.peer_certificate is None


@pytest.mark.parametrize(
    ("crl", "name", "why"),
    [
        ("revoked", "client", None),
        ("revoked", "revoked", "it has been revoked"),
        ("old", "client", "the revocation list of its CA has expired: replace crlfile"),
        (
            "other",
            "client",
            "there is no revocation list of the CA that signed it: add it to crlfile",
        ),
    ],
)
def test_a_revocation_list_is_obeyed(files: TlsFiles, crl: str, name: str, why: str | None) -> None:
    contexts = TlsContexts(files.demanding(crlfile=files / f"{crl}.crl"))
    _, _, server = connected(contexts, client_context(files, name))
    assert server.failure == (None if why is None else REFUSED + why)


def test_a_resumed_session_has_the_names_of_its_certificate(files: TlsFiles) -> None:
    contexts = TlsContexts(files.demanding())
    context = client_context(files, "client", version=TLS_1_2)
    first, _, _ = connected(contexts, context)
    client, layer = Client(context, session=first.tls.session), TlsLayer(contexts)
    exchange(client, Driven(layer))
    assert client.tls.session_reused
    assert layer.peer_certificate is not None
    assert layer.peer_certificate.common_name == "client"
    # After a reload, which may have revoked the certificate, it is checked again.
    contexts.reload()
    client, layer = Client(context, session=first.tls.session), TlsLayer(contexts)
    exchange(client, Driven(layer))
    assert client.established
    assert not client.tls.session_reused


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (common_name("sensor 7"), "sensor 7"),
        (common_name("Größe"), "Größe"),
        (common_name("a" * 256), "a" * 256),
        (
            x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "nobody")]),
            None,
        ),
        (common_name("admin\0.evil"), "Common Name of the client certificate has a character that"),
        (common_name("a\nb"), "Common Name of the client certificate has a character that"),
        (common_name("a\u202eb"), "Common Name of the client certificate has a character that"),
        (common_name("a" * 257), "has 257 characters; at most 256 are accepted"),
        (
            x509.Name(
                [
                    x509.NameAttribute(NameOID.COMMON_NAME, "admin"),
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "a\x1b[2J"),
                ]
            ),
            "subject (organizationName) of the client certificate has a character that",
        ),
        (
            x509.Name(
                [
                    x509.NameAttribute(NameOID.COMMON_NAME, "guest"),
                    x509.NameAttribute(NameOID.COMMON_NAME, "admin"),
                ]
            ),
            "has 2 Common Names, so that it is not clear who the client is",
        ),
    ],
)
def test_a_name_that_could_confuse_is_refused(
    tmp_path: Path, subject: x509.Name, expected: str | None
) -> None:
    files = TlsFiles(tmp_path)
    files.ca.issue("named", subject)
    contexts = TlsContexts(files.demanding())
    _, layer, server = connected(contexts, client_context(files, "named"))
    if server.failure is None:
        assert layer.peer_certificate is not None
        assert layer.peer_certificate.common_name == expected
    else:
        assert expected is not None
        assert expected in server.failure
        assert server.failure.isprintable()
        assert layer.peer_certificate is None
        assert not layer.is_established


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 in a string that claims to be UTF-8."""
    files = TlsFiles(tmp_path)
    files.ca.issue("named", common_name("ABCD"))
    contexts = TlsContexts(files.demanding())
    _, layer, _ = connected(contexts, client_context(files, "named"))

    class Unreadable:
        def getpeercert(self) -> dict[str, object]:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    with pytest.raises(LayerFailed, match="has a name that is not valid text"):
        layer._read_certificate(Unreadable())  # type: ignore[arg-type]


def test_a_subject_is_written_as_rfc_4514_has_it() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", 'A, "B" + C;<\\>'),),
        (("userId", "#1"), ("serialNumber", " x ")),
        (("commonName", "sensor"),),
    )
    alternatives = (
        ("DNS", "a.example"),
        ("URI", "spiffe://a/b"),
        ("DNS", "a\0b"),
        ("DNS", "a" * 257),
        ("DirName", ((("commonName", "x"),),)),
    )
    found = read_peer_certificate({"subject": subject, "subjectAltName": alternatives})
    assert found == PeerCertificate(
        "sensor",
        'CN=sensor,UID=\\#1+serialNumber=\\ x\\ ,O=A\\, \\"B\\" \\+ C\\;\\<\\\\\\>,C=DE',
        (("DNS", "a.example"), ("URI", "spiffe://a/b")),
    )
    assert read_peer_certificate({}) == PeerCertificate(None, "", ())
    empty = read_peer_certificate({"subject": ((("commonName", ""),),)})
    assert empty == PeerCertificate(None, "CN=", ())
    assert read_peer_certificate({"subject": ((("commonName", " "),),)}).subject == "CN=\\ "


# --- failures of the handshake --------------------------------------------------------------------


def test_a_client_that_does_not_trust_us_is_reported(files: TlsFiles, plain: TlsContexts) -> None:
    client, _, server = connected(
        plain, client_context(files, authority="other-ca", version=TLS_1_2)
    )
    assert client.failure is not None
    assert server.failure == "the client does not trust the CA of this listener's certificate"


def test_a_client_that_finds_another_name_is_reported(files: TlsFiles, plain: TlsContexts) -> None:
    _, _, server = connected(plain, client_context(files), "elsewhere.example")
    assert server.failure == "the client does not accept this listener's certificate"


@pytest.mark.parametrize(
    ("ours", "theirs", "ciphers", "why"),
    [
        ({"minimum_version": "1.3"}, TLS_1_2, None, "only TLS versions that are too old"),
        ({"minimum_version": "1.3"}, TLS_1_3, None, None),
        ({"minimum_version": "1.2"}, TLS_1_2, None, None),
        (
            {"ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"},
            TLS_1_2,
            "ECDHE-ECDSA-AES128-GCM-SHA256",
            "the client and this listener have no cipher in common",
        ),
        (
            {"ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"},
            TLS_1_2,
            "ECDHE-ECDSA-AES256-GCM-SHA384",
            None,
        ),
    ],
)
def test_without_a_common_version_or_cipher_there_is_a_sentence(
    files: TlsFiles,
    ours: dict[str, Any],
    theirs: ssl.TLSVersion,
    ciphers: str | None,
    why: str | None,
) -> None:
    context = client_context(files, version=theirs)
    if ciphers is not None:
        context.set_ciphers(ciphers)
    client, _, server = connected(TlsContexts(files.options(**ours)), context)
    if why is None:
        assert server.failure is None
        assert client.established
    else:
        assert server.failure is not None
        assert why in server.failure


def test_a_failure_that_is_not_in_the_table_still_has_a_sentence() -> None:
    def problem(reason: str | None) -> ssl.SSLError:
        made = ssl.SSLError(1, "text")
        made.reason = reason  # type: ignore[assignment]
        return made

    unknown = problem("TLSV1_ALERT_EXPORT_RESTRICTION")
    assert explain_tls_failure(unknown) == (
        "the client ended TLS with the alert export restriction"
    )
    assert explain_tls_failure(problem("BAD_LENGTH")) == "TLS failed: bad length"
    assert explain_tls_failure(problem(None)) == "TLS failed: unknown reason"
    refused = ssl.SSLCertVerificationError(1, "text")
    refused.verify_code, refused.verify_message = 79, "invalid CA certificate"
    assert explain_tls_failure(refused) == REFUSED + "invalid CA certificate"


# --- ALPN and SNI ---------------------------------------------------------------------------------


@BOTH_VERSIONS
@pytest.mark.parametrize(
    ("ours", "offered", "selected"),
    [
        (("mqtt",), None, None),
        (("mqtt",), ["mqtt"], "mqtt"),
        (("mqtt",), ["x-amzn-mqtt-ca", "mqtt"], "mqtt"),
        (("http/1.1", "mqtt"), ["mqtt", "http/1.1"], "http/1.1"),
        ((), ["h2"], None),
    ],
)
def test_a_common_protocol_is_selected(
    files: TlsFiles,
    version: ssl.TLSVersion,
    ours: tuple[str, ...],
    offered: list[str] | None,
    selected: str | None,
) -> None:
    contexts = TlsContexts(files.options(protocols=ours))
    context = client_context(files, version=version, alpn=offered)
    client, _, server = connected(contexts, context)
    assert server.failure is None
    assert client.tls.selected_alpn_protocol() == selected


def test_a_client_of_another_protocol_is_refused(files: TlsFiles, plain: TlsContexts) -> None:
    """RFC 7301, section 3.2"""
    client, _, server = connected(plain, client_context(files, alpn=["h2", "http/1.1"]))
    assert server.failure == (
        "the client offers the protocols 'h2', 'http/1.1' by ALPN; this port accepts 'mqtt'"
    )
    assert client.failure is not None
    assert "alert no application protocol" in str(client.failure)
    # Python has no name for it; another server's client may send it to us.
    assert explain_tls_failure(client.failure) == (
        "the client found no application protocol in common with this listener"
    )
    many = [f"p{number}" for number in range(7)]
    _, _, server = connected(plain, client_context(files, alpn=many))
    assert server.failure is not None
    assert "'p4' and 2 more by ALPN" in server.failure


@pytest.mark.parametrize(
    ("host", "subject"),
    [
        ("localhost", "server"),
        (None, "server"),
        ("other.example", "other"),
        ("OTHER.example", "other"),
        ("a.wild.example", "wild"),
        ("a.b.wild.example", "server"),
        ("wild.example", "server"),
        ("unknown.example", "server"),
        ("192.0.2.7", "server"),
    ],
)
def test_a_certificate_is_selected_by_server_name(
    files: TlsFiles, host: str | None, subject: str
) -> None:
    sni = {
        "Other.Example.": (files / "other.pem", files / "other.key"),
        "*.wild.example": (files / "wild.pem", files / "wild.key"),
    }
    contexts = TlsContexts(files.options(sni=sni))
    context = client_context(files)
    context.check_hostname = False
    client, _, server = connected(contexts, context, host)
    assert server.failure is None
    certificate = client.tls.getpeercert()
    assert certificate is not None
    assert certificate["subject"] == ((("commonName", subject),),)


def test_a_server_name_that_is_not_ascii_gets_the_default_and_no_traceback(
    files: TlsFiles, capfd: pytest.CaptureFixture[str]
) -> None:
    contexts = TlsContexts(
        files.options(sni={"a.example": (files / "other.pem", files / "other.key")})
    )
    client, layer = Client(client_context(files, version=TLS_1_2)), TlsLayer(contexts)
    server = Driven(layer)
    server.give(client.step().replace(b"localhost", b"local\xff\xfe\x00t"))
    assert layer.server_name is None
    assert capfd.readouterr() == ("", "")


HELLO_START = bytes(34) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00"


def extension(kind: int, content: bytes) -> bytes:
    return kind.to_bytes(2, "big") + len(content).to_bytes(2, "big") + content


@pytest.mark.parametrize(
    ("extensions", "hello"),
    [
        (None, ClientHello()),
        (b"", ClientHello()),
        (extension(99, b"x"), ClientHello()),
        (extension(0, b"\x00\x04\x00\x00\x01A"), ClientHello("a")),
        # A kind of name that does not exist, before and instead of a host name.
        (extension(0, b"\x00\x08\x07\x00\x01x\x00\x00\x01A"), ClientHello("a")),
        (extension(0, b"\x00\x04\x07\x00\x01x"), ClientHello()),
        (extension(16, b"\x00\x03\x02h2"), ClientHello(None, (b"h2",))),
        (extension(16, b"\x00\x00"), ClientHello(None, ())),
        (extension(16, b"\x00\x09\x02h2"), ClientHello()),
        (extension(0, b"\x00\x04\x00\x00\x01"), ClientHello()),
    ],
)
def test_a_hello_says_what_the_client_wants(extensions: bytes | None, hello: ClientHello) -> None:
    end = b"" if extensions is None else len(extensions).to_bytes(2, "big") + extensions
    assert parse_client_hello(HELLO_START + end) == hello


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"certfile": "/nowhere/a.pem"}, "certfile '/nowhere/a.pem': No such file or directory"),
        ({"keyfile": "client.key"}, "keyfile '{}/client.key': the key does not belong to certfile"),
        ({"keyfile": "ca.pem"}, "keyfile '{}/ca.pem': not a private key in PEM format"),
        ({"minimum_version": "1.1"}, "minimum_version: tlsv1.2 or tlsv1.3, not 1.1"),
        ({"ciphers": "NONSENSE"}, "ciphers: OpenSSL has none of 'NONSENSE'"),
        ({"protocols": ("",)}, "alpn: the name of a protocol has 1 to 255 ASCII characters"),
        ({"client_certificate": "maybe"}, "client_certificate: none, optional or required, not"),
        ({"client_certificate": "required"}, "cafile is missing: client_certificate is required"),
        ({"cafile": "ca.pem"}, "cafile is given, but client certificates are not checked"),
        ({"capath": "."}, "capath is given, but client certificates are not checked"),
        ({"crlfile": "old.crl"}, "crlfile is given, but client certificates are not checked"),
        (
            {"client_certificate": "optional", "cafile": "server.key"},
            "cafile '{}/server.key': not a certificate in PEM format",
        ),
        (
            {"client_certificate": "optional", "cafile": "old.crl"},
            "cafile '{}/old.crl': not a certificate in PEM format",
        ),
        (
            {"client_certificate": "required", "cafile": "ca.pem", "crlfile": "server.key"},
            "crlfile '{}/server.key': not a certificate revocation list in PEM format",
        ),
        (
            {"client_certificate": "required", "cafile": "ca.pem", "crlfile": "other-ca.pem"},
            "crlfile '{}/other-ca.pem': contains a certificate",
        ),
        (
            {"client_certificate": "required", "cafile": "ca.pem", "crlfile": "none.crl"},
            "crlfile '{}/none.crl': No such file or directory",
        ),
        ({"sni": {"a b": ("x", "y")}}, "sni 'a b': a host name or a wildcard such as"),
        ({"sni": {"*": ("x", "y")}}, "sni '*': a host name or a wildcard such as"),
        ({"sni": {"größe.example": ("x", "y")}}, "sni 'größe.example': a host name or"),
        (
            {"sni": {"a.example": ("/nowhere/x.pem", None)}},
            "sni 'a.example': certfile '/nowhere/x.pem': No such file or directory",
        ),
    ],
)
def test_an_option_that_cannot_work_is_named(
    files: TlsFiles, change: dict[str, Any], sentence: str
) -> None:
    """`protocols` has no option; its word for users is ALPN's."""
    paths = ("certfile", "keyfile", "cafile", "capath", "crlfile")
    given_options: dict[str, Any] = {
        option: files / value if option in paths and isinstance(value, str) else value
        for option, value in change.items()
    }
    with pytest.raises(TlsError) as caught:
        TlsContexts(files.options(**given_options))
    assert str(caught.value).startswith(sentence.replace("{}", str(files.folder)))
    assert caught.value.parameter == sentence.split(" ")[0].rstrip(":")


def test_a_password_is_not_shown(files: TlsFiles) -> None:
    assert "secret" not in repr(files.options(password="secret"))


def test_a_reload_keeps_connections_and_a_bad_one_keeps_the_certificate(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    contexts = TlsContexts(files.options())
    context = client_context(files)
    client, layer, server = connected(contexts, context)

    def subject() -> object:
        now, _, _ = connected(contexts, context)
        certificate = now.tls.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]

    first = subject()
    files.ca.issue("server", hosts=["localhost"], usage=SERVER_AUTH)
    assert subject() == first
    contexts.reload()
    second = subject()
    assert second != first
    (files / "server.pem").write_text("nonsense")
    with pytest.raises(TlsError, match=r"certfile '.*server\.pem': not a certificate"):
        contexts.reload()
    assert subject() == second
    contexts.reload(files.options("other"))
    assert contexts.options.certfile == files / "other.pem"
    # The first connection goes on.
    client.tls.write(b"still here")
    exchange(client, server)
    assert server.inner == b"still here"
    client.incoming.write(layer.send(b"so am I"))
    client.step()
    assert client.received == b"so am I"


def test_options_have_safe_defaults(files: TlsFiles) -> None:
    options = ListenerTls(certfile=files / "server.pem", keyfile=files / "server.key")
    context = TlsContexts(options).select(None)
    assert context.minimum_version is TLS_1_2
    assert context.verify_mode is ssl.CERT_NONE
