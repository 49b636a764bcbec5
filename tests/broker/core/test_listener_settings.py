"""[[listener]] and --listener: which listeners a broker has, and which settings are wrong."""

from pathlib import Path
from typing import Any

import pytest

from semel.broker.listener_limits import default_limits
from semel.broker.network.listener_settings import (
    DEFAULT_PORTS,
    TRANSPORT_KEYS,
    TRANSPORTS,
    UNIX,
    ListenerSettings,
    SniCertificate,
    address_conflicts,
    choose_listeners,
    format_address,
    limits_of,
    parse_listener,
)
from semel.broker.settings import BrokerSettings
from semel.settings import SettingsError, load

CERTIFIED: dict[str, Any] = {"certfile": Path("a.pem")}
# The least that each transport needs.
NEEDED: dict[str, dict[str, Any]] = {
    "tcp": {},
    "tls": CERTIFIED,
    "ws": {},
    "wss": CERTIFIED,
    "unix": {"path": Path("/run/semel.sock")},
}
# A value of each key that only some transports have, which is not its default.
GIVEN: dict[str, Any] = {
    "host": "::1",
    "port": 5,
    "path": Path("/run/other.sock"),
    "mode": "0660",
    "certfile": Path("b.pem"),
    "keyfile": Path("b.key"),
    "key_password": "secret",
    "key_password_file": Path("b.password"),
    "cafile": Path("ca.pem"),
    "capath": Path("cas"),
    "crlfile": Path("crl.pem"),
    "client_certificate": "required",
    "tls_version": "1.3",
    "ciphers": "ECDHE",
    "sni": ("a.example.org=c.pem",),
    "ws_path": "/other",
    "origins": ("https://example.org",),
    "maximum_header_bytes": 1024,
}
# Keys that need others beside them.
BESIDE: dict[str, dict[str, Any]] = {
    "client_certificate": {"cafile": Path("ca.pem")},
    "cafile": {"client_certificate": "optional"},
    "capath": {"client_certificate": "optional"},
    "crlfile": {"client_certificate": "optional", "cafile": Path("ca.pem")},
}


def made(transport: str = "tcp", name: str = "one", **keys: Any) -> ListenerSettings:
    return ListenerSettings(name=name, transport=transport, **{**NEEDED[transport], **keys})


def problems_of(transport: str, **keys: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        made(transport, **keys)
    return list(caught.value.problems)


# --- one listener ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", TRANSPORT_KEYS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_key_is_accepted_by_its_transports_and_refused_by_others(
    transport: str, key: str
) -> None:
    if transport in TRANSPORT_KEYS[key]:
        beside = BESIDE.get(key, {})
        assert getattr(made(transport, **beside, **{key: GIVEN[key]}), key) == GIVEN[key]
        return
    found = problems_of(transport, **{key: GIVEN[key]})
    others = " or ".join(TRANSPORT_KEYS[key])
    assert found == [
        f"{key} does not belong to transport {transport}: remove it, or use transport {others}"
    ]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_default_port_is_that_of_the_transport(transport: str) -> None:
    assert made(transport).effective_port == DEFAULT_PORTS.get(transport, 0)
    if transport != UNIX:
        assert made(transport, port=0).effective_port == 0
        assert made(transport, host="::1", port=7).address == "[::1]:7"
    else:
        assert made(transport).address == "unix:/run/semel.sock"


def test_an_ipv6_address_is_in_brackets() -> None:
    assert format_address("::1", 1883) == "[::1]:1883"
    assert format_address("127.0.0.1", 1883) == "127.0.0.1:1883"


@pytest.mark.parametrize(
    ("transport", "keys", "problem"),
    [
        ("tls", {"certfile": None}, "certfile is missing: a tls listener needs a certificate"),
        ("wss", {"certfile": None}, "certfile is missing: a wss listener needs a certificate"),
        ("unix", {"path": None}, "path is missing: a unix listener needs the file of its socket"),
        (
            "unix",
            {"path": Path("/" + 107 * "x")},
            "path has 108 bytes, but the path of a Unix socket has at most 107: choose a shorter "
            "one",
        ),
        (
            "tls",
            {"key_password": "a", "key_password_file": Path("b")},
            "key_password and key_password_file are both given: remove one",
        ),
        (
            "tls",
            {"client_certificate": "required"},
            "client_certificate is required, but without cafile or capath no certificate can be "
            "verified: give one of them",
        ),
        (
            "tls",
            {"crlfile": Path("c")},
            "crlfile is for client certificates, but client_certificate is none: set it to "
            "optional or required",
        ),
        (
            "tls",
            {"sni": ("a.org=b.pem", "a.org=c.pem")},
            "sni names 'a.org' twice: remove one",
        ),
    ],
)
def test_keys_that_do_not_fit_together_are_one_sentence(
    transport: str, keys: dict[str, Any], problem: str
) -> None:
    assert problems_of(transport, **keys) == [problem]


def test_the_longest_path_of_a_socket_is_accepted() -> None:
    assert made("unix", path=Path("/" + 106 * "x")).path is not None


