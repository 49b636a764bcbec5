"""The users of a broker: everything by which clients prove who they are, as it was loaded.

`ConfiguredUsers` never change; a reload makes others. `decide` is slow and runs in a worker thread.

    the password is a token    ─▶ its signature and claims decide
    the file has the user      ─▶ the password file decides
    there is a hook            ─▶ the hook decides
    otherwise                  ─▶ refused, after a hash as costly as that of a real user
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from semel.broker.access.connect_request import ConnectRequest
from semel.broker.access.failures import (
    BAD_CREDENTIALS,
    BAD_TOKEN,
    HOOK_FAILED,
    HOOK_REFUSED,
    NO_CREDENTIALS,
)
from semel.broker.access.http_hook import HookDecision, HookFailed, HttpHook
from semel.broker.access.names import name_problem
from semel.broker.access.password_file import PasswordFile, load_password_file
from semel.broker.access.python_hook import PythonHook
from semel.broker.access.tokens import TokenRefused, TokenVerifier, is_token, load_tokens
from semel.broker.access.users_settings import UsersSettings
from semel.broker.access.verified_passwords import VerifiedPasswords
from semel.broker.authority import Denied
from semel.broker.identity import HOOK, PASSWORD, TOKEN, Identity
from semel.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    SERVER_UNAVAILABLE,
    UNSPECIFIED_ERROR,
)
from semel.settings import SettingsError

LOG: Final = logging.getLogger("semel.broker")


@dataclass(frozen=True)
class Refusal:
    """Why a client is refused: for the metrics, for the log, and for the client."""

    failure: str
    # Follows "client 'x' of user 'y' at z failed to authenticate: ".
    sentence: str
    denied: Denied


@dataclass(frozen=True)
class ConfiguredUsers:
    """What [users] describes. `warnings` are sentences for the operator, at start and reload."""

    settings: UsersSettings
    password_file: PasswordFile | None = None
    tokens: TokenVerifier | None = None
    hook: HttpHook | PythonHook | None = None
    warnings: tuple[str, ...] = ()

    def groups_of(self, user_name: str) -> tuple[str, ...]:
        """The groups of a user of the password file; of another one, none."""
        entry = None if self.password_file is None else self.password_file.users.get(user_name)
        return () if entry is None else entry.groups

    def has_user(self, user_name: str) -> bool:
        """Whether the password file has this user."""
        return self.password_file is not None and user_name in self.password_file.users

    def decide(
        self,
        request: ConnectRequest,
        *,
        allows_anonymous: bool = False,
        verified: VerifiedPasswords | None = None,
    ) -> Identity | Refusal:
        """Check the credentials of a client. Slow; called in a worker thread.

        A password that `verified` has is not checked again by the password file.
        """
        password, user_name = request.password, request.user_name
        if self.tokens is not None and password is not None and is_token(password):
            return self._decide_token(self.tokens, request, password)
        if user_name is not None and (self.hook is None or self.has_user(user_name)):
            if self.password_file is None:
                return _bad_credentials("only tokens are accepted, and its password is none")
            if password is None:
                return _bad_credentials("it sent no password")
            if self.password_file.verify(user_name, password, verified):
                groups = self.groups_of(user_name)
                return _identity(request, user_name, proof=PASSWORD, groups=groups)
            return _bad_credentials("unknown user or wrong password")
        if self.hook is None:
            return _bad_credentials("it sent a password without a user name")
        return self._ask_hook(self.hook, request, allows_anonymous=allows_anonymous)

    def _decide_token(
        self, tokens: TokenVerifier, request: ConnectRequest, token: bytes
    ) -> Identity | Refusal:
        denied = Denied(BAD_USER_NAME_OR_PASSWORD)
        try:
            found = tokens.verify(token)
        except TokenRefused as problem:
            return Refusal(BAD_TOKEN, f"its token {problem}", denied)
        if request.user_name not in (None, found.user_name):
            sentence = f"its token is that of user {found.user_name!a}"
            return Refusal(BAD_TOKEN, sentence, denied)
        return _identity(
            request,
            found.user_name,
            proof=TOKEN,
            groups=found.groups,
            claims=found.claims,
            expires_at=found.expires_at,
        )

    def _ask_hook(
        self, hook: HttpHook | PythonHook, request: ConnectRequest, *, allows_anonymous: bool
    ) -> Identity | Refusal:
        result: HookDecision | Identity | Denied | bool
        if isinstance(hook, HttpHook):
            try:
                result = hook.decide(request)
            except HookFailed as problem:
                return Refusal(HOOK_FAILED, str(problem), Denied(SERVER_UNAVAILABLE))
        else:
            try:
                result = hook.decide(request)
            # Also SystemExit, which would end the worker thread.
            except BaseException as problem:
                LOG.exception("the python_hook failed")
                sentence = f"the python_hook raised {type(problem).__name__}"
                return Refusal(HOOK_FAILED, sentence, Denied(UNSPECIFIED_ERROR))
        if isinstance(result, bool):
            result = HookDecision(is_allowed=result)
        if isinstance(result, Denied):
            return Refusal(HOOK_REFUSED, "the hook refused it", result)
        if isinstance(result, HookDecision):
            if not result.is_allowed:
                denied = Denied(BAD_USER_NAME_OR_PASSWORD)
                return Refusal(HOOK_REFUSED, "the hook refused it", denied)
            user_name = request.user_name if result.user_name is None else result.user_name
            result = _identity(request, user_name, proof=HOOK, groups=result.groups)
        else:
            # What the broker itself knows of the client is not for the hook to decide.
            result = _identity(
                request,
                result.user_name,
                proof=HOOK,
                groups=result.groups,
                claims=result.claims,
                expires_at=result.expires_at,
            )
        return _checked(result, allows_anonymous)


def _checked(identity: Identity, allows_anonymous: bool) -> Identity | Refusal:
    """The identity that a hook gave, unless nobody may have it."""
    if identity.user_name is None:
        if allows_anonymous:
            return identity
        return Refusal(NO_CREDENTIALS, "the hook gave it no user name", Denied(NOT_AUTHORIZED))
    problem = name_problem(identity.user_name)
    if problem is not None:
        sentence = f"its user name {problem}"
        return Refusal(BAD_CREDENTIALS, sentence, Denied(BAD_USER_NAME_OR_PASSWORD))
    return identity


def _bad_credentials(sentence: str) -> Refusal:
    return Refusal(BAD_CREDENTIALS, sentence, Denied(BAD_USER_NAME_OR_PASSWORD))


def _identity(
    request: ConnectRequest,
    user_name: str | None,
    *,
    proof: str,
    groups: tuple[str, ...],
    claims: Mapping[str, str] | None = None,
    expires_at: float | None = None,
) -> Identity:
    return Identity(
        request.client_id,
        user_name=user_name,
        proof=proof,
        certificate=request.certificate,
        address=request.address,
        listener=request.listener,
        groups=groups,
        claims=claims,
        expires_at=expires_at,
    )


def load_users(settings: UsersSettings) -> ConfiguredUsers:
    """Read the files and import the hook that the settings name.

    Raises SettingsError with everything that is wrong, and MissingExtra.
    """
    users = ConfiguredUsers(settings)
    problems: list[str] = []
    warnings: list[str] = []
    if settings.password_file is not None:
        try:
            found = load_password_file(settings.password_file)
            users = replace(users, password_file=found)
            warnings += found.warnings
            if settings.scram and not found.has_secret:
                warnings.append(
                    f"{settings.password_file}: has no SCRAM secret, so clients can find out which "
                    "users exist: add a user by `semel passwd add --scram`"
                )
        except SettingsError as problem:
            problems += problem.problems
    try:
        users = replace(users, tokens=load_tokens(settings))
    except SettingsError as problem:
        problems += problem.problems
    try:
        if settings.http_hook is not None:
            http_hook = HttpHook(settings)
            users = replace(users, hook=http_hook)
            if http_hook.warning is not None:
                warnings.append(http_hook.warning)
        elif settings.python_hook is not None:
            users = replace(users, hook=PythonHook(settings.python_hook))
    except SettingsError as problem:
        problems += problem.problems
    if problems:
        raise SettingsError(problems)
    return replace(users, warnings=tuple(warnings))
