"""JSON Web Tokens: which are accepted, and that no algorithm can be confused with another."""

import base64
import hashlib
import hmac
import json
import time
from datetime import datetime, timedelta
from pathlib import Path

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from semel import extras
from semel.broker.access.tokens import (
    TokenClaims,
    TokenRefused,
    TokenVerifier,
    is_token,
    load_tokens,
)
from semel.broker.access.users_settings import UsersSettings
from semel.extras import MissingExtra
from semel.settings import SettingsError

SECRET = b"a secret with at least 32 bytes in it"
RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
EC_384 = ec.generate_private_key(ec.SECP384R1())
EC_521 = ec.generate_private_key(ec.SECP521R1())
ED = ed25519.Ed25519PrivateKey.generate()
PrivateKey = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)


def pem(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def private_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def payload(**claims: object) -> dict[str, object]:
    return {"sub": "ann", "exp": int(time.time()) + 86_400, **claims}


def sign(
    claims: dict[str, object], key: PrivateKey | bytes, algorithm: str, **headers: object
) -> bytes:
    return jwt.encode(claims, key, algorithm=algorithm, headers=headers or None).encode()


def forge(header: object, claims: object, signature: bytes = b"") -> bytes:
    """A token that no library would make."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def verifier_of(folder: Path, content: bytes, **settings: object) -> TokenVerifier:
    path = folder / "keys"
    path.write_bytes(content)
    found = load_tokens(UsersSettings(jwt_keys=path, **settings))  # type: ignore[arg-type]
    assert found is not None
    return found


def secret_verifier(folder: Path, secret: bytes = SECRET, **settings: object) -> TokenVerifier:
    path = folder / "secret"
    path.write_bytes(secret)
    found = load_tokens(UsersSettings(jwt_secret_file=path, **settings))  # type: ignore[arg-type]
    assert found is not None
    return found


def jwk(key: PrivateKey, **more: object) -> dict[str, object]:
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        return {**RSAAlgorithm.to_jwk(public, as_dict=True), **more}
    if isinstance(public, ec.EllipticCurvePublicKey):
        return {**ECAlgorithm.to_jwk(public, as_dict=True), **more}
    return {**OKPAlgorithm.to_jwk(public, as_dict=True), **more}


def key_set(*keys: dict[str, object]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def oct_key(secret: bytes = SECRET, **more: object) -> dict[str, object]:
    return {"kty": "oct", "k": base64.urlsafe_b64encode(secret).rstrip(b"=").decode(), **more}


def refusal(verifier: TokenVerifier, token: bytes) -> str:
    with pytest.raises(TokenRefused) as caught:
        verifier.verify(token)
    return str(caught.value)


# --- which tokens are accepted --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "algorithms"),
    [
        (RSA, ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        (EC, ("ES256",)),
        (EC_384, ("ES384",)),
        (EC_521, ("ES512",)),
        (ED, ("EdDSA",)),
    ],
)
def test_a_public_key_checks_tokens_of_its_algorithms(
    key: PrivateKey, algorithms: tuple[str, ...], tmp_path: Path
) -> None:
    for content in (pem(key), key_set(jwk(key))):
        verifier = verifier_of(tmp_path, content)
        for algorithm in algorithms:
            token = sign(payload(), key, algorithm)
            assert is_token(token)
            assert verifier.verify(token).user_name == "ann"
            # One bit of the signature is another one.
            head, _, signature = token.rpartition(b".")
            wrong = bytearray(base64.urlsafe_b64decode(signature + b"=" * (-len(signature) % 4)))
            wrong[-1] ^= 1
            changed = base64.urlsafe_b64encode(bytes(wrong)).rstrip(b"=")
            assert refusal(verifier, head + b"." + changed) == "has a wrong signature"


def test_the_key_of_a_certificate_can_be_used(tmp_path: Path) -> None:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    moment = datetime(2026, 1, 1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(EC.public_key())
        .serial_number(1)
        .not_valid_before(moment)
        .not_valid_after(moment + timedelta(days=9000))
        .sign(EC, hashes.SHA256())
    )
    verifier = verifier_of(tmp_path, certificate.public_bytes(serialization.Encoding.PEM))
    assert verifier.verify(sign(payload(), EC, "ES256")).user_name == "ann"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_secret_checks_hs_tokens(algorithm: str, tmp_path: Path) -> None:
    secret = SECRET * 2
    for verifier in (
        secret_verifier(tmp_path, secret + b"\n"),
        verifier_of(tmp_path, key_set(oct_key(secret))),
    ):
        assert verifier.verify(sign(payload(), secret, algorithm)).user_name == "ann"
        assert refusal(verifier, sign(payload(), SECRET * 3, algorithm)) == "has a wrong signature"


def test_what_a_token_says_is_kept_as_text_within_bounds(tmp_path: Path) -> None:
    verifier = secret_verifier(
        tmp_path, jwt_groups_claim="groups", jwt_audience="mqtt", jwt_issuer="me", jwt_leeway=5.0
    )
    expires = int(time.time()) + 600
    claims = payload(
        exp=expires,
        aud=["mqtt", "other"],
        iss="me",
        groups=["ops", "staff", "ops"],
        site=7,
        is_admin=True,
        is_new=False,
        ratio=0.5,
        nested={"a": 1},
        long="x" * 1025,
        huge=2**70,
        broken="\ud800",
    )
    found = verifier.verify(sign(claims, SECRET, "HS256"))
    assert found == TokenClaims(
        "ann",
        ("ops", "staff"),
        {"sub": "ann", "iss": "me", "site": "7", "is_admin": "true", "is_new": "false"},
        expires + 5.0,
    )
    many = payload(aud="mqtt", iss="me", **{f"c{number}": "x" for number in range(100)})
    assert len(verifier.verify(sign(many, SECRET, "HS256")).claims) == 64


@pytest.mark.parametrize(
    ("groups", "expected"),
    [(None, ()), ("", ()), ("ops  staff", ("ops", "staff")), ([], ())],
)
def test_groups_are_a_list_or_names_between_spaces(
    groups: object, expected: tuple[str, ...], tmp_path: Path
) -> None:
    verifier = secret_verifier(tmp_path, jwt_groups_claim="scope")
    assert verifier.verify(sign(payload(scope=groups), SECRET, "HS256")).groups == expected
    without = secret_verifier(tmp_path)
    assert without.verify(sign(payload(scope=groups), SECRET, "HS256")).groups == ()


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"exp": 1}, "has expired"),
        ({"exp": int(time.time()) - 11}, "has expired"),
        ({"exp": None}, "has no exp"),
        ({"exp": "soon"}, "is malformed"),
        ({"exp": float("inf")}, "is malformed"),
        ({"exp": float("nan")}, "is malformed"),
        ({"exp": [1]}, "is malformed"),
        ({"nbf": int(time.time()) + 86_400}, "is not valid yet"),
        ({"iat": int(time.time()) + 86_400}, "is not valid yet"),
        ({"aud": "other"}, "is for another audience"),
        ({"aud": None}, "has no aud"),
        ({"aud": 7}, "is for another audience"),
        ({"iss": "other"}, "has another issuer"),
        ({"iss": None}, "has no iss"),
        ({"sub": None}, "has no text in the claim sub"),
        ({"sub": 7}, "is malformed"),
        ({"sub": ""}, "has a claim sub that is empty"),
        ({"sub": "a\nb"}, "has a claim sub that contains the character U+000A"),
        ({"sub": "\ud800"}, "has a claim sub that contains the character U+D800"),
        ({"groups": {"a": 1}}, "has no list of at most 256 groups in groups"),
        ({"groups": list(map(str, range(257)))}, "has no list of at most 256 groups in groups"),
        ({"groups": [7]}, "has a group in groups that is not a name"),
        ({"groups": ["a\n"]}, "has a group in groups that is not a name"),
    ],
)
def test_a_token_that_says_something_else_is_refused(
    claims: dict[str, object], words: str, tmp_path: Path
) -> None:
    verifier = secret_verifier(
        tmp_path, jwt_audience="mqtt", jwt_issuer="me", jwt_groups_claim="groups"
    )
    good = payload(aud="mqtt", iss="me")
    assert verifier.verify(sign(good, SECRET, "HS256")).user_name == "ann"
    bad = {name: value for name, value in {**good, **claims}.items() if value is not None}
    # Not by the library, which refuses to make some of them.
    unsigned = forge({"alg": "HS256"}, bad).rpartition(b".")[0]
    signature = hmac.digest(SECRET, unsigned, hashlib.sha256)
    token = unsigned + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    assert refusal(verifier, token) == words


def test_a_clock_may_differ_by_the_leeway(tmp_path: Path) -> None:
    token = sign(payload(exp=int(time.time()) - 30), SECRET, "HS256")
    assert secret_verifier(tmp_path, jwt_leeway=3600.0).verify(token).user_name == "ann"
    assert refusal(secret_verifier(tmp_path, jwt_leeway=0.0), token) == "has expired"


def test_without_an_audience_a_token_for_someone_else_is_refused(tmp_path: Path) -> None:
    verifier = secret_verifier(tmp_path)
    assert verifier.verify(sign(payload(), SECRET, "HS256"))
    assert refusal(verifier, sign(payload(aud="bank"), SECRET, "HS256")) == (
        "is for another audience"
    )


def test_another_claim_can_name_the_user(tmp_path: Path) -> None:
    verifier = secret_verifier(tmp_path, jwt_user_claim="email")
    token = sign(payload(email="ann@example.org"), SECRET, "HS256")
    assert verifier.verify(token).user_name == "ann@example.org"
    assert refusal(verifier, sign(payload(), SECRET, "HS256")) == "has no text in the claim email"


# --- which algorithm and which key ----------------------------------------------------------------


def test_the_algorithm_none_is_refused_in_every_spelling(tmp_path: Path) -> None:
    for verifier in (secret_verifier(tmp_path), verifier_of(tmp_path, pem(RSA))):
        for name in ("none", "None", "NONE", "", None, 7, ["HS256"]):
            token = forge({"alg": name, "typ": "JWT"}, payload())
            assert is_token(token)
            refusal(verifier, token)
        assert "does not allow" in refusal(verifier, forge({"alg": "none"}, payload()))


def test_a_public_key_as_the_secret_of_hs_is_refused(tmp_path: Path) -> None:
    for key in (RSA, EC, ED):
        verifier = verifier_of(tmp_path, pem(key))
        for algorithm in ("HS256", "HS384", "HS512"):
            unsigned = forge({"alg": algorithm}, payload()).rpartition(b".")[0]
            digest = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}[algorithm]
            for secret in (pem(key), pem(key).strip(), pem(key).strip() + b"\n"):
                signature = base64.urlsafe_b64encode(hmac.digest(secret, unsigned, digest))
                token = unsigned + b"." + signature.rstrip(b"=")
                assert refusal(verifier, token).startswith("has no key that fits")


def test_an_algorithm_outside_of_the_list_is_refused(tmp_path: Path) -> None:
    verifier = verifier_of(tmp_path, pem(RSA), jwt_algorithms=("RS256",))
    assert verifier.verify(sign(payload(), RSA, "RS256"))
    for algorithm in ("RS512", "PS256"):
        assert "jwt_algorithms does not allow" in refusal(verifier, sign(payload(), RSA, algorithm))


def test_the_key_identifier_selects_the_key(tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    content = key_set(
        jwk(EC, kid="first", use="sig"),
        jwk(other, kid="second", alg="ES256"),
        jwk(RSA, kid="third", alg="RS512"),
        jwk(ec.generate_private_key(ec.SECP256R1()), kid="enc", use="enc"),
    )
    verifier = verifier_of(tmp_path, content)
    for key, kid in ((EC, "first"), (other, "second"), (EC, None), (other, None)):
        headers = {} if kid is None else {"kid": kid}
        assert verifier.verify(sign(payload(), key, "ES256", **headers)).user_name == "ann"
    assert verifier.verify(sign(payload(), RSA, "RS512", kid="third"))
    fits = "has no key that fits its key identifier and its algorithm"
    assert refusal(verifier, sign(payload(), RSA, "RS256", kid="third")) == fits
    assert refusal(verifier, sign(payload(), EC, "ES256", kid="fourth")) == fits
    assert refusal(verifier, sign(payload(), EC, "ES256", kid="third")) == fits
    assert refusal(verifier, sign(payload(), EC, "ES256", kid="enc")) == fits
    assert refusal(verifier, sign(payload(), EC, "ES256", kid="second")) == "has a wrong signature"
    assert refusal(verifier, forge({"alg": "ES256", "kid": 7}, payload())) == "is malformed"


def test_a_critical_extension_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = secret_verifier(tmp_path)
    header = {"alg": "HS256", "crit": ["future"], "future": 1}
    token = forge(header, payload())
    assert refusal(verifier, token) == "is malformed"
    # With a library that does not check it, we do.
    monkeypatch.setattr(jwt, "get_unverified_header", lambda token: header)
    assert refusal(verifier, token) == "has a critical extension, which is not supported"


@pytest.mark.parametrize(
    "token",
    [
        b"eyJ.eyJ.x",
        b"eyJ.." + b"A" * 10,
        forge([], {}),
        forge({"alg": "HS256"}, [], b"x"),
        b"ey" + b"A" * 60_000 + b"..",
    ],
)
def test_garbage_in_the_form_of_a_token_is_refused(token: bytes, tmp_path: Path) -> None:
    refusal(secret_verifier(tmp_path), token)


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    nested = b"[" * 20_000
    header = base64.urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=")
    unsigned = header + b"." + base64.urlsafe_b64encode(nested).rstrip(b"=")
    signature = base64.urlsafe_b64encode(hmac.digest(SECRET, unsigned, "sha256")).rstrip(b"=")
    assert refusal(secret_verifier(tmp_path), unsigned + b"." + signature) == "is malformed"


@pytest.mark.parametrize("password", [b"", b"secret", b"a.b.c", b"ey.a", b"eyJ.b.c.d", b"eyJ.b.\n"])
def test_an_ordinary_password_is_no_token(password: bytes) -> None:
    assert not is_token(password)


# --- files of keys --------------------------------------------------------------------------------


def test_without_keys_there_is_no_verifier() -> None:
    assert load_tokens(UsersSettings()) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is neither a JWK Set nor one public key or certificate in PEM"),
        (pem(RSA) + pem(EC), "is neither a JWK Set nor one public key"),
        (private_pem(RSA), "contains a private key: give the broker the public key only"),
        (pem(RSA)[:200] + b"\n-----END PUBLIC KEY-----\n", "that cannot be read"),
        (
            pem(ed448.Ed448PrivateKey.generate()),
            "contains a key that is neither RSA, EC nor Ed25519",
        ),
        (
            pem(ec.generate_private_key(ec.SECP256K1())),
            "is not of a supported type: oct, RSA, EC (P-256, P-384, P-521) or Ed25519",
        ),
        (
            pem(rsa.generate_private_key(public_exponent=65_537, key_size=1024)),
            "has 1024 bits, but RSA needs at least 2048",
        ),
        (b"{", "is not JSON"),
        (b"{" + b'"a":[' * 20_000, "is not JSON"),
        (b"{}", 'is not a JWK Set: it has no list "keys" of objects'),
        (b'{"keys": [7]}', 'is not a JWK Set: it has no list "keys" of objects'),
        (b'{"keys": []}', "has no key for signatures"),
        (key_set(jwk(EC, use="enc")), "has no key for signatures"),
        (key_set(*[jwk(EC)] * 101), "has 101 keys, but at most 100 are supported"),
        (key_set(jwk(EC, kid="a"), jwk(RSA, kid="a")), "has two keys with the same kid"),
        (key_set(jwk(EC), jwk(EC, kid=7)), "key 2 has a kid that is not a string"),
        (
            key_set(ECAlgorithm.to_jwk(EC, as_dict=True)),
            "key 1 is a private key: give the broker the public key only",
        ),
        (key_set(jwk(EC, alg="RS256")), "key 1 has an alg that does not fit: ES256 would"),
        (key_set(jwk(EC, alg="none")), "key 1 has an alg that does not fit: ES256 would"),
        (key_set(jwk(EC, x="!")), "key 1 cannot be read"),
        (key_set({"kty": "RSA"}), "key 1 cannot be read"),
        (key_set({"kty": "what"}), "key 1 is not of a supported type"),
        (key_set(oct_key(b"short")), "key 1 has a secret of 5 bytes, but at least 32 are needed"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_one_sentence(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        verifier_of(tmp_path, content)
    (found,) = caught.value.problems
    assert found.startswith(f"{tmp_path}/keys: ")
    assert problem in found


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"x" * 31, "has a secret of 31 bytes, but at least 32 are needed"),
        (b"x" * 31 + b"\r\n", "has a secret of 31 bytes, but at least 32 are needed"),
        (pem(RSA), "is a PEM file, not a secret: give it as jwt_keys"),
    ],
)
def test_a_secret_that_cannot_be_used_is_one_sentence(
    content: bytes, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        secret_verifier(tmp_path, content)
    assert str(caught.value) == f"{tmp_path}/secret: {problem}"


def test_keys_that_no_allowed_algorithm_uses_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        verifier_of(tmp_path, pem(EC), jwt_algorithms=("RS256", "HS256"))
    assert "has keys for ES256, but [users] jwt_algorithms allows none of these" in str(
        caught.value
    )
    with pytest.raises(SettingsError, match="No such file"):
        load_tokens(UsersSettings(jwt_keys=tmp_path / "missing"))


def test_without_the_packages_the_sentence_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"jwt_keys needs jwt: pip install 'semel\[broker\]'"):
        load_tokens(UsersSettings(jwt_keys=tmp_path / "keys"))
