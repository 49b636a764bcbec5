"""Clients whose rights are taken away and given back while the broker is killed.

What a subscriber may get is decided by when a message was first sent, by the periods of its rights,
and by when it subscribed:

    while its rights are taken away     no message that was sent since, and on a connection made
                                        since nothing at all; also not later, if the message was
                                        acknowledged before the rights were given back
    after a SUBACK, as long as it has   every message, in order, up to the last one that it got
    its rights                          then; if they are not taken away again, all of them
    of what waits when its rights are   what is in memory is dropped; the rest is decided when it is
    taken away                          read from disk, and comes if it has its rights again
    always                              nothing twice at QoS 2

A publisher without rights is refused, and nobody gets its messages.
"""

import math
import time
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kills import wire
from tests.kills.account import DUE, MAYBE, NEVER, REFUSED, Key, Named, Taker, Verdict
from tests.kills.clients import Publisher, Subscriber
from tests.kills.raw import FAILURE, OPEN, SUBSCRIBE_ID
from tests.kills.rights import NO_RECEIVE, NO_USER, NOT_AUTHORIZED, TOPICS, Period, Rights
from tests.kills.wire import V5, V311

if TYPE_CHECKING:
    from tests.kills.driver import Driver

# Client identifiers, which are also the names of their users, with their versions.
GUESTS = {"guest-5": V5, "guest-311": V311, "guest-late": V5, "guest-away": V5}
GUEST_PUBLISHERS = {"guest-p-5": V5, "guest-p-311": V311}
SUBSCRIPTION_REFUSED = {V311: 0x80, V5: NOT_AUTHORIZED}
# Seconds until a client that was refused tries again.
PAUSE = 0.1


class Window:
    """A time in which a guest has rights and a subscription."""

    def __init__(self, begin: float, period: Period) -> None:
        self.begin = begin
        self.period = period

    def covers(self, moment: float) -> bool:
        return self.begin <= moment < self.period.end


class Guest(Subscriber):
    """Subscribes whenever it may, and now and then when it may not."""

    def __init__(
        self,
        driver: "Driver",
        rights: Rights,
        name: str,
        *,
        at_once: bool = True,
        sleeps: bool = False,
    ) -> None:
        # No taker of the ledger: it does not get everything.
        taker = Taker(name, 2, (TOPICS.removesuffix("#"),))
        filters = [(TOPICS, 2)]
        super().__init__(driver, name, GUESTS[name], filters, taker, at_once=at_once, sleeps=sleeps)
        self.user = name
        self.rights = rights
        # Much is in flight when the rights change.
        self.laziness = 0.5
        self.thinking = 0.3
        self.own = taker
        self.windows: list[Window] = []
        # Of the SUBSCRIBE without an answer: what was known of the rights when it was sent.
        self.asking: Period | None = None
        self.is_asking = False
        self.connected_at = 0.0
        # When each message came first, and how many came in the last window.
        self.arrivals: dict[Key, float] = {}
        self.news = 0
        self.refused = 0

    # --- what it does --------------------------------------------------------------------------

    def will(self) -> wire.Will | None:
        # The moment just before its CONNECT is written.
        self.connected_at = time.monotonic()
        return None

    def begin(self, present: bool) -> None:
        self.is_asking = False
        if not present:
            self.subscribed = False

    def work(self, now: float) -> None:
        period = self.rights.now(self.user)
        last = self.windows[-1].period if self.windows else None
        if period is not last:
            self.subscribed = False
        wants = period is not None and not period.is_revoked and not self.subscribed
        if not self.is_asking and (wants or self.random.random() < 0.01):
            self.is_asking = True
            self.asking = period
            self.out += wire.subscribe(SUBSCRIBE_ID, self.filters, self.version)
        super().work(now)

    def answered(self, packet_id: int, codes: bytes, kind: int) -> None:
        self.is_asking = False
        period = self.rights.now(self.user)
        is_known = period is not None and period is self.asking
        granted = list(codes) == [qos for _, qos in self.filters]
        if not granted and codes[0] != SUBSCRIPTION_REFUSED[self.version]:
            self.fault("subscription refused", f"with {codes.hex()}")
        if not is_known or period is None:
            return
        # Who may not receive messages may still subscribe.
        may_subscribe = period.kind in ("", NO_RECEIVE)
        if granted and not may_subscribe:
            self.fault("subscribed though revoked", f"{period.kind}: {codes.hex()}")
        if not granted:
            self.refused += 1
            if may_subscribe:
                self.fault("subscription refused", f"though it has the rights: {codes.hex()}")
        elif not period.is_revoked and not self.subscribed:
            self.subscribed = True
            self.windows.append(Window(time.monotonic(), period))
            self.news = 0

    def may_be_refused(self, code: int) -> bool:
        self.next_attempt = self.driver.now + PAUSE
        return self.rights.may_be_refused(self.user, code, self.connected_at)

    def arrived(self, message: wire.Message, topic: str, named: Named) -> None:
        super().arrived(message, topic, named)
        now = time.monotonic()
        self.arrivals.setdefault(named.key, now)
        sent = self.ledger.sent.get(named.key)
        period = self.rights.now(self.user)
        if period is not None and period.is_revoked:
            if sent is not None and sent.begun >= period.begin:
                self.fault("sent and delivered while revoked", f"{period.kind}: {named.key}")
            elif self.connected_at >= period.begin:
                self.fault("delivered to a connection without rights", f"{named.key}")
        if self.windows and sent is not None and self.windows[-1].covers(sent.begun):
            self.news += 1

    # --- for who drives ------------------------------------------------------------------------

    def is_changeable(self) -> bool:
        """Whether its rights may change: if it has them, messages have come since."""
        period = self.rights.now(self.user)
        if period is None:
            return False
        if period.is_revoked:
            return True
        return bool(self.windows) and self.windows[-1].period is period and self.news > 0

    def is_done(self) -> bool:
        """Whether it gets what is sent now, if its rights do not change any more."""
        return super().is_done() and self.state == OPEN and self.subscribed

    def owed(self) -> list[Key]:
        """What it must have got and has not."""
        windows = list(self.windows)
        begins = [each.begin for each in windows]
        # Messages of one publisher and QoS in one window, in order.
        lines: dict[tuple[int, str, int], list[Key]] = {}
        for key, sent in list(self.ledger.sent.items()):
            if sent.qos and sent.fate is DUE and self.own.wants(sent):
                at = bisect_right(begins, sent.begun) - 1
                if at >= 0 and windows[at].covers(sent.begun):
                    lines.setdefault((at, key[0], sent.qos), []).append(key)
        found: list[Key] = []
        for (at, *_), keys in lines.items():
            end = len(keys)
            changed = windows[at].period.end
            if changed != math.inf:
                # Later ones may have waited on disk, or been sent again after the next change.
                got = [
                    place
                    for place, key in enumerate(keys)
                    if self.arrivals.get(key, math.inf) < changed
                ]
                end = max(got, default=-1) + 1
            found += [key for key in keys[:end] if key not in self.own.takes]
        return found

    def settle(self, verdict: Verdict) -> None:
        """What is wrong with all that it got."""
        ledger, taken = self.ledger, self.own.takes
        for key in self.owed():
            verdict.blame("lost", f"not taken by {self.name}: {ledger.tell(key)}")
        for key in self.own.again:
            sent = ledger.sent.get(key)
            if sent is not None and sent.qos != 1:
                verdict.blame("doubled", f"by {self.name}: {ledger.tell(key)}")
        for key, before in self.own.disorder:
            verdict.blame("out of order", f"{self.name}, after {before}: {ledger.tell(key)}")
        for key in taken:
            sent = ledger.sent.get(key)
            if sent is None:
                verdict.blame("never sent", f"{self.name}: {ledger.tell(key)}")
                continue
            for period in self.rights.periods[self.user]:
                if period.is_revoked and period.covers(sent.begun) and sent.done < period.end:
                    verdict.blame("sent while revoked", f"{self.name}: {ledger.tell(key)}")

    def withheld(self) -> int:
        """How many messages it did not get because its rights were taken away."""
        periods = [each for each in self.rights.periods[self.user] if each.is_revoked]
        return sum(
            key not in self.own.takes and any(each.covers(sent.begun) for each in periods)
            for key, sent in self.ledger.sent.items()
            if self.own.wants(sent)
        )


