"""The log of the broker, in which one user or one address can cause a bounded number of lines.

    fault                   about the broker itself: always written
    problem, connection     about one client: counted for its user, or for its address

The first lines of a user or an address in a minute are written at once. Further ones are counted,
and reported in one line when the minute is over. So a client that is refused, or breaks rules, a
thousand times a second neither fills the log nor hides what other clients do.
"""

from collections.abc import Callable
from typing import Final, final

from semel.broker.identity import Identity
from semel.broker.session_state import client_label

PERIOD_SECONDS: Final = 60.0
# How many users and addresses are distinguished at a time; the others share one count.
MAXIMUM_SOURCES: Final = 1_000
OTHERS: Final = "other clients"
# How many characters of the last suppressed line a summary quotes.
_QUOTED_CHARACTERS: Final = 300


def source_of(identity: Identity) -> str:
    """The user or the address for which lines about a client are counted."""
    user_name = identity.proved_user
    return address_source(identity.address) if user_name is None else user_source(user_name)


def user_source(user_name: str) -> str:
    """The source of lines about clients of a user."""
    return f"user {client_label(user_name)}"


def address_source(address: str) -> str:
    """The source of lines about clients that are anonymous or not connected yet."""
    return f"address {address}" if address else OTHERS


@final
class LineCount:
    """The lines of one user or address since `began`."""

    began: Final[float]
    written: int
    suppressed: int
    last: str

    def __init__(self, now: float) -> None:
        self.began = now
        self.written = 0
        self.suppressed = 0
        self.last = ""


@final
class ClientLines:
    """Log lines about clients, of which each source may cause `maximum` per minute; 0: any."""

    maximum: Final[int]
    _log: Final[Callable[[str], None]]
    # By source, in the order in which their minutes began.
    _counts: Final[dict[str, LineCount]]

    def __init__(self, log: Callable[[str], None], maximum: int) -> None:
        self.maximum = maximum
        self._log = log
        self._counts = {}

    def __len__(self) -> int:
        return len(self._counts)

    def log(self, source: str, line: str, now: float) -> None:
        """Write a line, or count it."""
        if not self.maximum:
            self._log(line)
            return
        self.flush(now)
        count = self._counts.get(source)
        if count is None and len(self._counts) >= MAXIMUM_SOURCES:
            source = OTHERS
            count = self._counts.get(source)
        if count is None:
            count = self._counts[source] = LineCount(now)
        if count.written < self.maximum:
            count.written += 1
            self._log(line)
        else:
            count.suppressed += 1
            count.last = line

    def flush(self, now: float) -> None:
        """Report what was counted in the minutes that are over. Call it once a second."""
        while self._counts:
            source = next(iter(self._counts))
            count = self._counts[source]
            if now < count.began + PERIOD_SECONDS:
                return
            del self._counts[source]
            self._report(source, count)

    def end(self) -> None:
        """Report what was counted so far."""
        counts = list(self._counts.items())
        self._counts.clear()
        for source, count in counts:
            self._report(source, count)

    def _report(self, source: str, count: LineCount) -> None:
        if count.suppressed:
            last = count.last.partition("\n")[0][:_QUOTED_CHARACTERS]
            lines = "line" if count.suppressed == 1 else "lines"
            self._log(
                f"… and {count.suppressed} more {lines} about {source} within"
                f" {PERIOD_SECONDS:g} s, such as: {last}"
            )


@final
class BrokerLog:
    """Writes lines about the broker and its clients."""

    _faults: Final[Callable[[str], None]]
    _problems: Final[ClientLines]
    _connections: Final[ClientLines]

    def __init__(
        self,
        log: Callable[[str], None],
        log_connection: Callable[[str], None],
        *,
        lines_per_minute: int,
    ) -> None:
        """`log` logs problems, `log_connection` that clients connect and leave."""
        self._faults = log
        self._problems = ClientLines(log, lines_per_minute)
        self._connections = ClientLines(log_connection, lines_per_minute)

    def fault(self, line: str) -> None:
        """Log a failure of the broker itself."""
        self._faults(line)

    def problem(self, source: str, line: str, now: float) -> None:
        """Log a problem of a client."""
        self._problems.log(source, line, now)

    def connection(self, source: str, line: str, now: float) -> None:
        """Log that a client has connected or left."""
        self._connections.log(source, line, now)

    def flush(self, now: float) -> None:
        """Once a second: report the lines that were suppressed."""
        self._problems.flush(now)
        self._connections.flush(now)

    def end(self) -> None:
        """The broker stops: report what was suppressed so far."""
        self._problems.end()
        self._connections.end()