@pytest.mark.parametrize(
    ("item", "certificate"),
    [
        ("a.example.org=a.pem", SniCertificate("a.example.org", Path("a.pem"), None)),
        (
            "*.example.org=a.pem:b.key",
            SniCertificate("*.example.org", Path("a.pem"), Path("b.key")),
        ),
        ("localhost=a.pem", SniCertificate("localhost", Path("a.pem"), None)),
    ],
)
def test_sni_chooses_a_certificate_by_name(item: str, certificate: SniCertificate) -> None:
    assert made("tls", sni=(item,)).sni_certificates() == (certificate,)


@pytest.mark.parametrize(
    "item",
    ["a.pem", "=a.pem", "a.org=", "a.org=a.pem:", "A.org=a.pem", "127.0.0.1=a.pem", "a b=a.pem"],
)
def test_an_item_of_sni_that_names_no_certificate_is_an_error(item: str) -> None:
    found = problems_of("tls", sni=(item,))
    assert found == [
        f"sni has '{item}', but each item must be NAME=CERTFILE:KEYFILE with a lowercase host "
        "name, such as *.example.org=example.pem:example.key"
    ]


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("name", "a.B-1_", "-a"),
        ("mode", "0660", "888"),
        ("mode", "660", "6660"),
        ("ws_path", "/", "mqtt"),
        ("ws_path", "/a/b%20", "/a b"),
        ("ws_path", "/mqtt", "/mqtt?a"),
        ("ws_path", "/mqtt", "/mqtt#a"),
    ],
)
def test_a_text_of_a_wrong_form_is_an_error(key: str, right: str, wrong: str) -> None:
    transport = {"mode": "unix", "ws_path": "ws"}.get(key, "tcp")
    assert getattr(made(transport, **{key: right}), key) == right
    (problem,) = problems_of(transport, **{key: wrong})
    assert f'[[listener]] {key} is "{wrong}", but must ' in problem


# --- --listener -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "listener"),
    [
        ("tcp://127.0.0.1", made(name="tcp", port=1883)),
        ("mqtt://localhost:0", made(name="tcp", host="localhost", port=0)),
        (
            "tls://0.0.0.0:8883?certfile=a.pem&keyfile=b+c.pem&anonymous=true",
            made(
                "tls",
                name="tls",
                host="0.0.0.0",
                port=8883,
                keyfile=Path("b+c.pem"),
                anonymous=True,
            ),
        ),
        ("mqtts://[::1]/?certfile=a.pem", made("tls", name="tls", host="::1", port=8883)),
        ("WS://127.0.0.1:8083/other", made("ws", name="ws", port=8083, ws_path="/other")),
        (
            "ws://h?origins=https://a&origins=https://b&name=web&maximum_packet_size=1KiB",
            made(
                "ws",
                name="web",
                host="h",
                port=8083,
                origins=("https://a", "https://b"),
                maximum_packet_size=1024,
            ),
        ),
        ("unix:/run/semel.sock", made("unix", name="unix")),
        ("unix:///run/semel.sock?mode=0666", made("unix", name="unix", mode="0666")),
        ("unix:here.sock", made("unix", name="unix", path=Path("here.sock"))),
    ],
)
def test_a_url_makes_a_listener(url: str, listener: ListenerSettings) -> None:
    assert parse_listener(url) == listener