class GuestPublisher(Publisher):
    """Publishes whether it may or not, but less if it may not."""

    def __init__(self, driver: "Driver", rights: Rights, name: str) -> None:
        super().__init__(driver, name, GUEST_PUBLISHERS[name], (1, 2), window=10)
        self.user = name
        self.rights = rights
        self.connected_at = 0.0
        # The last period in which a message was accepted, or refused.
        self.seen: Period | None = None
        self.refusals = 0

    def will(self) -> wire.Will | None:
        self.connected_at = time.monotonic()
        return None

    def work(self, now: float) -> None:
        period = self.rights.now(self.user)
        is_allowed = period is not None and not period.is_revoked
        if is_allowed or self.random.random() < 0.05:
            super().work(now)

    def may_be_refused(self, code: int) -> bool:
        self.next_attempt = self.driver.now + PAUSE
        return self.rights.may_be_refused(self.user, code, self.connected_at)

    def decided(self, key: Key, reason: int) -> None:
        sent = self.ledger.sent[key]
        period = self.rights.now(self.user)
        # Whether it was sent, and answered, in one period.
        is_known = period is not None and period.covers(sent.begun)
        is_revoked = period is not None and period.is_revoked
        if is_known:
            self.seen = period
        if reason >= FAILURE:
            if reason != NOT_AUTHORIZED or (is_known and not is_revoked):
                self.fault("message refused", f"{key} with {reason:#x}")
        elif is_known and is_revoked and self.version == V5:
            self.fault("accepted though revoked", f"{key}")
        if reason < FAILURE and (self.version == V5 or (is_known and not is_revoked)):
            self.ledger.mark(key, "accepted", self.life, DUE)
            return
        # In 3.1.1 an acknowledgement does not say whether the message was accepted.
        self.refusals += 1
        self.driver.submitted -= 1
        is_never = is_known and is_revoked
        self.ledger.mark(key, REFUSED, self.life, NEVER if is_never else MAYBE)

    def is_changeable(self) -> bool:
        """Whether its rights may change: what they are has been seen."""
        period = self.rights.now(self.user)
        return period is not None and (period is self.seen or period.kind == NO_USER)


def invite(driver: "Driver", rights: Rights) -> list[Guest | GuestPublisher]:
    """One guest of each kind."""
    return [
        Guest(driver, rights, "guest-5"),
        Guest(driver, rights, "guest-311"),
        Guest(driver, rights, "guest-late", at_once=False),
        Guest(driver, rights, "guest-away", sleeps=True),
        *(GuestPublisher(driver, rights, name) for name in GUEST_PUBLISHERS),
    ]


def rights_of(folder: Path, seed: int) -> Rights:
    """The files for all guests."""
    return Rights(folder, tuple(GUESTS), seed, publishers=tuple(GUEST_PUBLISHERS))
