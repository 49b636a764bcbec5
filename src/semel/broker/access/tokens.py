"""JSON Web Tokens as passwords.

A key is only used with the algorithms of its own type: a secret checks HS*, a public key never
does. So a token that is "signed" with a public key as the secret is refused, and so is one with the
algorithm "none". A token must expire; the broker ends the connection when it does.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semel.broker.access.file_reading import UnreadableFile, read_bounded
from semel.broker.access.names import MAXIMUM_GROUPS, name_problem
from semel.broker.access.users_settings import SECRET_ALGORITHMS, UsersSettings
from semel.extras import need
from semel.settings import SettingsError

if TYPE_CHECKING:
    from jwt import PyJWK

MAXIMUM_KEY_FILE_BYTES: Final = 1024 * 1024
MAXIMUM_KEYS: Final = 100
MINIMUM_SECRET_BYTES: Final = 32
MINIMUM_RSA_BITS: Final = 2_048
# Claims are kept with a session. Others, and longer ones, are left out.
MAXIMUM_CLAIMS: Final = 64
MAXIMUM_CLAIM_LENGTH: Final = 1_024
# They differ in every token and mean nothing to rules.
_TIME_CLAIMS: Final = frozenset(("exp", "iat", "nbf", "jti"))

# A JSON object in base64url begins with "ey".
_TOKEN: Final = re.compile(rb"ey[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


class TokenRefused(Exception):
    """Why a token is refused, to follow "its token"."""


@dataclass(frozen=True)
class TokenKey:
    """A key, and the algorithms that it may check."""

    id: str | None
    algorithms: frozenset[str]
    # By algorithm, because a key of the library belongs to one.
    keys: Mapping[str, "PyJWK"]


@dataclass(frozen=True)
class TokenClaims:
    """What a valid token says."""

    user_name: str
    groups: tuple[str, ...]
    claims: dict[str, str]
    # In seconds of the wall clock, with the leeway.
    expires_at: float


def is_token(password: bytes) -> bool:
    """Whether a password has the form of a token."""
    return _TOKEN.fullmatch(password) is not None


class TokenVerifier:
    """Checks tokens by the keys and the rules of the settings."""

    def __init__(self, settings: UsersSettings, keys: tuple[TokenKey, ...]) -> None:
        self._settings: Final = settings
        self._keys: Final = keys

    def verify(self, token: bytes) -> TokenClaims:
        """What the token says. Raises TokenRefused."""
        import jwt

        try:
            header = jwt.get_unverified_header(token)
            payload = self._payload(token, header)
        except jwt.ExpiredSignatureError:
            raise TokenRefused("has expired") from None
        except jwt.ImmatureSignatureError:
            raise TokenRefused("is not valid yet") from None
        except jwt.InvalidAudienceError:
            raise TokenRefused("is for another audience") from None
        except jwt.InvalidIssuerError:
            raise TokenRefused("has another issuer") from None
        except jwt.MissingRequiredClaimError as problem:
            raise TokenRefused(f"has no {problem.claim}") from None
        except jwt.InvalidSignatureError:
            raise TokenRefused("has a wrong signature") from None
        # Numbers and nesting that the library does not expect: Infinity, [[[[…]]]].
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            raise TokenRefused("is malformed") from None
        return self._claims(payload)

    def _payload(self, token: bytes, header: Mapping[str, object]) -> dict[str, object]:
        """The payload of a token with a correct signature. Raises what the library raises."""
        import jwt

        if "crit" in header:
            # [RFC 7515 §4.1.11] extensions that must be understood
            raise TokenRefused("has a critical extension, which is not supported")
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._settings.jwt_algorithms:
            raise TokenRefused("has an algorithm that jwt_algorithms does not allow")
        key_id = header.get("kid")
        fitting = [
            key.keys[algorithm]
            for key in self._keys
            if algorithm in key.algorithms and (key_id is None or key.id in (None, key_id))
        ]
        if not fitting:
            raise TokenRefused("has no key that fits its key identifier and its algorithm")
        for key in fitting[:-1]:
            try:
                return self._decode(token, key, algorithm=algorithm)
            except jwt.InvalidSignatureError:
                continue
        return self._decode(token, fitting[-1], algorithm=algorithm)

    def _decode(self, token: bytes, key: "PyJWK", *, algorithm: str) -> dict[str, object]:
        import jwt

        settings = self._settings
        payload: dict[str, object] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=settings.jwt_audience,
            issuer=settings.jwt_issuer,
            leeway=settings.jwt_leeway,
            options={"require": ["exp", *self._required()]},
        )
        return payload

    def _required(self) -> list[str]:
        given = {"aud": self._settings.jwt_audience, "iss": self._settings.jwt_issuer}
        return [claim for claim, value in given.items() if value is not None]

    def _claims(self, payload: dict[str, object]) -> TokenClaims:
        settings = self._settings
        user_name = payload.get(settings.jwt_user_claim)
        if not isinstance(user_name, str):
            raise TokenRefused(f"has no text in the claim {settings.jwt_user_claim}")
        problem = name_problem(user_name)
        if problem is not None:
            raise TokenRefused(f"has a claim {settings.jwt_user_claim} that {problem}")
        expires_at = payload["exp"]
        assert isinstance(expires_at, int | float | str), "the library has converted it to a number"
        return TokenClaims(
            user_name,
            self._groups(payload),
            _claims_as_text(payload),
            int(expires_at) + settings.jwt_leeway,
        )

    def _groups(self, payload: dict[str, object]) -> tuple[str, ...]:
        claim = self._settings.jwt_groups_claim
        if claim is None or payload.get(claim) is None:
            return ()
        value = payload[claim]
        groups = value.split() if isinstance(value, str) else value
        if not isinstance(groups, list) or len(groups) > MAXIMUM_GROUPS:
            raise TokenRefused(f"has no list of at most {MAXIMUM_GROUPS} groups in {claim}")
        for group in groups:
            if not isinstance(group, str) or name_problem(group) is not None:
                raise TokenRefused(f"has a group in {claim} that is not a name")
        return tuple(dict.fromkeys(groups))


def _claims_as_text(payload: dict[str, object]) -> dict[str, str]:
    """The claims that rules can use: texts, integers and booleans."""
    found: dict[str, str] = {}
    for name, value in payload.items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, int) and value.bit_length() <= 64:
            value = str(value)
        if not isinstance(value, str) or name in _TIME_CLAIMS or len(found) == MAXIMUM_CLAIMS:
            continue
        if len(value) <= MAXIMUM_CLAIM_LENGTH and not name_problem(name) and _is_utf8(value):
            found[name] = value
    return found


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can contain half of a surrogate pair
        return False
    return True


# --- keys -----------------------------------------------------------------------------------------


def load_tokens(settings: UsersSettings) -> TokenVerifier | None:
    """The verifier that the settings describe; None if they accept no tokens.

    Raises SettingsError, and MissingExtra without PyJWT and cryptography.
    """
    path = settings.jwt_keys if settings.jwt_secret_file is None else settings.jwt_secret_file
    if path is None:
        return None
    key = "jwt_keys" if settings.jwt_secret_file is None else "jwt_secret_file"
    for module in ("jwt", "cryptography"):
        need(module, extra="broker", by=f"[users] {key}")
    try:
        data = read_bounded(path, MAXIMUM_KEY_FILE_BYTES)
        if settings.jwt_secret_file is not None:
            keys = [_secret_key(data)]
        elif data.lstrip().startswith(b"{"):
            keys = _keys_of_set(data)
        else:
            keys = [_public_key(data)]
    except (UnreadableFile, ValueError) as problem:
        raise SettingsError([f"{path}: {problem}"]) from None
    allowed = frozenset(settings.jwt_algorithms)
    if not any(each.algorithms & allowed for each in keys):
        usable = ", ".join(sorted({name for each in keys for name in each.algorithms}))
        raise SettingsError(
            [f"{path}: has keys for {usable}, but [users] jwt_algorithms allows none of these"]
        )
    return TokenVerifier(settings, tuple(keys))


def _secret_key(data: bytes) -> TokenKey:
    """A symmetric key from the bytes of a file. Raises ValueError."""
    secret = data.removesuffix(b"\n").removesuffix(b"\r")
    if b"-----BEGIN " in secret:
        raise ValueError("is a PEM file, not a secret: give it as jwt_keys")
    return _token_key({"kty": "oct", "k": _base64url(secret)})


def _base64url(data: bytes) -> str:
    from jwt.utils import base64url_encode

    return base64url_encode(data).decode()


def _public_key(data: bytes) -> TokenKey:
    """A public key from PEM: the key itself, or that of a certificate. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import load_pem_x509_certificate
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

    if b"PRIVATE KEY-----" in data:
        raise ValueError("contains a private key: give the broker the public key only")
    if data.count(b"-----BEGIN ") != 1:
        raise ValueError("is neither a JWK Set nor one public key or certificate in PEM")
    key: object
    try:
        if b"-----BEGIN CERTIFICATE-----" in data:
            key = load_pem_x509_certificate(data).public_key()
        else:
            key = load_pem_public_key(data)
    except Exception:  # the library raises several classes, some without a common base
        raise ValueError("contains a public key or certificate that cannot be read") from None
    if isinstance(key, RSAPublicKey):
        return _token_key(RSAAlgorithm.to_jwk(key, as_dict=True))
    if isinstance(key, EllipticCurvePublicKey):
        return _token_key(ECAlgorithm.to_jwk(key, as_dict=True))
    if isinstance(key, Ed25519PublicKey):
        return _token_key(OKPAlgorithm.to_jwk(key, as_dict=True))
    raise ValueError("contains a key that is neither RSA, EC nor Ed25519")


