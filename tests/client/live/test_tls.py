"""TLS: the sentences for options that cannot work, and connections to mosquitto and to the test.

Mosquitto is the server where a handshake has to fail: it tells its client why. A server on asyncio,
which tells nothing, is the one for all that can be done to a client after or instead of it.
"""

import asyncio
import shutil
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from semel.client.address import parse_address
from semel.client.connector import open_transport
from semel.client.tls import TlsError, make_context
from semel.client.transport import CannotConnect, Transport
from tests.client.certificates import PASSWORD, Certificates
from tests.client.listening import Heard, cancel_at_every_turn, opened, reset, run, serving
from tests.client.mosquitto import CONNACK, CONNECT, mosquitto

Run = Callable[[Coroutine[Any, Any, None]], None]
LARGE = bytes(range(256)) * 16 * 1024


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("not installed: openssl")
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Broker(NamedTuple):
    """The ports of a mosquitto."""

    plain: int
    secure: int
    elsewhere: int
    demanding: int


@pytest.fixture(scope="module")
def broker(files: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    def secure(name: str, *more: str) -> list[str]:
        return [
            f"cafile {files / 'ca.pem'}",
            f"certfile {files / f'{name}.pem'}",
            f"keyfile {files / f'{name}.key'}",
            *more,
        ]

    if shutil.which("mosquitto") is None:
        pytest.skip("not installed: mosquitto")
    with mosquitto(
        tmp_path_factory.mktemp("mosquitto"),
        [],
        secure("server"),
        secure("elsewhere"),
        secure("server", "require_certificate true"),
    ) as ports:
        yield Broker(*ports)


@pytest.fixture(params=["asyncio", "uvloop"], name="on_loop")
def a_loop(request: pytest.FixtureRequest) -> Run:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return lambda main: run(main, request.param)


async def refusal(url: str, **more: Any) -> str:
    """Why there is no connection, without the beginning that all sentences have."""
    with pytest.raises(CannotConnect) as caught:
        await open_transport(parse_address(url), Heard(), **more)
    beginning, _, why = str(caught.value).partition(f"{parse_address(url)}: ")
    assert beginning == "cannot connect to "
    return why


async def connack(url: str, context: ssl.SSLContext | None) -> None:
    """MQTT's first two packets."""
    heard = Heard()
    transport = await opened(url, heard, tls=context)
    transport.write(CONNECT)
    assert await heard.bytes(len(CONNACK)) == CONNACK
    transport.close()
    assert await heard.end() is None


def server_context(files: Certificates, name: str = "server") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / f"{name}.pem", files / f"{name}.key")
    return context


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # Who closes TLS, on asyncio, while more comes in than it has read, resets the connection.
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


# --- what a context is made of --------------------------------------------------------------------


def test_a_context_trusts_the_system_and_checks_the_name_unless_told_otherwise() -> None:
    context = make_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    lax = make_context(insecure=True)
    assert lax.verify_mode is ssl.CERT_REQUIRED
    assert not lax.check_hostname


