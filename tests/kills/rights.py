"""Users and rights of a broker that is killed, and the rights of some users that change meanwhile.

Each change is written to the file of rights or of users, in one step. It is *applied* when the
broker has logged its reload, or when it has ended, because the next one reads the files. Until then
nobody knows whether the old or the new rights count; so a user has periods in which its rights are
known, and moments between them in which anything may happen.
"""

import math
import time
from pathlib import Path
from random import Random

from tests.broker.core.test_access_password_hashes import mosquitto_2

# The user of all clients whose rights never change.
STEADY = "steady"
TOPICS = "load/#"

# Codes of CONNACK and DISCONNECT that a client gets whose user is unknown, or has lost its rights.
UNKNOWN_USER = (0x86, 0x04)
NOT_AUTHORIZED = 0x87

# What is done to a user whose rights are taken away.
NO_RULE = "no rule"  # no rule allows it to publish, or to subscribe: its subscriptions end
NO_RECEIVE = "no receive"  # its subscriptions stay, but messages are withheld
NO_USER = "no user"  # it is removed from the password file
KINDS = (NO_RULE, NO_RECEIVE, NO_USER)
PUBLISHER_KINDS = (NO_RULE, NO_USER)


class Period:
    """A time in which the rights of a user are known, from being applied until the next change."""

    def __init__(self, kind: str, begin: float) -> None:
        # How the rights were taken away; nothing: the user has them.
        self.kind = kind
        self.begin = begin
        self.end = math.inf

    @property
    def is_revoked(self) -> bool:
        return bool(self.kind)

    def covers(self, moment: float) -> bool:
        return self.begin <= moment < self.end


class Rights:
    """The files, and what is known of each user whose rights change."""

    def __init__(
        self,
        folder: Path,
        subscribers: tuple[str, ...],
        seed: int,
        *,
        publishers: tuple[str, ...] = (),
    ) -> None:
        users = (*subscribers, *publishers)
        self.publishers = publishers
        self.random = Random(f"{seed} rights")
        self.users_file = folder / "users"
        self.rights_file = folder / "rights.txt"
        self.config = folder / "semel.toml"
        # A quick hash: after each kill everybody comes back at once.
        self._hashes = {name: mosquitto_2(name.encode(), iterations=1) for name in (STEADY, *users)}
        # How the rights of each user are taken away in the files; nothing: it has them.
        self.kinds = dict.fromkeys(users, "")
        self.periods = {name: [Period("", 0.0)] for name in users}
        # Users with a change that is not applied yet.
        self.pending: set[str] = set()
        self._write()
        self.config.write_text(
            # Users who are removed try again and again, from the address of everybody.
            f'[users]\npassword_file = "{self.users_file}"\nfailures_per_minute = 0\n'
            f'[rights]\nfile = "{self.rights_file}"\n'
        )

    def arguments(self) -> tuple[str, ...]:
        """What `semel broker` needs. Other clients than ours may be anonymous."""
        return ("--config", str(self.config), "--anonymous")

    # --- for who changes them ------------------------------------------------------------------

    def change(self, user: str) -> None:
        """Take the rights of a user away, or give them back. That is not applied yet."""
        self.periods[user][-1].end = time.monotonic()
        kinds = PUBLISHER_KINDS if user in self.publishers else KINDS
        self.kinds[user] = "" if self.kinds[user] else self.random.choice(kinds)
        self.pending.add(user)
        self._write()

    def applied(self) -> None:
        """Whatever broker answers from now on has the rights of the files."""
        now = time.monotonic()
        for user in self.pending:
            self.periods[user].append(Period(self.kinds[user], now))
        self.pending.clear()

    def _write(self) -> None:
        rules = [f"allow user:{STEADY} all #", "allow anonymous all #"]
        for user, kind in self.kinds.items():
            if kind == NO_RECEIVE:
                rules.append(f"deny user:{user} receive {TOPICS}")
            if kind != NO_RULE:
                what = "publish" if user in self.publishers else "subscribe"
                rules.append(f"allow user:{user} {what} {TOPICS}")
        entries = [
            f"{name}:{hashed}"
            for name, hashed in self._hashes.items()
            if self.kinds.get(name) != NO_USER
        ]
        for path, lines in ((self.rights_file, rules), (self.users_file, entries)):
            new = path.with_suffix(".new")
            new.write_text("".join(f"{line}\n" for line in lines))
            new.chmod(0o600)
            new.replace(path)

    # --- for who is subject to them ------------------------------------------------------------

    def may_be_refused(self, user: str, code: int, asked: float) -> bool:
        """Whether a CONNACK or DISCONNECT with this code is right for a CONNECT of that moment."""
        period = self.now(user)
        # The answer may be older than the change.
        if period is None or not period.covers(asked) or period.kind == NO_USER:
            return code in (*UNKNOWN_USER, NOT_AUTHORIZED)
        # What was in flight cannot be sent again.
        return code == NOT_AUTHORIZED and period.is_revoked

    def now(self, user: str) -> Period | None:
        """The period that is now; None while a change is not applied."""
        last = self.periods[user][-1]
        return last if last.covers(time.monotonic()) else None

    def count(self, *, revoked: bool) -> int:
        """How often rights were taken away, or were given back."""
        return sum(
            each.is_revoked == revoked for periods in self.periods.values() for each in periods[1:]
        )
