"""The [users] section: how clients prove who they are.

Without it, the broker has no users, and only listeners that allow anonymous clients let anyone in.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from semel.settings import SECONDS, SettingsError, check, setting

NO_CERTIFICATES: Final = "none"
COMMON_NAME: Final = "common_name"

# Those that sign with a secret that the broker knows, and those that it checks by a public key.
# "none" is not among them, so no setting can allow it.
SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
PUBLIC_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
ALGORITHMS: Final = (*SECRET_ALGORITHMS, *PUBLIC_ALGORITHMS)


def _url_problem(text: str) -> str | None:
    """What is wrong with the URL of a hook, to follow "but"."""
    try:
        url = urlsplit(text)
        has_port = url.port != 0
    except ValueError:
        return "is not a URL"
    if url.scheme not in ("http", "https") or not url.hostname or not has_port:
        return "must be a URL such as https://auth.example/mqtt"
    if url.username is not None or url.password is not None:
        return "must not contain a user name or password, which logs would show"
    if url.fragment or any(character <= " " or character > "~" for character in text):
        return "must not contain a fragment, spaces or characters outside of ASCII"
    return None


def _callable_problem(text: str) -> str | None:
    """What is wrong with the name of a Python hook, to follow "but"."""
    module, colon, name = text.partition(":")
    names = [*module.split("."), *name.split(".")]
    if not colon or not all(each.isidentifier() for each in names):
        return "must be module:function, such as my_users:check"
    return None


@dataclass(frozen=True)
class UsersSettings:
    """How clients prove who they are. Without any of these, there are no users."""

    section: ClassVar[str] = "users"

    password_file: Path | None = setting(  # noqa: RUF009
        None,
        "The users and the hashes of their passwords, as `semel passwd` or `mosquitto_passwd` "
        "writes them. A mistake in it, or write permission for every user of the machine, is an "
        "error at start, and keeps the old users at a reload.",
    )
    scram: bool = setting(
        False,
        "Whether MQTT 5.0 clients may authenticate by SCRAM-SHA-256, which does not send the "
        "password. Only users that `semel passwd add --scram` made can do so.",
    )
    certificate_users: str = setting(
        NO_CERTIFICATES,
        "Whether the verified client certificate names the user. none: it does not. common_name: "
        "its Common Name is the user name; a client that gives another user name is refused with "
        "reason code 0x86 (Bad User Name or Password).",
        choices=(NO_CERTIFICATES, COMMON_NAME),
    )
    jwt_keys: Path | None = setting(  # noqa: RUF009
        None,
        "The keys by which JSON Web Tokens are checked: a JWK Set, or one public key or "
        "certificate in PEM. A client sends its token as the password.",
    )
    jwt_secret_file: Path | None = setting(  # noqa: RUF009
        None,
        "A file with the secret of tokens that are signed by HS256, HS384 or HS512: at least 32 "
        "bytes. A line end after it is ignored.",
    )
    jwt_algorithms: tuple[str, ...] = setting(
        ALGORITHMS,
        "The algorithms that a token may have. Each key only checks those of its own type: HS only "
        "a secret, the others only a public key. Any other token is refused with reason code 0x86.",
        choices=ALGORITHMS,
    )
    jwt_audience: str | None = setting(
        None,
        "The audience (aud) that a token must have. Without it, a token with an audience is "
        "refused.",
    )
    jwt_issuer: str | None = setting(
        None, "The issuer (iss) that a token must have. Without it, the issuer is not checked."
    )
    jwt_user_claim: str = setting(
        "sub",
        "The claim that contains the user name. A token without it is refused, and so is a client "
        "that gives another user name in CONNECT.",
    )
    jwt_groups_claim: str | None = setting(
        None, "The claim that contains the groups of the user: a list, or names between spaces."
    )
    jwt_leeway: float = setting(
        10.0,
        "By how much the clock of the issuer may differ from that of the broker. A connection ends "
        "this long after its token has expired.",
        unit=SECONDS,
        maximum=3600,
    )
    http_hook: str | None = setting(
        None,
        "The URL of a service that decides about the clients that nothing else here decides "
        "about. If it does not answer, they are refused with reason code 0x88 (Server "
        "unavailable).",
        rule=_url_problem,
    )
    http_hook_timeout: float = setting(
        5.0,
        "How long the service of http_hook may take, in all. After that the client is refused.",
        unit=SECONDS,
        minimum=0.1,
        maximum=60,
    )
    http_hook_cafile: Path | None = setting(  # noqa: RUF009
        None,
        "The CA certificates by which the service of http_hook is verified. By default those of "
        "the system.",
    )
    python_hook: str | None = setting(
        None,
        "A Python function, module:function, that decides about the clients that nothing else "
        "here decides about. If it raises, the client is refused with reason code 0x80.",
        rule=_callable_problem,
    )
    bind_client_ids: bool = setting(
        True,
        "Whether a session belongs to its user: another user with the same client identifier is "
        "refused with reason code 0x85 (Client Identifier not valid), so nobody can take over, "
        "resume or discard the session of another user. The session of an anonymous client "
        "belongs to all anonymous clients.",
    )
    proof_threads: int = setting(
        2,
        "Threads that check passwords and tokens and ask hooks. Each checks one client at a time.",
        minimum=1,
        maximum=64,
    )
    maximum_pending_proofs: int = setting(
        1_000,
        "Clients that wait for such a check. If there are more, the address with the most of them "
        "loses its last one, which is refused with reason code 0x89 (Server busy), in MQTT 3.1.1 "
        "with return code 3.",
        minimum=1,
        maximum=100_000,
    )
    maximum_verified_passwords: int = setting(
        10_000,
        "Passwords of the password file that are remembered after they were verified, so that a "
        "client that reconnects does not cost a slow hash again. Only keyed hashes of them are "
        "kept, in memory; a new password in the file makes them useless. Beyond this "
        "number, the one that was not used for the longest time is forgotten. 0 remembers none.",
        minimum=0,
        maximum=1_000_000,
    )
    verified_password_time: float = setting(
        3600.0,
        "How long a verified password is remembered. After that the next CONNECT of its user "
        "costs a slow hash again.",
        unit=SECONDS,
        minimum=1,
        maximum=86_400,
    )
    failures_per_minute: int = setting(
        60,
        "Failed authentications of one address per minute. Beyond it, further clients of this "
        "address that have to authenticate are refused unchecked, with reason code 0x97 (Quota "
        "exceeded), in MQTT 3.1.1 with return code 3. 0 sets no limit.",
        minimum=0,
        maximum=1_000_000,
    )

    @property
    def has_users(self) -> bool:
        """Whether a client can prove who it is."""
        return self.has_credentials or self.certificate_users != NO_CERTIFICATES

    @property
    def has_credentials(self) -> bool:
        """Whether what a client sends in CONNECT or AUTH can prove who it is."""
        return self.password_file is not None or self.has_tokens or self.has_hook

    @property
    def has_tokens(self) -> bool:
        """Whether tokens are accepted."""
        return self.jwt_keys is not None or self.jwt_secret_file is not None

    @property
    def has_hook(self) -> bool:
        """Whether a hook decides."""
        return self.http_hook is not None or self.python_hook is not None

    def __post_init__(self) -> None:
        check(self)
        problems = []
        if self.scram and self.password_file is None:
            problems.append("[users] scram is true, but there is no password_file with its keys")
        if self.http_hook is not None and self.python_hook is not None:
            problems.append("[users] has both http_hook and python_hook: remove one of them")
        if self.http_hook_cafile is not None and not (self.http_hook or "").startswith("https:"):
            problems.append("[users] http_hook_cafile is set, but http_hook is no https URL")
        if self.jwt_keys is not None and self.jwt_secret_file is not None:
            problems.append("[users] has both jwt_keys and jwt_secret_file: remove one of them")
        for key in ("jwt_audience", "jwt_issuer", "jwt_groups_claim"):
            if getattr(self, key) is not None and not self.has_tokens:
                problems.append(
                    f"[users] {key} is set, but there is neither jwt_keys nor jwt_secret_file"
                )
        if self.has_tokens and not self.jwt_algorithms:
            problems.append("[users] jwt_algorithms is empty, so no token could be accepted")
        if problems:
            raise SettingsError(problems)
