"""Who uses the page: sessions of browsers, roles, and limits of attempts to log in.

A session is a random token in a cookie that scripts cannot read and other sites do not send, and a
second token that the page's own script sends with every request that changes something. Sessions
are in memory only, and so are the passwords with which they publish.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from semel.web.settings import ADMIN, WebSettings

MAXIMUM_SESSIONS: Final = 1_000
# A session ends after this time without a request.
IDLE_SECONDS: Final = 12 * 3600.0
# Failed attempts to log in from one address per minute, and the addresses that are counted.
ATTEMPTS: Final = 5
ATTEMPT_SECONDS: Final = 60.0
COUNTED_ADDRESSES: Final = 10_000
# Actions of one session per minute.
ACTIONS: Final = 120


@dataclass
class PageSession:
    """A browser that may see the page."""

    token: str
    csrf: str
    role: str
    # The user of the broker; None: nobody logs in here.
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    used_at: float = 0.0
    # When its last actions were.
    actions: list[float] = field(default_factory=list)


class Sessions:
    """All sessions of one server."""

    def __init__(
        self, settings: WebSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        # The one that was used last is the last one.
        self._sessions: OrderedDict[str, PageSession] = OrderedDict()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def find(self, token: str | None) -> PageSession | None:
        """The session of a cookie; None: there is none, or it has ended."""
        found = None if token is None else self._sessions.get(token)
        if found is None:
            return None
        now = self._clock()
        if now - found.used_at > IDLE_SECONDS:
            del self._sessions[found.token]
            return None
        found.used_at = now
        self._sessions.move_to_end(found.token)
        return found

    def open(self) -> PageSession:
        """A session without a user, where nobody logs in."""
        assert not self._settings.needs_login
        return self._add(PageSession(_token(), _token(), ADMIN))

    def log_in(self, user: str, password: str, role: str) -> PageSession:
        """A session of a user whom the broker has accepted."""
        return self._add(PageSession(_token(), _token(), role, user, password))

    def _add(self, session: PageSession) -> PageSession:
        session.used_at = self._clock()
        self._sessions[session.token] = session
        if len(self._sessions) > MAXIMUM_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def log_out(self, session: PageSession) -> None:
        """End a session."""
        self._sessions.pop(session.token, None)

    # --- limits -----------------------------------------------------------------------------------

    def may_try(self, address: str) -> bool:
        """Whether an address may try to log in now."""
        return len(self._recent(self._failures.get(address, []))) < ATTEMPTS

    def note_failure(self, address: str) -> None:
        """An attempt to log in has failed."""
        found = self._recent(self._failures.pop(address, []))
        self._failures[address] = [*found, self._clock()]
        if len(self._failures) > COUNTED_ADDRESSES:
            self._failures.popitem(last=False)

    def may_act(self, session: PageSession) -> bool:
        """Whether a session may act now; counts the action."""
        session.actions = self._recent(session.actions)
        if len(session.actions) >= ACTIONS:
            return False
        session.actions.append(self._clock())
        return True

    def _recent(self, times: list[float]) -> list[float]:
        since = self._clock() - ATTEMPT_SECONDS
        return [each for each in times if each > since]


def is_same(given: str | None, expected: str) -> bool:
    """Whether two tokens are the same, without telling how much of them is."""
    return given is not None and secrets.compare_digest(given.encode(), expected.encode())


def _token() -> str:
    return secrets.token_urlsafe(32)