def _keys_of_set(data: bytes) -> list[TokenKey]:
    """The keys of a JWK Set that sign. Raises ValueError."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    listed = content.get("keys")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError('is not a JWK Set: it has no list "keys" of objects')
    if len(listed) > MAXIMUM_KEYS:
        raise ValueError(f"has {len(listed)} keys, but at most {MAXIMUM_KEYS} are supported")
    keys: list[TokenKey] = []
    for number, each in enumerate(listed, 1):
        if each.get("use", "sig") != "sig":
            continue
        try:
            keys.append(_token_key(each))
        except ValueError as problem:
            raise ValueError(f"key {number} {problem}") from None
    ids = [key.id for key in keys if key.id is not None]
    if len(set(ids)) != len(ids):
        raise ValueError("has two keys with the same kid")
    if not keys:
        raise ValueError("has no key for signatures")
    return keys


def _token_key(jwk: dict[str, object]) -> TokenKey:
    """A key from a JWK. Raises ValueError with what is wrong, to follow the key or the file."""
    import jwt

    key_id = jwk.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        raise ValueError("has a kid that is not a string")
    if jwk.get("kty") != "oct" and "d" in jwk:
        raise ValueError("is a private key: give the broker the public key only")
    algorithms = _algorithms_of(jwk)
    own = jwk.get("alg")
    if own is not None:
        if own not in algorithms:
            raise ValueError(f"has an alg that does not fit: {', '.join(algorithms)} would")
        algorithms = (str(own),)
    keys = {}
    for algorithm in algorithms:
        try:
            keys[algorithm] = jwt.PyJWK.from_dict({**jwk, "alg": algorithm})
        except Exception:  # a value that is missing or broken raises one of many classes
            raise ValueError("cannot be read") from None
    _check_strength(next(iter(keys.values())).key)
    return TokenKey(key_id, frozenset(algorithms), keys)


def _algorithms_of(jwk: dict[str, object]) -> tuple[str, ...]:
    """The algorithms of a type of key. Raises ValueError."""
    kind, curve = jwk.get("kty"), jwk.get("crv")
    if kind == "oct":
        return SECRET_ALGORITHMS
    if kind == "RSA":
        return _RSA_ALGORITHMS
    if kind == "EC" and isinstance(curve, str) and curve in _CURVES:
        return (_CURVES[curve],)
    if kind == "OKP" and curve == "Ed25519":
        return ("EdDSA",)
    raise ValueError("is not of a supported type: oct, RSA, EC (P-256, P-384, P-521) or Ed25519")


def _check_strength(key: object) -> None:
    """Raises ValueError for a key that can be guessed or factored."""
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if isinstance(key, bytes) and len(key) < MINIMUM_SECRET_BYTES:
        raise ValueError(
            f"has a secret of {len(key)} bytes, but at least {MINIMUM_SECRET_BYTES} are needed"
        )
    if isinstance(key, RSAPublicKey) and key.key_size < MINIMUM_RSA_BITS:
        raise ValueError(f"has {key.key_size} bits, but RSA needs at least {MINIMUM_RSA_BITS}")
