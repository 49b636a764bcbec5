"""The Authority of a broker with users and rights, as its settings describe them.

A client is identified in this order:

    an authentication method   ─▶ SCRAM-SHA-256, if it is switched on
    a client certificate       ─▶ its Common Name, if certificate_users says so
    no user name, no password  ─▶ anonymous, if the listener allows it; otherwise a hook, if any
    credentials                ─▶ token, password file, hook, in a thread: see users.py

A client whose credentials are wrong is refused even where anonymous clients are allowed. Groups of
the password file, and the file's users themselves, are looked up for every decision, so that a
reload takes effect for clients that are connected: a user who is no longer in the file has no
rights.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Final, Protocol

from semel.broker.access.connect_request import ConnectRequest, request_of
from semel.broker.access.failures import (
    BAD_CERTIFICATE,
    BAD_SCRAM,
    NO_CREDENTIALS,
    TOO_MANY_FAILURES,
    FailureLog,
    FailureRate,
)
from semel.broker.access.names import name_problem
from semel.broker.access.password_file import PasswordFile
from semel.broker.access.scram import ScramServerExchange
from semel.broker.access.scram_keys import ScramKeys
from semel.broker.access.users import ConfiguredUsers, Refusal
from semel.broker.access.users_settings import NO_CERTIFICATES, UsersSettings
from semel.broker.access.verified_passwords import VerifiedPasswords
from semel.broker.authority import Authority, Denied, Proof, ServerAuthentication
from semel.broker.identity import (
    CERTIFICATE,
    PASSWORD,
    SCRAM,
    Identity,
    PeerInfo,
    identity_of,
)
from semel.client.scram import METHOD
from semel.mqtt.packets.connect import Connect
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    QUOTA_EXCEEDED,
    SUCCESS,
)

# The key of clients whose user is no longer in the password file.
_REMOVED: Final = "\0removed"
# The proofs whose groups are those of the password file.
_PROOFS_OF_FILE: Final = (PASSWORD, SCRAM, CERTIFICATE)
# How much of a name a log line quotes.
SHOWN_LENGTH: Final = 100


class AccessRights(Protocol):
    """What identified clients may do: the rules of [rights]."""

    def key(self, identity: Identity) -> str:
        """Equal keys mean equal decisions."""

    def may_publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> bool:
        """Whether the client may publish such a message."""

    def granted_qos(self, identity: Identity, topic_filter: str, *, qos: int) -> int | None:
        """The QoS to grant, at most `qos`; None: the subscription is refused."""

    def may_receive(self, identity: Identity, topic_name: str) -> bool:
        """Whether the client may receive messages of this topic."""


class CredentialsProof(Proof):
    """The check of the credentials of one client, in a worker thread."""

    def __init__(
        self, decide: Callable[[ConnectRequest], Identity | Denied], request: ConnectRequest
    ) -> None:
        self._decide: Final = decide
        self._request: Final = request

    def run(self) -> Identity | Denied:
        """Decide."""
        return self._decide(self._request)


class ConfiguredAuthority(Authority):
    """Identifies clients by its users, and decides about their actions by its rights."""

    def __init__(
        self,
        users: ConfiguredUsers,
        rights: AccessRights | None = None,
        *,
        anonymous_listeners: frozenset[str] = frozenset(),
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without rights, every client that is let in may do everything.

        `anonymous_listeners` are the names of the listeners that allow anonymous clients.
        """
        self.generation = 0
        self.logs_refusals = True
        self.failures: Final = FailureLog(log, clock=clock)
        self.rate: Final = FailureRate(users.settings.failures_per_minute, clock=clock)
        self.verified: Final = VerifiedPasswords(
            users.settings.maximum_verified_passwords,
            users.settings.verified_password_time,
            clock=clock,
        )
        self._log: Final = log
        self._users = users
        self._rights = rights
        self._anonymous_listeners = anonymous_listeners
        self._has_warned = False
        for warning in users.warnings:
            log(warning)

    @property
    def settings(self) -> UsersSettings:
        """The settings of its users."""
        return self._users.settings

    def replace(
        self,
        users: ConfiguredUsers,
        rights: AccessRights | None,
        *,
        anonymous_listeners: frozenset[str] | None = None,
    ) -> None:
        """Use other users and rights from now on. The broker asks again about everything.

        Everything is loaded and valid before, so this cannot fail halfway. None keeps the
        listeners.
        """
        self._users = users
        self._rights = rights
        if anonymous_listeners is not None:
            self._anonymous_listeners = anonymous_listeners
        self.rate.set_limit(users.settings.failures_per_minute)
        self.verified.set_limits(
            users.settings.maximum_verified_passwords, users.settings.verified_password_time
        )
        self.generation += 1
        for warning in users.warnings:
            self._log(warning)

    def flush_log(self) -> None:
        """Log the counts of failures that are due. Call it once a second."""
        self.failures.flush()

    # --- who a client is --------------------------------------------------------------------------

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        """Return who the client is, why it is refused, or a Proof that decides."""
        request = request_of(packet, peer)
        users = self._users
        if packet.properties.authentication_method is not None:
            # Nobody yet: the authentication decides who it is.
            return self._check_rate(request) or identity_of(packet.client_id, peer)
        has_certificate_users = users.settings.certificate_users != NO_CERTIFICATES
        if has_certificate_users and peer.certificate is not None:
            return self._connect_by_certificate(request, peer, peer.certificate)
        allows_anonymous = peer.listener in self._anonymous_listeners
        if not users.settings.has_credentials and allows_anonymous:
            self._warn_of_ignored_credentials(request, peer)
            # The name is recorded with its messages, but proves nothing.
            return identity_of(packet.client_id, peer, user_name=packet.user_name)
        if not request.has_credentials:
            if allows_anonymous:
                return identity_of(packet.client_id, peer)
            if users.hook is None:
                sentence = f"listener {peer.listener!a} does not allow anonymous clients"
                refusal = Refusal(NO_CREDENTIALS, sentence, Denied(NOT_AUTHORIZED))
                return self._refuse(request, refusal)
        if not users.settings.has_credentials:
            sentence = "this broker checks no user names and passwords"
            refusal = Refusal(NO_CREDENTIALS, sentence, Denied(NOT_AUTHORIZED))
            return self._refuse(request, refusal)
        return self._check_rate(request) or CredentialsProof(self._decide, request)

    def _connect_by_certificate(
        self, request: ConnectRequest, peer: PeerInfo, common_name: str
    ) -> Identity | Denied:
        problem = name_problem(common_name)
        if problem is not None:
            sentence = f"the Common Name of its certificate {problem}"
            refusal = Refusal(BAD_CERTIFICATE, sentence, Denied(NOT_AUTHORIZED))
            return self._refuse(request, refusal)
        if request.user_name not in (None, common_name):
            sentence = f"its certificate is that of user {common_name!a}"
            denied = Denied(BAD_USER_NAME_OR_PASSWORD)
            return self._refuse(request, Refusal(BAD_CERTIFICATE, sentence, denied))
        groups = self._users.groups_of(common_name)
        return identity_of(
            request.client_id, peer, user_name=common_name, proof=CERTIFICATE, groups=groups
        )

    def _decide(self, request: ConnectRequest) -> Identity | Denied:
        """Check credentials, in a worker thread, by the users of this moment."""
        allows_anonymous = request.listener in self._anonymous_listeners
        decision = self._users.decide(
            request, allows_anonymous=allows_anonymous, verified=self.verified
        )
        if isinstance(decision, Refusal):
            # The pool counts it for the limit of its address.
            return self._refuse(request, decision)
        return decision

    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        """SCRAM-SHA-256, if it is switched on."""
        if method != METHOD or not self._users.settings.scram:
            return None
        request = request_of(packet, peer)
        return ScramServerExchange(
            keys_of=self._scram_keys,
            grant=lambda name: self._scram_identity(name, request.client_id, peer),
            refuse=lambda name, sentence: self._refuse_scram(
                dataclasses.replace(request, user_name=name), sentence
            ),
            user_name=packet.user_name,
        )

    def _scram_keys(self, user_name: str) -> ScramKeys:
        """The keys of a user, as they are now: a client may re-authenticate after a reload."""
        found = self._users.password_file if self._users.settings.scram else None
        return (PasswordFile({}) if found is None else found).scram_keys(user_name)

    def _scram_identity(self, user_name: str, client_id: str, peer: PeerInfo) -> Identity:
        groups = self._users.groups_of(user_name)
        return identity_of(client_id, peer, user_name=user_name, proof=SCRAM, groups=groups)

    def may_use_session(self, identity: Identity, owner: Identity) -> bool:
        """Whether both are the same user, or both are anonymous."""
        if not self._users.settings.bind_client_ids:
            return True
        return identity.proved_user == owner.proved_user

    # --- what it may do ---------------------------------------------------------------------------

    def rights(self, identity: Identity) -> str:
        """The key of the rules; one of its own for users who were removed."""
        current = self._current(identity)
        if current is None:
            return _REMOVED
        return "" if self._rights is None else self._rights.key(current)

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        """SUCCESS, or 0x87 (Not authorized)."""
        current = self._current(identity)
        if current is None:
            return NOT_AUTHORIZED
        if self._rights is None:
            return SUCCESS
        is_allowed = self._rights.may_publish(current, topic_name, qos=qos, retain=retain)
        return SUCCESS if is_allowed else NOT_AUTHORIZED

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        """The QoS to grant, or 0x87 (Not authorized)."""
        current = self._current(identity)
        if current is None:
            return NOT_AUTHORIZED
        if self._rights is None:
            return qos
        granted = self._rights.granted_qos(current, topic_filter, qos=qos)
        return NOT_AUTHORIZED if granted is None else granted

    def receive(self, identity: Identity, topic_name: str) -> bool:
        """Whether this client may receive messages of this topic."""
        current = self._current(identity)
        if current is None:
            return False
        return self._rights is None or self._rights.may_receive(current, topic_name)

    def _current(self, identity: Identity) -> Identity | None:
        """The identity with its present groups; None if its user is no longer in the file."""
        user_name = identity.user_name
        if user_name is None or identity.proof not in _PROOFS_OF_FILE:
            return identity
        if identity.proof != CERTIFICATE and not self._users.has_user(user_name):
            return None
        groups = self._users.groups_of(user_name)
        return identity if groups == identity.groups else _with_groups(identity, groups)

    # --- refusing ---------------------------------------------------------------------------------

    def _check_rate(self, request: ConnectRequest) -> Denied | None:
        """A refusal, if too many clients of this address have failed."""
        if not self.rate.is_exceeded(request.address):
            return None
        sentence = f"more than {self.rate.per_minute} failures of its address in a minute"
        denied = Denied(QUOTA_EXCEEDED, "too many failed authentications from this address")
        return self._refuse(request, Refusal(TOO_MANY_FAILURES, sentence, denied))

    def _refuse_scram(self, request: ConnectRequest, sentence: str) -> Denied:
        """Refuse a guess. The pool does not see it, so it is counted here."""
        self.rate.count(request.address)
        refusal = Refusal(BAD_SCRAM, sentence, Denied(BAD_USER_NAME_OR_PASSWORD))
        return self._refuse(request, refusal)

    def _refuse(self, request: ConnectRequest, refusal: Refusal) -> Denied:
        user = "" if request.user_name is None else f" of user {shown_name(request.user_name)}"
        client = f"client {shown_name(request.client_id)}{user} at {request.address}"
        line = f"{client} failed to authenticate: {refusal.sentence}"
        self.failures.record(refusal.failure, line, address=request.address)
        return refusal.denied

    def _warn_of_ignored_credentials(self, request: ConnectRequest, peer: PeerInfo) -> None:
        if request.has_credentials and not self._has_warned:
            self._has_warned = True
            self._log(
                f"{peer.label} connects with a user name or password, which are not checked: this "
                "broker has no users, and the client is anonymous"
            )


def shown_name(name: str) -> str:
    """A name that a client chose, as a log line quotes it: in ASCII, and not too long."""
    return ascii(name if len(name) <= SHOWN_LENGTH else f"{name[:SHOWN_LENGTH]}…")


def _with_groups(identity: Identity, groups: tuple[str, ...]) -> Identity:
    return Identity(
        identity.client_id,
        user_name=identity.user_name,
        proof=identity.proof,
        certificate=identity.certificate,
        address=identity.address,
        listener=identity.listener,
        groups=groups,
        claims=identity.claims,
        expires_at=identity.expires_at,
    )
