"""-F of `semel sub`: what each sequence prints, and what is wrong with a form.

What is expected here was printed by mosquitto_sub 2.0.11; test_sub.py asks it again where it is
installed.
"""

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from semel.cli.message_format import BadFormat, MessageFormat, safely
from semel.mqtt import NO_PROPERTIES, Properties

# 2026-11-16 05:57:02.728699606 UTC
NOW = 1_794_808_622_728_699_606

EVERYTHING = Properties(
    payload_format_indicator=1,
    message_expiry_interval=98,
    content_type="text/plain",
    response_topic="re/sp",
    correlation_data=b"corr",
    subscription_identifiers=[7],
    topic_alias=3,
    user_properties=[("k", "v"), ("k2", "v2")],
)


@dataclass(frozen=True)
class Sample:
    topic: str = "fmt/t"
    payload: bytes = b"abcdef"
    qos: int = 1
    retain: bool = True
    dup: bool = False
    packet_id: int = 1
    properties: Properties = NO_PROPERTIES


PLAIN = Sample()
FULL = Sample(properties=EVERYTHING)


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock on the wall shows another time than UTC, the same on every machine."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def rendered(form: str, message: Sample, *, pretty: bool = False) -> bytes:
    text, problem = MessageFormat(form, pretty=pretty).render(message, NOW)
    assert problem is None
    return text


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("", b""),
        ("plain", b"plain"),
        ("größe", "größe".encode()),
        ("%%", b"%"),
        ("%-%%0%%5%", b"%%%"),
        ("%t", b"fmt/t"),
        ("%10t|", b"     fmt/t|"),
        ("%-10t|", b"fmt/t     |"),
        ("%010t|", b"     fmt/t|"),
        ("%.2t|", b"fm|"),
        ("%.0t|", b"|"),
        ("%.t|", b"|"),
        ("%10.2t|", b"        fm|"),
        ("%-10.2t|", b"fm        |"),
        ("%2t|", b"fmt/t|"),
        ("%p", b"abcdef"),
        ("%8p|", b"  abcdef|"),
        ("%-8p|", b"abcdef  |"),
        ("%08p|", b"00abcdef|"),
        ("%-08p|", b"abcdef  |"),
        ("%4p|", b"abcd|"),
        ("%.4p|", b"abcdef|"),
        ("%8.4p|", b"  abcdef|"),
        ("%x|", b"616263646566|"),
        ("%X|", b"616263646566|"),
        ("%4x|", b"6162|"),
        ("%5x|", b" 6162|"),
        ("%-5X|", b"6162 |"),
        ("%05X|", b"06162|"),
        ("%1x|", b" |"),
        ("%14x|", b"  616263646566|"),
        ("%014x|", b"00616263646566|"),
        ("%q%5q%r%10r", b"1111"),
        ("%l|%5l|%05l|%-5l|%-05l|%00005l|", b"6|    6|00006|6    |6    |00006|"),
        ("%5.l|%.l|%010.3l|", b"    6|6|0000000006|"),
        ("%m|%5m|%05m|%-5m|", b"1|    1|00001|1    |"),
        (r"\\\0\a\e\n\r\t\v|", b"\\\0\a\x1b\n\r\t\v|"),
        ("@@", b"@"),
    ],
)
def test_a_form_prints_what_mosquitto_sub_prints(form: str, printed: bytes) -> None:
    assert rendered(form, PLAIN) == printed


