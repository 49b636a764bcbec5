"""Loads users and rights, at the start and again at a reload.

Everything is read and checked before anything takes effect, so that a mistake in a file changes
nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.broker.access.configured_authority import ConfiguredAuthority
from semel.broker.access.rights import Rights
from semel.broker.access.rights_loading import load_rights
from semel.broker.access.rights_rules import RightsError
from semel.broker.access.rights_settings import RightsSettings
from semel.broker.access.users import ConfiguredUsers, load_users
from semel.broker.access.users_settings import UsersSettings
from semel.extras import MissingExtra
from semel.settings import Settings, SettingsError


@dataclass(frozen=True)
class LoadedAccess:
    """Users and rights as their files describe them now."""

    users: ConfiguredUsers
    # None: clients that are let in may do everything.
    rights: Rights | None
    # The names of the listeners that let anonymous clients in.
    anonymous_listeners: frozenset[str]

    @property
    def has_users(self) -> bool:
        """Whether clients have to prove who they are."""
        return self.users.settings.has_users

    @property
    def rights_warnings(self) -> tuple[str, ...]:
        """Sentences for the operator about the file of the rights."""
        return () if self.rights is None else self.rights.warnings

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the operator about users and rights."""
        return (*self.users.warnings, *self.rights_warnings)

    def authority(self, log: Callable[[str], None]) -> ConfiguredAuthority:
        """The Authority that enforces them. Logs the warnings about both."""
        for warning in self.rights_warnings:
            log(warning)
        return ConfiguredAuthority(
            self.users, self.rights, anonymous_listeners=self.anonymous_listeners, log=log
        )


def open_access(listeners: Sequence[str]) -> LoadedAccess:
    """No users and no rights: every client may connect to these listeners, and do everything."""
    return LoadedAccess(ConfiguredUsers(UsersSettings()), None, frozenset(listeners))


def load_access(settings: Settings, listeners: Sequence[tuple[str, bool | None]]) -> LoadedAccess:
    """Load [users] and [rights]. Raises SettingsError with everything that is wrong.

    `listeners` are the names of all listeners, each with its key `anonymous`. Without that key, a
    listener lets anonymous clients in if the broker has no users; whether strangers could reach it
    is checked elsewhere.
    """
    problems: list[str] = []
    users = ConfiguredUsers(UsersSettings())
    rights: Rights | None = None
    try:
        users = load_users(settings.of(UsersSettings))
    except SettingsError as problem:
        problems += problem.problems
    except MissingExtra as problem:
        problems.append(str(problem))
    try:
        rights = load_rights(settings.of(RightsSettings))
    except RightsError as problem:
        problems += problem.problems
    if problems:
        raise SettingsError(problems)
    has_users = users.settings.has_users
    anonymous_listeners = frozenset(
        name for name, anonymous in listeners if anonymous or (anonymous is None and not has_users)
    )
    return LoadedAccess(users, rights, anonymous_listeners)