def test_a_context_trusts_only_whom_it_is_told_to(files: Certificates) -> None:
    context = make_context(cafile=files / "ca.pem")
    assert [each["subject"] for each in context.get_ca_certs()] == [((("commonName", "ca"),),)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("tlsv1.2", ssl.TLSVersion.TLSv1_2),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_3),
        ("1.3", ssl.TLSVersion.TLSv1_3),
        (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_the_oldest_version_can_be_said(
    given: str | ssl.TLSVersion, expected: ssl.TLSVersion
) -> None:
    assert make_context(minimum_version=given).minimum_version is expected


@pytest.mark.parametrize("given", ["tlsv1.1", "ssl3", "", "1.4", ssl.TLSVersion.MAXIMUM_SUPPORTED])
def test_there_is_no_other_version(given: str | ssl.TLSVersion) -> None:
    with pytest.raises(TlsError, match=r"minimum_version: tlsv1\.2 or tlsv1\.3, not"):
        make_context(minimum_version=given)


def test_ciphers_are_openssls(files: Certificates) -> None:
    named = "ECDHE-ECDSA-AES128-GCM-SHA256"
    assert named in [each["name"] for each in make_context(ciphers=named).get_ciphers()]
    with pytest.raises(TlsError) as caught:
        make_context(ciphers="NONSENSE")
    assert str(caught.value) == (
        "ciphers: OpenSSL has none of 'NONSENSE'; `openssl ciphers` lists their names"
    )


@pytest.mark.parametrize("alpn", ["", "ü", "x" * 256, ["mqtt", ""]])
def test_the_name_of_a_protocol_is_not_any_text(alpn: str | list[str]) -> None:
    with pytest.raises(TlsError) as caught:
        make_context(alpn=alpn)
    assert str(caught.value) == "alpn: the name of a protocol has 1 to 255 ASCII characters"


@pytest.mark.parametrize(
    "options",
    [
        {"cafile": "ca.pem"},
        {"cafile": "ca.pem", "certfile": "client.pem", "keyfile": "client.key"},
        {"certfile": "both.pem"},
        {"certfile": "client.pem", "keyfile": "locked.key", "password": PASSWORD},
        {"certfile": "client.pem", "keyfile": "locked.key", "password": PASSWORD.encode()},
        # A password that nothing asks for is no harm.
        {"certfile": "both.pem", "password": "unused"},
        {"capath": "."},
    ],
)
def test_files_that_fit_make_a_context(files: Certificates, options: dict[str, Any]) -> None:
    make_context(
        **{
            option: value if option == "password" else files / value
            for option, value in options.items()
        }
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cafile": "no.pem"}, "cafile '{}/no.pem': No such file or directory"),
        ({"cafile": "."}, "cafile '{}': Is a directory"),
        ({"cafile": "ca.key"}, "cafile '{}/ca.key': not a certificate in PEM format"),
        ({"cafile": "server.ext"}, "cafile '{}/server.ext': not a certificate in PEM format"),
        ({"capath": "no"}, "capath '{}/no': no such directory"),
        ({"capath": "ca.pem"}, "capath '{}/ca.pem': no such directory"),
        ({"certfile": "no.pem"}, "certfile '{}/no.pem': No such file or directory"),
        ({"certfile": "server.ext"}, "certfile '{}/server.ext': not a certificate in PEM format"),
        ({"certfile": "client.pem"}, "certfile '{}/client.pem': not a private key in PEM format"),
        (
            {"certfile": "client.pem", "keyfile": "no.key"},
            "keyfile '{}/no.key': No such file or directory",
        ),
        (
            {"certfile": "client.pem", "keyfile": "client.ext"},
            "keyfile '{}/client.ext': not a private key in PEM format",
        ),
        (
            {"certfile": "client.key", "keyfile": "client.key"},
            "certfile '{}/client.key': not a certificate in PEM format",
        ),
        (
            {"certfile": "client.pem", "keyfile": "server.key"},
            "keyfile '{}/server.key': the key does not belong to certfile '{}/client.pem'",
        ),
        (
            {"certfile": "client.pem", "keyfile": "locked.key"},
            "keyfile '{}/locked.key': the key is encrypted: give its password",
        ),
        (
            {"certfile": "client.pem", "keyfile": "locked.key", "password": "wrong"},
            "keyfile '{}/locked.key': the password does not decrypt the key",
        ),
        (
            {"certfile": "client.pem", "keyfile": "locked.key", "password": "ü" * 513},
            "password: at most 1024 bytes",
        ),
        (
            {"keyfile": "client.key"},
            "keyfile is given without certfile: give both",
        ),
    ],
)
def test_files_that_do_not_fit_are_one_sentence(
    files: Certificates, options: dict[str, Any], sentence: str
) -> None:
    given: dict[str, Any] = {
        option: value if option == "password" else str(files / value)
        for option, value in options.items()
    }
    with pytest.raises(TlsError) as caught:
        make_context(**given)
    assert str(caught.value) == sentence.replace("{}", str(files.folder))


# --- mosquitto ------------------------------------------------------------------------------------


def test_mosquitto_is_trusted_by_its_authority(
    on_loop: Run, files: Certificates, broker: Broker
) -> None:
    async def main() -> None:
        for host in ("localhost", "127.0.0.1", "LocalHost"):
            await connack(f"mqtts://{host}:{broker.secure}", make_context(cafile=files / "ca.pem"))
        strict = make_context(cafile=files / "ca.pem", minimum_version="tlsv1.3")
        await connack(f"ssl://localhost:{broker.secure}", strict)

    on_loop(main())