@pytest.mark.parametrize(
    ("form", "there", "not_there"),
    [
        ("%A|%5A|%05A|%-5A|", b"3|    3|00003|3    |", b"|     |00000|     |"),
        ("%E|%8E|%08E|%-08E|", b"98|      98|00000098|98      |", b"|        |00000000|00000000|"),
        ("%F|%5F|%05F|", b"1|    1|00001|", b"|     |00000|"),
        ("%S|%5S|%05S|", b"7|    7|00007|", b"|     |00000|"),
        ("%C|%12C|%.4C|", b"text/plain|  text/plain|text|", b"|            ||"),
        ("%R|%10R|%10.2R|%.2R|", b"re/sp|     re/sp|        re|re|", b"||||"),
        ("%D|%10D|", b"corr|corr|", b"||"),
        ("%P|%30P|", b"k:v k2:v2|k:v k2:v2|", b"||"),
    ],
)
def test_a_property_is_printed_where_it_is_there(form: str, there: bytes, not_there: bytes) -> None:
    assert rendered(form, FULL) == there
    assert rendered(form, PLAIN) == not_there


def test_times_are_those_of_the_wall() -> None:
    assert rendered("%I|%30I|%-30I|%.4I|", PLAIN) == (
        b"2026-11-16T06:57:02+0100|      2026-11-16T06:57:02+0100|2026-11-16T06:57:02+0100      |"
        b"2026|"
    )
    assert rendered("%U %10U", PLAIN) == b"1794808622.728699606 1794808622.728699606"
    assert rendered("@H:@M:@S.@N @z @Z @s @% @q @EY", PLAIN) == (
        b"06:57:02.728699606 +0100 CET 1794808622 % %q %EY"
    )


@pytest.mark.parametrize(
    "form",
    [
        *(
            "%",
            "a%",
            "%5",
            "%5.",
            "%5.3",
            "%-",
            "%0",
            "%i",
            "%z",
            "%5z",
            "% t",
            "%+t",
            "%#x",
            "%*t",
        ),
        *("%0-5l", "%--5l", "@", "a@", "\\", "x\\", r"\q", r"\x41", "%99999t", "%.99999t"),
    ],
)
def test_a_wrong_form_is_refused_in_a_sentence(form: str) -> None:
    with pytest.raises(BadFormat) as raised:
        MessageFormat(form)
    assert "\n" not in str(raised.value)


def test_a_payload_is_printed_byte_for_byte() -> None:
    every = bytes(range(256))
    assert rendered("%p", Sample(payload=every)) == every
    assert rendered("%x", Sample(payload=every)) == every.hex().encode()
    assert rendered("%D", Sample(properties=Properties(correlation_data=every))) == every


def test_on_a_terminal_nothing_of_a_peer_acts_on_it_but_the_form_does() -> None:
    nasty = "\x1b]0;title\x07\u202e\x9b"
    message = Sample(
        topic=nasty,
        payload=nasty.encode() + b"\xff\x00",
        properties=Properties(content_type=nasty, user_properties=[(nasty, "v")]),
    )
    form = MessageFormat(r"\e[1m%t %p %C %P", clean=safely)
    text = form.render(message, NOW)[0].decode()
    assert text.startswith("\x1b[1m")
    assert text[1:].isprintable()
    assert r"\x1b]0;title\x07\u202e\x9b" in text
    assert r"\xff\x00" in text


def test_a_number_in_memory_is_printed() -> None:
    assert rendered("%f|%8.2f|%-8.1f|%08.2f|", Sample(payload=struct.pack("f", 1.5))) == (
        b"1.500000|    1.50|1.5     |00001.50|"
    )
    assert rendered("%.3d", Sample(payload=struct.pack("d", -2.25))) == b"-2.250"


@pytest.mark.parametrize("form", ["%d", "%f"])
def test_a_payload_that_is_no_such_number_is_told(form: str) -> None:
    text, problem = MessageFormat(f"a{form}b").render(PLAIN, NOW)
    assert text == b"ab"
    assert problem is not None
    assert "fmt/t" in problem


# --- JSON -----------------------------------------------------------------------------------------

TIME = b'"tst":"2026-11-16T06:57:02.728699+0100"'


def test_j_prints_a_message_as_json() -> None:
    assert rendered("%j", PLAIN) == (
        b"{" + TIME + b',"topic":"fmt/t","qos":1,"retain":1,"payloadlen":6,"mid":1,'
        b'"payload":"abcdef"}'
    )
    assert rendered("%j", Sample(qos=0, retain=False, packet_id=0, payload=b"")) == (
        b"{" + TIME + b',"topic":"fmt/t","qos":0,"retain":0,"payloadlen":0,"payload":null}'
    )