def test_a_listener_without_a_name_is_named_by_its_transport() -> None:
    assert parse_listener("ws://h", ["tcp"]).name == "ws"
    assert parse_listener("ws://h", ["ws"]).name == "ws-2"
    assert parse_listener("ws://h", ["ws", "ws-2"]).name == "ws-3"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("127.0.0.1:1883", "a listener begins with tcp, tls, ws, wss, unix, mqtt, mqtts, such as"),
        ("http://127.0.0.1", "a listener begins with tcp"),
        ("ws:127.0.0.1", "// must follow the scheme"),
        ("ws://", "the host is missing"),
        ("ws://:8083", "the host is missing"),
        ("ws://me@host", "a listener has no user name or password"),
        ("tcp://host/mqtt", "a tcp listener has no path"),
        ("tcp://::1", "an IPv6 address is written in brackets"),
        ("tcp://host:x", "the port after the host is not a number"),
        ("tcp://host:99999", 'port is "99999", but must be an integer, from 0 to 65535'),
        ("ws://host?origins", "after the ?, each key is written key=value"),
        ("ws://host?origins=https://a.example/", "an origin is scheme://host"),
        ("ws://host?origins=https://A.example", "an origin is scheme://host"),
        ("ws://host?origins=a.example", "an origin is scheme://host"),
        ("tcp://host?host=a", "host is given twice: remove one"),
        ("tls://host", "certfile is missing"),
        ("tcp://host?colour=red", 'has no key "colour"'),
        ("tls://host?certfile=a&key_password=b", "other users can see key_password"),
        ("unix:", "path is missing"),
    ],
)
def test_a_url_that_makes_no_listener_is_one_sentence(url: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_listener(url)
    (found,) = caught.value.problems
    assert found.startswith("flag --listener")
    assert problem in found


# --- all listeners --------------------------------------------------------------------------------


def chosen(
    tmp_path: Path, text: str, *urls: str, environ: dict[str, str] | None = None, **flags: object
) -> tuple[ListenerSettings, ...]:
    path = tmp_path / "semel.toml"
    path.write_text(text, "utf-8")
    sections = (BrokerSettings, ListenerSettings)
    settings = load(sections, path=path, environ=environ or {}, flags={"broker": flags})
    return choose_listeners(settings, settings.of(BrokerSettings), urls)


def test_without_a_listener_host_and_port_of_the_broker_make_one(tmp_path: Path) -> None:
    assert chosen(tmp_path, "") == (made(name="default", port=1883),)
    found = chosen(tmp_path, '[broker]\nhost = "::1"\nanonymous = false', port=7)
    assert found == (made(name="default", host="::1", port=7, anonymous=False),)


def test_listeners_of_the_file_and_of_the_flags_add_up(tmp_path: Path) -> None:
    text = '[[listener]]\nname = "ws"\ntransport = "ws"\nconnect_timeout = "5s"\n'
    found = chosen(tmp_path, text, "ws://127.0.0.1:9", "unix:/run/semel.sock")
    assert found == (
        made("ws", name="ws", connect_timeout=5.0),
        made("ws", name="ws-2", port=9),
        made("unix", name="unix"),
    )


@pytest.mark.parametrize(
    ("text", "environ", "flags", "source"),
    [
        ("", {}, {"port": 1}, "flag --port: [broker] port"),
        ("", {"SEMEL_BROKER_HOST": "::"}, {}, "environment variable SEMEL_BROKER_HOST: "),
        ("[broker]\nanonymous = true\n", {}, {}, "semel.toml, line 2: [broker] anonymous"),
    ],
)
def test_an_address_of_the_broker_beside_a_listener_is_an_error(
    tmp_path: Path, text: str, environ: dict[str, str], flags: dict[str, object], source: str
) -> None:
    listener = '[[listener]]\nname = "a"\n'
    with pytest.raises(SettingsError) as caught:
        chosen(tmp_path, text + listener, environ=environ, **flags)
    (problem,) = caught.value.problems
    assert source in problem
    assert "has no effect beside [[listener]] and --listener: remove it" in problem


@pytest.mark.parametrize(
    ("first", "second", "is_conflict"),
    [
        (made(name="a"), made(name="b"), True),
        (made(name="a", port=1), made(name="b", port=2), False),
        (made(name="a", port=0), made(name="b", port=0), False),
        (made(name="a"), made("ws", name="b", port=1883), True),
        (made(name="a", host="0.0.0.0"), made(name="b"), True),
        (made(name="a"), made(name="b", host="0.0.0.0"), True),
        (made(name="a", host="::"), made(name="b", host="::1"), True),
        (made(name="a", host="::"), made(name="b", host="0.0.0.0"), False),
        (made(name="a", host="::1"), made(name="b"), False),
        (made("unix", name="a"), made("unix", name="b"), True),
        (made("unix", name="a"), made("unix", name="b", path=Path("c")), False),
        (made("unix", name="a"), made(name="b"), False),
        (made(name="a"), made("unix", name="b"), False),
    ],
)
def test_two_listeners_cannot_have_one_address(
    first: ListenerSettings, second: ListenerSettings, is_conflict: bool
) -> None:
    expected = (
        f"the listeners a ({first.address}) and b ({second.address}) have the same address: "
        "change one of them"
    )
    assert address_conflicts([first, second]) == ([expected] if is_conflict else [])


def test_two_listeners_cannot_have_one_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="two listeners are named web: rename one of them"):
        chosen(tmp_path, "", "ws://127.0.0.1?name=web", "tcp://127.0.0.1?name=web")


# --- limits ---------------------------------------------------------------------------------------


def limits(listener: ListenerSettings) -> dict[str, object]:
    found = limits_of(listener, BrokerSettings(topic_alias_maximum=7, maximum_keep_alive=9))
    # A compiled class has neither annotations nor a dictionary.
    names = [name for name in dir(found) if not name.startswith("_") and name != "listener"]
    return {name: getattr(found, name) for name in names}


def test_a_listener_without_limits_has_those_of_the_broker() -> None:
    expected = default_limits(BrokerSettings(topic_alias_maximum=7, maximum_keep_alive=9))
    found = limits(made())
    assert found == {name: getattr(expected, name) for name in found}
    assert limits_of(made(name="web"), BrokerSettings()).listener == "web"


def test_a_limit_of_a_listener_overrides_that_of_the_broker() -> None:
    # Also where the value is 0, which permits nothing.
    given: dict[str, Any] = {key: 20 + index for index, key in enumerate(limits(made()))}
    given["topic_alias_maximum"] = given["maximum_keep_alive"] = 0
    assert limits(made(**given)) == given
