"""What the broker knows of a client, and the text that the store keeps of it."""

import json

import pytest

from semel.broker.identity import (
    ANONYMOUS,
    DEFAULT_LISTENER,
    TOKEN,
    Identity,
    PeerInfo,
    decode_identity,
    encode_identity,
    fits,
    identity_of,
)

FULL = Identity(
    "press-7",
    user_name="ann",
    proof=TOKEN,
    certificate="press-7.plant",
    address="192.0.2.1",
    listener="public",
    groups=("ops", "staff"),
    claims={"tenant": "acme"},
    expires_at=2_000.5,
)


def values(identity: Identity) -> list[object]:
    return [
        identity.client_id,
        identity.user_name,
        identity.proof,
        identity.certificate,
        identity.address,
        identity.listener,
        identity.groups,
        identity.claims,
        identity.expires_at,
    ]


@pytest.mark.parametrize("identity", [FULL, Identity("a"), Identity("a", user_name="ü\ud7ff")])
def test_the_text_of_an_identity_gives_the_same_identity(identity: Identity) -> None:
    assert values(decode_identity(identity.client_id, encode_identity(identity))) == values(
        identity
    )


def test_no_text_is_an_anonymous_client() -> None:
    assert values(decode_identity("a", "")) == values(Identity("a"))
    assert decode_identity("a", "").proof == ANONYMOUS


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "1",
        '{"user_name": 1}',
        '{"groups": "ops"}',
        '{"groups": [1]}',
        '{"claims": []}',
        '{"claims": {"a": 1}}',
        '{"expires_at": "soon"}',
        '{"proof": null}',
    ],
)
def test_another_text_is_no_identity(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode_identity("a", text)
    assert decode_identity("a", "{}").user_name is None


def test_an_assigned_client_identifier_changes_nothing_else() -> None:
    assert values(FULL.with_client_id("x"))[1:] == values(FULL)[1:]
    assert FULL.with_client_id("x").client_id == "x"


def test_an_identity_has_the_address_and_the_certificate_of_its_peer() -> None:
    peer = PeerInfo("192.0.2.1:5124", listener="public", certificate="press-7")
    identity = identity_of("a", peer, user_name="ann", claims={"b": "c"}, groups=("g",))
    assert (identity.address, identity.listener) == ("192.0.2.1", "public")
    assert (identity.certificate, identity.user_name) == ("press-7", "ann")
    assert PeerInfo("test:1").listener == DEFAULT_LISTENER
    assert PeerInfo("2001:db8::1:5124").address == "2001:db8::"


def test_the_text_is_json_in_one_order_without_what_is_unknown() -> None:
    assert encode_identity(Identity("a")) == '{"listener":"default","proof":"anonymous"}'
    assert list(json.loads(encode_identity(FULL))) == sorted(json.loads(encode_identity(FULL)))


@pytest.mark.parametrize("identity", [FULL, Identity("a")], ids=["full", "short"])
@pytest.mark.parametrize("character", ["a", '"', "\N{GRINNING FACE}"])
def test_an_identity_fits_if_its_text_is_short_enough(identity: Identity, character: str) -> None:
    names = 40 * character
    longer = Identity(
        "c",
        user_name=names,
        certificate=names,
        address=names,
        listener=names,
        groups=identity.groups,
        claims=identity.claims,
        expires_at=1 / 3,
    )
    size = len(encode_identity(longer))
    assert fits(longer, size)
    assert not fits(longer, size - 1)
    # Whatever is said without encoding it is right, too.
    assert all(fits(longer, limit) == (size <= limit) for limit in range(0, 3 * size, 7))