def test_properties_in_json_keep_their_order_and_every_pair() -> None:
    properties = Properties(
        [(0x26, ("k", "1")), (0x0B, 7), (0x26, ("k", "2")), (0x09, b"c\xff"), (0x03, "text")]
    )
    assert rendered("%j", Sample(qos=0, properties=properties, payload=b"x")) == (
        b"{" + TIME + b',"topic":"fmt/t","qos":0,"retain":1,"payloadlen":1,"properties":'
        b'{"user-properties":{"k":"1","k":"2"},"subscription-identifier":7,'
        b'"correlation-data":"c\xff","content-type":"text"},"payload":"x"}'
    )


def test_text_in_json_is_escaped_and_bytes_that_are_no_text_stay() -> None:
    message = Sample(topic="ä", payload=b'ab\0\xff\x1b\x7f"\\/\n\xe2\x82\xac', qos=0)
    assert rendered("%j", message).endswith(
        b'"payload":"ab\\u0000\xff\\u001b\x7f\\"\\\\/\\n\xe2\x82\xac"}'
    )


@pytest.mark.parametrize(
    ("payload", "printed"),
    [
        (b'{"a":[1,  2.50, "x\\u00e9/"],"b":null}', '{"a":[1,2.5,"xé/"],"b":null}'),
        (b'{"a":1,"a":2}', '{"a":1,"a":2}'),
        (b" 1 ", "1"),
        (b"1.0", "1"),
        (b"1e5", "100000"),
        (b"0.1", "0.1"),
        (b"1.5e300", "1.5e+300"),
        (b"1e400", "null"),
        (b"12345678901234567890", "12345678901234567890"),
        (b"9" * 5000, "9" * 5000),
        (b'"\\ud83d\\ude00"', '"😀"'),
        (b"[]", "[]"),
        (b"{}", "{}"),
        (b"true", "true"),
        (b"", "null"),
    ],
)
def test_capital_j_prints_the_payload_as_json(payload: bytes, printed: str) -> None:
    text = rendered("%J", Sample(payload=payload)).decode()
    assert text.endswith(f',"payload":{printed}}}')


@pytest.mark.parametrize(
    "payload",
    [
        *(b"[1", b"nan", b"NaN", b"Infinity", b"1 2", b"'a'", b"True", b"\xff", b"/*c*/1"),
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 700 + b"]" * 700,
    ],
)
def test_a_payload_that_is_no_json_is_told_and_the_rest_is_printed(payload: bytes) -> None:
    text, problem = MessageFormat("<%J> %t").render(Sample(payload=payload), NOW)
    assert text == b"<> fmt/t"
    assert problem == "the payload is not JSON, on topic fmt/t"


def test_pretty_json_has_tabs_as_mosquitto_sub_prints_them() -> None:
    payload = b'{"a":{},"b":[],"c":[{"x":1},[1,2,{"y":[]}]],"d":{"e":1}}'
    text = rendered("%J", Sample(payload=payload, qos=0), pretty=True).decode()
    assert text == (
        '{\n\t"tst":\t"2026-11-16T06:57:02.728699+0100",\n\t"topic":\t"fmt/t",\n\t"qos":\t0,\n'
        '\t"retain":\t1,\n\t"payloadlen":\t56,\n\t"payload":\t{\n\t\t"a":\t{\n\t\t},\n'
        '\t\t"b":\t[],\n\t\t"c":\t[{\n\t\t\t\t"x":\t1\n\t\t\t}, [1, 2, {\n\t\t\t\t\t"y":\t[]\n'
        '\t\t\t\t}]],\n\t\t"d":\t{\n\t\t\t"e":\t1\n\t\t}\n\t}\n}'
    )
