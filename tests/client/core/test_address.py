"""Addresses of servers: what is read from them, and the sentence for what is no address."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.client.address import Address, BadAddress, parse_address

FORM = "mqtt://[user[:password]@]host[:port], or mqtts, ws, wss, or unix:path"


def parts(url: str) -> tuple[str, str, int, str]:
    address = parse_address(url)
    return address.scheme, address.host, address.port, address.path


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mqtt://broker.example", ("mqtt", "broker.example", 1883, "")),
        ("mqtts://broker.example", ("mqtts", "broker.example", 8883, "")),
        ("ws://broker.example", ("ws", "broker.example", 80, "/mqtt")),
        ("wss://broker.example", ("wss", "broker.example", 443, "/mqtt")),
        ("unix:/run/broker.sock", ("unix", "", 0, "/run/broker.sock")),
    ],
)
def test_every_scheme_has_its_default_port_and_path(
    url: str, expected: tuple[str, str, int, str]
) -> None:
    assert parts(url) == expected


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("tcp://host", "mqtt"),
        ("ssl://host", "mqtts"),
        ("tls://host", "mqtts"),
        ("MQTT://host", "mqtt"),
        ("Tcp://host", "mqtt"),
        ("UNIX:path", "unix"),
    ],
)
def test_a_scheme_is_known_by_its_other_names_and_in_capitals(url: str, scheme: str) -> None:
    assert parse_address(url).scheme == scheme


@pytest.mark.parametrize(
    ("url", "secure"),
    [
        ("mqtt://h", False),
        ("mqtts://h", True),
        ("ws://h", False),
        ("wss://h", True),
        ("unix:p", False),
    ],
)
def test_secure_are_those_inside_tls(url: str, secure: bool) -> None:
    assert parse_address(url).secure is secure


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("mqtt://h:1", "h", 1),
        ("mqtt://h:65535", "h", 65535),
        ("mqtt://h:01883", "h", 1883),
        ("mqtt://h/", "h", 1883),
        ("mqtt://H.Example:2/", "h.example", 2),
        ("mqtt://my_broker-1", "my_broker-1", 1883),
        ("mqtt://h.example.", "h.example.", 1883),
        ("mqtt://192.0.2.7:2", "192.0.2.7", 2),
        ("mqtt://[::1]", "::1", 1883),
        ("mqtt://[::1]:2", "::1", 2),
        ("mqtt://[2001:DB8:0:0::1]:2/", "2001:db8::1", 2),
        ("mqtt://[fe80::1%25eth0]:2", "fe80::1%eth0", 2),
        ("mqtt://[fe80::1%eth0]", "fe80::1%eth0", 1883),
        ("mqtt://bücher.example", "xn--bcher-kva.example", 1883),
    ],
)
def test_host_and_port_are_read(url: str, host: str, port: int) -> None:
    address = parse_address(url)
    assert (address.host, address.port) == (host, port)


@pytest.mark.parametrize(
    ("url", "user_name", "password"),
    [
        ("mqtt://h", None, None),
        ("mqtt://ann@h", "ann", None),
        ("mqtt://ann:@h", "ann", b""),
        ("mqtt://ann:secret@h", "ann", b"secret"),
        # 5.0 allows a password without a user name.
        ("mqtt://:secret@h", None, b"secret"),
        ("mqtt://@h", None, None),
        ("mqtt://a%3Ab%40c:d%2Fe%3Af@h", "a:b@c", b"d/e:f"),
        ("mqtt://ann:a:b@h", "ann", b"a:b"),
        ("mqtt://ann:a@b@h", "ann", b"a@b"),
        ("mqtt://ann:100%25@h", "ann", b"100%"),
        ("mqtt://ann:+@h", "ann", b"+"),
        ("mqtt://j%C3%BCrgen:gr%c3%bc%c3%9fe@h", "jürgen", "grüße".encode()),
        ("mqtt://jürgen:grüße@h", "jürgen", "grüße".encode()),
        # A password of MQTT is any bytes.
        ("mqtt://ann:%FF%00@h", "ann", b"\xff\x00"),
        ("wss://ann:secret@h/x", "ann", b"secret"),
    ],
)
def test_user_name_and_password_are_percent_decoded(
    url: str, user_name: str | None, password: bytes | None
) -> None:
    address = parse_address(url)
    assert (address.user_name, address.password) == (user_name, password)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("ws://h/", "/"),
        ("ws://h/a/b", "/a/b"),
        ("ws://h/a%20b", "/a%20b"),
        ("ws://h/mqtt?token=a/b&x=%2F", "/mqtt?token=a/b&x=%2F"),
        ("ws://h?token=1", "/mqtt?token=1"),
        ("ws://h/größe", "/gr%C3%B6%C3%9Fe"),
        ("ws://h/a@b", "/a@b"),
    ],
)
def test_the_path_of_a_websocket_is_its_http_resource(url: str, path: str) -> None:
    assert parse_address(url).path == path


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("unix:relative/path", "relative/path"),
        ("unix:./x", "./x"),
        ("unix:/abs", "/abs"),
        ("unix:///abs/x.sock", "/abs/x.sock"),
        ("unix:/with%20space", "/with space"),
        ("unix:/größe?#", "/größe?#"),
    ],
)
def test_the_path_of_a_unix_address_is_that_of_the_socket(url: str, path: str) -> None:
    assert parts(url) == ("unix", "", 0, path)


NO_SPACE = "an address has no spaces or control characters; a space is written %20"
HEX = "is not followed by two hex digits; a % itself is written %25"
NOT_ASCII = "the path of a WebSocket address is ASCII; other characters are percent-encoded"
NO_PORT = "the port after the host is not a number from 1 to 65535"
BRACKETS = "an IPv6 address is written in brackets: [::1]:1883"
SLASH = "a /, ? or # in a user name or password is written %2F, %3F or %23"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", f"the address is empty; it is {FORM}"),
        ("localhost", f"the address has no scheme; it is {FORM}"),
        ("localhost:1883", f"the address has no scheme; it is {FORM}"),
        ("mqtt:host", f"the address has no scheme; it is {FORM}"),
        ("http://h", f"unknown scheme 'http'; an address is {FORM}"),
        ("://h", f"unknown scheme ''; an address is {FORM}"),
        ("mqtt ://h", NO_SPACE),
        (" mqtt://h", NO_SPACE),
        ("mqtt://h ", NO_SPACE),
        ("mqtt://my host", NO_SPACE),
        ("mqtt://h\n", NO_SPACE),
        ("mqtt://h/\x00", NO_SPACE),
        ("mqtt://ann:\udcff@h", NO_SPACE),
        ("mqtt://ann:a b@h", NO_SPACE),
        ("ws://h/a b", NO_SPACE),
        ("unix:/a b", NO_SPACE),
        ("mqtt://", f"the host is missing; an address is {FORM}"),
        ("mqtt:///", f"the host is missing; an address is {FORM}"),
        ("mqtt://:1883", f"the host is missing; an address is {FORM}"),
        ("mqtt://ann@", f"the host is missing; an address is {FORM}"),
        ("mqtt://h:", NO_PORT),
        ("mqtt://h:x", NO_PORT),
        ("mqtt://h:-1", NO_PORT),
        ("mqtt://h:1.5", NO_PORT),
        ("mqtt://h:٣", NO_PORT),
        ("mqtt://h:" + "9" * 5000, NO_PORT),
        ("mqtt://h:0", "port 0 is not a number from 1 to 65535"),
        ("mqtt://h:65536", "port 65536 is not a number from 1 to 65535"),
        ("mqtt://::1", BRACKETS),
        ("mqtt://::1:1883", BRACKETS),
        ("mqtt://[::1", "the closing bracket of the IPv6 address is missing: [::1]:1883"),
        ("mqtt://[::1]1883", "only :port may follow the bracket of an IPv6 address: [::1]:1883"),
        ("mqtt://[h]", "only an IPv6 address is written in brackets: [::1]:1883"),
        ("mqtt://[]", "only an IPv6 address is written in brackets: [::1]:1883"),
        ("mqtt://[::1]:", NO_PORT),
        ("mqtt://[::g]", "'::g' is not an IPv6 address"),
        ("mqtt://[1:2:3]", "'1:2:3' is not an IPv6 address"),
        ("mqtt://a..b", "'a..b' is not a host name"),
        ("mqtt://.a", "'.a' is not a host name"),
        ("mqtt://-a", "'-a' is not a host name"),
        ("mqtt://a-", "'a-' is not a host name"),
        ("mqtt://a%20b", "'a%20b' is not a host name"),
        ("mqtt://a,b", "'a,b' is not a host name"),
        ("mqtt://" + "a" * 64, f"'{'a' * 64}' is not a host name"),
        (
            "mqtt://a%@h",
            f"a % in the user name {HEX}",
        ),
        (
            "mqtt://a:%4@h",
            f"a % in the password {HEX}",
        ),
        ("ws://h/%zz", f"a % in the path {HEX}"),
        ("mqtt://%ff@h", "the user name is not UTF-8 after percent-decoding"),
        ("unix:/%ff", "the path of the socket is not UTF-8 after percent-decoding"),
        ("mqtt://h/topic", "a mqtt address ends after the port; give topics separately"),
        ("mqtts://h?x", "a mqtts address ends after the port; give topics separately"),
        ("mqtt://h#x", "a mqtt address ends after the port; give topics separately"),
        ("mqtt://ann:pass/word@h", SLASH),
        ("mqtt://ann:12/34@h", SLASH),
        ("mqtt://ann:pass?word@h:1883", SLASH),
        ("ws://h/a#b", "a WebSocket address has no fragment; a # in the path is written %23"),
        ("unix:", "the path of the socket is missing; the address is unix:path"),
        ("unix://", "a unix address has no host; it is unix:path or unix:///path"),
        ("unix://host/path", "a unix address has no host; it is unix:path or unix:///path"),
        ("unix:/a%00b", "the path of a socket must not contain a null character"),
    ],
)
def test_what_is_no_address_is_one_sentence(url: str, sentence: str) -> None:
    with pytest.raises(BadAddress) as caught:
        parse_address(url)
    assert str(caught.value) == sentence


def test_a_bad_address_is_a_value_error() -> None:
    assert issubclass(BadAddress, ValueError)


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://ann:hunter2/x@h",
        "mqtt://ann:hunter2?x@h",
        "mqtt://ann:hunter2@h:port",
        "mqtt://ann:hunter2%@h",
        "mqtt://ann:hunter2@a..b",
        "mqtt://ann:hunter2",
        "ftp://ann:hunter2@h",
        "ws://ann:hunter2/x@h",
        "mqtt://ann:hunter2 @h",
        "ann:hunter2@h",
    ],
)
def test_no_sentence_says_a_password(url: str) -> None:
    with pytest.raises(BadAddress) as caught:
        parse_address(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mqtt://h", "mqtt://h:1883"),
        ("tcp://ann:hunter2@h:2/", "mqtt://ann@h:2"),
        ("mqtt://:hunter2@h", "mqtt://h:1883"),
        ("mqtt://a%3Ab%40c@[::1]", "mqtt://a%3Ab%40c@[::1]:1883"),
        ("wss://h/x?key=hunter2", "wss://h:443/x?…"),
        ("unix:///run/x", "unix:/run/x"),
    ],
)
def test_an_address_shows_itself_without_its_secrets(url: str, shown: str) -> None:
    address = parse_address(url)
    assert str(address) == shown
    assert repr(address) == f"<Address {shown}>"


@pytest.mark.parametrize(
    ("url", "shown", "topic"),
    [
        ("mqtt://h/t", "mqtt://h:1883", "t"),
        ("mqtts://ann:pw@h:2/a/b", "mqtts://ann@h:2", "a/b"),
        ("mqtt://h//a", "mqtt://h:1883", "/a"),
        # As it stands: mosquitto's tools decode nothing, and a topic may have all of these.
        ("mqtt://h/plant/+/50%/#", "mqtt://h:1883", "plant/+/50%/#"),
        ("mqtt://h/a b?c@d", "mqtt://h:1883", "a b?c@d"),
        ("mqtt://h/%41", "mqtt://h:1883", "%41"),
        ("ws://h:2/t", "ws://h:2/mqtt", "t"),
    ],
)
def test_an_address_with_a_topic_gives_both(url: str, shown: str, topic: str) -> None:
    address, found = parse_address(url, topic=True)
    assert (str(address), found) == (shown, topic)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mqtt://h", "the topic is missing; with one the address is mqtt://host[:port]/topic"),
        ("mqtt://h/", "the topic is missing; with one the address is mqtt://host[:port]/topic"),
        ("mqtts://h", "the topic is missing; with one the address is mqtts://host[:port]/topic"),
        ("mqtt://h?a/b", "the topic is missing; with one the address is mqtt://host[:port]/topic"),
        ("mqtt://h:x/t", NO_PORT),
        ("mqtt://a b/t", NO_SPACE),
        ("unix:/x", "a unix address cannot include a topic; give the topic separately"),
    ],
)
def test_an_address_without_its_topic_is_one_sentence(url: str, sentence: str) -> None:
    with pytest.raises(BadAddress) as caught:
        parse_address(url, topic=True)
    assert str(caught.value) == sentence


def test_an_address_can_be_made_of_its_parts() -> None:
    assert Address("mqtt", "Host", 1883) == parse_address("mqtt://host")
    assert Address("mqtt", "::1", 1883) == parse_address("mqtt://[::1]")
    assert Address("ws", "h", 80, "/mqtt", "ann", b"x") == parse_address("ws://ann:x@h")
    assert Address("unix", "", 0, "a b") == parse_address("unix:a%20b")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("tcp", "h", 1), f"unknown scheme 'tcp'; an address is {FORM}"),
        (("mqtt", "", 1), f"the host is missing; an address is {FORM}"),
        (("mqtt", "a b", 1), "'a b' is not a host name"),
        (("mqtt", "[::1]", 1), "'[::1]' is not an IPv6 address"),
        (("mqtt", "h", 0), "port 0 is not a number from 1 to 65535"),
        (("mqtt", "h", 1, "/x"), "a mqtt address has no path"),
        (("ws", "h", 1), "the path of a WebSocket address starts with a slash"),
        (("ws", "h", 1, "/ x"), NO_SPACE),
        (("ws", "h", 1, "/x\r\nHost: y"), NO_SPACE),
        (
            ("ws", "h", 1, "/ö"),
            NOT_ASCII,
        ),
        (("unix", "", 0), "the path of the socket is missing; the address is unix:path"),
        (("unix", "h", 0, "x"), "a unix address has a path, but no host or port"),
        (("unix", "", 1, "x"), "a unix address has a path, but no host or port"),
    ],
)
def test_an_address_that_exists_is_valid(given: tuple, sentence: str) -> None:
    with pytest.raises(BadAddress) as caught:
        Address(*given)
    assert str(caught.value) == sentence


@given(st.text(st.characters()))
def test_any_text_is_an_address_or_a_sentence(text: str) -> None:
    for url in (text, f"mqtt://{text}", f"ws://h/{text}", f"mqtt://h:{text}", f"unix:{text}"):
        try:
            address = parse_address(url)
        except BadAddress as problem:
            assert str(problem)  # noqa: PT017
        else:
            # What it shows is an address of the same place, but for what it does not show.
            if "…" not in str(address) and address.scheme != "unix":
                again = parse_address(str(address))
                assert (again.scheme, again.where, again.path, again.user_name) == (
                    address.scheme,
                    address.where,
                    address.path,
                    address.user_name,
                )