def test_a_folder_of_authorities_is_trusted_like_a_file(
    on_loop: Run, files: Certificates, broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_bytes((files / "ca.pem").read_bytes())
    files.rehash(tmp_path)
    on_loop(connack(f"mqtts://localhost:{broker.secure}", make_context(capath=tmp_path)))


UNTRUSTED = (
    "TLS: certificate verify failed: self-signed certificate in certificate chain "
    "(cafile or capath sets the trusted certificates)"
)


def test_a_server_that_nobody_trusts_is_refused(
    on_loop: Run, files: Certificates, broker: Broker
) -> None:
    async def main() -> None:
        where = f"mqtts://localhost:{broker.secure}"
        # Not by the system either.
        assert await refusal(where) == UNTRUSTED
        for insecure in (False, True):
            context = make_context(cafile=files / "other-ca.pem", insecure=insecure)
            assert await refusal(where, tls=context) == UNTRUSTED

    on_loop(main())


def test_a_certificate_for_another_name_is_refused_unless_names_do_not_count(
    on_loop: Run, files: Certificates, broker: Broker
) -> None:
    async def main() -> None:
        begin = "TLS: certificate verify failed: "
        told = await refusal(
            f"mqtts://localhost:{broker.elsewhere}", tls=make_context(cafile=files / "ca.pem")
        )
        assert told == (f"{begin}Hostname mismatch, certificate is not valid for 'localhost'")
        told = await refusal(
            f"mqtts://127.0.0.1:{broker.elsewhere}", tls=make_context(cafile=files / "ca.pem")
        )
        assert told == (f"{begin}IP address mismatch, certificate is not valid for '127.0.0.1'")
        lax = make_context(cafile=files / "ca.pem", insecure=True)
        await connack(f"mqtts://localhost:{broker.elsewhere}", lax)

    on_loop(main())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_may_demand_a_certificate(
    on_loop: Run, files: Certificates, broker: Broker, version: ssl.TLSVersion
) -> None:
    async def main() -> None:
        where = f"mqtts://localhost:{broker.demanding}"
        given = make_context(
            cafile=files / "ca.pem", certfile=files / "client.pem", keyfile=files / "client.key"
        )
        given.maximum_version = version
        await connack(where, given)

    on_loop(main())


def test_a_client_without_the_certificate_that_is_demanded_hears_so(
    on_loop: Run, files: Certificates, broker: Broker
) -> None:
    async def main() -> None:
        where = f"mqtts://localhost:{broker.demanding}"
        context = make_context(cafile=files / "ca.pem")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await refusal(where, tls=context) == "TLS: sslv3 alert handshake failure"
        # In TLS 1.3 the handshake is over for the client before the server looks at it.
        heard = Heard()
        transport = await opened(where, heard, tls=make_context(cafile=files / "ca.pem"))
        transport.write(CONNECT)
        assert await heard.end() in (
            "TLS: tlsv13 alert certificate required",
            # If asyncio has to write in the same moment.
            "connection reset by peer before it sent anything; "
            "it may require a certificate (certfile)",
        )

    on_loop(main())


def test_a_server_without_tls_is_not_spoken_to(
    on_loop: Run, files: Certificates, broker: Broker
) -> None:
    async def main() -> None:
        context = make_context(cafile=files / "ca.pem")
        told = await refusal(f"mqtts://localhost:{broker.plain}", tls=context)
        assert told in (
            "connection reset by peer",
            "the peer closed the connection during the TLS handshake",
        )

    on_loop(main())


# --- servers of the test --------------------------------------------------------------------------


def test_large_data_goes_there_and_back(on_loop: Run, files: Certificates) -> None:
    async def main() -> None:
        async with serving(echo, tls=server_context(files)) as port:
            heard = Heard()
            context = make_context(cafile=files / "ca.pem")
            transport = await opened(f"mqtts://localhost:{port}", heard, tls=context)
            assert transport.peer == f"127.0.0.1:{port}"
            transport.write(LARGE)
            assert await heard.bytes(len(LARGE)) == LARGE
            transport.write(LARGE)
            await heard.until(lambda: len(heard.data) > len(LARGE) // 2)
            transport.close()
            assert await heard.end() is None

    on_loop(main())


def test_close_sends_what_was_written(on_loop: Run, files: Certificates) -> None:
    async def main() -> None:
        got = []

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.append(await reader.read())

        async with serving(keep, tls=server_context(files)) as port:
            heard = Heard()
            context = make_context(cafile=files / "ca.pem")
            transport = await opened(f"mqtts://localhost:{port}", heard, tls=context)
            transport.write(LARGE)
            transport.close()
            transport.write(b"too late")
            transport.pause_reading()
            assert await heard.end() is None
            transport.resume_reading()
            transport.close()
            transport.abort()
        assert got == [LARGE]

    on_loop(main())


def test_the_servers_end_is_told(on_loop: Run, files: Certificates) -> None:
    async def main() -> None:
        context = make_context(cafile=files / "ca.pem")

        async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(3))

        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(3)
            reset(writer)
            writer.transport.abort()

        async def end_without_a_word(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await reader.readexactly(3)
            writer.transport.abort()

        said = " before it sent anything; it may require a certificate (certfile)"
        for handler, data, why in (
            (close, b"one", None),
            (cut, b"", "connection reset by peer" + said),
            (end_without_a_word, b"", None),
        ):
            async with serving(handler, tls=server_context(files)) as port:
                heard = Heard()
                transport = await opened(f"mqtts://localhost:{port}", heard, tls=context)
                transport.write(b"one")
                assert await heard.end() == why, handler
                assert heard.data == data

    on_loop(main())


def test_abort_ends_it_at_once(on_loop: Run, files: Certificates) -> None:
    async def main() -> None:
        async with serving(echo, tls=server_context(files)) as port:
            heard = Heard()
            context = make_context(cafile=files / "ca.pem")
            transport = await opened(f"mqtts://localhost:{port}", heard, tls=context)
            transport.abort()
            transport.abort()
            assert await heard.end() is None

    on_loop(main())


def test_the_server_hears_which_name_and_which_protocol_is_meant(
    on_loop: Run, files: Certificates
) -> None:
    async def main() -> None:
        names = []
        chosen = []

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            chosen.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
            await reader.read()

        expecting = server_context(files)
        expecting.set_alpn_protocols(["http/1.1", "mqtt"])
        expecting.sni_callback = lambda _, name, __: names.append(name)
        async with serving(keep, tls=expecting) as port:
            for host, alpn in (
                ("localhost", "mqtt"),
                ("localhost", ["mqtt"]),
                # An IP address is no name.
                ("127.0.0.1", None),
            ):
                heard = Heard()
                context = make_context(cafile=files / "ca.pem", alpn=alpn)
                transport = await opened(f"mqtts://{host}:{port}", heard, tls=context)
                transport.close()
                assert await heard.end() is None
        assert names == ["localhost", "localhost", None]
        assert chosen == ["mqtt", "mqtt", None]

    on_loop(main())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "TLS: wrong version number: the server may not use TLS on this port",
        ),
        (
            bytes(200),
            "TLS: wrong version number: the server may not use TLS on this port",
        ),
        # An alert of TLS: handshake failure.
        (bytes.fromhex("15030300020228"), "TLS: sslv3 alert handshake failure"),
        (b"", "the peer closed the connection during the TLS handshake"),
        (b"\x16\x03", "the peer closed the connection during the TLS handshake"),
    ],
)
def test_a_server_that_does_not_shake_hands_is_one_sentence(
    on_loop: Run, answer: bytes, why: str
) -> None:
    async def main() -> None:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(65536)
            writer.write(answer)

        async with serving(say) as port:
            assert await refusal(f"mqtts://localhost:{port}") == why

    on_loop(main())


def test_a_server_that_resets_in_the_handshake_is_one_sentence(on_loop: Run) -> None:
    async def main() -> None:
        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(5)
            reset(writer)
            writer.transport.abort()

        async with serving(cut) as port:
            assert await refusal(f"mqtts://localhost:{port}") == "connection reset by peer"

    on_loop(main())


def test_a_server_that_never_shakes_hands_ends_with_the_time_out(on_loop: Run) -> None:
    async def main() -> None:
        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with serving(wait) as port:
            told = await refusal(f"mqtts://localhost:{port}", timeout=0.3)
            assert told == "no answer within 0.3 s"

    on_loop(main())


def test_cancelling_at_any_point_leaves_nothing_open(
    on_loop: Run, files: Certificates, broker: Broker
) -> None:
    async def main() -> None:
        context = make_context(cafile=files / "ca.pem")

        async def begin() -> tuple[Transport, Heard]:
            heard = Heard()
            return await opened(f"mqtts://127.0.0.1:{broker.secure}", heard, tls=context), heard

        for transport, heard in await cancel_at_every_turn(begin):
            transport.close()
            assert await heard.end() is None

    on_loop(main())
