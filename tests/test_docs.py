"""The pages under docs/ say what is true: their examples run, and work in the broker."""

import doctest
import hmac
from pathlib import Path

import pytest

from semel.broker.authority import Authority
from semel.mqtt import Auth, ConnAck, Connect, Properties
from tests.broker.world import World

PAGE = Path(__file__).resolve().parent.parent / "docs" / "authentication.md"
METHOD = "HMAC-SHA-256"
KEY = b"a key of hers"


def authority_of_the_page() -> Authority:
    """The Authority that the page defines, after its examples have run as shown."""
    text = PAGE.read_text("utf-8")
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    result = doctest.DocTestRunner().run(test, clear_globs=False)
    assert result.attempted > 10
    assert result.failed == 0
    authority = test.globs["authority"]
    assert isinstance(authority, Authority)
    return authority


@pytest.mark.parametrize(
    ("client_id", "method", "key", "code"),
    [
        ("ann", METHOD, KEY, 0),
        ("ann", METHOD, b"a guess", 0x87),
        ("bob", METHOD, KEY, 0x87),
        ("ann", "HMAC-MD5", KEY, 0x8C),
        ("ann", None, KEY, 0x87),
        ("eve", METHOD, KEY, 0x85),
    ],
)
def test_the_hook_of_the_page_on_authentication_lets_in_who_knows_the_key(
    client_id: str, method: str | None, key: bytes, code: int
) -> None:
    world = World(authority=authority_of_the_page())
    client = world.open()
    user_name = "ann" if client_id == "eve" else client_id
    properties = Properties(authentication_method=method)
    (answer,) = client.send(Connect(client_id, user_name=user_name, properties=properties))
    if isinstance(answer, Auth):
        number = answer.properties.authentication_data
        assert number is not None
        proof = hmac.digest(key, number, "sha256")
        said = Properties(authentication_method=METHOD, authentication_data=proof)
        (answer,) = client.send(Auth(0x18, properties=said))
    assert isinstance(answer, ConnAck)
    assert answer.reason == code
    assert client.is_closed() == bool(code)
